"""Faults on purpose: runs are killed, signalled, corrupted, starved of disk or robbed of a process, then resumed.

    python -m tests.chaos              # all of it, some minutes, prints a table
    python -m tests.chaos --trials 1   # each kind once; but each file operation of a run's start and end

Whatever happens, the finished run must equal the undisturbed one to the bit: weights, metrics but for seconds, score.
A study must end with the values of an undisturbed one.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests import kill_points, study_faults

ROOT = Path(__file__).parent.parent
SETTINGS = ["--data", "digits", "--subset", "512", "--batch-size", "64", "--epochs", "4", "--encoder", "small"]
OBJECTIVES = {
    "byol+rotation": [],
    "swav": ["--swav.queue", "100", "--swav.queue-from", "0", "--health.snr"],
    "moco+rotation": ["--moco.queue", "200"],
    "simclr": [],
}
LIMIT = 240  # seconds that one process may take


@dataclass
class Outcome:
    """What became of one fault."""

    fault: str
    objective: str
    processes: int
    survived: bool
    lost: int = 0  # steps that had been saved and were done again
    difference: str = ""  # what differs from the undisturbed run


class Case:
    """One objective trained by so many processes, and what an undisturbed run gives."""

    def __init__(self, objective: str, processes: int, folder: Path) -> None:
        self.objective, self.processes, self.folder = objective, processes, folder
        self.count = 0
        started = time.monotonic()
        whole = self.start(self.folder / "whole")
        text, _ = whole.communicate(timeout=LIMIT)
        assert whole.returncode == 0, text[-2000:]
        self.expected = result(self.folder / "whole")
        self.seconds = time.monotonic() - started

    def start(self, out: Path, *more: str, torchrun: tuple[str, ...] = (), prepare: Callable | None = None):
        """Start or resume the run in a process group of its own."""
        many = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.processes), *torchrun]
        many += ["--signals-to-handle", "SIGTERM,SIGINT,SIGUSR1"]  # what torchrun hands on; it does not know SIGUSR1
        launch = [sys.executable, *(many if self.processes > 1 else []), "-m", "effssl", "pretrain", *SETTINGS]
        args = ["--objective", self.objective, *OBJECTIVES[self.objective], "--checkpoint-every", "1"]
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            [*launch, *args, "--out", str(out), "--resume", "auto", *more], env=env, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True, preexec_fn=prepare,
        )  # fmt: skip

    def fresh(self) -> Path:
        """A folder for the next trial."""
        self.count += 1
        return self.folder / f"trial{self.count}"

    def failed(self, fault: str, text: str) -> Outcome:
        """A fault that a run did not survive."""
        return Outcome(fault, self.objective, self.processes, False, difference=text)

    def finish(self, fault: str, out: Path, lost: int = 0) -> Outcome:
        """Resume the run undisturbed and compare."""
        last = self.start(out)
        text, _ = last.communicate(timeout=LIMIT)
        if last.returncode != 0:
            return self.failed(fault, text[-500:])
        got = result(out)
        wrong = [name for name in self.expected if got[name] != self.expected[name]]
        shutil.rmtree(out)
        return Outcome(fault, self.objective, self.processes, True, lost, ", ".join(wrong))


def result(run: Path) -> dict[str, str]:
    """Digests of what a run gives: weights, metrics without seconds, and that each epoch stands there once."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    plain = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
    assert [line["epoch"] for line in lines] == list(range(5)), "an epoch is missing or stands twice"
    return {
        "weights": hashlib.sha256((run / "encoder.safetensors").read_bytes()).hexdigest(),
        "metrics": json.dumps(plain),
        "score": str(lines[-1]["knn"]),
    }


def wait_for_training(run: Path, process: subprocess.Popen, moment: float) -> bool:
    """Wait until training has begun and `moment` (0 to 1) of its steps are done; False if it was over before."""
    path, previous, changes = run / "checkpoint.pt", 0, 0
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline and process.poll() is None:
        stamp = path.stat().st_mtime_ns if path.exists() else 0
        changes += stamp != previous
        previous = stamp
        if changes >= 1 + moment * 12:  # polling misses some of the 32 checkpoints
            return True
        time.sleep(0.002)
    return False


