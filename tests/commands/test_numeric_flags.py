"""Every numeric flag of every verb with values that no number should have: one line and exit code 2, or accepted."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from effssl.cli import main
from effssl.commands.classify import ClassifyOptions
from effssl.commands.duplicates import DuplicatesOptions
from effssl.commands.embed import EmbedOptions
from effssl.commands.neighbors import NeighborsOptions
from effssl.commands.one_line import parse_command
from effssl.commands.outliers import OutliersOptions
from effssl.commands.parsing import parse_settings
from effssl.commands.pretrain import Pretrain
from effssl.commands.study import StudyRun
from effssl.commands.subset import SubsetOptions
from effssl.config import config_type
from effssl.evaluation.catalog import find_protocol, protocol_names
from effssl.objectives.options import TERMS
from effssl.recipes import resolve
from effssl.runtime.errors import RequestError
from effssl.schema import check, nest


def numeric(hint: Any) -> bool:
    """Whether a field holds a number, or some."""
    arguments = typing.get_args(hint)
    return hint in (int, float) or (bool(arguments) and all(item in (int, float, Ellipsis) for item in arguments))


def flags_of(kind: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and types of all numeric fields of a (nested) dataclass."""
    hints = typing.get_type_hints(kind)
    for item in dataclasses.fields(kind):
        hint = hints[item.name]
        if dataclasses.is_dataclass(hint):
            yield from flags_of(typing.cast(type, hint), f"{prefix}{item.name}.")
        elif numeric(hint):
            yield f"{prefix}{item.name}", hint


def values_of(hint: Any, value: str) -> list[str]:
    inner = typing.get_args(hint)
    return [value] * (len(inner) if inner and Ellipsis not in inner else 1)


SETTINGS = dict(flags_of(config_type()))


def refusal(request: Callable[[], Any]) -> str | None:
    """The one line with which a request is refused; None if it is accepted."""
    try:
        request()
    except RequestError as error:
        return str(error)
    return None


def is_one_line(text: str | None) -> bool:
    return text is not None and "\n" not in text and len(text) < 1000


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_a_run(name: str) -> None:
    """What is accepted is finite and in range, with the types that a command line gives and those of a file."""
    for value in (math.nan, math.inf, -math.inf, -1, 0, 1e308, 10**400, "", "text"):
        given = (value,) * len(values_of(SETTINGS[name], "")) if typing.get_args(SETTINGS[name]) else value
        said = refusal(lambda given=given: check(resolve(nest({"data": "digits", name: given})).config))
        assert said is None or is_one_line(said), said
        assert said is not None or value in (-1, 0), f"{name} is {value}"


@pytest.mark.parametrize("name", ["epochs", "views.rotated.angles"])
@pytest.mark.parametrize("value", ["nan", "1e308", ""])
def test_settings_on_the_command_line(name: str, value: str) -> None:
    args = ["--data", "digits", f"--{name.replace('_', '-')}", *values_of(SETTINGS[name], value)]
    assert is_one_line(refusal(lambda: check(resolve(parse_settings(Pretrain, args, "effssl pretrain")[1]).config)))


def test_there_are_many_settings() -> None:
    assert len(SETTINGS) > 80
    assert {"lr", "epochs", "schedule.final", "byol.loss_scale", "views.rotated.angles"} <= SETTINGS.keys()


VERBS = (ClassifyOptions, DuplicatesOptions, EmbedOptions, NeighborsOptions, OutliersOptions, StudyRun, SubsetOptions)


@pytest.mark.parametrize("kind", VERBS, ids=lambda kind: kind.__name__)
def test_flags_of_the_other_verbs_are_numbers_or_one_line(kind: type) -> None:
    for name, hint in flags_of(kind):
        for value in ("nan", "", "text"):
            args = [f"--{name.replace('_', '-')}", *values_of(hint, value)]
            said = refusal(lambda args=args: parse_command(kind, ["x", *args], "effssl verb"))
            assert is_one_line(said) or (said is None and value == "nan")


@pytest.mark.parametrize("name", protocol_names())
def test_options_of_every_protocol(name: str) -> None:
    protocol = find_protocol(name)
    for field, hint in flags_of(protocol.options):
        for value in (math.nan, math.inf, -math.inf, -1, 0, 1e308, "", "text"):
            given = (value,) * len(values_of(hint, "")) if typing.get_args(hint) else value
            said = refusal(lambda field=field, given=given: protocol.options_of({field: given}))
            assert is_one_line(said) or (said is None and value in (-1, 0)), f"{name} {field} = {value}: {said}"


@pytest.mark.long
@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_accepted_trains_or_fails_in_one_line(name: str, tmp_path: Path) -> None:
    for value in ("-1", "0", "1e30"):
        args = ["--data", "digits", "--subset", "128", "--batch-size", "32", "--epochs", "1", "--quiet", "--no-report"]
        args += ["--out", str(tmp_path / value), f"--{name.replace('_', '-')}", *values_of(SETTINGS[name], value)]
        term = name.split(".")[0]
        args += ["--objective", term] if term in TERMS else []
        with contextlib.suppress(SystemExit):  # anything else is a traceback
            main(["pretrain", *args])
