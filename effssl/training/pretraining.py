"""From a request to a finished run folder: request → plan → claim → data → trainer → run."""

from __future__ import annotations

import dataclasses
import errno
import re
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from effssl.config import differences
from effssl.data import Data, open_data
from effssl.data.cache import open_cache
from effssl.data.hub import PREFIX
from effssl.data.joined import images_per_epoch
from effssl.data.listing import keep_lists, with_listed
from effssl.data.sources import absolute
from effssl.network.options import LARGEST_SIDE, patch_filters
from effssl.network.start import StartingWeights
from effssl.recipes.budgets import parse_budget
from effssl.recipes.resolve import Plan, resolve, uses_dial
from effssl.run import RunFolder
from effssl.runtime.device import pick_device
from effssl.runtime.distribution import (
    any_process,
    barrier,
    mean_over_ranks,
    process_group,
    rank,
    restarted,
    world_size,
)
from effssl.runtime.errors import RequestError, RunFailed
from effssl.runtime.files import check_writable, is_leftover, write_atomically
from effssl.runtime.memory import keep_freed_memory
from effssl.runtime.processor import avoid_broken_amx, relative_speed
from effssl.runtime.signals import Stop, catch_signals
from effssl.schema import merge, read_yaml
from effssl.several import split_sets
from effssl.training.budget import Budget, keep_earlier_choices
from effssl.training.fit_pixels import fit_pixels
from effssl.training.journal import Journal
from effssl.training.loop import train
from effssl.training.precision import choose_precision, keep_precision
from effssl.training.request import Request
from effssl.training.start import is_same_place, over_settings, read_start, settings_to_keep
from effssl.training.teacher import with_teachers
from effssl.training.trackers import tracker_names
from effssl.training.tracking import read_records
from effssl.training.trainer import Trainer

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what a disk says that takes no more
FOLDER_SIZE = 64  # default side of a view of a photograph in a CPU-budget run
SMALLEST_SIZE = 16  # smaller images are enlarged to this: encoders halve an image several times


@dataclass(frozen=True)
class ClaimedFolder:
    """A run's folder: a new one, one to resume, or one that is finished."""

    folder: Path
    run: RunFolder | None = None  # what is there already

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to train."""
        return self.run is not None and self.run.finished


def run_request(request: Request) -> tuple[RunFolder, Data | None]:
    """Carry out a request: the run's folder, and its data if it was trained now or has no report yet."""
    keep_freed_memory()
    with catch_signals() as stop, process_group(), Journal(request.quiet, writes=rank() == 0) as journal:
        started = time.monotonic() if request.started is None else request.started
        request = with_own_config(request)
        device = request_device(request)
        plan = make_plan(request, device)
        if device.type == "cpu" and plan.config.precision != "float32":
            avoid_broken_amx()
        budget = None if is_computed(plan) else request_budget(request, plan, started)
        claim = claim_folder(request, plan)
        journal.track(tracker_names(tuple(read_records(claim.folder))) if request.log is None else request.log)
        data = open_images(plan, claim)
        plan = fit_batch(request, plan, data, device)
        choose_size = not plan.config.image_size and not data.train.in_memory
        plan = fit_to_data(plan, data, claim.run)
        if plan.config.precision == "auto":
            plan = settle_precision(plan, claim, data, device, journal)
        if budget is not None and claim.run is not None and claim.finished:
            plan = keep_earlier_choices(plan, claim.run.config, choose_size)
        elif budget is not None:
            journal.say("timing some steps")
            plan = budget.fit(plan, data, device, choose_size, claim.run.config if claim.run else None)
        if claim.run is not None:
            plan = with_restarts(plan, request, claim.run)
            refuse_other_settings(claim.run, plan)
        if claim.run is not None and claim.finished and not is_longer(plan, claim.run):
            journal.say(f"{claim.folder} is finished")
            return claim.run, None if claim.run.report_path.exists() else data
        trainer = Trainer(plan, data, device)  # what cannot be built is refused before a folder is created
        if trainer.objective.start_note:
            plan = dataclasses.replace(plan, notes=[*plan.notes, trainer.objective.start_note])
        files = trainer.loader.decoded_files()
        trainer.loader.use_cache(open_cache(plan.config.cache, files, plan.config.epochs, journal.say))
        run = create_run(claim, plan, data, journal)
        with trainer.loader.kept_workers():
            train_run(trainer, run, journal, stop, budget)
    return run, data


