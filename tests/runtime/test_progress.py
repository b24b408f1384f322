"""Plain lines where there is no terminal; nothing where quiet was asked for; whole words in tables."""

from __future__ import annotations

import pytest

from effssl.runtime import progress
from effssl.runtime.progress import download_bar, progress_bar, say, silenced, spinner, table


def test_without_a_terminal_progress_is_a_line_now_and_then(
    capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress_bar("features", 300) as advance:
        advance(100)
        assert capfd.readouterr().err == ""
        monkeypatch.setattr(progress, "LINE_INTERVAL", -1.0)
        advance(150)
    assert capfd.readouterr().err == "features 250/300\n"
    with spinner("clustering"), download_bar("cifar10", 170_000_000) as advance:
        advance(1)
    assert capfd.readouterr().err == "clustering …\ncifar10 (170 MB) …\n"


def test_silenced_prints_nothing_and_only_within(capfd: pytest.CaptureFixture) -> None:
    with silenced():
        say("one")
        with silenced(False):
            say("two")
    with silenced(False):
        say("[three] of 3")
    assert capfd.readouterr().err == "[three] of 3\n"


def test_tables_wrap_and_go_to_stdout(capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    table("scores", ["name", "value"], [["a-very-long-name-without-any-space", "1.0"], ["b", "22.0"]])
    captured = capfd.readouterr()
    assert captured.err == ""
    assert max(map(len, captured.out.splitlines())) <= 30
    assert "…" not in captured.out
    assert " 1.0 │" in captured.out
