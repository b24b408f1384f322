"""The terms of an objective and what each can be told: a field is the flag `--term.field`. No torch here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, is_dataclass
from typing import Any, Literal

from effssl.runtime.errors import RequestError


@dataclass(frozen=True)
class Plain:
    """Nothing but a weight."""

    weight: float = 1.0


@dataclass(frozen=True)
class SimCLR:
    """Contrast the two views of an image with all other images of the batch (NT-Xent)."""

    weight: float = 1.0
    temperature: float = 0.2
    base_temperature: float = 0.0
    """multiply the loss by temperature/base_temperature, as SupContrast does; 0 is off"""
    decoupled: bool = False
    """leave the positive out of the denominator"""
    known_labels: float = 0.0
    """share of images whose label is known and used to drop false negatives from the denominator"""
    false_negatives: Literal["both", "anchor"] = "both"
    """drop a pair if both labels are known, or if the anchor's is"""


@dataclass(frozen=True)
class SupCon:
    """Pull all views of the same class together (supervised contrastive)."""

    weight: float = 1.0
    temperature: float = 0.1
    base_temperature: float = 0.0
    """multiply the loss by temperature/base_temperature; 0 is off"""
    label_noise: float = 0.0
    """share of labels that are replaced, fixed for the run"""
    noise_to: Literal["other", "any"] = "other"
    """a replaced label is a different class, or any class"""


@dataclass(frozen=True)
class Supervised:
    """Classify images by their labels: the reference."""

    weight: float = 1.0
    label_noise: float = 0.0
    """share of labels that are replaced, fixed for the run"""
    noise_to: Literal["other", "any"] = "other"
    """a replaced label is a different class, or any class"""


@dataclass(frozen=True)
class SwAV:
    """Predict from one view the cluster another view was assigned to."""

    weight: float = 1.0
    prototypes: int = 100
    temperature: float = 0.1
    epsilon: float = 0.05
    """softness of the assignments; smaller is harder"""
    iterations: int = 3
    """of Sinkhorn-Knopp"""
    queue: int = 0
    """past projections per view that join the assignment, any number; 0 is none"""
    queue_from: float = 15.0
    """epoch from which a full queue is used"""
    freeze_epochs: float = 1.0
    """epochs during which the prototypes stay as they are"""


@dataclass(frozen=True)
class MoCo:
    """Find the momentum network's key of the other view in a queue of keys."""

    weight: float = 1.0
    temperature: float = 0.1
    queue: int = 4096
    """keys of other images, any number"""
    momentum: float = 0.99
    symmetric: bool = True
    """each view is the query once"""
    key_bn_groups: int = 8
    """keys run shuffled in so many groups, or batch norm gives the positive away"""


@dataclass(frozen=True)
class Jigsaw:
    """Tell how nine patches of an image were shuffled."""

    weight: float = 0.4
    permutations: int = 100
    seed: int = 0
    """of the set of permutations"""
    hidden: int = 256
    """features per patch"""
    gray: float = 0.2
    """probability that a puzzle has no color"""
    shift: int = 2
    """largest change of a patch's color, in 1/255 per channel"""
    update_stats: bool = True
    """patches move the running statistics of batch norm"""
    every: int = 1
    """the task takes part in every so many-th step only"""
    until: float = 1.0
    """share of the run after which the task is left out"""
    weight_end: float = 1.0
    """the weight falls by a cosine to this share of itself at the end of the run"""


@dataclass(frozen=True)
class BYOL:
    """Predict the momentum network's projection of the other view."""

    weight: float = 1.0
    momentum: float = 0.95
    """target momentum τ"""
    momentum_end: float = 0.0
    """cosine from momentum to this value; 0 keeps it constant"""
    predictor_hidden: int = 4096
    loss_scale: float = 1.0
    """1 is the paper's −mean cos; 4 is the gradient of the original BYOL"""


@dataclass(frozen=True)
class SimSiam:
    """Predict the (stop-gradient) projection of the other view."""

    weight: float = 1.0
    predictor_hidden: int = 512
    fix_predictor_lr: bool = True
    """the predictor's learning rate is not scheduled"""
    stop_gradient: bool = True
    """without it the method collapses; the switch is there to show that"""