# ---------------------------------------------------------------------------------------------------------------
# Plan


def with_own_config(request: Request) -> Request:
    """A request that names a run and no data means the settings of that run."""
    own = request.out / "config.yaml" if request.out is not None else None
    if request.resume != "auto" or "data" in request.flags or request.config or own is None or not own.is_file():
        return request
    return dataclasses.replace(request, config=own)


def request_device(request: Request) -> torch.device:
    """The device that was asked for, in the request or in its file."""
    wanted = request.flags.get("device")
    if not wanted and request.config is not None:
        wanted = read_yaml(request.config).get("device")
    return pick_device(str(wanted or "auto"))


def make_plan(request: Request, device: torch.device) -> Plan:
    """Resolve the request, with the weights it starts from; a run that is resumed keeps what was chosen before."""
    accelerator, flags = device.type != "cpu", dict(request.flags)
    plan = resolve(flags, request.config, accelerator, request_speed(request, device))
    before = earlier_run(request, plan)
    if before is not None and uses_dial(flags, request.config):
        flags["recipe"] = before.config.recipe
    start = None
    if plan.config.start_from or (before is not None and before.config.start_from):
        given = flags if "start_from" in flags or request.config is None else merge(read_yaml(request.config), flags)
        if before is not None:
            refuse_other_start(before, plan.config.start_from)
        if before is not None and before.checkpoint_path.is_file():  # it holds the weights
            settings = settings_to_keep(before.config)
        else:
            start = read_start(plan.config.start_from, given)
            settings = start.settings
            refuse_other_digest(start, plan.config.start_digest)
        flags = over_settings(settings, given, flags)
    if flags != request.flags:
        plan = dataclasses.replace(resolve(flags, request.config, accelerator), start=start)
    return with_teachers(plan, flags, before)


def earlier_run(request: Request, plan: Plan) -> RunFolder | None:
    """The run that the request resumes, if there is one."""
    folder = request.out or default_folder(plan)
    resumes = request.resume == "auto" or restarted()
    return RunFolder(folder) if resumes and (folder / "config.yaml").is_file() else None


def refuse_other_start(run: RunFolder, start_from: str) -> None:
    """A run is resumed from its own checkpoint: other starting weights are another run."""
    recorded = run.config.start_from
    if not is_same_place(start_from, recorded):
        began = f"started from {recorded}" if recorded else "started from random weights"
        wanted = f"from {start_from}" if start_from else "without --start-from"
        raise RequestError(f"{run.folder} was {began} and cannot be resumed {wanted}; choose another --out")


def refuse_other_digest(start: StartingWeights, recorded: str) -> None:
    """A configuration that names weights by their digest means those and no others."""
    if recorded and recorded != start.digest:
        raise RequestError(
            f"{start.source} has changed: its digest is {start.digest}, not {recorded} as in the configuration"
        )


def request_speed(request: Request, device: torch.device) -> float:
    """This machine's speed relative to the reference, where a time budget is to choose the recipe."""
    if device.type != "cpu" or not uses_dial(request.flags, request.config):
        return 1.0
    return world_size() * mean_over_ranks(relative_speed())


def is_computed(plan: Plan) -> bool:
    """Whether the encoder is computed from the images, with nothing to train."""
    return bool(patch_filters(plan.config.encoder))


def request_budget(request: Request, plan: Plan, started: float) -> Budget | None:
    """The time budget, if there is one."""
    if not plan.config.budget:
        return None
    if "epochs" in request.flags:
        raise RequestError("give --epochs or --budget: a time budget decides how many epochs there are")
    return Budget(parse_budget(plan.config.budget), started, request.report)


