"""What an evaluation protocol is. Nothing here imports torch.

A protocol is one module of `effssl.evaluation.protocols`, named after it (`probe_rotation.py` is `probe-rotation`). Its
docstring's first line says what it measures, a dataclass holds its options with their ranges, a function evaluates an
encoder, and `PROTOCOL` binds them. No other file changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

from effssl.runtime.errors import RequestError
from effssl.runtime.files import resolve_path
from effssl.schema import Between, build, check

if TYPE_CHECKING:
    from effssl.evaluation.score import Score
    from effssl.network.loaded import LoadedEncoder

LearningRate = Annotated[float, Between(1e-12)]
"""A learning rate above 0."""
BatchSize = Annotated[int, Between(2)]
"""Images per step where batch norm needs two of them."""


def _no_folder() -> str:
    raise RequestError("this protocol reads a data set, not a folder")


@dataclass(frozen=True)
class EvaluationProtocol:
    """A protocol: its options and the function that evaluates an encoder on a data set by them."""

    name: str
    options: type
    evaluate: Callable[[LoadedEncoder, Any, Any], Score]
    needs_projector: bool = False
    reads_folder: Callable[[Any], bool] = lambda options: False
    """whether, with these options, it reads the files of a folder itself, in place of an opened data set"""
    default_folder: Callable[[], str] = _no_folder
    """which folder it reads where none is given"""
    path_options: tuple[str, ...] = ()
    """options that are paths of files"""

    def options_of(self, settings: Mapping[str, Any]) -> Any:
        """The complete options; unknown settings, wrong types and values out of range are refused."""
        options: Any = build(self.options, settings, self.name)
        check(options, f"{self.name}: ")
        return options

    def changed(self, options: Any) -> list[str]:
        """Options that differ from the protocol's defaults, as `name=value`."""
        usual = self.options()
        names = [item.name for item in fields(options) if getattr(options, item.name) != getattr(usual, item.name)]
        values = {name: getattr(options, name) for name in names}
        return [f"{n}={resolve_path(value) if n in self.path_options else value}" for n, value in values.items()]
