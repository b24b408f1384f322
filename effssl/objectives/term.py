"""A term: one summand of an objective, what it may know of its run, and what it computes for a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from effssl.augment.options import ViewGroup
from effssl.network.network import Network
from effssl.objectives.options import TeacherOptions, TermOptions

if TYPE_CHECKING:
    from effssl.objectives.step import Step


class Teacher(Protocol):
    """A frozen encoder that a term learns from: `teacher(views)` gives its features, N×dim, without a gradient."""

    @property
    def dim(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def images(self) -> Sized: ...

    def __call__(self, x: Tensor) -> Tensor: ...

    def features(self) -> Tensor:
        """Features of all training images, N×dim on the CPU."""
        ...


@dataclass(frozen=True)
class RunInfo:
    """What a term may know of the run it is part of."""

    groups: Mapping[str, ViewGroup] = field(default_factory=dict)  # the views of a step, by name
    seed: int = 0
    image_size: int = 32
    batch_size: int = 128
    steps_per_epoch: int = 1
    labels: Tensor | None = None  # of all training images, on the CPU
    classes: int = 0
    sample: Callable[[], Tensor] | None = None  # some training images, N×3×S×S, center-cropped and normalized
    teacher: Callable[[str, TeacherOptions], Teacher] | None = None  # opens that of a term, by its name and options


@dataclass(frozen=True)
class Outcome:
    """What a term computes for a batch, as tensors, so that the device is not synchronized.

    A task that predicts something also gives its accuracy and what guessing would reach, both between 0 and 1.
    """

    loss: Tensor
    accuracy: Tensor | None = None
    chance: float | None = None
    metrics: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskExamples:
    """What a task was asked and what it predicted, for the report."""

    pixels: Tensor  # N×3×S×S, normalized
    labels: Tensor  # N
    logits: Tensor | None  # N×K, where the loss has a head
    names: list[str]  # of the K labels


class Term(nn.Module):
    """One summand. It holds its own heads and momentum copies and never registers the network itself.

    `reads` names the views it needs: those that are `online`, those that are `target`, the `rotated` ones, the `clean`
    image.
    """

    Options: type = TermOptions
    reads: tuple[str, ...] = ("online", "target")

    def __init__(self, options: Any, network: Network, info: RunInfo) -> None:
        super().__init__()
        self.options = options

    def loss(self, step: Step) -> Outcome:
        """The unweighted loss of this batch."""
        raise TypeError(f"{type(self).__name__} does not define its loss")

    def before_update(self, updates: int) -> None:
        """Called between backward and update with the number of updates so far: gradients may still be changed."""

    def after_update(self, network: Network, progress: float) -> None:
        """Called after each optimizer step that was not skipped, with the progress of the run: momentum, queues."""

    def fixed_lr(self) -> list[nn.Parameter]:
        """Parameters whose learning rate is not scheduled."""
        return []

    def examples(self, step: Step) -> TaskExamples | None:
        """For the report: the inputs of a task and its predictions."""
        return None
