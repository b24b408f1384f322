"""One self-contained HTML page per run, per comparison of runs, per study. Collecting is separate from rendering.

summary.py    a run folder without its images        comparison.py  several runs side by side
sample.py     images and thumbnails                  study.py       the results.json of a study
embedding.py  map, clusters, neighbors, probe        page.py        a dict as HTML (page.html, page.css, *.js)
replay.py     the first training steps once more     watch.py       a run in the terminal
views.py      training views, examples of tasks
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from effssl.loading import load_run_encoder, open_run_data
from effssl.report.comparison import compare
from effssl.report.page import MARK, data_of, render
from effssl.report.study import read_study
from effssl.report.summary import summarize
from effssl.run import RunFolder
from effssl.runtime.errors import RequestError, RunFailed
from effssl.runtime.files import check_replaceable, check_writable, remove_leftovers, write_atomically
from effssl.runtime.private_paths import strip_message
from effssl.runtime.progress import say, silenced
from effssl.runtime.reading import describe, read_bytes, read_start
from effssl.runtime.versions import EFFSSL
from effssl.schema import flatten, read_yaml

if TYPE_CHECKING:
    from effssl.data import Data

__all__ = ["IMAGES", "gather", "refresh", "report_finished_run", "write_report"]

IMAGES = 1000
"""Images on the map."""
MOST_IMAGES = 6000  # more would make a page slow to open


def write_report(
    runs: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    *,
    images: int = IMAGES,
    device: str = "auto",
    shown: tuple[int, ...] = (),
) -> Path:
    """Write the report of a run, a comparison of several, or the report of a study, as one self-contained HTML file.

    The default file is `report.html` in the folder, or `comparison.html` in the current folder for several runs.
    `images` is the number of images sampled for the map, `shown` are the channels shown as red, green and blue.
    """
    folders = [Path(runs)] if isinstance(runs, (str, Path)) else [Path(folder) for folder in runs]
    folders = [folder.expanduser() for folder in folders]
    if not folders:
        raise RequestError("no run is given; use effssl report RUN, or several runs to compare them")
    default = Path("comparison.html") if len(folders) > 1 else folders[0] / "report.html"
    target = Path(out).expanduser() if out else default
    found = [] if len(folders) == 1 and _is_study(folders[0]) else [RunFolder(folder) for folder in folders]
    if len(found) == 1 and shown:
        replace(found[0].config.augment.pixels, shown=tuple(shown)).shown_channels()  # refuses those there are not
    _check_target(target)  # before anything slow
    if not found:
        content = render(read_study(folders[0]))
    elif len(found) > 1:
        content = render(compare(found))
    else:
        if not 0 <= images <= MOST_IMAGES:
            raise RequestError(f"--images is {images}; it must be between 0 (no map) and {MOST_IMAGES}")
        content = render(gather(found[0], images, device=device, shown=shown))
    write_atomically(target, content)
    return target


def report_finished_run(run: RunFolder, data: Data, quiet: bool = False) -> None:
    """Write the report at the end of training; an error in it is printed and does not fail the run."""
    target = run.report_path
    try:
        with silenced(quiet):
            content = render(gather(run, data=data, device=run.config.device))
        with run.locked():
            remove_leftovers(run.folder, target.name)
            write_atomically(target, content)
    except KeyboardInterrupt:
        say(f"the report was not written; write it with effssl report {run.folder}")
        return
    except Exception as error:
        say(f"the report could not be written ({type(error).__name__}: {error}); the run itself is complete")
        return
    if not quiet:
        say(f"report: {target}")


def refresh(run: RunFolder) -> None:
    """Add new scores to an existing report; its images stay as they are."""
    file = run.report_path
    data = data_of(read_bytes(file).decode("utf-8", "replace")) if file.is_file() else None
    # A page of another version may lack values that the template needs; a comparison saved here is not the run's page.
    if data is None or data["kind"] != "run" or data.get("effssl") != EFFSSL:
        return
    summary = summarize(run)
    if all(data.get(key) == summary[key] for key in ("epoch", "finished")):
        try:
            page = render(data | summary)
        except Exception as error:  # the template meets whatever a damaged page holds
            say(f"{file} is damaged ({describe(error)}); write it again with effssl report {run.folder}")
            return
        write_atomically(file, page)
    else:  # its images and notes belong to other weights
        say(f"{file} shows the run after epoch {data.get('epoch')}; update it with effssl report {run.folder}")


def _is_study(folder: Path) -> bool:
    return (folder / "results.json").is_file() and not (folder / "config.yaml").is_file()


def _check_target(target: Path) -> None:
    """Refuse a file that cannot be written, and one that is not a report."""
    if target.is_dir() or not target.parent.is_dir():
        raise RequestError(f"--out {target} cannot be written; it names a file in an existing folder")
    check_writable(target.parent)
    check_replaceable(target)
    if target.is_file() and MARK.encode() not in read_start(target, 1000):
        raise RequestError(f"{target} is not a report of effssl and is not overwritten; choose another --out")


def gather(
    run: RunFolder, images: int = IMAGES, data: Data | None = None, device: str = "auto", shown: tuple[int, ...] = ()
) -> dict[str, Any]:
    """All values of a run's page; if the images cannot be read, their sections are omitted and a note says why."""
    found: dict[str, Any] = {"kind": "run", "effssl": EFFSSL, **summarize(run), "notes": []}
    found |= {"parameters": None, "views": None, "tasks": [], "map": None}
    if not run.finished:
        found["notes"].append(
            f"This run is not finished: {found['epoch']} of {found['epochs']} epochs are done. "
            "Resume it with --resume auto."
        )
    if not images:
        return found
    try:
        found |= _image_sections(run, data or _open_data(run), images, device, shown)
    except (RequestError, RunFailed) as error:
        found["notes"].append(f"Images are not shown: {strip_message(str(error), _known_paths(run))}.")
    return found


