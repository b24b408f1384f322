"""The terms of an objective and their options: a field is the flag `--term.field`. No torch here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, ClassVar, Literal

from effssl.runtime.errors import RequestError
from effssl.schema import Between, Count, NonNegative, Positive, Share, Small


@dataclass(frozen=True)
class TermOptions:
    """What every term has: its weight in the sum."""

    pretext: ClassVar[bool] = False  # a task beside a base method
    single: ClassVar[bool] = False  # learns from each view alone; base methods compare the views of an image
    weight: NonNegative = 1.0

    @property
    def uses_labels(self) -> bool:
        """Whether the term reads the labels of the training images."""
        return False


@dataclass(frozen=True)
class SimCLROptions(TermOptions):
    """Contrast the views of an image with all other images of the batch (NT-Xent)."""

    temperature: Small = 0.2
    base_temperature: NonNegative = 0.0
    """multiply the loss by temperature/base_temperature, as SupContrast does; 0 is off"""
    decoupled: bool = False
    """leave the positive out of the denominator"""
    known_labels: Share = 0.0
    """share of images whose label is known and used to drop false negatives from the denominator"""
    false_negatives: Literal["both", "anchor"] = "both"
    """drop a pair if both labels are known, or if the anchor's is"""

    @property
    def uses_labels(self) -> bool:
        """Whether some labels are known."""
        return self.known_labels > 0


@dataclass(frozen=True)
class BYOLOptions(TermOptions):
    """Predict the momentum network's projection of another view."""

    momentum: Share = 0.95
    """target momentum τ"""
    momentum_end: Share = 0.0
    """cosine from momentum to this value; 0 keeps it constant"""
    predictor_hidden: Positive = 4096
    loss_scale: NonNegative = 1.0
    """1 is the paper's −mean cos; 4 is the gradient of the original BYOL"""


@dataclass(frozen=True)
class SimSiamOptions(TermOptions):
    """Predict the (stop-gradient) projection of another view."""

    predictor_hidden: Positive = 512
    fix_predictor_lr: bool = True
    """the predictor's learning rate is not scheduled"""
    stop_gradient: bool = True
    """without it the method collapses; the switch is there to show that"""


@dataclass(frozen=True)
class SwAVOptions(TermOptions):
    """Predict from one view the cluster another view was assigned to."""

    prototypes: Annotated[int, Between(2)] = 100
    temperature: Small = 0.1
    epsilon: Small = 0.05
    """softness of the assignments; smaller is harder"""
    iterations: Positive = 3
    """of Sinkhorn-Knopp"""
    queue: Count = 0
    """past projections per target view that join the assignment, any number; 0 is none"""
    queue_from: NonNegative = 15.0
    """epoch from which a full queue is used"""
    freeze_epochs: NonNegative = 1.0
    """epochs during which the prototypes are frozen"""


@dataclass(frozen=True)
class MoCoOptions(TermOptions):
    """Find the momentum network's key of another view in a queue of keys."""

    temperature: Small = 0.1
    queue: Positive = 4096
    """keys of other images, any number"""
    momentum: Share = 0.99
    key_bn_groups: Positive = 8
    """number of shuffled groups that keys run in, or batch norm gives the positive away"""


@dataclass(frozen=True)
class NNCLROptions(TermOptions):
    """Take the nearest neighbor of an image among past embeddings as its positive."""

    temperature: Small = 0.1
    queue: Positive = 4096
    """past projections among which neighbors are found, any number"""
    predictor_hidden: Positive = 4096


@dataclass(frozen=True)
class DINOOptions(TermOptions):
    """Predict the momentum teacher's distribution over prototypes, centered and sharpened."""

    prototypes: Annotated[int, Between(2)] = 4096
    temperature: Small = 0.1
    """of the student"""
    teacher_temperature: Small = 0.04
    """of the teacher; smaller is sharper"""
    center_momentum: Share = 0.9
    """of the running mean that is subtracted from the teacher's scores"""
    momentum: Share = 0.996
    """of the teacher's weights"""
    momentum_end: Share = 1.0
    """cosine from momentum to this value; 0 keeps it constant"""
    freeze_epochs: NonNegative = 1.0
    """epochs during which the prototypes are frozen"""


@dataclass(frozen=True)
class BarlowOptions(TermOptions):
    """Make the cross-correlation of two views the identity (Barlow Twins)."""

    weight: NonNegative = 0.024
    redundancy: NonNegative = 0.005
    """λ, weight of the squared correlations of different dimensions"""


