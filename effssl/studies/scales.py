"""The settings of an arm at each scale: `smoke` takes seconds, `cpu` minutes, `paper` is the published setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from effssl.objectives.expression import parse
from effssl.objectives.options import base_term
from effssl.recipes import names as recipe_names
from effssl.recipes import read
from effssl.runtime.errors import RequestError
from effssl.schema import flatten, merge, nest
from effssl.studies.study import AVERAGE, METRICS, Arm, Metric, Study

SCALES = ("smoke", "cpu", "paper")
SMOKE = {
    "epochs": 1,
    "data": "digits",
    "subset": 96,
    "batch_size": 32,
    "image_size": 16,
    "health": {"every": 100, "bank": 32, "queries": 32},
}
SMOKE_JIGSAW = {
    "image_size": 64,
    "subset": 32,
    "batch_size": 16,
    "encoder": "small-4",
    "jigsaw": {"permutations": 10},
}
CPU = {"data": "cifar10", "subset": 10_000, "health": {"every": 1000}}
CPU_EPOCHS: dict[str, float] = {"E07": 2, "E10": 4, "E19": 1.2, "C05": 4}  # of an arm of length 1; else 6
CPU_POINTS = {
    "E03": (0, 20, 40, 60, 80),
    "E04": (0, 20, 30, 50, 80),
    "E07": (100, 200, 300, 600),
}  # of axes with more points than there is time for
SHORT_MULTI_CROP = {"views": {"small": {"count": 2, "size": 16, "scale": [0.05, 0.2]}}}
SMOKE_METRICS: dict[str, dict[str, Any]] = {
    "linear": {"epochs": 2}, "probe-rotation": {"epochs": 1, "batch": 32}, "probe-contrastive": {"batch": 16},
    "semi": {"epochs": 1, "batch": 16}, "transfer": {"grid": 2, "max_iter": 5},
    "detect": {"schedule": 1e-5, "short_side": 32, "batch": 1, "proposals": 8, "limit": 4},
}  # fmt: skip
LINEAR = {"imagenet1k": {"epochs": 30}}  # published settings of the linear probe that a data set needs
CPU_METRICS: dict[str, dict[str, Any]] = {
    "probe-rotation": {"epochs": 10},
    "detect": {"schedule": 0.004, "short_side": 96, "batch": 1, "proposals": 64, "lr": 0.003},
}


@dataclass(frozen=True)
class Sources:
    """Data that cannot be downloaded: files and folders that the user names."""

    images: str = ""  # instead of ImageNet: a folder with train/ and val/; at paper scale ImageNet itself
    voc: str = ""  # folder in VOC layout
    sets: str = ""  # labeled data sets for transfer, comma-separated
    maps: str = ""  # saliency maps


def check_sources(study: Study, scale: str, sources: Sources) -> None:
    """Refuse an unknown scale, and a study whose data is missing."""
    if scale not in SCALES:
        raise RequestError(f"unknown scale {scale!r}; choose one of {', '.join(SCALES)}")
    if scale == "smoke":
        return
    if uses_photographs(study) and not sources.images:
        raise RequestError(
            f"{study.name} needs --images, a folder of photographs with train/ and val/ of class folders"
            + (" (Imagenette will do)" if scale == "cpu" else " (ImageNet itself)")
        )
    if any(_saliency_share(arm.flags) for arm in study.arms) and not sources.maps:
        raise RequestError(f"{study.name} needs --maps, saliency maps of the images (effssl saliency writes them)")
    needed = {METRICS[name].needs for name in study.metrics if name != AVERAGE}
    if "voc" in needed and not sources.voc:
        raise RequestError(f"{study.name} needs --voc, a folder in VOC layout, for detection")
    if "sets" in needed and scale == "cpu" and not sources.sets:  # the published ones are known by name
        raise RequestError(f"{study.name} needs --sets, labeled data sets for transfer: cifar10=cifar10,flowers=FOLDER")


def substitution(study: Study, scale: str) -> str:
    """What replaces the published data set and encoder at a scale, in words."""
    if scale == "smoke":
        return "the embedded digits, a few steps: the values mean nothing"
    if scale == "paper":
        return f"{study.data} as published"
    photographs = "a folder of photographs (Imagenette) at 48 or 64 pixels"
    images = photographs if uses_photographs(study) else "10,000 images of CIFAR-10"
    count = CPU_EPOCHS.get(study.name, 6)
    epochs = f"{count:g} epoch{'s' * (count != 1)} instead of {study.epochs}"
    return f"{images} instead of {study.data}, the small encoder, {epochs}"


def replacement(data: str, scale: str) -> str:
    """What replaces a data set of other images at a scale, where claims about it get no verdict; empty if nothing does.

    Imagenette is a part of ImageNet, so claims about ImageNet are judged on it.
    """
    return "cifar10" if scale == "cpu" and data == "cifar100" else ""


# ---------------------------------------------------------------------------------------------------------------
# Arms


def arms_at(study: Study, scale: str) -> list[Arm]:
    """All arms; at CPU scale without those on further data sets, some points of long axes, and fractions of epochs."""
    if scale != "cpu":
        return list(study.arms)
    # On the data that replaces it, an arm would repeat one of the study's own data.
    arms = [arm for arm in study.arms if not (arm.data and replacement(arm.data, scale))]
    if not study.axis:
        return arms
    points = CPU_POINTS.get(study.name)
    arms = [arm for arm in arms if arm.at is None or points is None or arm.at in points]
    return [arm for arm in arms if study.axis != "epochs" or _is_whole(_cpu_epochs(study, arm))]


def arm_settings(study: Study, arm: Arm, seed: int, scale: str, sources: Sources) -> dict[str, Any]:
    """All settings of one run of an arm."""
    at_scale = {"smoke": smoke_settings, "cpu": cpu_settings, "paper": paper_settings}[scale]
    settings = {"objective": arm.objective, "seed": seed} | at_scale(study, arm, sources)
    return merge(settings, _saliency_settings(settings, sources))


def smoke_settings(study: Study, arm: Arm, sources: Sources) -> dict[str, Any]:
    """One epoch on a few images of the embedded digits."""
    settings = merge({"recipe": cpu_recipe(arm), **SMOKE}, arm.flags)
    if uses_jigsaw(study):
        settings = merge(settings, SMOKE_JIGSAW)
    return merge(settings, _short_multi_crop(settings))


def cpu_settings(study: Study, arm: Arm, sources: Sources) -> dict[str, Any]:
    """A few epochs of the small encoder on 10,000 images of CIFAR-10, or on a folder of photographs."""
    epochs = max(1, round(_cpu_epochs(study, arm)))
    settings = merge({"recipe": cpu_recipe(arm), "epochs": epochs, **CPU}, arm.flags)
    if uses_photographs(study, arm):
        del settings["subset"]
        settings |= {"data": sources.images, "image_size": 64 if uses_jigsaw(study) else 48}
    elif uses_jigsaw(study):
        settings["image_size"] = 64
    return merge(settings, _short_multi_crop(settings))


def paper_settings(study: Study, arm: Arm, sources: Sources) -> dict[str, Any]:
    """The published setting: the recipe of the method and the data set."""
    data = arm.data or study.data
    recipe, epochs = paper_recipe(arm, data), max(1, round(study.epochs * arm.length))
    settings: dict[str, Any] = {
        "recipe": recipe,
        "epochs": epochs,
        "data": (sources.images or data) if uses_photographs(study, arm) else data,
    }
    warmup = read(recipe).get("schedule", {}).get("warmup_epochs", 0)
    if warmup < epochs:  # shorter runs keep the published warm-up, which other runs do not
        settings["schedule"] = {"warmup_epochs": warmup}
    if data == "imagenet100":
        settings["classes"] = "imagenet100"
    if arm.efficient:
        settings = merge(settings, _efficient_form(arm))
    return merge(settings, arm.flags)


def cpu_recipe(arm: Arm) -> str:
    """The CPU recipe of an arm's base method."""
    return f"cpu-{base_of_arm(arm)}{'-efficient' if arm.efficient else ''}"


