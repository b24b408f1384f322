"""The verb `pretrain`: from a request to a finished run folder."""

from __future__ import annotations

import dataclasses
import errno
import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from effssl.config import differences, read_yaml
from effssl.recipes import Plan, resolve
from effssl.run import Run
from effssl.runtime.errors import RequestError, RunFailed
from effssl.runtime.files import check_room, write_atomically
from effssl.runtime.memory import keep_freed_memory

if TYPE_CHECKING:
    from effssl.data import Data
    from effssl.runtime.signals import Stop

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what a disk says that takes no more
FOLDER_SIZE = 64  # default side of a view of a photograph in a CPU-budget run
SMALLEST_SIZE = 16  # smaller images are enlarged to this: encoders halve an image several times


def pretrain(
    data: str = "",
    objective: str | None = None,
    *,
    out: str | Path | None = None,
    resume: str = "never",
    config: str | Path | None = None,
    quiet: bool = False,
    report: bool = True,
    tensorboard: bool = False,
    **settings: Any,
) -> Run:
    """Pretrain an encoder and return its run.

    Settings are the fields of `effssl.config.Config`; those of a term come as a mapping:
    `pretrain("cifar10", "byol+rotation", epochs=20, rotation={"size": 16})`. A finished run gets its `report.html`
    unless told otherwise; `tensorboard` also writes event files into the run's folder.
    """
    flags = dict(settings)
    if data:
        flags["data"] = data
    if objective:
        flags["objective"] = objective
    return execute(flags, out, resume, config, quiet, report=report, tensorboard=tensorboard)


def execute(
    flags: dict[str, Any],
    out: str | Path | None = None,
    resume: str = "never",
    config: str | Path | None = None,
    quiet: bool = False,
    started: float | None = None,
    report: bool = True,
    tensorboard: bool = False,
) -> Run:
    """Carry out a request; `flags` holds only what was really said. A time budget counts from `started` on."""
    from effssl.runtime.distribution import joined, rank

    if resume not in ("never", "auto"):
        raise RequestError(f"resume is {resume!r}; choose never or auto")
    keep_freed_memory()
    from effssl.runtime.signals import listening

    with listening() as stop, joined():
        started, writes = time.monotonic() if started is None else started, rank() == 0
        report = report and os.environ.get("EFFSSL_REPORT", "on") != "off"
        run, data = _execute(flags, out, resume, config, quiet or not writes, stop, started, tensorboard, report)
    # Other processes are let go before the first one draws, and a signal now ends the drawing, not the finished run.
    if report and writes and data is not None:
        draw_report(run, data, quiet)
    return run


def draw_report(run: Run, data: Data, quiet: bool) -> None:
    """Write the run's report; whatever goes wrong with it, the run is finished and stays so."""
    from effssl.report import gather
    from effssl.report.page import page
    from effssl.runtime.progress import say, silenced

    target = run.folder / "report.html"
    try:
        with silenced(quiet):
            content = page(gather(run, data=data, device=run.config.device))
        write_atomically(target, content)
    except KeyboardInterrupt:
        say(f"the report is not drawn; effssl report {run.folder} does it")
        return
    except Exception as error:
        say(f"the report could not be drawn ({type(error).__name__}: {error}); the run itself is complete")
        return
    if not quiet:
        say(f"report: {target}")


