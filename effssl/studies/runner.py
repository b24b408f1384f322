"""Run a study: a plan with its cost, arms in processes of their own, nothing twice, and a failure stops nobody else.

effssl study run E06 --scale cpu --seeds 3 --jobs 2
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from effssl.config import merge, to_dict
from effssl.errors import RequestError, RunFailed, Stopped
from effssl.files import write_atomically
from effssl.objectives.expression import parse
from effssl.objectives.options import PRETEXT
from effssl.processes import die_with_parent
from effssl.progress import say, table
from effssl.recipes import names as recipes
from effssl.recipes import resolve
from effssl.studies.study import MEASURES, Arm, Study

SCALES = {
    "smoke": "seconds per arm, on digits: that everything works",
    "cpu": "minutes per arm, on 10,000 images and the small encoder",
    "paper": "the published setting",
}
# The paper's form of the task, whatever the CPU recipes do.
AS_PUBLISHED = {"rotation": {"size": 0.0, "scale": [0.0, 0.0], "update_stats": True}, "schedule": {"grow_from": 1.0}}
SMOKE = {
    "data": "digits",
    "subset": 96,
    "batch_size": 32,
    "image_size": 16,
    "health": {"every": 100, "bank": 32, "queries": 32},
}
CPU = {"data": "cifar10", "subset": 10_000, "health": {"every": 1000}}
CPU_POINTS = {
    "E03": (0, 20, 40, 60, 80, 90),
    "E04": (0, 20, 50, 80),
    "E07": (100, 200, 300, 600),
}  # of axes that are longer than time allows
CPU_EPOCHS: dict[str, float] = {"E07": 2, "E10": 4, "E19": 1.2}  # of an arm of full length; 6 where nothing is said
SMOKE_MEASURES: dict[str, dict[str, Any]] = {
    "linear": {"epochs": 2}, "probe-rotation": {"epochs": 1, "batch": 32}, "probe-contrastive": {"batch": 16},
    "semi": {"epochs": 1, "batch": 16}, "transfer": {"grid": 2, "max_iter": 5},
    "detect": {"schedule": 1e-5, "short_side": 32, "batch": 1, "proposals": 8, "limit": 4},
}  # fmt: skip
CPU_MEASURES: dict[str, dict[str, Any]] = {
    "probe-rotation": {"epochs": 10},
    "detect": {"schedule": 0.004, "short_side": 96, "batch": 1, "proposals": 64, "lr": 0.003},
}
OWN_DATA = {"cifar10": "", "cifar100": "", "imagenet100": "images", "imagenet1k": "images"}


@dataclass(frozen=True)
class Sources:
    """Data that cannot be fetched: folders that the user names."""

    images: str = ""  # in place of ImageNet: a folder with train/ and val/; at paper scale ImageNet itself
    voc: str = ""
    sets: str = ""  # folder or labelled set for transfer; comma-separated
    maps: str = ""  # saliency maps


NOTHING = Sources()


@dataclass(frozen=True)
class Job:
    """One run of one arm."""

    arm: Arm
    seed: int
    flags: Mapping[str, Any]
    measures: Mapping[str, Mapping[str, Any]]  # by name: protocol, settings, also, data
    folder: Path


@dataclass
class Outcome:
    """What became of a job."""

    job: Job
    values: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # measure → why
    seconds: float = 0.0
    flops: float = 0.0
    failed: str = ""


def substitute(study: Study, scale: str) -> str:
    """What stands in for the published data set and encoder at a scale, in words."""
    if scale == "smoke":
        return "the embedded digits, a few steps: figures mean nothing"
    if scale == "paper":
        return f"{study.data} as published"
    folder = study.data.startswith("imagenet")
    images = "a folder of photographs (Imagenette) at 48 or 64 pixels" if folder else "10,000 images of CIFAR-10"
    epochs = f"{CPU_EPOCHS.get(study.name, 6):g} epochs for {study.epochs}"
    return f"{images} in place of {study.data}, the small encoder, {epochs}"


def arms_at(study: Study, scale: str) -> list[Arm]:
    """All arms; at smoke scale two points of every axis, at CPU scale fewer, and none of a broken number of epochs."""
    if scale == "paper" or not study.axis:
        return list(study.arms)
    if scale == "cpu":
        points = CPU_POINTS.get(study.name)
        arms = [arm for arm in study.arms if arm.at is None or points is None or arm.at in points]
        return [arm for arm in arms if study.axis != "epochs" or whole(cpu_epochs(study, arm))]
    kept: list[Arm] = []
    for kind in dict.fromkeys(a.curve for a in study.arms):
        along = sorted((a for a in study.arms if a.curve == kind), key=lambda a: a.at or 0.0)
        kept += along[:1] + along[-1:] if len(along) > 1 else along
    return kept


def whole(epochs: float) -> bool:
    """Whether a number of epochs can be run as it is."""
    return epochs > 0.5 and abs(epochs - round(epochs)) < 1e-9


def cpu_epochs(study: Study, arm: Arm) -> float:
    """Epochs of an arm at CPU scale, before rounding."""
    return CPU_EPOCHS.get(study.name, 6) * arm.length


def settings(study: Study, arm: Arm, seed: int, scale: str, sources: Sources) -> dict[str, Any]:
    """The complete request of one run."""
    terms = list(parse(arm.objective))
    first = next((term for term in terms if term not in PRETEXT), terms[0])
    flags: dict[str, Any] = {"objective": arm.objective, "seed": seed}
    published = arm.data or study.data
    photographs = published.startswith("imagenet")
    if scale == "paper":
        name = arm.recipe or f"{published}-{first}"
        if name not in recipes():
            name = next(r for r in (f"imagenet100-{first}", f"cifar10-{first}") if r in recipes())
        flags |= {"recipe": name, "epochs": max(1, round(study.epochs * arm.length)), "data": published}
        if photographs:
            flags |= {"data": sources.images or published}
            flags |= {"classes": "imagenet100"} if published == "imagenet100" else {}
        flags = merge(flags, arm.flags)
    else:
        epochs = 1 if scale == "smoke" else max(1, round(cpu_epochs(study, arm)))
        flags |= {"recipe": f"cpu-{first}", "epochs": epochs}
        flags = merge(merge(flags, AS_PUBLISHED), SMOKE if scale == "smoke" else CPU)
        flags = merge(flags, arm.flags)
        puzzles = any("jigsaw" in parse(other.objective) for other in study.arms)  # all arms have the same size
        if scale == "cpu" and photographs:
            del flags["subset"]
            flags |= {"data": sources.images, "image_size": 64 if puzzles else 48}
        elif puzzles:
            flags["image_size"] = 64
        if flags.get("augment", {}).get("small"):
            flags = merge(flags, {"augment": {"small": 2, "small_size": 16, "small_scale": [0.05, 0.2]}})
    share = flags.get("augment", {}).get("saliency_share")
    if share is not None:
        crops = {"saliency": sources.maps} if share else {"saliency": "", "saliency_share": 1.0}
        flags = merge(flags, {"augment": crops})
    return flags


def jobs_of(study: Study, scale: str, seeds: int, out: Path, sources: Sources) -> list[Job]:
    """Every arm with every seed; a run's folder is named by the hash of its complete config."""
    if scale not in SCALES:
        raise RequestError(f"unknown scale {scale!r}; choose one of {', '.join(SCALES)}")
    if scale != "smoke" and study.data.startswith("imagenet") and not sources.images:
        raise RequestError(
            f"{study.name} needs --images, a folder of photographs with train/ and val/ of class folders"
            + (" (Imagenette will do)" if scale == "cpu" else " (ImageNet itself)")
        )
    jobs = []
    for arm in arms_at(study, scale):
        for seed in range(seeds):
            flags = settings(study, arm, seed, scale, sources)
            if "saliency_share" in arm.flags.get("augment", {}) and arm.at and not sources.maps:
                if scale != "smoke":
                    raise RequestError(
                        f"{study.name} needs --maps, saliency maps of the images (effssl saliency makes them)"
                    )
                flags = merge(flags, {"augment": {"saliency": "", "saliency_share": 1.0}})
            config = to_dict(resolve(flags).config)
            key = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]
            jobs.append(Job(arm, seed, flags, measures_of(study, arm, scale, sources), out / "arms" / f"{scale}-{key}"))
    return jobs


