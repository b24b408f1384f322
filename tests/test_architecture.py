"""What CONTRIBUTING says of the code: sizes, names, and that terms stay in their rooms. Imports: `make lint`."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import effssl
from effssl.objectives.options import TERMS

ROOT = Path(effssl.__file__).parent
MODULES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8")) for path in ROOT.rglob("*.py")}
FUNCTIONS = [
    (f"{name}:{node.lineno} {node.name}", node)
    for name, tree in MODULES.items()
    for node in ast.walk(tree)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
]
MOST_LINES = 50
MOST_PARAMETERS = 6
OF_TERMS = ("objectives/", "recipes/", "studies/")  # the only folders that may name one
OTHER_MEANINGS = {  # the same word for something else
    "evaluation/protocols/probe_rotation.py": "rotation",  # a protocol of the paper, for any encoder
    "evaluation/protocols/semi.py": "simclr",  # a repository in an address
}


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Those that a caller gives one by one."""
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def words(tree: ast.Module) -> Iterator[str]:
    """Words of strings, attributes, keyword arguments and imports; docstrings are left out, and local variables."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from re.findall(r"\w+", node.value.replace("self-supervised", ""))
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield from re.findall(r"\w+", ast.unparse(node))


def test_a_function_fits_on_a_screen() -> None:
    lines = {name: node.end_lineno - node.lineno + 1 for name, node in FUNCTIONS}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def test_parameters_can_be_remembered() -> None:
    many = [name for name, node in FUNCTIONS if parameters(node) > MOST_PARAMETERS]
    assert [name.partition(" ")[2] for name in many] == ["pretrain"], many


def test_a_class_has_a_name_of_its_own() -> None:
    names = Counter(n.name for tree in MODULES.values() for n in ast.walk(tree) if isinstance(n, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_terms_are_named_in_their_rooms_only() -> None:
    others = {name: tree for name, tree in MODULES.items() if not name.startswith(OF_TERMS)}
    assert len(others) > 150
    named = {name: set(words(tree)) & set(TERMS) - {OTHER_MEANINGS.get(name)} for name, tree in others.items()}
    assert {name: terms for name, terms in named.items() if terms} == {}
