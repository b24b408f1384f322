"""Errors name keyword arguments where Python called, and flags on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import effssl
from effssl.cli import main
from effssl.runtime.errors import in_python


def test_the_same_mistake_in_the_words_of_each_caller(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_tmp / "runs").write_text("")
    with pytest.raises(effssl.RequestError, match=r"^runs is a file; choose another out=$"):
        effssl.pretrain("digits", "byol", out="runs")
    with pytest.raises(SystemExit):
        main(["pretrain", "--data", "digits", "--objective", "byol", "--out", "runs"])
    assert capsys.readouterr().err == "effssl: runs is a file; choose another --out\n"
    with pytest.raises(effssl.RequestError, match="another out="):  # the command line has ended
        effssl.pretrain("digits", "byol", out="runs")


@pytest.mark.parametrize(
    ("flags", "keywords"),
    [
        ("use --batch-size 16, for example", "use batch_size=16, for example"),
        ("--precision float32. What", 'precision="float32". What'),
        ("--labels folders is for folders", 'labels="folders" is for folders'),
        ("--out names a file", "out= names a file"),
        ("choose another --out, or add --overwrite", "choose another out=, or add overwrite=True"),
        ("use --readout.no-maps", 'use readout={"maps": False}'),
        ("raise --distill.memory from 3", "raise distill.memory from 3"),
        ("--data FOLDER, or a file of effssl embed --out x", "data=FOLDER, or a file of effssl embed --out x"),
        ("torchrun --max-restarts does so; use --resume auto", 'torchrun --max-restarts does so; use resume="auto"'),
    ],
)
def test_flags_become_keyword_arguments(flags: str, keywords: str) -> None:
    assert in_python(flags) == keywords