def saved_steps(run: Path) -> int:
    """Steps that the newest good checkpoint holds."""
    from effssl.runtime.errors import RunFailed
    from effssl.training.checkpoint import load_checkpoint

    with contextlib.suppress(RunFailed, FileNotFoundError):  # read while it was renamed
        state = load_checkpoint(run / "checkpoint.pt")
        return 0 if state is None else state["position"]["updates"]
    return 0


def kill_all(run: Path, process: subprocess.Popen) -> int:
    """SIGKILL a run with all its processes; how many saved steps are gone with them."""
    before = saved_steps(run)
    for pid in [process.pid, *children(process.pid)]:  # torchrun starts its processes in sessions of their own
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    process.communicate(timeout=LIMIT)
    return max(0, before - saved_steps(run))


# ---------------------------------------------------------------------------------------------------------------
# Faults


def kill(case: Case, dice: random.Random) -> Outcome:
    """SIGKILL at a random moment, twice in a row."""
    out, lost = case.fresh(), 0
    for _ in range(2):
        process = case.start(out)
        if wait_for_training(out, process, dice.random()):
            time.sleep(dice.random() * 0.05)
        lost += kill_all(out, process)
    return case.finish("SIGKILL, twice", out, lost)


def kill_early(case: Case, dice: random.Random) -> Outcome:
    """SIGKILL before the first step."""
    out = case.fresh()
    process = case.start(out)
    while not (out / "config.yaml").exists() and process.poll() is None:
        time.sleep(0.005)
    time.sleep(dice.random() * 0.2)
    return case.finish("SIGKILL before training", out, kill_all(out, process))


def ask(case: Case, dice: random.Random) -> Outcome:
    """SIGTERM, SIGINT or SIGUSR1: the run saves and leaves with code 75; torchrun hands signals to its processes."""
    out, number = case.fresh(), dice.choice([signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
    process = case.start(out)
    asked = wait_for_training(out, process, dice.random() / 2)
    before = saved_steps(out)
    process.send_signal(number)
    text, _ = process.communicate(timeout=LIMIT)
    if asked and case.processes == 1 and process.returncode not in (75, 0):
        return case.failed(number.name, f"code {process.returncode}: {text[-300:]}")
    if asked and case.processes > 1 and "stopped and saved" not in text:
        return case.failed(number.name, f"not saved: {text[-300:]}")
    return case.finish(number.name, out, max(0, before - saved_steps(out)))


def corrupt(case: Case, dice: random.Random) -> Outcome:
    """A bit of the newest checkpoint flips, or its end is missing."""
    out = case.fresh()
    process = case.start(out)
    wait_for_training(out, process, 0.3 + dice.random() / 2)
    kill_all(out, process)
    path, before = out / "checkpoint.pt", saved_steps(out)
    if path.exists() and (out / "checkpoint.previous.pt").exists():
        content = bytearray(path.read_bytes())
        if dice.random() < 0.5:
            content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        else:
            del content[dice.randrange(len(content)) :]
        path.unlink()  # killed while saving, both names may be those of one file
        path.write_bytes(content)
    return case.finish("damaged checkpoint", out, before - saved_steps(out))


def full_disk(case: Case, dice: random.Random) -> Outcome:
    """No file may grow beyond a size that the checkpoint needs: the run stops with one line, older files stay whole."""
    out = case.fresh()
    process = case.start(out)
    wait_for_training(out, process, dice.random() / 2)
    lost = kill_all(out, process)
    size = max((path.stat().st_size for path in out.glob("checkpoint*.pt")), default=1 << 20)

    def small_files_only() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))

    before = saved_steps(out)
    starved = case.start(out, prepare=small_files_only)
    text, _ = starved.communicate(timeout=LIMIT)
    if starved.returncode != 1 or "free some space" not in text:
        return case.failed("full disk", f"{starved.returncode}: {text[-300:]}")
    return case.finish("full disk", out, lost + before - saved_steps(out))


def lose_a_process(case: Case, dice: random.Random) -> Outcome:
    """One of two processes is killed: torchrun brings the job back from the checkpoint by itself."""
    out, begun = case.fresh(), time.monotonic()
    process = case.start(out, torchrun=("--max-restarts", "2"))
    if wait_for_training(out, process, dice.random() / 2):
        found = children(process.pid)
        if found:
            os.kill(dice.choice(found), signal.SIGKILL)
    text, _ = process.communicate(timeout=LIMIT)
    if process.returncode != 0:
        return case.failed("lost process", f"{time.monotonic() - begun:.0f} s: {text[-500:]}")
    return case.finish("lost process", out)