def measures_of(study: Study, arm: Arm, scale: str, sources: Sources) -> dict[str, dict[str, Any]]:
    """What is measured of each run, with the constants of the scale."""
    found = {}
    for name in study.measures:
        measure = MEASURES[name]
        more = {"smoke": SMOKE_MEASURES, "cpu": CPU_MEASURES, "paper": {}}[scale].get(measure.protocol, {})
        data = {"voc": sources.voc, "sets": sources.sets, "": ""}[measure.reads]
        if measure.reads == "sets" and scale == "smoke":
            data = "digits"
        if scale == "paper" and measure.protocol == "linear":
            more = {"setting": linear_setting(study, arm)}
        if scale == "paper" and measure.reads == "sets":
            more = {"sets": "all"}
        entry = {"protocol": measure.protocol, "settings": {**measure.settings, **more}, "also": measure.also}
        found[name] = entry | {"data": data, "reads": measure.reads}
    return found


def linear_setting(study: Study, arm: Arm) -> str:
    """The paper's linear probe for a method on a data set; base and base with rotation have the same."""
    first = next(iter(parse(arm.objective)))
    photographs = study.data.startswith("imagenet")
    settings = {"simsiam": "simsiam", "swav": "cached"} if not photographs else {"simclr": "simclr", "swav": "swav"}
    return settings.get(first, "cached")


