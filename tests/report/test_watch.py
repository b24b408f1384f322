"""A run is followed by its files, without torch, until it ends."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from effssl.cli import main
from effssl.config import Config
from effssl.report.watch import last_write, panel, time_left
from effssl.schema import to_dict
from effssl.verbs import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    created = Run.create(tmp_path / "run", Config(data="digits", objective="byol+rotation", epochs=10))
    for epoch in range(5):
        line = {"epoch": epoch, "seconds": 30.0 * epoch, "images": 64 * epoch, "loss": 1 - 0.1 * epoch, "knn": 50.0}
        created.log(line | ({"verdict": "collapsing", "why": "all the same [/]"} if epoch == 4 else {}))
    later = time.time() + 600  # time that a slow test takes is not time that the run was silent
    os.utime(created.metrics_path, (later, later))
    return created


def shown(run: Run, capsys: pytest.CaptureFixture) -> str:
    main(["watch", str(run.folder), "--once"])
    return capsys.readouterr().out


def test_once(run: Run, capsys: pytest.CaptureFixture) -> None:
    text = shown(run, capsys)
    assert "✗ collapsing" in text
    assert "all the same [/]" in text  # not parsed as markup
    assert "epoch 4 of 10, about 3 min 00 s left" in text
    assert "█▆▅▃▁" in text.replace("▂", "▁")
    heading = next(line for line in text.splitlines() if "first" in line)
    assert "last" in heading
    assert "━" not in heading  # the bar has its own line
    run.encoder_path.write_bytes(b"")
    assert "finished" in shown(run, capsys)


def test_nothing_is_cut_at_80_columns(run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for epoch in range(5, 90):
        run.log({"epoch": epoch, "rank_h": 1e-5 * epoch, "rank_z": 1.2345e-5 * epoch, "loss/rotation": 0.1})
    text = shown(run, capsys)
    assert "…" not in text.split("first")[1]
    assert "Effective rank, projections z" in text


def test_a_run_that_was_stopped(run: Run, capsys: pytest.CaptureFixture) -> None:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=subprocess.PIPE, text=True)
    here = f"on {platform.node()}, started by 1\n"
    (run.folder / "lock").write_text(f"process {ended.stdout.strip()} {here}")
    assert "stopped after epoch 4 of 10; resume it with --resume auto" in shown(run, capsys)
    (run.folder / "lock").write_text(f"process {os.getpid()} {here}")
    assert "stopped after" not in shown(run, capsys)
    (run.folder / "lock").write_text(f"process {ended.stdout.strip()} on another-machine, started by 1\n")
    assert "stopped after" not in shown(run, capsys)
    run.encoder_path.write_bytes(b"")
    (run.folder / "lock").write_text(f"process {ended.stdout.strip()} {here}")
    assert "stopped after" not in shown(run, capsys)


def test_a_time_budget_ends_when_it_ends(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run = Run.create(tmp_path / "run", Config(data="digits", epochs=10, budget="1m"))
    run.log({"epoch": 7, "seconds": 30.0, "loss": 1.0})
    assert "epoch 7 within 1m" in shown(run, capsys)
    run.encoder_path.write_bytes(b"")
    assert "epoch 7 within 1m, finished" in shown(run, capsys)


def test_a_run_that_has_just_begun(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert "no verdict yet" in shown(Run.create(tmp_path / "new", Config(data="digits")), capsys)


def test_a_run_that_is_silent(run: Run, capsys: pytest.CaptureFixture) -> None:
    for file in run.folder.iterdir():
        os.utime(file, (time.time() - 1000,) * 2)
    assert last_write(run.folder) > 900
    assert "no output for 16 min" in shown(run, capsys)


def test_time_left() -> None:
    lines = [{"epoch": 0, "seconds": 0.0}, {"epoch": 2, "seconds": 20.0}]
    assert time_left(lines, 5, since=4.0) == 26
    assert time_left(lines, 2, since=0.0) is None
    assert time_left([], 2, since=0.0) is None


def test_half_a_line_is_ignored(run: Run) -> None:
    with run.metrics_path.open("a") as file:
        file.write(json.dumps({"epoch": 5})[:6])
    assert panel(run)


def test_watching_needs_no_torch_and_ends_with_the_run(run: Run) -> None:
    code = (
        "import sys, effssl.cli as c\n"
        "c.main(['watch', sys.argv[1], '--every', '0.1'])\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
        "print('ended')"
    )
    environment = os.environ | {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "100"}
    watching = subprocess.Popen(
        [sys.executable, "-c", code, str(run.folder)], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            watching.wait(4)  # it continues as long as the run does
        run.encoder_path.write_bytes(b"")
        text, _ = watching.communicate(timeout=20)
    finally:
        watching.kill()
    assert "epoch 4 of 10" in text
    assert "finished" in text
    assert text.endswith("ended\n")


def test_requests_that_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(to_dict(Config())))
    for args, message in ([str(tmp_path / "none")], "no run folder"), ([str(tmp_path), "--every", "0"], "more than 0"):
        with pytest.raises(SystemExit) as ended:
            main(["watch", *args])
        assert ended.value.code == 2
        assert message in capsys.readouterr().err