def _execute(
    flags: dict[str, Any],
    out: str | Path | None,
    resume: str,
    config: str | Path | None,
    quiet: bool,
    stop: Stop,
    started: float,
    tensorboard: bool,
    report: bool,
) -> tuple[Run, Data | None]:
    """The run, and its data if it was trained now."""
    from effssl.data import open_data
    from effssl.data.folder import as_listed, write_list
    from effssl.data.sets import ArrayImages, FolderImages
    from effssl.runtime.device import pick_device
    from effssl.runtime.distribution import anywhere, barrier, rank, restarted
    from effssl.training.budget import Budget, as_chosen, parse_budget
    from effssl.training.display import Display
    from effssl.training.events import Events
    from effssl.training.loop import Trainer, train

    display = Display(quiet)
    file = Path(config) if config else None
    wanted = flags.get("device") or (read_yaml(file).get("device") if file else None)
    device = pick_device(str(wanted or "auto"))
    plan = resolve(flags, file, accelerator=device.type != "cpu")
    budget = Budget(parse_budget(plan.config.budget), started, report) if plan.config.budget else None
    if budget is not None and "epochs" in flags:
        raise RequestError("give --epochs or --budget: a time budget decides how many epochs there are")
    folder = Path(out) if out else default_folder(plan)
    there = (folder / "config.yaml").is_file()
    # A job that torchrun started again goes on with its own run; it does not touch one that it was refused.
    again = restarted() and anywhere(rank() == 0 and there and Run(folder).begun_by_this_job())
    going_on = (resume == "auto" or again) and there
    if not going_on:
        refuse_to_overwrite(folder)
    if rank() == 0 and not (going_on and Run(folder).finished):
        check_room(folder)
    opened = open_data(plan.config.data, plan.config.labels, plan.config.subset, plan.config.classes)
    listed = folder / "images.npz"
    if going_on and isinstance(opened.train, FolderImages) and listed.is_file():
        opened = dataclasses.replace(opened, train=as_listed(opened.train, listed))
    size_is_free = not plan.config.image_size and not isinstance(opened.train, ArrayImages)
    plan = fit_to_data(plan, opened)
    if len(opened.train) < 2:
        raise RequestError(f"{opened.name} has one image; training needs at least two, and many more to learn from")
    if plan.config.batch_size > len(opened.train):
        raise RequestError(
            f"batch size {plan.config.batch_size} is larger than the set of {len(opened.train)} images; "
            f"use --batch-size {max(2, len(opened.train) // 4)}, for example"
        )
    run = Run(folder) if going_on else None
    if budget is not None:
        said = set(flags) | set(read_yaml(file) if file else {})
        free = {"size": size_is_free, "task": not said & {"rotation", "recipe", "form"}}
        if run is not None and run.finished:
            plan = as_chosen(plan, run.config, free)
        else:
            display.say("timing some steps")
            plan = budget.choose(plan, opened, device, free, run.config if run is not None else None)
    if run is not None:
        changed = differences(run.config, plan.config)
        if changed:
            raise RequestError(f"{folder} was started with other settings ({'; '.join(changed)}); choose another --out")
        if run.finished:
            display.say(f"{folder} is finished")
            return run, None
    events = Events(folder) if tensorboard and rank() == 0 else None
    trainer = Trainer(plan, opened, device)  # what cannot be built is refused before a folder is made
    barrier()  # all have looked at the folder before it is made
    if run is None and rank() == 0:
        run = Run.create(folder, plan.config)
    if rank() == 0 and isinstance(opened.train, FolderImages) and not listed.is_file():
        write_list(opened.train, listed)
    barrier()
    run = run or Run(folder)
    for note in plan.notes:
        display.say(note)
    if opened.unreadable and rank() == 0:
        left_out = run.folder / "unreadable.txt"
        lines = [path.replace("\n", "\\n") for path in opened.unreadable]  # a name may hold a line break
        write_atomically(left_out, ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape"))
        shown = ", ".join(opened.unreadable[:5]) + (f" … (all in {left_out})" if len(opened.unreadable) > 5 else "")
        display.say(f"files that cannot be read and are left out ({len(opened.unreadable)}): {shown}")
    c, terms = plan.config, " + ".join(f"{weight:g}*{term}" for term, weight in plan.weights.items())
    display.say(f"{len(opened.train)} images at {c.image_size} px, {c.encoder} encoder, {terms}, {c.epochs} epochs")
    display.say(f"on {device} → {folder}")
    try:
        with run.locked() if rank() == 0 else nullcontext():
            train(trainer, run, display, stop, budget, events)
    except OSError as error:
        if error.errno not in FULL:
            raise
        reason = f"{error.strerror} while writing {folder}"
        raise RunFailed(f"{reason}; the last checkpoint is intact: make room and go on with --resume auto") from error
    return run, opened


def refuse_to_overwrite(folder: Path) -> None:
    """A folder with anything in it is somebody's work."""
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"{folder} is a file; choose another --out")
    if folder.is_dir() and any(folder.iterdir()):
        if (folder / "config.yaml").is_file():
            if (folder / "encoder.safetensors").is_file():
                raise RequestError(f"the run {folder} exists and is finished; choose another --out")
            raise RequestError(f"the run {folder} exists; go on with --resume auto, or choose another --out")
        raise RequestError(f"{folder} is not empty and not a run folder; choose another --out")


def default_folder(plan: Plan) -> Path:
    """runs/<data>-<terms>-<seed>."""
    name = Path(plan.config.data).stem or "images"
    return Path("runs") / f"{name}-{'+'.join(plan.weights)}-{plan.config.seed}"


def fit_to_data(plan: Plan, data: Any) -> Plan:
    """Fill in what only the opened images can tell: the size of a view, and where they lie, seen from anywhere."""
    from effssl.data import NAMED, ArrayImages

    config, source = plan.config, Path(plan.config.data).expanduser()
    if config.data not in NAMED:
        config = dataclasses.replace(config, data=str(source.resolve()))
    if config.image_size == 0:
        small = isinstance(data.train, ArrayImages)
        size = max(SMALLEST_SIZE, max(data.train.pixels.shape[-2:])) if small else FOLDER_SIZE
        config = dataclasses.replace(config, image_size=size)
    return dataclasses.replace(plan, config=config)
