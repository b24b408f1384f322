"""Every numeric flag of every verb with values that no number should have: one line and exit code 2, or accepted."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shutil
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

from effssl.cli import VERBS as CLI_VERBS
from effssl.cli import main
from effssl.commands.browse import BrowseOptions
from effssl.commands.classify import ClassifyOptions
from effssl.commands.duplicates import DuplicatesOptions
from effssl.commands.embed import EmbedOptions
from effssl.commands.evaluate import EvaluationTarget
from effssl.commands.export import Export, Import
from effssl.commands.neighbors import NeighborsOptions
from effssl.commands.outliers import OutliersOptions
from effssl.commands.pack import pack
from effssl.commands.parsing import parse_settings
from effssl.commands.pretrain import Pretrain
from effssl.commands.report import report
from effssl.commands.saliency import saliency
from effssl.commands.study import StudyRun
from effssl.commands.subset import SubsetOptions
from effssl.commands.sweep import Sweep
from effssl.commands.watch import watch
from effssl.config import config_type
from effssl.evaluation.catalog import find_protocol, protocol_names
from effssl.explore.embedding import embed
from effssl.network.encoders import build_encoder
from effssl.network.loaded import dump_encoder
from effssl.objectives.options import TERMS
from effssl.recipes import resolve
from effssl.run import RunFolder
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


QUICK = ("nan", "-1", "9" * 400)
VALUES = (*QUICK, "inf", "-inf", "0", "1e308", "", "text")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the verbs read: an encoder, its features of some photographs, labels, and a run folder."""
    folder = tmp_path_factory.mktemp("flags")
    (folder / "photos").mkdir()
    photo = Image.fromarray(load_sample_image("china.jpg"))
    for i in range(4):
        photo.crop((40 * i, 0, 40 * i + 32, 32)).save(folder / "photos" / f"{i}.png")
    about = {"encoder": "tiny", "image_size": 16, "stem": "auto", "mean": [0.5] * 3, "std": [0.25] * 3}
    (folder / "encoder.safetensors").write_bytes(dump_encoder(build_encoder("tiny", 16), about))
    torch.save(build_encoder("tiny", 16).backbone.state_dict(), folder / "weights.pth")
    embed(str(folder / "encoder.safetensors"), folder / "photos", folder / "f.npz")
    (folder / "l.csv").write_text("file,label\n0.png,x\n1.png,x\n2.png,y\n3.png,y\n")
    RunFolder.create(folder / "run", config_type()())
    return folder


ENCODER, FEATURES = "{}/encoder.safetensors", ("--features", "{}/f.npz")
WEIGHTS = ("{}/weights.pth", "--encoder", "tiny")
VERBS: dict[str, tuple[Any, tuple[str, ...]]] = {  # where the flags are declared, and a command that needs few seconds
    "browse": (BrowseOptions, ("--data", "{}/photos", *FEATURES, "--out", "{}/b.html", "--overwrite")),
    "classify": (ClassifyOptions, (ENCODER, *FEATURES, "--labels", "{}/l.csv", "--out", "{}/c.csv", "--overwrite")),
    "duplicates": (DuplicatesOptions, FEATURES),
    "embed": (EmbedOptions, (ENCODER, "--data", "{}/photos", "--out", "{}/e.npz", "--overwrite", "--workers", "0")),
    "eval knn": (EvaluationTarget, (*WEIGHTS, "--data", "{}/photos")),
    "export": (Export, (*WEIGHTS, "--to", "safetensors", "--out", "{}/x.safetensors", "--overwrite")),
    "import": (Import, (*WEIGHTS, "--out", "{}/i.safetensors", "--overwrite")),
    "neighbors": (NeighborsOptions, (*FEATURES, "--query", "{}/photos/0.png")),
    "outliers": (OutliersOptions, FEATURES),
    "pack": (pack, ("{}/photos", "--out", "{}/pack")),
    "report": (report, ("{}/run", "--out", "{}/report.html")),
    "study run": (StudyRun, ("E06", "--scale", "paper", "--out", "{}/studies")),  # which lacks its photographs
    "subset": (SubsetOptions, (*FEATURES, "--size", "2")),
    "sweep": (Sweep, ("--data", "digits", "--over", "lr=0.1:0.2", "--out", "{}/sweep")),  # a grid has no intervals
    "watch": (watch, ("{}/run", "--once")),
}  # fmt: skip


def declared(kind: Any) -> Iterator[tuple[str, Any]]:
    """Numeric flags of a dataclass that are its own, or of a function."""
    if isinstance(kind, type):
        of_a_run = {name for name, _ in flags_of(config_type())}
        yield from ((name, hint) for name, hint in flags_of(kind) if name not in of_a_run or kind is not Sweep)
    else:
        yield from ((name, hint) for name, hint in typing.get_type_hints(kind).items() if numeric(hint))


FLAGS = [(verb, name, hint) for verb, (kind, _) in VERBS.items() for name, hint in declared(kind)]


EACH = pytest.mark.parametrize(
    ("values", "verb", "name", "hint"),
    [pytest.param(QUICK, *flag, id=f"{flag[0]} {flag[1]}") for flag in FLAGS]
    + [pytest.param(VALUES, *flag, marks=pytest.mark.long, id=f"{flag[0]} {flag[1]}, all values") for flag in FLAGS],
)


@EACH
def test_flags_of_the_other_verbs(
    values: tuple[str, ...], verb: str, name: str, hint: Any, files: Path, capsys: pytest.CaptureFixture
) -> None:
    """The whole command with each value: it ends well, or with one line; anything else would be a traceback."""
    given = [text.format(files) for text in VERBS[verb][1]]
    for value in values:
        shutil.rmtree(files / "pack", ignore_errors=True)
        (files / "report.html").unlink(missing_ok=True)
        code = 0
        try:
            main([*verb.split(), *given, f"--{name.replace('_', '-')}", *values_of(hint, value)])
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr().err
        assert code in (0, 1, 2), f"{value}: {said}"
        if code:
            assert is_one_line(said.strip()) and said.startswith("effssl: "), f"{value}: {said}"  # noqa: PT018
        assert code == 2 or value in ("-1", "0"), f"{value} is accepted"


def test_no_verb_with_numbers_is_left_out() -> None:
    """Each module of a verb that declares a numeric flag is among those above."""
    known = {verb.split()[0] for verb in VERBS} | {"pretrain"}
    assert known == set(CLI_VERBS) - {"recipes", "saliency"}
    assert not list(declared(saliency))


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
