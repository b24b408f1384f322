"""Targets whose file holds the network itself: images → features (and probabilities), without effssl."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from effssl.augment.center import center_square
from effssl.data.decoding import least_side
from effssl.exporting import inputs
from effssl.exporting.exported_file import Exportable, ExportedFile
from effssl.runtime.errors import RequestError, RunFailed
from effssl.runtime.progress import spinner

TOLERANCE = 1e-4  # difference between outputs of the file and of effssl, relative to max(1, largest one)
BATCHES = (1, 3)  # batch sizes of the check; the file is traced with 2
SHOWN = 8  # features of the test image that a card holds

Outputs = tuple[Tensor, ...]  # features, and probabilities where there is a classifier


class Program(nn.Module):
    """Pictures N×H×W×3, or images N×C×S×S in [0, 1] → features N×dim, and probabilities N×classes."""

    mean: Tensor
    std: Tensor

    def __init__(self, source: Exportable) -> None:
        super().__init__()
        self.source = source
        self.encoder = source.loaded.encoder
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(source.loaded.about[name]).view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Outputs:
        """Crop and resize where that is part of the program; normalize, encode, classify."""
        loaded, classifier = self.source.loaded, self.source.classifier
        if self.source.preprocess:
            square = center_square(inputs.channels_first(images), loaded.size, loaded.share, loaded.filter)
            images = square / 255
        features = self.encoder((images - self.mean) / self.std)
        return (features,) if classifier is None else (features, classifier.predict(features))


def pt2(source: Exportable, file: str) -> ExportedFile:
    """A torch.export program."""
    with spinner("exporting the program"), _trace_errors(source):
        images, shapes = _example(source)
        program = torch.export.export(_program(source), (images,), dynamic_shapes=shapes)
        content = io.BytesIO()
        files = {"effssl.json": json.dumps(source.loaded.about)}
        if source.classifier is not None:
            files["classes.json"] = json.dumps(source.classifier.classes)
        torch.export.save(program, content, extra_files=files)
        content.seek(0)
        run = torch.export.load(content).module()
    code = ["import torch", f'model = torch.export.load("{file}").module()']
    outputs = ", ".join(_output_names(source)) + ("," if source.classifier is None else "")
    features = [
        "with torch.inference_mode():",
        f"    {outputs} = model(torch.from_numpy(numpy.array(images)))",
    ]
    return _exported(source, content.getvalue(), code, features, run)


def onnx(source: Exportable, file: str) -> ExportedFile:
    """An ONNX graph."""
    try:
        import onnx  # noqa: F401  torch writes the graph with these two
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise RequestError(f"--to onnx needs {error.name}: pip install effssl[onnx]") from None
    names = _output_names(source)
    with spinner("exporting the graph"), _trace_errors(source):
        images, shapes = _example(source)
        program = torch.onnx.export(
            _program(source), (images,), dynamo=True, dynamic_shapes=shapes, verbose=False,
            input_names=["images"], output_names=names,
        )  # fmt: skip
        assert program is not None
        least = least_side(source.loaded.size, source.loaded.share)
        program.model.metadata_props.update(effssl=json.dumps(source.loaded.about), least_side=str(least))
        if source.classifier is not None:
            program.model.metadata_props["classes"] = json.dumps(source.classifier.classes)
        content = program.model_proto.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()  # its default is all cores
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Outputs:
        return tuple(torch.from_numpy(x) for x in session.run(None, {"images": images.numpy()}))

    code = ["import onnxruntime", f'model = onnxruntime.InferenceSession("{file}")']
    outputs = ", ".join(names) + ("," if source.classifier is None else "")
    return _exported(source, content, code, [f'{outputs} = model.run(None, {{"images": images}})'], run)


def _program(source: Exportable) -> nn.Module:
    if source.classifier is not None:  # computed now, because it cannot be traced
        _ = getattr(source.classifier.head, "members", None)
    return Program(source).to(memory_format=torch.contiguous_format).eval()


def _output_names(source: Exportable) -> list[str]:
    return ["features"] if source.classifier is None else ["features", "probabilities"]


def _example(source: Exportable) -> tuple[Tensor, dict[str, dict[int, torch.export.Dim]]]:
    """Images to trace with, and which of their dimensions may vary."""
    batch, size = torch.export.Dim("batch"), source.loaded.size
    if not source.preprocess:
        return inputs.resized_images(source.loaded, 2), {"images": {0: batch}}
    shapes = {0: batch, 1: torch.export.Dim("height"), 2: torch.export.Dim("width")}
    return inputs.random_images(2, size + 5, size + 9), {"images": shapes}


def _checked_images(source: Exportable) -> list[Tensor]:
    """Images with which a file is compared with effssl."""
    size = source.loaded.size
    if not source.preprocess:
        return [inputs.resized_images(source.loaded, count) for count in BATCHES]
    return [inputs.random_images(*shape) for shape in inputs.sizes_of_examples(size)] + [inputs.reference_image()]


@contextmanager
def _trace_errors(source: Exportable) -> Iterator[None]:
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
        raise RunFailed(f"torch cannot trace {source.loaded.about['encoder']}: {reason}") from error
    finally:
        logger.setLevel(level)


def _ours(source: Exportable, images: Tensor) -> Outputs:
    """What effssl computes for the same images."""
    with torch.inference_mode():
        loaded = source.loaded
        x = loaded.preprocess(inputs.channels_first(images)) if source.preprocess else loaded.normalized(images)
        features = loaded.encoder(x.contiguous(memory_format=torch.channels_last))
        return (features,) if source.classifier is None else (features, source.classifier.predict(features))


def _exported(
    source: Exportable, content: bytes, code: list[str], features: list[str], run: Callable[[Tensor], Outputs]
) -> ExportedFile:
    """A program that was compared with effssl, with the code of its card."""
    loaded = source.loaded
    numpy = ["import numpy"]
    if source.preprocess:
        takes = inputs.ANY_SIZE
        pixels = [*numpy, "images = numpy.asarray(image)[None]  # N×H×W×3"]
        test = [inputs.reference_image_code(), *features, *_expected(source)]
    else:
        takes = f"float32 images in [0, 1], {inputs.resized_shape(loaded)}"
        pixels, test = inputs.resized_code(loaded), []
    return ExportedFile(
        content, code, takes, pixels, features, normalizes=True, resizes=source.preprocess,
        checked=_compare(source, run), test=test,
    )  # fmt: skip


def _expected(source: Exportable) -> list[str]:
    """Code that compares `features` of the test image with those of effssl."""
    features = _ours(source, inputs.reference_image())[0][0]
    numbers = ", ".join(f"{value:.6g}" for value in features[:SHOWN].tolist())
    tolerance = TOLERANCE * max(1.0, float(features.abs().max()))
    return [
        f"expected = [{numbers}]",
        f"assert abs(numpy.asarray(features[0][:{SHOWN}]) - expected).max() < {tolerance:.2g}",
    ]


def _compare(source: Exportable, run: Callable[[Tensor], Outputs]) -> str:
    """Compare the outputs of a program with effssl's, and fail if they differ."""
    worst = 0.0
    for images in _checked_images(source):
        with torch.inference_mode():
            theirs = run(images)
        for mine, other in zip(_ours(source, images), theirs, strict=True):
            worst = max(worst, float((mine - other).abs().max() / mine.abs().max().clamp(min=1)))
    if not worst <= TOLERANCE:  # NaN, too
        raise RunFailed(f"features of the exported file differ from the encoder's by {worst:.2g}; nothing was written")
    return f"Features of random images differ from those of effssl by at most {worst:.1g}."