@dataclass(frozen=True)
class VICRegOptions(TermOptions):
    """Pull views together, keep the variance of every dimension of z and decorrelate them."""

    weight: NonNegative = 0.04
    invariance: NonNegative = 25.0
    """λ, weight of the squared distance of views"""
    variance: NonNegative = 25.0
    """μ, weight of the hinge that keeps the standard deviation of each dimension at 1 or above"""
    covariance: NonNegative = 1.0
    """ν, weight of the squared covariances of different dimensions"""


@dataclass(frozen=True)
class TCROptions(TermOptions):
    """Pull views to their mean and maximize the total coding rate of the batch (EMP-SSL)."""

    weight: NonNegative = 0.005
    invariance: NonNegative = 200.0
    """λ, weight of 1 − cos between a view and the mean over views"""
    epsilon_squared: Small = 0.2
    """ε², the squared distortion of the coding rate; smaller counts small differences of images too"""


@dataclass(frozen=True)
class SIGRegOptions(TermOptions):
    """Pull views to their mean and make z normally distributed along random directions (LeJEPA)."""

    regularization: Share = 0.05
    """λ, share of the test of normality in the loss; the rest is the squared distance of views to their mean"""
    slices: Positive = 256
    """random directions, new ones in every step"""
    knots: Annotated[int, Between(2)] = 17
    """points of the characteristic function that the test compares"""


@dataclass(frozen=True)
class LabelOptions(TermOptions):
    """What the terms that learn from labels share."""

    label_noise: Share = 0.0
    """share of labels that are replaced by another class, fixed for the run"""

    @property
    def uses_labels(self) -> bool:
        """Always."""
        return True


@dataclass(frozen=True)
class SupConOptions(LabelOptions):
    """Pull all views of the same class together (supervised contrastive)."""

    temperature: Small = 0.1
    base_temperature: NonNegative = 0.0
    """multiply the loss by temperature/base_temperature; 0 is off"""


@dataclass(frozen=True)
class SupervisedOptions(LabelOptions):
    """Classify images by their labels: the reference."""

    single: ClassVar[bool] = True


@dataclass(frozen=True)
class RotationOptions(TermOptions):
    """Predict by how much a view was rotated: the noise-free pretext task. Which views are, `--views.rotated` says."""

    pretext: ClassVar[bool] = True
    weight: NonNegative = 0.4
    """λ of L = L_base + λ · L_rotation"""
    on: Literal["z", "h"] = "z"
    """the head reads the projection z = g(f(x)) (the paper) or the feature h = f(x) (its released code)"""
    hidden: Count = 0
    """hidden width of the head; 0 is the projector's"""
    layers: Annotated[int, Between(2)] = 2
    """linear layers of the head"""
    norm: Literal["batch", "layer"] = "batch"
    """norm of the head's hidden layers"""
    noise: Share = 0.0
    """probability that a view's label is replaced by another angle, drawn afresh for every view"""
    shared: Count = 0
    """number of first stages that are shared, the rest is copied (of a ResNet 1 is the stem, 2–5 the blocks; of a
    transformer 1 is the embedding of patches, then comes each block; the projector is the last); 0 shares all"""


@dataclass(frozen=True)
class RotationSupConOptions(TermOptions):
    """Contrast rotated views by their angle: a form of the rotation loss that the paper compares."""

    pretext: ClassVar[bool] = True
    weight: NonNegative = 0.4
    temperature: Small = 0.1


@dataclass(frozen=True)
class RotationCosineOptions(TermOptions):
    """Minimize the cosine between two rotations of a view: a form of the rotation loss that the paper compares."""

    pretext: ClassVar[bool] = True
    weight: NonNegative = 0.4


@dataclass(frozen=True)
class JigsawOptions(TermOptions):
    """Predict how nine patches of an image were shuffled."""

    pretext: ClassVar[bool] = True
    weight: NonNegative = 0.4
    permutations: Annotated[int, Between(2, 362_880)] = 100
    seed: Count = 0
    """of the set of permutations"""
    hidden: Positive = 256
    """features per patch"""
    gray: Share = 0.2
    """probability that a puzzle has no color"""
    shift: Annotated[int, Between(0, 255)] = 2
    """largest change of a patch's color, in 1/255 per channel"""
    update_stats: bool = True
    """patches update the running statistics of batch norm"""


@dataclass(frozen=True)
class WordsOptions(TermOptions):
    """Predict from every view the visual words (k-means patches) of the whole image."""

    pretext: ClassVar[bool] = True
    weight: NonNegative = 10.0
    filters: Positive = 128
    """number of visual words"""
    stride: Positive = 2
    """pixels between two patches"""
    dim: Positive = 256
    """whitened numbers that are predicted"""


