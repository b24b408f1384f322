"""The verb `export`: an encoder as a file for other software, and a model card beside it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from effssl.exporting.card import model_card
from effssl.exporting.exported_file import Exportable
from effssl.features.classifier_files import is_classifier_file, load_classifier
from effssl.loading import load
from effssl.run import RunFolder
from effssl.runtime.errors import RequestError, did_you_mean
from effssl.runtime.files import atomic_path, check_output, write_atomically, write_synced
from effssl.runtime.private_paths import strip_values
from effssl.runtime.progress import say

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from effssl.features.classifier import Classifier
    from effssl.network.foreign import LoadOptions
    from effssl.network.loaded import LoadedEncoder

# Target: suffix of its files, and the function of this package that exports to it.
TARGETS = {
    "torchvision": (".pth", "weights:torchvision"),
    "timm": (".timm.safetensors", "weights:timm"),
    "safetensors": (".safetensors", "weights:safetensors"),
    "onnx": (".onnx", "programs:onnx"),
    "pt2": (".pt2", "programs:pt2"),
}
PROGRAMS = ("onnx", "pt2")  # targets whose file computes something


def export(
    source: str | Path | RunFolder,
    to: str,
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    preprocess: str = "on",
    **options: Unpack[LoadOptions],
) -> Path:
    """Write an encoder for torchvision, timm, safetensors, onnx or pt2, with a model card; return the file's path.

    A classifier that `effssl.classify` saved becomes part of an onnx or pt2 file, which then gives probabilities, too.

    Args:
        source: a run or its folder, or any other source of `effssl.load`
        to: the target
        out: file to write; default <run><suffix of the target> in the current folder. The card is <out>.md
        overwrite: replace existing files
        preprocess: off: an onnx or pt2 file takes images that were cropped and resized before
        **options: `encoder`, `weights` and `image_size`, as in `effssl.load`
    """
    if to not in TARGETS:
        raise RequestError(f"there is no target {to!r}{did_you_mean(to, TARGETS)}; targets: {', '.join(TARGETS)}")
    if preprocess not in ("on", "off"):
        raise RequestError(f"preprocess is on or off, not {preprocess!r}")
    if preprocess == "off" and to not in PROGRAMS:
        raise RequestError(f"only {' and '.join(PROGRAMS)} files have preprocessing in them; leave out --preprocess")
    suffix, function = TARGETS[to]
    given = source.folder if isinstance(source, RunFolder) else source
    place = Path(given).expanduser()
    run = RunFolder(place) if place.is_dir() else None
    path = Path(out).expanduser() if out else Path(f"{_stem(place)}{suffix}")
    card_path = path.with_name(f"{path.name}.md")
    _check_paths(path, to, run.folder if run else place)
    for file in (path, card_path):
        check_output(file, overwrite)
    loaded = load(given, **options)
    if to in ("torchvision", "timm"):  # another library's network has no place for the whitening
        loaded = loaded.without_whitening()
    loaded.about = strip_values(loaded.about)
    resizes = preprocess == "on" and loaded.pixels.is_picture  # PIL resizes no other pixels
    exportable = Exportable(loaded, _classifier(place, loaded, to), resizes)
    module, _, name = function.partition(":")
    exported = getattr(importlib.import_module(f"effssl.exporting.{module}"), name)(exportable, path.name)
    with atomic_path(card_path, new=not overwrite) as temporary:
        write_synced(temporary, model_card(exportable, exported, path.name, to, run))
        write_atomically(path, exported.content, new=not overwrite)
    return path


def _classifier(file: Path, loaded: LoadedEncoder, to: str) -> Classifier | None:
    """The classifier of an encoder file, where it has one and the target a place for it."""
    if not is_classifier_file(file):
        return None
    if to not in PROGRAMS:
        say(f"a file for {to} holds the encoder only; the classifier goes into {' and '.join(PROGRAMS)}")
        return None
    return load_classifier(file, loaded.dim)


def _check_paths(path: Path, to: str, source: Path) -> None:
    """Refuse a wrong suffix (timm recognizes formats by it) and a file that would change the source."""
    suffix = f".{TARGETS[to][0].rpartition('.')[2]}"
    if path.suffix != suffix:
        raise RequestError(f"--out is {path}; the name of a file for {to} ends with {suffix}")
    if source.is_dir() and source.resolve() in path.resolve().parents:
        raise RequestError(f"{path} is inside the run folder, which export does not change; choose another --out")
    if source.is_file() and path.exists() and path.samefile(source):
        raise RequestError(f"{path} is the exported file itself; choose another --out")


def _stem(source: Path) -> str:
    """The default name of a file: that of the run, weight file or model."""
    return (source.resolve().name if source.is_dir() else source.stem).removeprefix("timm:")