def fit_batch(request: Request, plan: Plan, data: Data, device: torch.device) -> Plan:
    """The plan with a batch that the images can fill, where nobody asked for another size."""
    before, count = plan.config.batch_size, images_per_epoch(data.train)
    given = request.flags if request.config is None else merge(read_yaml(request.config), request.flags)
    if before <= count or count < 4 or "batch_size" in given:
        return plan
    flags = {**request.flags, "batch_size": count // 4}
    plan = make_plan(dataclasses.replace(request, flags=flags), device)
    note = f"{count} images: batches of {plan.config.batch_size}, since {before} are more than there are"
    return dataclasses.replace(plan, notes=[*plan.notes, note])


def fit_to_data(plan: Plan, data: Data, before: RunFolder | None = None) -> Plan:
    """Fill in what only the opened images can tell: the size of a view, the pixels, an absolute path; refuse too few.

    `before` is the run that is resumed.
    """
    config, images = plan.config, data.train
    config = dataclasses.replace(config, data=absolute(config.data))
    if config.image_size == 0:
        photographs = (plan.start.image_size if plan.start else 0) or FOLDER_SIZE
        if before is not None and config.start_from:
            photographs = before.config.image_size
        size = min(LARGEST_SIDE, max(SMALLEST_SIZE, int(images.sizes.max()))) if images.in_memory else photographs
        config = dataclasses.replace(config, image_size=size)
    if len(images) < 2:
        raise RequestError(f"{data.name} has one image; training needs at least two, and many more to learn from")
    count = images_per_epoch(images)
    if config.batch_size > count:
        raise RequestError(
            f"batch size {config.batch_size} is larger than the set of {count} images; "
            f"use --batch-size {max(2, count // 4)}, for example"
        )
    return fit_pixels(dataclasses.replace(plan, config=config), images, before)


def settle_precision(plan: Plan, claim: ClaimedFolder, data: Data, device: torch.device, journal: Journal) -> Plan:
    """The plan with a precision in place of auto: that of an earlier attempt, or the better one on this machine."""
    if claim.run is not None:
        return keep_precision(plan, claim.run.config)
    journal.say("trying some steps in float32 and bf16")
    return choose_precision(plan, data, device)


# ---------------------------------------------------------------------------------------------------------------
# Folder


def claim_folder(request: Request, plan: Plan) -> ClaimedFolder:
    """Decide whether the run is new, resumed or finished; a folder with anything else in it is refused."""
    folder = request.out or default_folder(plan)
    there = (folder / "config.yaml").is_file()
    # A job that torchrun restarted resumes its own run; it does not touch one that it was refused.
    again = restarted() and any_process(rank() == 0 and there and RunFolder(folder).begun_by_this_job())
    if (request.resume == "auto" or again) and there:
        claim = ClaimedFolder(folder, RunFolder(folder))
    else:
        refuse_to_overwrite(folder)
        claim = ClaimedFolder(folder)
    if rank() == 0 and not claim.finished:
        check_writable(folder)
    return claim


def default_folder(plan: Plan) -> Path:
    """runs/<data>-<terms>-<seed>."""
    names = [Path(one.spec.removeprefix(PREFIX)).stem for one in split_sets(plan.config.data)]
    name = "-".join(re.sub(r"[{*?:].*", "", name).rstrip("-_. ") or "images" for name in names)  # no pattern, no split
    what = plan.config.encoder if is_computed(plan) else "+".join(plan.weights)
    return Path("runs") / f"{name}-{what}-{plan.config.seed}"


def refuse_to_overwrite(folder: Path) -> None:
    """A folder with anything in it is somebody's work."""
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"{folder} is a file; choose another --out")
    if folder.is_dir() and not all(is_leftover(path) for path in folder.iterdir()):
        if (folder / "config.yaml").is_file():
            if (folder / "encoder.safetensors").is_file():
                raise RequestError(f"the run {folder} exists and is finished; choose another --out")
            raise RequestError(f"the run {folder} exists; resume it with --resume auto, or choose another --out")
        raise RequestError(f"{folder} is not empty and not a run folder; choose another --out")


def is_longer(plan: Plan, run: RunFolder) -> bool:
    """Whether a finished run is to be trained for more epochs."""
    return run.finished and plan.config.epochs > run.config.epochs and not run.config.budget


