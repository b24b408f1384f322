"""A pool of child processes: a few jobs at a time, each with its share of the cores; none outlives this process.

with Pool(workers=2) as pool:
    for result in pool.run(Job(name, child_command("effssl", "pretrain", …)) for name in names):
        print(result.job.name, result.error or "done")
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from tempfile import TemporaryFile
from types import FrameType
from typing import Any

from effssl.runtime.errors import Stopped
from effssl.runtime.processes import child_environment

POLL = 0.1  # seconds between two checks of the running children
STOP_POLL = 0.5  # seconds between two calls of a job's `should_stop`
GRACE = 60.0  # seconds that a child has to save its work after SIGTERM
SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Job:
    """A command to run as a child process."""

    name: str
    command: Sequence[str]
    stdin: str = ""
    on_line: Callable[[str], None] | None = None  # called with each line of the child's stderr as it is written
    should_stop: Callable[[], str] | None = None  # polled while the child runs; a reason stops it early


@dataclass(frozen=True)
class JobResult:
    """How a job ended."""

    job: Job
    stdout: str
    error: str = ""  # one line that says why it failed
    stopped: str = ""  # the reason that `should_stop` gave


class Pool:
    """Runs jobs as child processes, `workers` at a time.

    SIGTERM or Ctrl-C in this process stops the running children, waits until they have saved their work, and raises
    `Stopped`; a second Ctrl-C kills them.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._children: list[Child] = []
        self._handlers: dict[signal.Signals, Any] = {}
        self._interrupted = False

    def __enter__(self) -> Pool:
        if threading.current_thread() is threading.main_thread():  # no other thread may handle signals
            self._handlers = {number: signal.signal(number, self._interrupt) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for child in self._children:
                child.process.terminate()
            deadline = time.monotonic() + GRACE
            while time.monotonic() < deadline and any(child.process.poll() is None for child in self._children):
                time.sleep(POLL)
        finally:
            for child in self._children:
                child.process.kill()
                child.process.wait()
                child.close()
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def run(self, jobs: Iterable[Job]) -> Iterator[JobResult]:
        """Run all jobs and yield each result as soon as its job has ended."""
        waiting = iter(jobs)
        while True:
            while len(self._children) < self.workers and (job := next(waiting, None)) is not None:
                self._children.append(Child(job, self.workers))
            if not self._children:
                return
            ended = [child for child in self._children if child.ended()]
            for child in ended:
                self._children.remove(child)
                yield child.result()
            if not ended:
                time.sleep(POLL)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self._interrupted:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        self._interrupted = True
        name = signal.Signals(number).name
        raise Stopped(f"{name}: the running jobs were stopped; repeat the command to resume")


class Child:
    """A running job. Its output goes to temporary files, so that no full pipe can block it."""

    def __init__(self, job: Job, workers: int) -> None:
        self.job = job
        self.stopped = ""
        self._shown = 0  # bytes of stderr that `on_line` has received
        self._checked = time.monotonic()
        self._stdout = TemporaryFile()  # noqa: SIM115  open as long as the process runs
        self._stderr = TemporaryFile()  # noqa: SIM115
        with TemporaryFile() as stdin:
            stdin.write(job.stdin.encode())
            stdin.seek(0)
            self.process = subprocess.Popen(
                job.command, stdin=stdin, stdout=self._stdout, stderr=self._stderr, env=child_environment(workers)
            )

    def ended(self) -> bool:
        """Whether the process has ended; passes on new lines and stops the process early where the job says so."""
        ended = self.process.poll() is not None
        self._show_lines()
        if not ended and self.job.should_stop and not self.stopped and time.monotonic() > self._checked + STOP_POLL:
            self._checked = time.monotonic()
            self.stopped = self.job.should_stop()
            if self.stopped:
                self.process.terminate()
        return ended

    def result(self) -> JobResult:
        """The result of the ended process."""
        stdout = _content(self._stdout).decode(errors="replace")
        stderr = _content(self._stderr).decode(errors="replace")
        code = self.process.returncode
        # A child that ended by itself before the signal reached it was not stopped.
        stopped = self.stopped if code else ""
        self.close()
        return JobResult(self.job, stdout, "" if stopped else failure(stderr, code), stopped)

    def close(self) -> None:
        """Remove the temporary files."""
        self._stdout.close()
        self._stderr.close()

    def _show_lines(self) -> None:
        if self.job.on_line is None:
            return
        new = _content(self._stderr, self._shown)
        complete = new[: new.rfind(b"\n") + 1]
        self._shown += len(complete)
        for line in complete.decode(errors="replace").splitlines():
            self.job.on_line(line)


def failure(stderr: str, code: int) -> str:
    """Why a process failed, in one line; empty for exit code 0.

    >>> failure("Traceback …\\nValueError: lr is -1", 1), failure("", -9), failure("a warning", 0)
    ('ValueError: lr is -1', 'killed by SIGKILL', '')
    """
    if code == 0:
        return ""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = stderr.strip().splitlines()
    return lines[-1].removeprefix("effssl: ") if lines else f"ended with exit code {code}"


def _content(file: Any, start: int = 0) -> bytes:
    """A file's bytes; reading must not move the offset, at which the child writes."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size - start, start)