# ---------------------------------------------------------------------------------------------------------------
# One job


def carry_out(job: Mapping[str, Any]) -> None:
    """Train and measure one run; what is there already is not done again."""
    from effssl.pretraining import execute

    folder = Path(job["folder"])
    folder.parent.mkdir(parents=True, exist_ok=True)
    run = execute(dict(job["flags"]), folder, "auto", quiet=True, report=False)
    scores: dict[str, Any] = {}
    for name, measure in job["measures"].items():
        if measured(folder).get(name, {}).get("by") == measure:
            continue
        entry: dict[str, Any] = {"by": measure}
        try:
            entry["value"] = figure(run, measure, scores)
        except RequestError as error:
            entry = {"missing": str(error)}  # it is tried again next time
        # Another study may measure the same run at the same time: what it added stays.
        write_atomically(folder / "measures.json", json.dumps(measured(folder) | {name: entry}, indent=1) + "\n")
    folder.with_suffix(".failed").unlink(missing_ok=True)


def measured(folder: Path) -> dict[str, dict[str, Any]]:
    """The figures of a run so far: by name, a value and what it was measured by, or why it is missing."""
    stored = folder / "measures.json"
    return json.loads(stored.read_text()) if stored.exists() else {}


def figure(run: Any, measure: Mapping[str, Any], scores: dict[str, Any]) -> float:
    """One figure of a finished run; several figures of one score are measured once."""
    if measure["protocol"] == "snr":
        values = [line["snr"] for line in run.metrics() if "snr" in line]
        if not values:
            raise RequestError("the run did not log its gradient's signal-to-noise ratio")
        return 1000 * sum(values) / len(values)
    if measure["reads"] and not measure["data"]:
        raise RequestError(f"needs --{measure['reads']}, a folder")
    if measure["also"] == "on_z" and not run.config.projector.layers:
        raise RequestError("has no projection")
    key = json.dumps([measure["protocol"], measure["settings"], measure["data"]], sort_keys=True)
    if key not in scores:
        sets = measure["data"].split(",") if measure["reads"] == "sets" else [measure["data"] or None]
        found = [run.evaluate(measure["protocol"], data, **measure["settings"]) for data in sets]
        scores[key] = found
    found = scores[key]
    if not measure["also"]:
        return sum(score.value for score in found) / len(found)
    if measure["also"] not in found[0].also:
        raise RequestError(f"{measure['protocol']} has no {measure['also']} here")
    return float(found[0].also[measure["also"]])


def outcome(job: Job) -> Outcome:
    """What a job's folder holds."""
    from effssl.run import Run

    failed, known = job.folder.with_suffix(".failed"), measured(job.folder)
    if failed.exists():
        return Outcome(job, failed=failed.read_text().strip())
    if not known or not Run(job.folder).finished:
        return Outcome(job, failed="not run")
    last = Run(job.folder).metrics()[-1]
    values = {n: known[n]["value"] for n, m in job.measures.items() if known.get(n, {}).get("by") == m}
    missing = {n: known[n]["missing"] for n in job.measures if "missing" in known.get(n, {})}
    return Outcome(job, values, missing, last["seconds"], last["flops"])


def finished(job: Job) -> bool:
    """Whether nothing is left to do."""
    found = outcome(job)
    return not found.failed and all(name in found.values for name in job.measures)


