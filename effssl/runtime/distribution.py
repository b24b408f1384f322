"""Distributed data-parallel training: `torchrun --nproc-per-node 2 -m effssl pretrain …`.

Every process (rank) holds a replica of the network and its rows of each global batch. What a term compares across a
batch is gathered, with gradient, so that two processes with half the batch each compute what one process computes with
all of it. Gradients are averaged over processes; a loss over gathered values is the same on each of them, which gives
the right sum.
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
from effssl.runtime.heartbeat import heartbeats
from effssl.runtime.processes import check_environment, die_with_parent, environment_number
from effssl.runtime.reading import describe

TIMEOUT = timedelta(minutes=10)  # of a collective call, e.g. while rank 0 writes a checkpoint


def world_size_asked() -> int:
    """Number of processes that torchrun starts."""
    return environment_number("WORLD_SIZE", 1)


def started_by_torchrun() -> bool:
    """Whether this process is one of several."""
    return world_size_asked() > 1


def restarted() -> bool:
    """Whether torchrun restarted the job after it lost a process."""
    return environment_number("TORCHELASTIC_RESTART_COUNT", 0) > 0


def rank() -> int:
    """Rank of this process; rank 0 writes all files."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def local_rank() -> int:
    """Rank of this process on its machine, which is the index of its GPU."""
    return environment_number("LOCAL_RANK", 0)


@contextmanager
def process_group() -> Iterator[None]:
    """Join torchrun's process group, if there is one; a lost process ends the run with a message."""
    if not started_by_torchrun() or dist.is_initialized():
        yield
        return
    check_environment()
    die_with_parent(os.getppid())  # torchrun: without it nobody would restart or stop this process
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        dist.init_process_group(backend, timeout=TIMEOUT, **_rendezvous())
    except (RuntimeError, ValueError, OSError) as error:
        process, place = os.environ["RANK"], f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise RunFailed(
            f"process {process} of {world_size_asked()} did not find the others at {place} ({describe(error)}); "
            "start all of them with torchrun"
        ) from None
    try:
        with heartbeats(_store, rank(), world_size()):
            yield
    except (RuntimeError, ValueError) as error:
        if is_lost(error):
            raise RunFailed(
                f"process {rank()} of {world_size()} lost contact with another one; the last checkpoint is intact, "
                "resume with --resume auto (torchrun --max-restarts does so by itself)"
            ) from error
        raise
    finally:
        dist.destroy_process_group()


def _rendezvous() -> dict[str, Any]:
    """Arguments of `init_process_group`: torchrun's store, with a prefix per restart.

    The store outlives a restart, and entries of the earlier processes would let the new ones wait forever.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    return {"store": _store(), "rank": environment_number("RANK", 0), "world_size": world_size_asked()}


def _store() -> dist.Store:
    """A new connection to torchrun's store, with the prefix of this restart."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False, timeout=TIMEOUT)
    return dist.PrefixStore(f"effssl/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def is_lost(error: BaseException) -> bool:
    """Whether an error means that another process is gone."""
    if isinstance(error, dist.DistError):
        return True
    text = str(error).lower()
    return any(word in text for word in ("connection closed", "connection reset", "broken pipe", "timed out", "nccl"))


def barrier() -> None:
    """Wait for all processes."""
    if world_size() > 1:
        dist.barrier()


def local_rows(total: int) -> slice:
    """The rows of a global batch of `total` that this process computes."""
    count = total // world_size()
    return slice(rank() * count, (rank() + 1) * count)


class _Gather(torch.autograd.Function):
    """All-gather in order of rank; the gradient of a row is summed over processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        grad = grads[0].contiguous()
        dist.all_reduce(grad)
        return grad[rank()]


def gather(x: Tensor, dim: int = 0) -> Tensor:
    """The rows of all processes along a dimension, with gradient, as one process would have them: …×b×… → …×B×…."""
    if world_size() == 1:
        return x
    return _Gather.apply(x).movedim(0, dim).flatten(dim, dim + 1)  # world×…×b×… → …×world×b×…


def gather_uneven(x: Tensor) -> Tensor:
    """All-gather of rows whose number differs between processes; no gradient."""
    if world_size() == 1:
        return x
    counts = [torch.zeros(1, dtype=torch.long) for _ in range(world_size())]
    dist.all_gather(counts, torch.tensor([len(x)]))
    largest = max(int(count) for count in counts)
    padded = torch.zeros(largest, *x.shape[1:], dtype=x.dtype)
    padded[: len(x)] = x
    parts = [torch.empty_like(padded) for _ in range(world_size())]
    dist.all_gather(parts, padded)
    return torch.cat([part[: int(count)] for part, count in zip(parts, counts, strict=True)])


def mean_over_processes(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Average metrics over all processes."""
    if world_size() == 1 or not values:
        return values
    stacked = torch.stack([value.double() for value in values.values()])
    dist.all_reduce(stacked)
    return dict(zip(values, stacked / world_size(), strict=True))


def mean_over_ranks(value: float) -> float:
    """The mean over processes, so that all decide alike."""
    return float(mean_over_processes({"": torch.tensor(float(value), dtype=torch.float64)})[""])


def any_process(flag: bool) -> bool:
    """Whether a flag is set on any process; the result is the same on all."""
    if world_size() == 1:
        return flag
    flags = torch.tensor([int(flag)])
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return bool(flags)


# ---------------------------------------------------------------------------------------------------------------
# Synchronized batch norm


class _Sum(torch.autograd.Function):
    """All-reduce (sum); its gradient is summed as well, because every process's loss depends on the sum."""

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
    """Synchronized batch norm for CPU tensors, which torch's SyncBatchNorm does not support."""

    def _check_input_dim(self, input: Tensor) -> None:
        assert input.dim() in (2, 4)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize by the statistics of the global batch; in eval mode by the running statistics."""
        if not self.training:
            return super().forward(input)
        x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        dims = [d for d in range(x.dim()) if d != 1]
        count = x.new_tensor([x.numel() / x.shape[1]])
        # Values are centered before they are squared: a plain sum of squares would cancel in float32.
        center = _average(x.detach().mean(dims))
        y = x - _per_channel(center, x)
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
        return (y * _per_channel(scale, y) + _per_channel(bias, y)).to(input.dtype)


def _average(x: Tensor) -> Tensor:
    dist.all_reduce(x)
    return x / world_size()


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (x.dim() - 2))


def convert_sync_batchnorm(module: nn.Module, cuda: bool) -> nn.Module:
    """Replace batch norm by synchronized batch norm, except in modules with `own_statistics`."""
    if world_size() == 1 or getattr(module, "own_statistics", False):
        return module
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        kind = nn.SyncBatchNorm if cuda else GlobalBatchNorm
        synced = kind(module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats)
        reference = next(itertools.chain(module.parameters(), module.buffers()))
        synced.to(reference.device, reference.dtype).load_state_dict(module.state_dict())
        for parameter, original in zip(synced.parameters(), module.parameters(), strict=True):
            parameter.requires_grad_(original.requires_grad)
        return synced.train(module.training)
    for name, child in module.named_children():
        setattr(module, name, convert_sync_batchnorm(child, cuda))
    return module
