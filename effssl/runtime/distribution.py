"""Many processes as one: `torchrun --nproc-per-node 2 -m effssl pretrain …`.

Every process holds the whole network and its share of each batch. What a term compares over a batch is gathered, with
gradient, so that two processes with half the batch each compute what one process computes with all of it. Gradients are
averaged over processes; a loss over gathered values is the same on each of them, which gives the right sum.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from effssl.runtime.errors import RunFailed
from effssl.runtime.heartbeat import beating
from effssl.runtime.processes import die_with_parent

TIMEOUT = timedelta(minutes=10)  # a process may wait this long for another one, e.g. while that one writes a checkpoint


def started_by_torchrun() -> bool:
    """Whether this process is one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def restarted() -> bool:
    """Whether torchrun started the job again after it had lost a process."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def rank() -> int:
    """This process's number; 0 writes all files."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def local_rank() -> int:
    """This process's number on its machine: which GPU it takes."""
    return int(os.environ.get("LOCAL_RANK", "0"))


@contextmanager
def joined() -> Iterator[None]:
    """Join the other processes, if there are any; a lost one ends the run with a message."""
    if not started_by_torchrun() or dist.is_initialized():
        yield
        return
    die_with_parent(os.getppid())  # torchrun: without it nobody would restart or stop this process
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=TIMEOUT, **_meeting_point())
    try:
        with beating(_store, rank(), world()):
            yield
    except (RuntimeError, ValueError) as error:
        if is_lost(error):
            raise RunFailed(
                f"process {rank()} of {world()} lost contact with another one; the last checkpoint is intact, go on "
                "with --resume auto (torchrun --max-restarts does so by itself)"
            ) from error
        raise
    finally:
        dist.destroy_process_group()


def _meeting_point() -> dict[str, Any]:
    """Where processes meet: torchrun's store, in a place of this attempt's own.

    The store outlives a restart, and what it knows of the processes before would let those of now wait forever.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    return {"store": _store(), "rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}


def _store() -> dist.Store:
    """A new connection to the store, in this attempt's own place."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False, timeout=TIMEOUT)
    return dist.PrefixStore(f"effssl/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def is_lost(error: BaseException) -> bool:
    """Whether an error says that another process is gone."""
    if isinstance(error, dist.DistError):
        return True
    text = str(error).lower()
    return any(word in text for word in ("connection closed", "connection reset", "broken pipe", "timed out", "nccl"))


def barrier() -> None:
    """Wait for all processes."""
    if world() > 1:
        dist.barrier()


def share(total: int) -> slice:
    """The rows of a global batch that belong to this process."""
    each = total // world()
    return slice(rank() * each, (rank() + 1) * each)


class _Gather(torch.autograd.Function):
    """All processes' rows on every process, in order of rank; the gradient of a row is summed over processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(world())]
        dist.all_gather(parts, x.contiguous())
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        grad = grads[0].contiguous()
        dist.all_reduce(grad)
        return grad[rank()]


def gather(x: Tensor, groups: int = 1) -> Tensor:
    """Rows of all processes, with gradient, as one process would have them.

    x holds `groups` groups of rows one after another (first views, then second views): (groups·b)×… → (groups·B)×….
    """
    if world() == 1:
        return x
    grouped = x.reshape(groups, -1, *x.shape[1:])  # groups×b×…
    return _Gather.apply(grouped).transpose(0, 1).reshape(-1, *x.shape[1:])  # world×groups×b×… → (groups·B)×…


def gather_uneven(x: Tensor) -> Tensor:
    """Rows of all processes, however many each has; no gradient."""
    if world() == 1:
        return x
    counts = [torch.zeros(1, dtype=torch.long) for _ in range(world())]
    dist.all_gather(counts, torch.tensor([len(x)]))
    most = max(int(count) for count in counts)
    padded = torch.zeros(most, *x.shape[1:], dtype=x.dtype)
    padded[: len(x)] = x
    parts = [torch.empty_like(padded) for _ in range(world())]
    dist.all_gather(parts, padded)
    return torch.cat([part[: int(count)] for part, count in zip(parts, counts, strict=True)])


def mean_over_processes(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Figures of all processes as one."""
    if world() == 1 or not values:
        return values
    stacked = torch.stack([value.double() for value in values.values()])
    dist.all_reduce(stacked)
    return dict(zip(values, stacked / world(), strict=True))


def anywhere(flag: bool) -> bool:
    """Whether a flag is set on any process: all get the same answer."""
    if world() == 1:
        return flag
    told = torch.tensor([int(flag)])
    dist.all_reduce(told, op=dist.ReduceOp.MAX)
    return bool(told)


# ---------------------------------------------------------------------------------------------------------------
# Batch norm over all processes


class _Sum(torch.autograd.Function):
    """Sum over processes; so is its gradient, because every process's loss depends on the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        grad = grads[0].clone()
        dist.all_reduce(grad)
        return grad


class GlobalBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm whose statistics cover the batch of all processes, for CPU tensors, which torch's does not take."""

    def _check_input_dim(self, input: Tensor) -> None:
        assert input.dim() in (2, 4)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize by the statistics of all processes' batches; in eval mode by the running ones."""
        if not self.training:
            return super().forward(input)
        x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        dims = [d for d in range(x.dim()) if d != 1]
        count = x.new_tensor([x.numel() / x.shape[1]])
        # The variance from values near the mean of this process: a plain sum of squares would cancel in float32.
        center = _average(x.detach().mean(dims))
        y = x - _shaped(center, x)
        totals = _Sum.apply(torch.cat([count, y.sum(dims), y.square().sum(dims)]))
        n, shift, square = totals[0], totals[1 : 1 + x.shape[1]] / totals[0], totals[1 + x.shape[1] :] / totals[0]
        var = (square - shift.square()).clamp(min=0)
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                momentum = 0.1 if self.momentum is None else self.momentum
                self.running_mean.lerp_(center + shift, momentum)
                self.running_var.lerp_(var * (n / (n - 1)), momentum)
                if self.num_batches_tracked is not None:
                    self.num_batches_tracked.add_(1)
        scale = (var + self.eps).rsqrt()
        bias = -shift * scale
        if self.weight is not None:
            scale, bias = scale * self.weight, bias * self.weight + self.bias
        return (y * _shaped(scale, y) + _shaped(bias, y)).to(input.dtype)


def _average(x: Tensor) -> Tensor:
    dist.all_reduce(x)
    return x / world()


def _shaped(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (x.dim() - 2))


def synchronize_norms(module: nn.Module, cuda: bool) -> nn.Module:
    """Replace batch norm by one over all processes, except below modules that keep `own_statistics`."""
    if world() == 1 or getattr(module, "own_statistics", False):
        return module
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        kind = nn.SyncBatchNorm if cuda else GlobalBatchNorm
        made = kind(module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats)
        some = next(itertools.chain(module.parameters(), module.buffers()))
        made.to(some.device, some.dtype).load_state_dict(module.state_dict())
        for ours, theirs in zip(made.parameters(), module.parameters(), strict=True):
            ours.requires_grad_(theirs.requires_grad)
        return made.train(module.training)
    for name, child in module.named_children():
        setattr(module, name, synchronize_norms(child, cuda))
    return module