def paper_recipe(arm: Arm, data: str) -> str:
    """The published recipe of an arm, or that of a similar data set where there is none."""
    base = base_of_arm(arm)
    candidates = (arm.recipe, f"{data}-{base}", f"imagenet100-{base}", f"cifar10-{base}")
    return next(name for name in candidates if name in recipe_names())


def base_of_arm(arm: Arm) -> str:
    """The first term of an arm's objective that is no pretext task, or its first term."""
    return base_term(parse(arm.objective))


def uses_photographs(study: Study, arm: Arm | None = None) -> bool:
    """Whether a study, or one of its arms, is on a folder of photographs."""
    return (arm.data if arm and arm.data else study.data).startswith("imagenet")


def uses_jigsaw(study: Study) -> bool:
    """Whether any arm solves jigsaw puzzles; then the images of all arms are large enough for them."""
    return any("jigsaw" in parse(arm.objective) for arm in study.arms)


def _efficient_form(arm: Arm) -> dict[str, Any]:
    """How the efficient CPU recipe differs from the published form, but for the batch size and lr of a short run."""
    efficient, published = (flatten(read(f"cpu-{base_of_arm(arm)}{form}")) for form in ("-efficient", ""))
    kept = {key: value for key, value in efficient.items() if value != published.get(key)}
    return nest({key: value for key, value in kept.items() if key not in ("batch_size", "lr")})


