"""Command lines that hold settings of a run: one tyro parse tells the given flags from those left to the recipe."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from effssl.commands.one_line import parse_command
from effssl.config import Config, config_type

HELP_FLAGS = {"-h", "--help"}
T = TypeVar("T")


def parse_settings(options: type[T], args: Sequence[str], prog: str) -> tuple[T, dict[str, Any]]:
    """Parse a command line into the command's own options and the settings that were given, as a nested mapping.

    `options` is a dataclass; its field `config`, if any, names a YAML file of settings. Help shows the defaults of the
    recipe that the rest of the command line leads to.
    """
    if not HELP_FLAGS & set(args):
        return _parse(options, args, prog, config_type()())
    rest = [arg for arg in args if arg not in HELP_FLAGS]
    command, flags = _parse(options, rest, prog, config_type()())
    return _parse(options, args, prog, _recipe_defaults(flags, getattr(command, "config", "")))


def _parse(options: type[T], args: Sequence[str], prog: str, defaults: Config) -> tuple[T, dict[str, Any]]:
    hints = typing.get_type_hints(options)
    own = [(item.name, _with_default(hints[item.name], item.default), item) for item in _fields(options)]
    settings = _optional(type(defaults), defaults)
    bases, doc = (options, settings), {"__doc__": options.__doc__}
    command_line = dataclasses.make_dataclass(options.__name__, own, bases=bases, frozen=True, namespace=doc)
    parsed: Any = parse_command(command_line, args, prog)
    return options(**{item.name: getattr(parsed, item.name) for item in _fields(options)}), _given(parsed, settings)


def _optional(cls: type, defaults: Any) -> type:
    """A subclass of a (nested) dataclass in which every setting is None unless given; help shows `defaults`."""
    import tyro

    hints = typing.get_type_hints(cls)
    fields: list[Any] = []
    for item in _fields(cls):
        hint, default = hints[item.name], getattr(defaults, item.name)
        if dataclasses.is_dataclass(hint):
            inner = _optional(typing.cast(type, hint), default)
            fields.append((item.name, inner, dataclasses.field(default_factory=inner)))
        else:
            optional: Any = hint | None
            fields.append((item.name, Annotated[_with_default(optional, default), tyro.conf.DisallowNone], None))
    # A subclass, because tyro finds the help of a field in the source of the class that declares it.
    return dataclasses.make_dataclass(
        cls.__name__, fields, bases=(cls,), frozen=True, namespace={"__doc__": cls.__doc__}
    )


def _with_default(hint: Any, default: Any) -> Any:
    """A type whose help shows a default, unless that is empty."""
    import tyro

    text = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
    return Annotated[hint, tyro.conf.arg(help_behavior_hint=f"(default: {text})" if text else "")]


def _fields(cls: Any) -> tuple[dataclasses.Field, ...]:
    return dataclasses.fields(cls)


def _given(parsed: Any, cls: type) -> dict[str, Any]:
    """Of the settings that a class declares, those that are not None, as a nested mapping."""
    given: dict[str, Any] = {}
    for item in _fields(cls):
        value = getattr(parsed, item.name)
        if dataclasses.is_dataclass(value):
            value = _given(value, type(value)) or None
        if value is not None:
            given[item.name] = value
    return given


def _recipe_defaults(flags: dict[str, Any], file: str) -> Config:
    """The config that a command line leads to without an accelerator, with `recipe` as it was asked for."""
    from effssl.recipes import resolve

    config = resolve(flags, Path(file) if file else None).config
    return dataclasses.replace(config, recipe=flags.get("recipe", "auto"))