@dataclass(frozen=True)
class Rotation:
    """Tell by how much a view was rotated: the noise-free pretext task."""

    weight: float = 0.4
    """λ of L = L_base + λ · L_rotation"""
    on: Literal["z", "h", "block1", "block2", "block3"] = "z"
    """the head reads the projection z = g(f(x)) (the paper), the feature h = f(x) (its released code), or the pooled
    output of an earlier block of a ResNet, beyond which rotated views are not computed"""
    angles: tuple[float, ...] = (0.0, 90.0, 180.0, 270.0)
    """the angle set, counter-clockwise; the label is the position in it"""
    crop: Literal["same", "per_angle"] = "same"
    """other angles than quarter turns need a crop: the same for all angles, or each its own"""
    views: Literal["auto", "one", "two", "all", "given"] = "auto"
    """rotated views per image: one or two with an own angle each, or all angles of one view (auto: two beside an
    instance term, all when it stands alone); given: the views are rotated already (augment.rotate), no extra pass"""
    form: Literal["ce", "supcon", "cosine"] = "ce"
    """tell the angle, contrast by angle, or make two rotations of a view differ"""
    temperature: float = 0.1
    """of form supcon"""
    noise: float = 0.0
    """probability that a view's label is replaced"""
    noise_to: Literal["other", "any"] = "other"
    """a replaced label is a different angle, or any angle"""
    shared: int = 0
    """share only so many stages (1 stem, 2–5 blocks, 6 projector) and copy the rest; 0 shares all"""
    size: float = 0.0
    """side of the rotated views in pixels, or below 1 as a share of the full side of the others; 0 is their side"""
    scale: tuple[float, float] = (0.0, 0.0)
    """rotated views are crops of their own that cover this share of the image; 0 0: they are the other views"""
    for_base: Literal["nothing", "more", "instead"] = "nothing"
    """what rotated views are to the base method, which is told their angles: nothing; more views to learn from; or
    views to learn from instead of the second one, which then only gives the answers, without a gradient"""
    upright: float = 0.0
    """share of the rotated views that have the first of the angles whatever was drawn; the task tells that, too"""
    share: float = 1.0
    """share of the batch that is rotated"""
    every: int = 1
    """the task takes part in every so many-th step only"""
    until: float = 1.0
    """share of the run after which the task is left out"""
    weight_end: float = 1.0
    """the weight falls by a cosine to this share of itself at the end of the run"""
    joint_pass: bool = True
    """rotated views share one pass and its batch statistics; else one pass each, as in the released code"""
    normalize: bool = False
    """the head reads features of unit length"""
    update_stats: bool = True
    """rotated views move the running statistics of batch norm"""
    hidden: int = 0
    """hidden width of the head; 0 is the projector's"""

    @property
    def whole(self) -> bool:
        """Whether every rotated view gets a projection of its own, which a base method could learn from."""
        return (
            self.on == "z"
            and self.form == "ce"
            and self.share == 1
            and not self.shared
            and self.views in ("auto", "two", "one")
        )

    @property
    def chance(self) -> float:
        """Share of angles that is right if the commonest one is said of all views."""
        return self.upright + (1 - self.upright) / len(self.angles)


TERMS: dict[str, str] = {
    "simclr": "effssl.objectives.simclr:SimCLR",
    "byol": "effssl.objectives.byol:BYOL",
    "simsiam": "effssl.objectives.simsiam:SimSiam",
    "swav": "effssl.objectives.swav:SwAV",
    "moco": "effssl.objectives.moco:MoCo",
    "supcon": "effssl.objectives.supcon:SupCon",
    "supervised": "effssl.objectives.supervised:Supervised",
    "rotation": "effssl.objectives.rotation:Rotation",
    "jigsaw": "effssl.objectives.jigsaw:Jigsaw",
}
"""A term of the package: its options above, a line here, a field of `effssl.config.Config`, a file of this folder."""

OWN: dict[str, Any] = {}
"""Terms that were registered from outside, by name: classes that hold their options as `Options`."""

FOR_BASE = {"more": ("byol", "simsiam", "simclr", "swav"), "instead": ("byol", "simsiam", "simclr")}
"""Base methods that can learn from rotated views: beside their own two, or instead of the second."""

PRETEXT = {"rotation", "jigsaw"}
"""Terms that look at one view at a time; all others compare views of an image."""


def feeds_base(config: Any, terms: Iterable[str], how: str) -> bool:
    """Whether rotated views can be for the base methods of a config; if for nothing, whether they could be at all."""
    able = all(term in ("rotation", "jigsaw") or how == "nothing" or term in FOR_BASE[how] for term in terms)
    plain = not (config.simclr.known_labels or config.simclr.decoupled) and config.simsiam.stop_gradient
    return able and config.rotation.whole and (plain or how == "nothing")


def term_names() -> list[str]:
    """All terms an objective can name."""
    return [*TERMS, *OWN]


def register(name: str, term: Any, pretext: bool = False) -> None:
    """Let objectives name a term of your own: a subclass of `effssl.objectives.objective.Term`.

    `pretext` says that it looks at one view at a time, so that `rotation` beside it stands as if alone.
    """
    options = getattr(term, "Options", None)
    if not (name.isidentifier() and name.islower()):
        raise RequestError(f"a term's name is a lower-case word, got {name!r}")
    if name in TERMS:
        raise RequestError(f"the term {name!r} comes with effssl; choose another name")
    if not (isinstance(options, type) and is_dataclass(options) and hasattr(options, "weight")):
        raise RequestError(f"the term {name!r} needs a dataclass `Options` with a weight, like effssl's Term has")
    OWN[name] = term
    if pretext:
        PRETEXT.add(name)
