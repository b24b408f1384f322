"""What a study runs at a scale: the complete request of every arm, what is measured of it, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from effssl.config import digest, merge
from effssl.objectives.expression import parse
from effssl.objectives.options import PRETEXT
from effssl.recipes import names as recipes
from effssl.recipes import read, resolve
from effssl.runtime.errors import RequestError
from effssl.runtime.progress import say, table
from effssl.studies.study import MEASURES, Arm, Study

SCALES = {
    "smoke": "seconds per arm, on digits: that everything works",
    "cpu": "minutes per arm, on 10,000 images and the small encoder",
    "paper": "the published setting",
}
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
CPU_EPOCHS: dict[str, float] = {
    "E07": 2,
    "E10": 4,
    "E19": 1.2,
    "C05": 4,
}  # of an arm of full length; 6 where nothing is said
SMOKE_MEASURES: dict[str, dict[str, Any]] = {
    "linear": {"epochs": 2}, "probe-rotation": {"epochs": 1, "batch": 32}, "probe-contrastive": {"batch": 16},
    "semi": {"epochs": 1, "batch": 16}, "transfer": {"grid": 2, "max_iter": 5},
    "detect": {"schedule": 1e-5, "short_side": 32, "batch": 1, "proposals": 8, "limit": 4},
}  # fmt: skip
CPU_MEASURES: dict[str, dict[str, Any]] = {
    "probe-rotation": {"epochs": 10},
    "detect": {"schedule": 0.004, "short_side": 96, "batch": 1, "proposals": 64, "lr": 0.003},
}


@dataclass(frozen=True)
class Sources:
    """Data that cannot be fetched: folders that the user names."""

    images: str = ""  # in place of ImageNet: a folder with train/ and val/; at paper scale ImageNet itself
    voc: str = ""
    sets: str = ""  # folder or labelled set for transfer; comma-separated
    maps: str = ""  # saliency maps


NOTHING = Sources()
IMAGES = {"cifar10": 50_000, "cifar100": 50_000, "imagenet100": 126_689, "imagenet1k": 1_281_167}


@dataclass(frozen=True)
class Job:
    """One run of one arm."""

    arm: Arm
    seed: int
    flags: Mapping[str, Any]
    measures: Mapping[str, Mapping[str, Any]]  # by name: protocol, settings, also, data
    folder: Path


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
    """All arms; at CPU scale fewer points of some axes, and none of a broken number of epochs."""
    if scale != "cpu" or not study.axis:
        return list(study.arms)
    points = CPU_POINTS.get(study.name)
    arms = [arm for arm in study.arms if arm.at is None or points is None or arm.at in points]
    return [arm for arm in arms if study.axis != "epochs" or whole(cpu_epochs(study, arm))]


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
        flags |= {
            "recipe": name,
            "epochs": max(1, round(study.epochs * arm.length)),
            "data": published,
            "form": "paper",
        }
        if photographs:
            flags |= {"data": sources.images or published}
            flags |= {"classes": "imagenet100"} if published == "imagenet100" else {}
        efficient = read(f"cpu-{first}").get("efficient", {}) if arm.flags.get("form") == "efficient" else {}
        # The batch and lr of a short run are nothing for the published one.
        efficient = {key: value for key, value in efficient.items() if key not in ("batch_size", "lr")}
        flags = merge(merge(flags, efficient), {key: value for key, value in arm.flags.items() if key != "form"})
    else:
        epochs = 1 if scale == "smoke" else max(1, round(cpu_epochs(study, arm)))
        flags |= {"recipe": f"cpu-{first}", "epochs": epochs}
        flags = merge(merge(flags, {"form": "paper"}), SMOKE if scale == "smoke" else CPU)
        flags = merge(flags, arm.flags)
        puzzles = any("jigsaw" in parse(other.objective) for other in study.arms)  # all arms have the same size
        if scale == "cpu" and photographs:
            del flags["subset"]
            flags |= {"data": sources.images, "image_size": 64 if puzzles else 48}
        elif puzzles:
            few = {"subset": 32, "batch_size": 16, "encoder": "small-4", "jigsaw": {"permutations": 10}}
            flags = merge(flags, {"image_size": 64, **(few if scale == "smoke" else {})})
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
            folder = out / "arms" / f"{scale}-{digest(resolve(flags).config)}"
            jobs.append(Job(arm, seed, flags, measures_of(study, arm, scale, sources), folder))
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


def gflop_per_image(job: Job) -> float:
    """Counted cost of training on one image once, without running anything: steps on torch's meta device.

    One step stands for all, or twenty over the run where views grow.
    """
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
    points = trainer.position.total = 20 if config.schedule.grow_from < 1 else 1
    with FlopCounterMode(display=False) as counter:
        for point in range(points):
            trainer.step(next(iter(trainer.loader.epoch(point // trainer.loader.steps, point % trainer.loader.steps))))
    return counter.get_total_flops() / 1e9 / batch / points


def gflop_of(job: Job) -> float:
    """Counted cost of a run's training."""
    from effssl.data import open_data

    config = resolve(dict(job.flags)).config
    images = config.subset or IMAGES.get(config.data) or len(open_data(config.data, classes=config.classes).train)
    return gflop_per_image(job) * images * config.epochs


def show_plan(study: Study, scale: str, jobs: list[Job], todo: list[Job], seconds_per_gflop: float | None) -> None:
    """What will be run, and what it costs; in time too where finished runs tell how fast this machine is."""
    costs: dict[str, float] = {}
    for job in {job.arm.name: job for job in jobs}.values():
        costs[job.arm.name] = gflop_of(job)
    rows = [
        (arm, str(sum(j.arm.name == arm for j in jobs)), str(sum(j.arm.name == arm for j in todo)), f"{cost:,.0f}")
        for arm, cost in costs.items()
    ]
    table(f"{study.name} {study.title}: {substitute(study, scale)}", ("arm", "runs", "to do", "GFLOP a run"), rows)
    total = sum(costs[job.arm.name] for job in todo)
    pace = f", about {total * seconds_per_gflop / 60:.0f} core-minutes by the runs so far" if seconds_per_gflop else ""
    say(f"to do: {len(todo)} runs, {total:,.0f} GFLOP of training{pace}")