# ---------------------------------------------------------------------------------------------------------------
# All jobs


def gflop_of(job: Job) -> float:
    """Counted cost of a run's training, without running it: one step on torch's meta device."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from effssl.data import ArrayImages, Data
    from effssl.training.loop import Trainer

    config = resolve(dict(job.flags)).config
    size, batch = config.image_size or 32, config.batch_size
    labels = torch.arange(2 * batch) % 10
    pixels = torch.zeros(2 * batch, 3, size, size, dtype=torch.uint8)
    changes = {"image_size": size, "augment": {"saliency": ""}}
    plan = resolve(merge(dict(job.flags), changes))
    trainer = Trainer(plan, Data("zeros", ArrayImages(pixels, labels, list("0123456789"))), torch.device("meta"))
    with FlopCounterMode(display=False) as counter:
        trainer.step(next(iter(trainer.loader.epoch(0))))
    images = config.subset or {"cifar10": 50_000, "cifar100": 50_000}.get(config.data, 0)
    return counter.get_total_flops() / 1e9 / batch * images * config.epochs


def show_plan(study: Study, scale: str, jobs: list[Job], todo: list[Job]) -> None:
    """What will be run, and what it costs."""
    costs: dict[str, float] = {}
    for job in {job.arm.name: job for job in jobs}.values():
        costs[job.arm.name] = gflop_of(job)
    rows = [
        (arm, str(sum(j.arm.name == arm for j in jobs)), str(sum(j.arm.name == arm for j in todo)),
         f"{cost:,.0f}" if cost else "depends on --images")
        for arm, cost in costs.items()
    ]  # fmt: skip
    table(f"{study.name} {study.title}: {substitute(study, scale)}", ("arm", "runs", "to do", "GFLOP a run"), rows)


def run_study(
    study: Study, scale: str = "cpu", seeds: int = 1, jobs: int = 2, out: Path = Path("studies"),
    sources: Sources = NOTHING, plan: bool = True,
) -> list[Outcome]:  # fmt: skip
    """Run what is not there yet, `jobs` at a time (0: in this process), and return what all jobs came to."""
    every = jobs_of(study, scale, seeds, out, sources)
    todo = list({job.folder: job for job in every if not finished(job)}.values())
    if plan:
        show_plan(study, scale, every, todo)
    started = time.monotonic()
    threads = max(1, (os.cpu_count() or 1) // max(1, jobs))
    done = 0

    def one(job: Job) -> None:
        nonlocal done
        failed = job.folder.with_suffix(".failed")
        failed.unlink(missing_ok=True)
        request = {"flags": job.flags, "measures": job.measures, "folder": str(job.folder)}
        if jobs == 0:
            try:
                carry_out(request)
            except Stopped:
                raise
            except Exception as error:  # whatever it is, it stops nobody else
                write_atomically(failed, f"{error}\n")
        else:
            in_process(request, threads, failed)
        done += 1
        found = outcome(job)
        left = (time.monotonic() - started) / done * (len(todo) - done)
        text = found.failed or ", ".join(f"{name} {value:.2f}" for name, value in found.values.items())
        say(f"{done}/{len(todo)}  {job.arm.name}, seed {job.seed}: {text}  ({left / 60:.0f} min left)")

    if jobs == 0:
        for job in todo:
            one(job)
        return [outcome(job) for job in every]
    with ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(one, job) for job in todo]
        try:
            for future in running:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)  # those that run save themselves; those that wait are not begun
            raise
    return [outcome(job) for job in every]


def in_process(request: Mapping[str, Any], threads: int, failed: Path) -> None:
    """A job in a process of its own; what went wrong is kept in one line."""
    failed.parent.mkdir(parents=True, exist_ok=True)
    process = subprocess.run(
        [sys.executable, "-m", "effssl.studies.runner"], input=json.dumps(request), text=True, capture_output=True,
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
    )  # fmt: skip
    if process.returncode < 0:
        write_atomically(failed, f"killed by signal {-process.returncode}\n")
    elif process.returncode:
        lines = process.stderr.strip().splitlines() or [f"ended with code {process.returncode}"]
        write_atomically(failed, lines[-1] + "\n")


if __name__ == "__main__":
    die_with_parent(os.getppid())
    try:
        carry_out(json.load(sys.stdin))
    except (RequestError, RunFailed, Stopped) as error:
        print(error, file=sys.stderr)
        sys.exit(1)
