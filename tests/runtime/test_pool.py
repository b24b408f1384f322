"""A pool runs a few child processes at a time, reports each failure in one line and leaves no child behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from effssl.runtime.errors import RequestError, Stopped
from effssl.runtime.pool import Job, JobResult, Pool
from effssl.runtime.processes import child_command, child_environment

# A child that writes its process id into a file, then sleeps; SIGTERM makes it write "saved" and end with code 75.
SLEEPER = """
import os, signal, sys, time
def save(*_):
    open(sys.argv[1], "w").write("saved")
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(60)
"""


def python(code: str, *args: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, args)]


def run(jobs: list[Job], workers: int = 2) -> dict[str, JobResult]:
    with Pool(workers) as pool:
        return {result.job.name: result for result in pool.run(jobs)}


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


def alive(process: int) -> bool:
    """Whether a process runs; one that has ended and that nobody waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_results_and_one_line_of_failure() -> None:
    found = run([
        Job("good", python("import sys; print(sys.stdin.read().upper()); print('noise', file=sys.stderr)"), "hello"),
        Job("bad", python("raise ValueError('lr is -1')")),
        Job("request", python("import sys; sys.exit('effssl: no such data')")),
        Job("silent", python("import sys; sys.exit(3)")),
        Job("killed", python("import os; os.kill(os.getpid(), 9)")),
    ])  # fmt: skip
    assert (found["good"].stdout, found["good"].error) == ("HELLO\n", "")
    errors = {name: result.error for name, result in found.items() if result.error}
    assert errors == {
        "bad": "ValueError: lr is -1",
        "request": "no such data",
        "silent": "ended with exit code 3",
        "killed": "killed by SIGKILL",
    }


@pytest.mark.parametrize("workers", [1, 3])
def test_never_more_at_a_time_than_workers(workers: int, tmp_path: Path) -> None:
    code = "import os, sys, time; f = sys.argv[1]; open(f, 'w'); time.sleep(0.3); os.remove(f)"
    most = 0

    def count() -> str:
        nonlocal most
        most = max(most, len(list(tmp_path.iterdir())))
        return ""

    jobs = [Job(str(n), python(code, tmp_path / str(n))) for n in range(4)]
    watch = Job("watch", python("import time; time.sleep(2)"), should_stop=count)
    assert len(run([watch, *jobs], workers + 1)) == 5
    assert 1 <= most <= workers


def test_large_input_and_output_block_nobody() -> None:
    size = 1_000_000
    found = run(
        [Job("large", python("import sys; t = sys.stdin.read(); print(t); print(t, file=sys.stderr)"), "x" * size)]
    )
    assert len(found["large"].stdout) == size + 1


def test_lines_come_while_the_child_runs() -> None:
    seen: list[tuple[float, str]] = []
    code = "import sys, time; print('one', file=sys.stderr); time.sleep(1); print('two', file=sys.stderr)"
    run([Job("lines", python(code), on_line=lambda line: seen.append((time.monotonic(), line)))])
    assert [line for _, line in seen] == ["one", "two"]
    assert seen[1][0] - seen[0][0] > 0.5


def test_a_job_is_stopped_early(tmp_path: Path) -> None:
    file = tmp_path / "file"
    found = run([Job("early", python(SLEEPER, file), should_stop=lambda: "too slow" if file.exists() else "")])
    assert (found["early"].stopped, found["early"].error) == ("too slow", "")
    assert file.read_text() == "saved"


def test_an_error_of_the_caller_stops_the_children(tmp_path: Path) -> None:
    file = tmp_path / "file"

    def refuse() -> str:
        if file.exists():
            raise RequestError("images have no labels")
        return ""

    with pytest.raises(RequestError, match="no labels"):
        run([Job("one", python(SLEEPER, file), should_stop=refuse)])
    assert file.read_text() == "saved"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_children_save(number: signal.Signals, tmp_path: Path) -> None:
    file = tmp_path / "file"

    def interrupt() -> str:
        if file.exists():
            os.kill(os.getpid(), number)
        return ""

    before = signal.getsignal(number)
    with pytest.raises(Stopped, match=number.name):
        run([Job("first", python(SLEEPER, file), should_stop=interrupt), Job("second", python(SLEEPER, file))], 1)
    assert file.read_text() == "saved"
    assert signal.getsignal(number) == before


def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER)
    parent_code = (
        "import sys; from effssl.runtime.pool import Job, Pool; from effssl.runtime.processes import child_command\n"
        "with Pool(1) as pool: list(pool.run([Job('child', child_command('sleeper', sys.argv[1]))]))"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    parent = subprocess.Popen(python(parent_code, tmp_path / "file"), env=os.environ | {"PYTHONPATH": path})
    wait_for(lambda: (tmp_path / "file").exists())
    child = int((tmp_path / "file").read_text())
    assert alive(child)
    parent.kill()
    parent.wait()
    wait_for(lambda: not alive(child))


def test_a_child_runs_a_module_like_python_does() -> None:
    found = run([Job("version", child_command("effssl", "--version"))])
    assert found["version"].stdout.strip()[0].isdigit()


def test_children_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("effssl.runtime.processes.usable_cores", lambda: 8)
    assert [child_environment(n)["OMP_NUM_THREADS"] for n in (1, 2, 3, 16)] == ["8", "4", "2", "1"]
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert child_environment(2)["OMP_NUM_THREADS"] == "5"
