"""Settings as frozen dataclasses: from mappings and YAML files and back, with types and ranges checked.

A number states its range where it is declared:

    momentum: Annotated[float, Between(0, 1)] = 0.9

Unknown keys, wrong types and values out of range are errors of one line. This module does not import torch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import reprlib
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml

from effssl.runtime.errors import RequestError, did_you_mean
from effssl.runtime.reading import describe, one_line, read_text
from effssl.runtime.versions import EFFSSL


@dataclass(frozen=True)
class Between:
    """The range of a number, or of every number of a tuple, both ends included."""

    low: float = -math.inf
    high: float = math.inf

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"at least {self.low:g}"
        return f"at most {self.high:g}" if math.isinf(self.low) else f"between {self.low:g} and {self.high:g}"


Count = Annotated[int, Between(0)]
"""A whole number from 0 on."""
Positive = Annotated[int, Between(1)]
"""A whole number from 1 on."""
Share = Annotated[float, Between(0, 1)]
"""A share or a probability."""
NonNegative = Annotated[float, Between(0)]
"""A number from 0 on."""
Small = Annotated[float, Between(1e-6)]
"""A number above 0: temperatures and the like."""
Seed = Annotated[int, Between(0, 2**32 - 1)]
"""NumPy takes no larger ones."""


def check(settings: Any, where: str = "") -> None:
    """Refuse numbers outside the range that their field declares, and those that are not finite; `where` is a prefix.

    >>> @dataclass(frozen=True)
    ... class Example:
    ...     momentum: Annotated[float, Between(0, 1)] = 0.9
    >>> check(Example(momentum=1.5))
    Traceback (most recent call last):
    effssl.runtime.errors.RequestError: momentum is 1.5; it must be between 0 and 1
    """
    hints = typing.get_type_hints(type(settings), include_extras=True)
    for item in dataclasses.fields(settings):
        value, name = getattr(settings, item.name), f"{where}{item.name}"
        if dataclasses.is_dataclass(value):
            check(value, f"{name}.")
            continue
        allowed = next((x for x in getattr(hints[item.name], "__metadata__", ()) if isinstance(x, Between)), Between())
        numbers = [v for v in (value if isinstance(value, tuple) else [value]) if type(v) in (int, float)]
        shown = list(value) if isinstance(value, tuple) else value
        if any(LARGEST < abs(v) < math.inf for v in numbers):
            raise RequestError(f"{name} is {_shown(shown)}; float32 holds no number above {LARGEST:g}")
        if not all(-math.inf < v < math.inf and allowed.low <= v <= allowed.high for v in numbers):
            raise RequestError(f"{name} is {_shown(shown)}; it must be {allowed if allowed != Between() else 'finite'}")
        if value == () != item.default:
            raise RequestError(f"{name} needs at least one value")


T = TypeVar("T")
LARGEST = 3.4e38  # of float32, in which everything is computed
WHOLE = 2**53  # up to here floats count every whole number
MOST_BYTES = 1 << 17  # of a YAML file; those of effssl have some thousands
MOST_VALUES, ALIASES = 10_000, 10  # in a YAML file


def build(cls: type[T], values: Mapping[str, Any], where: str, base: T | None = None) -> T:
    """Build a (nested) dataclass from a mapping, over `base`; `where` names the source in error messages."""
    if not isinstance(values, Mapping):
        raise RequestError(f"{where} holds several values, got {_shown(values)}")
    declared = typing.get_type_hints(cls)  # without ranges, which `check` knows
    hints = {item.name: declared[item.name] for item in dataclasses.fields(typing.cast(Any, cls))}
    base = cls() if base is None else base
    changes: dict[str, Any] = {}
    for key, value in values.items():
        key = str(key)
        if key not in hints:
            raise RequestError(
                f"{where}: unknown key {_shown(key)}{did_you_mean(key, hints)}; known: {', '.join(hints)}"
            )
        if dataclasses.is_dataclass(hints[key]):
            changes[key] = build(typing.cast(type, hints[key]), value, f"{where}: {key}", getattr(base, key))
        else:
            changes[key] = _convert(value, hints[key], f"{where}: {key}")
    return dataclasses.replace(base, **changes)  # type: ignore[type-var]


def _shown(value: Any) -> str:
    """A value for a message; what is long or nested is shortened before it is written out."""
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = brief.maxlong = 80
    return one_line(brief.repr(value))


def _convert(value: Any, hint: Any, where: str) -> Any:
    """Check one value against its type; whole numbers become floats and lists become tuples."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        choices = typing.get_args(hint)
        if value in choices:
            return value
        raise RequestError(f"{where} is {_shown(value)}; choose one of {', '.join(map(str, choices))}")
    if origin is tuple:
        inner = typing.get_args(hint)
        items = list(value) if isinstance(value, (list, tuple)) else [value]
        if inner[-1] is Ellipsis:
            return tuple(_convert(item, inner[0], where) for item in items)
        if len(items) != len(inner):
            raise RequestError(f"{where} takes {len(inner)} values, got {_shown(value)}")
        return tuple(_convert(item, one, where) for item, one in zip(items, inner, strict=True))
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:  # a whole number of hundreds of digits
            raise RequestError(f"{where} is {_shown(value)}, which is too large") from None
    if hint is int and type(value) is int and abs(value) > WHOLE:
        raise RequestError(f"{where} is {_shown(value)}, which is too large")
    if type(value) is not hint:
        raise RequestError(f"{where} takes a value of type {getattr(hint, '__name__', hint)}, got {_shown(value)}")
    if hint is str and "\0" in value:
        raise RequestError(f"{where} is {_shown(value)}; no text has a null character")
    return value


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings, the second over the first."""
    merged = dict(below)
    for key, value in above.items():
        inner = merged.get(key)
        merged[key] = merge(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return merged


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The other way round than `flatten`.

    >>> nest({"lr": 0.1, "rotation.weight": 0.4})
    {'lr': 0.1, 'rotation': {'weight': 0.4}}
    """
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        inner = nested
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return nested


