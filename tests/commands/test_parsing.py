"""The parse of a command line: what was given, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from effssl.commands.parsing import parse_settings
from effssl.commands.pretrain import Pretrain
from effssl.objectives.options import TERMS, TermEntry, TermOptions
from effssl.recipes import resolve
from effssl.runtime.errors import RequestError


def settings(*args: str) -> dict[str, Any]:
    return parse_settings(Pretrain, args, "effssl pretrain")[1]


@pytest.mark.parametrize(
    ("args", "given"),
    [
        ([], {}),
        (["--epochs", "3", "--batch-size=64"], {"epochs": 3, "batch_size": 64}),
        (["--batch_size", "64"], {"batch_size": 64}),
        (["--lr", "1"], {"lr": 1.0}),
        (["--no-compile"], {"compile": False}),
        (["--compile"], {"compile": True}),
        (["--views.rotated.no-update-stats"], {"views": {"rotated": {"update_stats": False}}}),
        (["--views.rotated.copy-of", ""], {"views": {"rotated": {"copy_of": ""}}}),
        (["--augment.scale", "0.2", "1"], {"augment": {"scale": (0.2, 1.0)}}),
        (["--augment.blur", "1", "0.1"], {"augment": {"blur": (1.0, 0.1)}}),
        (["--rotation.on", "h", "--rotation.weight", "0"], {"rotation": {"on": "h", "weight": 0.0}}),
        (["--rotation-supcon.weight", "1"], {"rotation_supcon": {"weight": 1.0}}),
        (["--data", "--epochs=3"], None),
        (["--precision", "None"], None),
        (["--epochs", "None"], None),
        (["--epochs", "nan"], None),
        (["--form", "paper"], None),
    ],
)
def test_only_what_was_given(args: list[str], given: dict[str, Any] | None) -> None:
    if given is not None:
        assert settings(*args) == given
        return
    with pytest.raises(RequestError) as error:
        settings(*args)
    assert args[0] in error.value.args[0]
    assert "\n" not in str(error.value)


def test_a_given_default_is_given() -> None:
    """`--lr` with the value that the defaults have is not scaled with the batch."""
    default = resolve({"data": "x", "objective": "byol"}).config
    flags = settings("--objective", "byol", "--lr", str(default.lr), "--batch-size", "32")
    assert resolve(flags).config.lr == default.lr
    assert resolve({"objective": "byol", "batch_size": 32}).config.lr == default.lr / 2


def test_options_of_a_command_are_no_settings() -> None:
    @dataclass(frozen=True)
    class Sweep(Pretrain):
        over: tuple[str, ...] = ()
        jobs: int = 2

    args = ["--over", "lr=0.1,0.2", "seed=1,2", "--out", "x", "--no-report", "--seed", "3"]
    options, flags = parse_settings(Sweep, args, "effssl sweep")
    assert options == Sweep(out="x", report=False, over=("lr=0.1,0.2", "seed=1,2"))
    assert flags == {"seed": 3}


def test_options_of_a_registered_term_are_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Options(TermOptions):
        margin: float = 0.5

    monkeypatch.setitem(TERMS, "mine", TermEntry(Options, object))
    assert settings("--mine.margin", "0.7") == {"mine": {"margin": 0.7}}


def shown_default(flag: str, args: list[str], capsys: pytest.CaptureFixture) -> str:
    with pytest.raises(SystemExit) as stop:
        settings(*args, "--help")
    assert not stop.value.code
    lines = [line.strip("│ ") for line in capsys.readouterr().out.splitlines()]
    start = next(i for i, line in enumerate(lines) if line.startswith(f"{flag} "))
    return " ".join(lines[start:]).split("(default: ")[1].split(")")[0]


def test_help_shows_the_defaults_of_the_recipe_that_would_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "c.yaml").write_text("epochs: 7\n")
    for flag, args, default in [
        ("--lr", ["--recipe", "cifar10-byol", "--objective", "byol"], "0.8"),
        ("--lr", ["--recipe=cifar10-byol", "--batch-size", "256"], "0.4"),
        ("--views.rotated.size", [], "0.5"),
        ("--views.rotated.size", ["--objective", "byol + 0*rotation"], "1.0"),
        ("--augment.scale", ["--recipe", "cifar10-moco"], "0.08 1.0"),
        ("--epochs", ["--config", str(tmp_path / "c.yaml")], "7"),
        ("--recipe", [], "auto"),
    ]:
        assert shown_default(flag, args, capsys) == default, (flag, args)


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--epochs", "nan"], "--epochs takes a whole number, not 'nan'"),
        (["--lr", "much"], "--lr takes a number, not 'much'"),
        (["--augment.scale", "0.1"], "--augment.scale takes 2 numbers, not '0.1'"),
        (["--resume", "maybe"], "invalid choice 'maybe' for argument '--resume'. Expected one of ('never', 'auto')"),
    ],
)
def test_a_value_of_another_kind_in_plain_words(args: list[str], said: str, ascii_only: bool) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii" if ascii_only else "utf-8"}
    command = [sys.executable, "-m", "effssl", "pretrain", *args]
    done = subprocess.run(command, env=env, capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (2, f"effssl: {said}; effssl pretrain --help shows all options\n")