def _known_paths(run: RunFolder) -> list[Path]:
    """The run folder and all paths in its configuration."""
    values = flatten(read_yaml(run.config_path)).values()
    return [run.folder, run.folder.resolve(), *(Path(value) for value in values if isinstance(value, str))]


def _open_data(run: RunFolder) -> Data:
    """The run's data set with exactly the images it was trained on, even if files were added since."""
    from effssl.data.listing import with_listed

    return with_listed(open_run_data(run), run.folder)


def _image_sections(run: RunFolder, data: Data, images: int, device: str, shown: tuple[int, ...]) -> dict[str, Any]:
    """The sections of a page that show images."""
    from effssl.network.loaded import LoadedEncoder
    from effssl.report.embedding import embed_sample
    from effssl.report.replay import first_batches, task_examples, trained_objective
    from effssl.report.sample import sample_images
    from effssl.report.views import task_section, view_grid
    from effssl.runtime.device import pick_device
    from effssl.training.checkpoint import load_checkpoint
    from effssl.training.metadata import encoder_metadata

    state = load_checkpoint(run.checkpoint_path)
    where = pick_device(device)
    objective = trained_objective(run, data, state, where)
    if run.finished:
        encoder = load_run_encoder(run).to(where)
    else:
        encoder = LoadedEncoder(objective.network.encoder, encoder_metadata(run.config)).eval()
    if shown:
        encoder.pixels = replace(encoder.pixels, shown=tuple(shown))
        encoder.pixels.shown_channels()  # refuses channels that there are not
    batches = first_batches(run, data.train, objective, where)
    examples = task_examples(objective, batches)
    found: dict[str, Any] = {
        "parameters": sum(p.numel() for p in encoder.parameters()),
        "views": view_grid(run, data, batches[0], encoder),
        "tasks": [task_section(name, some, encoder, state is not None) for name, some in examples.items()],
    }
    if run.finished or state is not None:
        found["map"] = embed_sample(encoder, sample_images(data, encoder, images)) | {"of": len(data.train)}
    return found
