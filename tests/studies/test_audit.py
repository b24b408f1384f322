"""Documented results follow from the stored values."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from effssl.cli import main as effssl
from effssl.studies import names
from effssl.studies.audit import differences, main

DOCS = Path(__file__).parents[2] / "docs" / "results"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("E14-cpu", "C01-cpu"):
        shutil.copytree(DOCS / name, tmp_path / name)
    return tmp_path


def test_the_documentation_has_what_the_stored_values_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(DOCS)]) == 0, capsys.readouterr().out


def test_another_value_is_noticed_everywhere_it_shows(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = copy / "C01-cpu" / "results.json"
    stored = json.loads(path.read_text())
    stored["runs"][0]["values"]["knn"] += 1
    path.write_text(json.dumps(stored))
    found = " ".join(differences(copy))
    assert "table is not what its runs give" in found
    assert "README.md: not what results.json gives: | BYOL × 0.5 |" in found
    assert main([str(copy)]) == 1
    assert main([str(copy), "--write"]) == 0


@pytest.mark.parametrize(
    ("old", "new"), [("not decided", "held"), ("+0.22", "+0.52"), ("0.19 to 0.60", "0.29 to 0.33")]
)
def test_another_word_or_interval_is_noticed(copy: Path, old: str, new: str) -> None:
    page = copy / "C01-cpu" / "README.md"
    assert old in page.read_text()
    page.write_text(page.read_text().replace(old, new))
    assert len(differences(copy)) >= 1


def test_an_empty_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "no results of studies" in capsys.readouterr().err


def test_the_list_has_all_studies_with_their_verdicts(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    effssl(["study", "list", "--out", str(copy)])
    lines = capsys.readouterr().out.splitlines()
    assert all(any(f" {name} " in line for line in lines) for name in names())
    assert sum("not run" in line for line in lines) == len(names()) - 2