@dataclass(frozen=True)
class TeacherOptions(TermOptions):
    """What the terms that learn from a finished encoder share."""

    teacher: str = ""
    """a run folder, a weight file or the name of a model, as `effssl eval` takes it"""
    encoder: str = ""
    """architecture of a weight file that does not name it"""
    digest: str = ""
    """digest of the teacher; the run fills it in, and another teacher of that name is refused later"""


@dataclass(frozen=True)
class DistillOptions(TeacherOptions):
    """Predict the features of a finished, stronger encoder by a linear head on h."""

    single: ClassVar[bool] = True
    loss: Literal["cosine", "relational"] = "cosine"
    """compare features with the teacher's, or the cosines between images with the teacher's"""
    targets: Literal["image", "view"] = "image"
    """the teacher sees the image, once before training, or each view"""
    memory: Positive = 1000
    """megabytes that the teacher's features of all training images may take"""


@dataclass(frozen=True)
class TermEntry:
    """A term by its name: its options, and where its class is found or the class itself."""

    options: type[TermOptions]
    where: str | type[Any]


DEFAULT_OBJECTIVE = "simclr+rotation"
"""The most accurate of our short runs, at the least compute: docs/results/C01-cpu and C02-cpu."""
TERMS: dict[str, TermEntry] = {
    "simclr": TermEntry(SimCLROptions, "effssl.objectives.simclr:SimCLR"),
    "byol": TermEntry(BYOLOptions, "effssl.objectives.byol:BYOL"),
    "simsiam": TermEntry(SimSiamOptions, "effssl.objectives.simsiam:SimSiam"),
    "swav": TermEntry(SwAVOptions, "effssl.objectives.swav:SwAV"),
    "moco": TermEntry(MoCoOptions, "effssl.objectives.moco:MoCo"),
    "nnclr": TermEntry(NNCLROptions, "effssl.objectives.nnclr:NNCLR"),
    "dino": TermEntry(DINOOptions, "effssl.objectives.dino:DINO"),
    "barlow": TermEntry(BarlowOptions, "effssl.objectives.barlow:BarlowTwins"),
    "vicreg": TermEntry(VICRegOptions, "effssl.objectives.vicreg:VICReg"),
    "tcr": TermEntry(TCROptions, "effssl.objectives.tcr:TCR"),
    "sigreg": TermEntry(SIGRegOptions, "effssl.objectives.sigreg:SIGReg"),
    "supcon": TermEntry(SupConOptions, "effssl.objectives.supcon:SupCon"),
    "supervised": TermEntry(SupervisedOptions, "effssl.objectives.supervised:Supervised"),
    "rotation": TermEntry(RotationOptions, "effssl.objectives.rotation:Rotation"),
    "rotation_supcon": TermEntry(RotationSupConOptions, "effssl.objectives.rotation_forms:RotationSupCon"),
    "rotation_cosine": TermEntry(RotationCosineOptions, "effssl.objectives.rotation_forms:RotationCosine"),
    "jigsaw": TermEntry(JigsawOptions, "effssl.objectives.jigsaw:Jigsaw"),
    "distill": TermEntry(DistillOptions, "effssl.objectives.distill:Distill"),
    "words": TermEntry(WordsOptions, "effssl.objectives.words:Words"),
}
"""Every term an objective can name: its options above, a line here, and a file of this folder."""


def register(name: str, term: Any) -> None:
    """Let objectives name a term of your own: a subclass of `effssl.objectives.term.Term` with its `Options`."""
    options = getattr(term, "Options", None)
    if not (name.isidentifier() and name.islower()):
        raise RequestError(f"a term's name is a lower-case word, got {name!r}")
    if name in TERMS and isinstance(TERMS[name].where, str):
        raise RequestError(f"the term {name!r} comes with effssl; choose another name")
    if not (isinstance(options, type) and is_dataclass(options) and issubclass(options, TermOptions)):
        raise RequestError(f"the term {name!r} needs a dataclass `Options` that extends effssl's TermOptions")
    TERMS[name] = TermEntry(options, term)


def base_term(terms: Iterable[str]) -> str:
    """The term that decides on a recipe: the first that compares views, else the first that is no pretext task.

    >>> base_term(["rotation", "distill", "simclr"]), base_term(["rotation", "distill"]), base_term(["rotation"])
    ('simclr', 'distill', 'rotation')
    """
    terms = list(terms)
    bases = [term for term in terms if not TERMS[term].options.pretext]
    comparing = [term for term in bases if not TERMS[term].options.single]
    return [*comparing, *bases, *terms][0]
