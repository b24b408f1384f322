"""Targets whose file holds the network itself: images in [0, 1] → features, without effssl."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from effssl.exporting.exported_file import ExportedFile
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.errors import RequestError, RunFailed
from effssl.runtime.progress import spinner

TOLERANCE = 1e-4  # difference between features of the file and the encoder, relative to max(1, largest feature)
BATCHES = (1, 3)  # batch sizes of the check; the file is traced with 2


class Program(nn.Module):
    """images N×C×S×S in [0, 1] → features N×dim."""

    mean: Tensor
    std: Tensor

    def __init__(self, loaded: LoadedEncoder) -> None:
        super().__init__()
        self.encoder = loaded.encoder
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(loaded.about[name]).view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Normalize, then encode."""
        return self.encoder((images - self.mean) / self.std)


def pt2(loaded: LoadedEncoder, file: str) -> ExportedFile:
    """A torch.export program; any batch size."""
    with spinner("exporting the program"), _trace_errors(loaded):
        program = torch.export.export(_program(loaded), (_images(loaded, 2),), dynamic_shapes=_any_batch())
        content = io.BytesIO()
        torch.export.save(program, content, extra_files={"effssl.json": json.dumps(loaded.about)})
        content.seek(0)
        run = torch.export.load(content).module()
    code = ["import torch", f'model = torch.export.load("{file}").module()']
    return ExportedFile(content.getvalue(), code, normalizes=True, checked=_compare(loaded, run))


def onnx(loaded: LoadedEncoder, file: str) -> ExportedFile:
    """An ONNX graph; any batch size."""
    try:
        import onnx  # noqa: F401  torch writes the graph with these two
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise RequestError(f"--to onnx needs {error.name}: pip install effssl[onnx]") from None
    with spinner("exporting the graph"), _trace_errors(loaded):
        program = torch.onnx.export(
            _program(loaded), (_images(loaded, 2),), dynamo=True, dynamic_shapes=_any_batch(), verbose=False,
            input_names=["images"], output_names=["features"],
        )  # fmt: skip
        assert program is not None
        program.model.metadata_props["effssl"] = json.dumps(loaded.about)
        content = program.model_proto.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()  # its default is all cores
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])

    code = ["import onnxruntime", f'session = onnxruntime.InferenceSession("{file}")']
    return ExportedFile(content, code, normalizes=True, checked=_compare(loaded, run))


def _program(loaded: LoadedEncoder) -> nn.Module:
    return Program(loaded).to(memory_format=torch.contiguous_format).eval()


def _images(loaded: LoadedEncoder, count: int) -> Tensor:
    g = torch.Generator().manual_seed(count)
    return torch.rand(count, loaded.pixels.channels, loaded.size, loaded.size, generator=g)


def _any_batch() -> dict[str, dict[int, torch.export.Dim]]:
    return {"images": {0: torch.export.Dim("batch")}}


@contextmanager
def _trace_errors(loaded: LoadedEncoder) -> Iterator[None]:
    """Silence torch's warnings, and turn any error of its tracers into a one-line RunFailed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RunFailed(f"torch cannot trace {loaded.about['encoder']}: {reason}") from error
    finally:
        logger.setLevel(level)


def _compare(loaded: LoadedEncoder, run: Callable[[Tensor], Tensor]) -> str:
    """Compare the features of a program with the encoder's, and fail if they differ."""
    worst = 0.0
    for count in BATCHES:
        images = _images(loaded, count)
        with torch.inference_mode():
            ours = loaded.encoder(loaded.normalized(images).contiguous(memory_format=torch.channels_last))
            theirs = run(images)
        worst = max(worst, float((ours - theirs).abs().max() / ours.abs().max().clamp(min=1)))
    if not worst <= TOLERANCE:  # NaN, too
        raise RunFailed(f"features of the exported file differ from the encoder's by {worst:.2g}; nothing was written")
    return f"Features of random images differ from those of effssl by at most {worst:.1g}."