def hang(case: Case, dice: random.Random) -> Outcome:
    """One of two processes stops without dying: the other one notices, and torchrun ends the job or restarts it."""
    out = case.fresh()
    process = case.start(out)
    if not wait_for_training(out, process, dice.random() / 2):
        return case.finish("hanging process", out)
    before, begun = saved_steps(out), time.monotonic()
    os.kill(dice.choice(children(process.pid)), signal.SIGSTOP)
    text, _ = process.communicate(timeout=LIMIT)
    took = time.monotonic() - begun
    if process.returncode == 0 or took > 90 or "no heartbeat" not in text:
        return case.failed("hanging process", f"{took:.0f} s, code {process.returncode}: {text[-500:]}")
    return case.finish("hanging process", out, max(0, before - saved_steps(out)))


def children(parent: int) -> list[int]:
    """Processes that train, started by `parent`."""
    found = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True, check=False).stdout.split()
    return [int(pid) for pid in found]


FAULTS: dict[int, list[Callable[[Case, random.Random], Outcome]]] = {
    1: [kill, kill_early, ask, corrupt, full_disk],
    2: [kill, ask, lose_a_process, hang],
}


def faults_of_runs(folder: Path, dice: random.Random, trials: int, only: int | None) -> list[Outcome]:
    """Every fault of runs, for several objectives, by one process and by two."""
    outcomes = []
    for processes, faults in FAULTS.items():
        if only not in (None, processes):
            continue
        for objective in OBJECTIVES if processes == 1 else ["byol+rotation", "moco+rotation"]:
            case = Case(objective, processes, folder / f"{objective}-{processes}")
            for fault in faults:
                outcomes += [told(fault(case, dice)) for _ in range(trials)]
    return outcomes


def faults_of_files_and_studies(folder: Path, dice: random.Random, trials: int) -> list[Outcome]:
    """SIGKILL before every file operation of a run's start and end; two studies at once, and one that is killed."""
    found = [("SIGKILL, file operation", wrong) for wrong in kill_points.of_a_run(folder / "operations")]
    found += study_faults.all_faults(folder / "studies", dice, trials)
    return [told(Outcome(fault, "", 1, not wrong, difference=wrong)) for fault, wrong in found]


def told(outcome: Outcome) -> Outcome:
    """The outcome, after a line about it."""
    state = outcome.difference or ("equal" if outcome.survived else "LOST")
    print(f"{outcome.objective}, {outcome.processes} process(es), {outcome.fault}: {state}", file=sys.stderr)
    return outcome


def main() -> None:
    """Run all faults and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=3, help="of each fault and objective")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, choices=[*FAULTS], help="only the faults of one process, or of two")
    parser.add_argument("--part", choices=["runs", "files"], help="only faults of runs, or of files and studies")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from effssl.runtime.progress import table

    dice, outcomes = random.Random(options.seed), []
    with tempfile.TemporaryDirectory() as folder:
        if options.part != "runs":
            outcomes += faults_of_files_and_studies(Path(folder), dice, options.trials)
        if options.part != "files":
            outcomes += faults_of_runs(Path(folder), dice, options.trials, options.processes)

    def row(name: str, processes: str, some: list[Outcome]) -> list[str]:
        counts = (
            len(some),
            sum(o.survived for o in some),
            sum(o.lost for o in some),
            sum(bool(o.difference) for o in some),
        )
        return [name, processes, *map(str, counts)]

    kinds = sorted({(o.fault, o.processes) for o in outcomes})
    rows = [row(kind, str(n), [o for o in outcomes if (o.fault, o.processes) == (kind, n)]) for kind, n in kinds]
    title = "Faults; a checkpoint after every step. Lost: saved steps that were done again, beside the one in flight"
    header = ("fault", "processes", "tried", "survived", "steps lost", "differences")
    table(title, header, [*rows, row("all", "", outcomes)])
    sys.exit(any(not o.survived or o.difference for o in outcomes))


if __name__ == "__main__":
    main()
