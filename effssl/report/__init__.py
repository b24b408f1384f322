"""One self-contained HTML page per run, per comparison of runs, per study. Gathering is apart from drawing.

facts.py      a run's folder without its images      comparison.py  several runs side by side
sample.py     images and thumbnails                  study.py       a study's results.json
embedding.py  map, clusters, neighbors, probe        page.py        a dict becomes HTML (page.html, page.css, *.js)
views.py      what the network saw, rotation
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from effssl import __version__
from effssl.report.page import MARK, data_of, page
from effssl.run import Run
from effssl.runtime.errors import RequestError, RunFailed
from effssl.runtime.files import check_room, write_atomically
from effssl.runtime.progress import say

if TYPE_CHECKING:
    from effssl.data import Data

__all__ = ["IMAGES", "gather", "refresh", "write_report"]

IMAGES = 1000
"""Images on the map."""


def write_report(
    runs: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    *,
    images: int = IMAGES,
    device: str = "auto",
) -> Path:
    """Draw a run, compare several, or show a study's folder: one HTML file that needs no network.

    By default it is `report.html` in the folder, or `comparison.html` here for several runs. `images` is how many are
    sampled for the map.
    """
    folders = [Path(runs)] if isinstance(runs, (str, Path)) else [Path(folder) for folder in runs]
    folders = [folder.expanduser() for folder in folders]
    if not folders:
        raise RequestError("which run? effssl report RUN, or several to compare them")
    default = Path("comparison.html") if len(folders) > 1 else folders[0] / "report.html"
    target = Path(out).expanduser() if out else default
    found = [] if len(folders) == 1 and _is_study(folders[0]) else [Run(folder) for folder in folders]
    _refuse_strangers(target)  # before anything slow
    if not found:
        from effssl.report.study import study

        content = page(study(folders[0]))
    elif len(found) > 1:
        from effssl.report.comparison import compare

        content = page(compare(found))
    else:
        from effssl.report.sample import MOST

        if not 0 <= images <= MOST:
            raise RequestError(f"--images is {images}; it must be between 0 (no map) and {MOST}")
        content = page(gather(found[0], images, device=device))
    write_atomically(target, content)
    return target


def refresh(run: Run) -> None:
    """Bring a report that is there up to date with the run's scores; pictures stay as they were drawn."""
    from effssl.report.facts import facts

    file = run.folder / "report.html"
    data = data_of(file.read_text(encoding="utf-8", errors="replace")) if file.is_file() else None
    # An older page may lack what this one's drawing needs; a comparison that was put here is not the run's own page.
    if data is None or data["kind"] != "run" or data["drawn_by"] != __version__:
        return
    found = facts(run)
    if all(data[key] == found[key] for key in ("epoch", "finished")):
        write_atomically(file, page(data | found))
    else:  # its pictures and notes are of another network
        say(f"{file} shows the run as it was after epoch {data['epoch']}; effssl report {run.folder} draws it anew")


def _is_study(folder: Path) -> bool:
    return (folder / "results.json").is_file() and not (folder / "config.yaml").is_file()


def _refuse_strangers(target: Path) -> None:
    if target.is_dir() or not target.parent.is_dir():
        raise RequestError(f"--out {target} cannot be written; it names a file in a folder that exists")
    check_room(target.parent)
    if target.is_file() and MARK.encode() not in target.read_bytes()[:1000]:
        raise RequestError(f"{target} is not a report of effssl and is not overwritten; choose another --out")


def gather(run: Run, images: int = IMAGES, data: Data | None = None, device: str = "auto") -> dict[str, Any]:
    """All that a run's page shows; what cannot be had (images that are gone) is left out, and a note says so."""
    from effssl.report.facts import facts, without_places_of

    missing = dict.fromkeys(("weights", "views", "map", "rotation"))
    found: dict[str, Any] = {"kind": "run", "drawn_by": __version__, **facts(run), "notes": [], **missing}
    if not run.finished:
        found["notes"].append(
            f"This run is not finished: {found['epoch']} of {found['epochs']} epochs are done (--resume auto goes on)."
        )
    if not images:
        return found
    try:
        found |= _with_images(run, data or _data_of(run), images, device)
    except (RequestError, RunFailed) as error:
        found["notes"].append(f"Images are not shown: {without_places_of(run, str(error))}.")
    return found


def _data_of(run: Run) -> Data:
    """The run's data with the very images that it was trained on, whatever happened to their folder."""
    from effssl.data.folder import as_listed
    from effssl.data.sets import FolderImages

    data, listed = run.data(), run.folder / "images.npz"
    if isinstance(data.train, FolderImages) and listed.is_file():
        return replace(data, train=as_listed(data.train, listed))
    return data


def _with_images(run: Run, data: Data, images: int, device: str) -> dict[str, Any]:
    """The parts of a page that need images."""
    from effssl.network.loaded import LoadedEncoder, describe
    from effssl.report.embedding import embedding
    from effssl.report.sample import draw
    from effssl.report.views import objective_of, plan_of, seen, turned_probe
    from effssl.runtime.device import pick_device
    from effssl.training.checkpoint import load_checkpoint

    state = load_checkpoint(run.checkpoint_path)
    where = pick_device(device)
    objective = objective_of(run, data, state, where)
    if run.finished:
        encoder = run.encoder().to(where)
    else:
        encoder = LoadedEncoder(objective.network.encoder, describe(run.config)).eval()
    found: dict[str, Any] = {"weights": sum(p.numel() for p in encoder.parameters())}
    found |= seen(run, data, objective, state is not None, encoder)
    if run.finished or state is not None:
        sample = draw(data, encoder, images)
        found["map"] = embedding(encoder, sample) | {"of": len(data.train)}
        if "rotation" in plan_of(run).weights and not found.get("rotation"):
            found["rotation"] = turned_probe(encoder, sample)
    return found
