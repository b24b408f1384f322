"""All evaluation protocols, found by their files; none of them is imported before it is used."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from importlib.util import find_spec
from pathlib import Path

from effssl.evaluation import protocols
from effssl.evaluation.protocol import EvaluationProtocol
from effssl.runtime.errors import RequestError, did_you_mean


def protocol_names() -> list[str]:
    """Names of all protocols, as `effssl eval` takes them."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(protocols.__path__))


def describe_protocol(name: str) -> str:
    """What a protocol measures, in one line: its module's docstring, read without importing it."""
    spec = find_spec(_module_name(name))
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").partition("\n")[0]


def check_protocol_name(name: str) -> None:
    """Refuse the name of a protocol that does not exist."""
    names = protocol_names()
    if name not in names:
        raise RequestError(f"unknown evaluation {name!r}{did_you_mean(name, names)}; known: {', '.join(names)}")


def find_protocol(name: str) -> EvaluationProtocol:
    """The protocol of a name."""
    check_protocol_name(name)
    return importlib.import_module(_module_name(name)).PROTOCOL


def _module_name(name: str) -> str:
    return f"{protocols.__name__}.{name.replace('-', '_')}"