def with_restarts(plan: Plan, request: Request, run: RunFolder) -> Plan:
    """The plan with the restarts of a run that was trained longer before, and with one more if it is to be now."""
    before, longer = run.config, is_longer(plan, run)
    if not (longer or before.schedule.restarts):
        return plan
    if longer and not run.checkpoint_path.is_file():
        raise RequestError(f"{run.folder} has no checkpoint to train on from; use --start-from with another --out")
    restarts = (*before.schedule.restarts, *([before.epochs] if longer else []))
    schedule = dataclasses.replace(plan.config.schedule, restarts=restarts)
    if "warmup_epochs" not in request.flags.get("schedule", {}):  # it may depend on the number of epochs
        schedule = dataclasses.replace(schedule, warmup_epochs=before.schedule.warmup_epochs)
    notes = [f"trained longer: {before.epochs} epochs become {plan.config.epochs}, with a warm restart of the schedule"]
    config = dataclasses.replace(plan.config, schedule=schedule)
    return dataclasses.replace(plan, config=config, notes=[*plan.notes, *(notes if longer else [])])


def refuse_other_settings(run: RunFolder, plan: Plan) -> None:
    """A run is resumed with the settings that it was started with; one that is trained longer has more epochs."""
    before = run.config
    if is_longer(plan, run):
        schedule = dataclasses.replace(before.schedule, restarts=plan.config.schedule.restarts)
        before = dataclasses.replace(before, epochs=plan.config.epochs, schedule=schedule)
    changed = differences(before, plan.config)
    if changed:
        raise RequestError(f"{run.folder} was started with other settings ({'; '.join(changed)}); choose another --out")


def create_run(claim: ClaimedFolder, plan: Plan, data: Data, journal: Journal) -> RunFolder:
    """The run's folder with its configuration and, of folders of images, the lists of what it is trained on."""
    barrier()  # all have seen the folder before it is created
    if claim.run is None and rank() == 0:
        RunFolder.create(claim.folder, plan.config)
    if rank() == 0:
        keep_lists(data.train, claim.folder)
    barrier()
    run = RunFolder(claim.folder)
    journal.open(run)
    for note in plan.notes:
        journal.say(note)
    report_unreadable(run, data, journal)
    config = plan.config
    terms = " + ".join(f"{weight:g}*{term}" for term, weight in plan.weights.items())
    how = f"{terms}, {config.epochs} epochs"
    if is_computed(plan):
        how = "computed from the images: nothing is trained, and the objective is not used"
    journal.say(f"{len(data.train)} images at {config.image_size} px, {config.encoder} encoder, {how}")
    return run


# ---------------------------------------------------------------------------------------------------------------
# Data


def open_images(plan: Plan, claim: ClaimedFolder) -> Data:
    """The data set; a resumed run gets the very images that it was started with."""
    config = plan.config
    data = open_data(config.data, config.labels, config.subset, config.classes)
    return data if claim.run is None else with_listed(data, claim.folder)


def report_unreadable(run: RunFolder, data: Data, journal: Journal) -> None:
    """Name the files that cannot be read and are left out."""
    if not data.unreadable or rank() != 0:
        return
    path = run.folder / "unreadable.txt"
    lines = [name.replace("\n", "\\n") for name in data.unreadable]  # a name may hold a line break
    write_atomically(path, ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape"))
    shown = ", ".join(data.unreadable[:5]) + (f" … (all in {path})" if len(data.unreadable) > 5 else "")
    journal.say(f"files that cannot be read and are left out ({len(data.unreadable)}): {shown}")


# ---------------------------------------------------------------------------------------------------------------
# Run


def train_run(trainer: Trainer, run: RunFolder, journal: Journal, stop: Stop, budget: Budget | None) -> None:
    """Train while holding the run's lock; a full disk becomes one line."""
    journal.say(f"on {trainer.device} → {run.folder}")
    try:
        with run.locked() if rank() == 0 else nullcontext():
            if rank() == 0 and run.config.epochs < trainer.config.epochs:
                run.reopen(trainer.config)
            train(trainer, run, journal, stop, budget)
    except OSError as error:
        if error.errno not in FULL:
            raise
        kept = "the last checkpoint is intact: " if run.checkpoint_path.is_file() else ""
        reason = f"{error.strerror} while writing {run.folder}"
        raise RunFailed(f"{reason}; {kept}free some space and use --resume auto") from error