def digest(settings: Any) -> str:
    """A short name for complete settings: equal settings have equal names."""
    return hashlib.sha256(json.dumps(to_dict(settings), sort_keys=True).encode()).hexdigest()[:12]


def to_dict(config: Any) -> dict[str, Any]:
    """A plain nested mapping, with lists for tuples, that YAML and JSON can hold."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value

    return plain(dataclasses.asdict(config))


class _Loader(yaml.SafeLoader):
    """YAML as people mean it: `on` and dates are words, 1e-4 is a number, and a key stands once."""

    aliases = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """What SafeLoader does; but a few aliases of aliases can stand for a billion values."""
        if self.check_event(yaml.AliasEvent):
            self.aliases += 1
            if self.aliases > ALIASES:
                raise yaml.YAMLError(f"it has more than {ALIASES} aliases")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """What SafeLoader does, but where a key stands twice it does not quietly take the last one."""
        if not isinstance(node, yaml.MappingNode):
            raise yaml.YAMLError("it calls something a mapping that is none")
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.YAMLError(f"{one_line(repr(key.value))} stands there twice")
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":bool", ":float", ":timestamp"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|True|false|False)$"), list("tTfF"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)


def written_by(values: dict[str, Any]) -> str:
    """Take the versions out of a config file's values; a hint if a newer effssl wrote it."""
    versions = values.pop("versions", None)
    theirs = one_line(versions.get("effssl", ""), 40) if isinstance(versions, dict) else ""
    numbers = [[int(n) for n in re.findall(r"\d+", text)] for text in (theirs, EFFSSL)]
    return f" (written by effssl {theirs}, which is newer than this {EFFSSL})" if numbers[0] > numbers[1] else ""


def parse_yaml(text: str) -> Any:
    """What a YAML text holds; whatever is wrong with it is a ValueError of one line."""
    try:
        values = yaml.load(text, _Loader)
        _check_count(values)
        return values
    except Exception as error:  # its constructors raise anything: `!!int abc`, `!!timestamp no`, deep nesting …
        raise ValueError(describe(error)) from None


def _check_count(values: Any) -> None:
    """Refuse more values than settings have; an alias of what contains it would have no end."""
    waiting, count = [values], 0
    while waiting:
        item = waiting.pop()
        count += 1
        if count > MOST_VALUES:
            raise ValueError(f"it holds more than {MOST_VALUES:,} values")
        if isinstance(item, (dict, list)):
            waiting += item.values() if isinstance(item, dict) else item


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping."""
    try:
        text = read_text(path)
        if len(text) > MOST_BYTES:
            raise ValueError(f"it has {len(text):,} bytes, and settings have {MOST_BYTES:,} at most")
        values = parse_yaml(text)
    except FileNotFoundError:
        raise RequestError(f"no such file: {path}") from None
    except (OSError, ValueError) as error:
        raise RequestError(f"{path} is not readable as YAML: {describe(error)}") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise RequestError(f"{path} does not hold 'key: value' lines")
    return values


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names.

    >>> flatten({"rotation": {"on": "z"}, "lr": 0.1})
    {'rotation.on': 'z', 'lr': 0.1}
    """
    out: dict[str, Any] = {}
    for key, value in values.items():
        out |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return out
