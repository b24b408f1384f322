"""A run folder: its files, and several processes that write to it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from effssl.config import config_type
from effssl.report.summary import summarize
from effssl.report.watch import panel
from effssl.run import RunFolder, is_score
from effssl.runtime.errors import RequestError

SCORE = {"protocol": "knn", "value": 50.0, "metric": "accuracy", "constants": {}, "source": {}}
ADD = """
import itertools, sys
from effssl.run import RunFolder
folder, name, count = sys.argv[1:]
score = {"protocol": "knn", "value": 50.0, "metric": "accuracy", "constants": {}, "source": {}}
for i in range(int(count)) if int(count) else itertools.count():
    RunFolder(folder).add_result(f"{name} {i}", score)
"""


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", config_type()())


def adding(run: RunFolder, name: str, count: int) -> subprocess.Popen:
    """A process that adds so many scores, 0 for ever."""
    return subprocess.Popen([sys.executable, "-c", ADD, str(run.folder), name, str(count)])


def test_processes_that_add_scores_lose_none(run: RunFolder) -> None:
    others = [adding(run, name, 20) for name in ("a", "b", "c")]
    for i in range(20):
        run.add_result(f"d {i}", SCORE)
    assert [process.wait(60) for process in others] == [0, 0, 0]
    assert set(run.results()) == {f"{name} {i}" for name in "abcd" for i in range(20)}


def test_a_process_that_is_killed_leaves_whole_results(run: RunFolder) -> None:
    for attempt in range(3):
        process = adding(run, str(attempt), 0)
        until = time.monotonic() + 60
        while f"{attempt} 3" not in run.results() and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        assert {f"{attempt} {i}" for i in range(4)} <= set(run.results())
        run.add_result("after", SCORE | {"value": float(attempt)})  # the lock is free again
        assert run.results()["after"]["value"] == attempt


def test_results_that_are_no_scores_stay_and_are_not_read(run: RunFolder) -> None:
    odd = {"a": 51.2, "b": None, "c": {}, "d": SCORE | {"value": "high"}, "e": {"protocol": "knn"}}
    odd |= {"f": SCORE | {"value": float("nan")}, "g": SCORE | {"source": "digits"}}
    assert not any(is_score(value) for value in odd.values())
    run.results_path.write_text(json.dumps(odd))
    run.add_result("knn", SCORE)
    assert run.results() == {"knn": SCORE}
    assert list(json.loads(run.results_path.read_text())) == [*odd, "knn"]
    for text, message in (("[]", "does not hold scores"), ("{", "cannot be read")):
        run.results_path.write_text(text)
        for refused in (run.results, run.check_results, lambda: run.add_result("knn", SCORE)):
            with pytest.raises(RequestError, match=message):
                refused()
        assert run.results_path.read_text() == text


def test_half_a_line_of_metrics_is_not_read_and_lines_can_be_dropped(run: RunFolder) -> None:
    assert run.metrics() == []
    for epoch in range(3):
        run.log({"epoch": epoch})
    with run.metrics_path.open("a") as file:
        file.write('{"epoch": 3, "lo')
    assert [line["epoch"] for line in run.metrics()] == [0, 1, 2]
    run.keep_metrics_until(1)
    assert run.metrics_path.read_text() == '{"epoch": 0}\n{"epoch": 1}\n'


BAD_LINES = (
    b"\xff\xfe", b"{", b"[1]", b"3", b'"a"', b'{"epoch": "1"}', b'{"epoch": 1, "loss": "low"}', b'{"epoch": -1}',
    b'{"epoch": 1, "seconds": NaN}', b'{"epoch": 1, "verdict": "learning"}', b"[" * 100_000,
    b'{"epoch": 1, "images": 1' + b"0" * 400 + b"}",
)  # fmt: skip


def test_a_damaged_line_of_metrics_is_left_out_and_named(run: RunFolder, capsys: pytest.CaptureFixture) -> None:
    lines = [b'{"epoch": 0, "images": 0, "seconds": 0.0, "flops": 0}', *BAD_LINES, b'{"epoch": 1, "rank_h": NaN}']
    run.metrics_path.write_bytes(b"\n".join(lines) + b"\n")
    assert [line["epoch"] for line in run.metrics()] == [0, 1]
    run.metrics()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == len(BAD_LINES)  # each once
    assert "line 2 of" in said[0]
    panel(run)
    summarize(run)
    run.keep_metrics_until(0)
    assert len(run.metrics_path.read_text().splitlines()) == 1


def test_what_is_no_run_folder(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no run folder at"):
        RunFolder(tmp_path / "nowhere")
    with pytest.raises(RequestError, match=r"it has no config\.yaml"):
        RunFolder(tmp_path)
    with pytest.raises(RequestError, match="another process has just started it"):
        RunFolder.create(run.folder, run.config)
    assert not run.finished
    assert run.config == config_type()()