def _short_multi_crop(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fewer and smaller multi-crop views, where an arm has any."""
    return SHORT_MULTI_CROP if settings.get("views", {}).get("small") else {}


def _saliency_share(settings: Mapping[str, Any]) -> float | None:
    return settings.get("augment", {}).get("saliency_share")


def _saliency_settings(settings: Mapping[str, Any], sources: Sources) -> dict[str, Any]:
    """Saliency maps for an arm that crops by them; without maps it crops as usual."""
    share = _saliency_share(settings)
    if share is None:
        return {}
    return {
        "augment": {"saliency": sources.maps} if share and sources.maps else {"saliency": "", "saliency_share": 1.0}
    }


def _cpu_epochs(study: Study, arm: Arm) -> float:
    """Epochs of an arm at CPU scale, before rounding."""
    return CPU_EPOCHS.get(study.name, 6) * arm.length


def _is_whole(epochs: float) -> bool:
    return epochs > 0.5 and abs(epochs - round(epochs)) < 1e-9


# ---------------------------------------------------------------------------------------------------------------
# Metrics


def arm_metrics(study: Study, arm: Arm, scale: str, sources: Sources) -> dict[str, Metric]:
    """The metrics of an arm with their settings at a scale."""
    evaluated = [name for name in study.metrics if name != AVERAGE]
    return {name: metric_at(METRICS[name], study, arm, scale, sources) for name in evaluated}


def metric_at(metric: Metric, study: Study, arm: Arm, scale: str, sources: Sources) -> Metric:
    """A metric with its settings and data at a scale."""
    data = {"voc": sources.voc, "sets": sources.sets, "": ""}[metric.needs]
    settings = {"smoke": SMOKE_METRICS, "cpu": CPU_METRICS, "paper": {}}[scale].get(metric.protocol, {})
    if scale == "smoke" and metric.needs == "sets":
        data = "digits"
    if scale == "paper" and metric.needs == "sets":
        settings = {"sets": "all"}
    if scale == "paper" and metric.protocol == "linear":
        settings = {"setting": linear_setting(study, arm)} | LINEAR.get(study.data, {})
    return replace(metric, settings={**metric.settings, **settings}, data=data)


def linear_setting(study: Study, arm: Arm) -> str:
    """The paper's linear evaluation of a method on a data set; a base method and its joint objective share it."""
    first = next(iter(parse(arm.objective)))
    by_method = {"simsiam": "cifar-crops"}
    if uses_photographs(study):
        by_method = {"simclr": "imagenet100-crops", "swav": "imagenet-crops"}
    return by_method.get(first, "cached")
