"""The verb `export`: an encoder as a file that other people's software reads, and a card that says what it is."""

from __future__ import annotations

import importlib
from pathlib import Path

from effssl.run import Run, load
from effssl.runtime.errors import RequestError, did_you_mean
from effssl.runtime.files import check_output, without_places, write_atomically, written_beside

# Target: how its files end, and the function of this package that makes one.
TARGETS = {
    "torchvision": (".pth", "weights:torchvision"),
    "timm": (".timm.safetensors", "weights:timm"),
    "safetensors": (".safetensors", "weights:safetensors"),
    "onnx": (".onnx", "programs:onnx"),
    "pt2": (".pt2", "programs:pt2"),
}


def export(
    source: str | Path | Run,
    to: str,
    out: str | Path | None = None,
    *,
    encoder: str = "",
    weights: str = "default",
    image_size: int = 0,
    overwrite: bool = False,
) -> Path:
    """Write an encoder for torchvision, timm, safetensors, onnx or pt2, and a card beside it; return the file's path.

    Args:
        source: a run or its folder, or whatever else `effssl.load` takes
        to: the target
        out: file to write; default <run>.<target's ending> in the current folder. The card is <out>.md
        encoder: as in `effssl.load`
        weights: as in `effssl.load`
        image_size: as in `effssl.load`
        overwrite: write over an existing file
    """
    from effssl.exporting.card import card

    if to not in TARGETS:
        raise RequestError(f"there is no target {to!r}{did_you_mean(to, TARGETS)}; targets: {', '.join(TARGETS)}")
    ending, place = TARGETS[to]
    given = source.folder if isinstance(source, Run) else source
    folder = Path(given).expanduser()
    run = Run(folder) if folder.is_dir() else None
    path = Path(out).expanduser() if out else Path(f"{_stem(str(folder))}{ending}")
    suffix = f".{ending.rpartition('.')[2]}"
    if path.suffix != suffix:  # timm, for one, tells formats by the names of files
        raise RequestError(f"--out is {path}; the name of a file for {to} ends with {suffix}")
    about = path.with_name(f"{path.name}.md")
    for file in (path, about):
        check_output(file, overwrite)
    if run and run.folder.resolve() in path.resolve().parents:
        raise RequestError(f"{path} lies in the run's own folder, which stays as it is; choose another --out")
    if run is None and folder.exists() and path.exists() and path.samefile(folder):
        raise RequestError(f"{path} is what is exported; choose another --out")
    loaded = load(given, encoder, weights, image_size)
    loaded.about = without_places(loaded.about)
    module, _, function = place.partition(":")
    made = getattr(importlib.import_module(f"effssl.exporting.{module}"), function)(loaded, path.name)
    with written_beside(about, card(loaded, made, path.name, to, run), new=not overwrite):
        write_atomically(path, made.content, new=not overwrite)
    return path


def _stem(source: str) -> str:
    """A file's name after what it was made from: the run, the file or the model."""
    return (Path(source).resolve().name if Path(source).is_dir() else Path(source).stem).removeprefix("timm:")
