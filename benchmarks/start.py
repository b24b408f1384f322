"""How long a user waits: import, help, and the first training step."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from statistics import median

from benchmarks.timing import seconds


def measure(repeats: int, data: str = "cifar10") -> dict[str, dict[str, float]]:
    """Seconds of a fresh process; the bare interpreter for comparison."""
    python = [sys.executable, "-c"]

    def timed(*command: str) -> float:
        return median(
            seconds(lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=True)) for _ in range(repeats)
        )

    bare = timed(*python, "pass")
    found = {
        "python": {"seconds": bare},
        "import effssl": {"seconds": timed(*python, "import effssl") - bare},
        "effssl --help": {"seconds": timed(sys.executable, "-m", "effssl", "--help")},
    }
    return found | {f"first step on {data}": {"seconds": median(first_step(data) for _ in range(min(3, repeats)))}}


def first_step(data: str) -> float:
    """From the command to the end of the first optimizer step: its checkpoint appears."""
    import pathlib

    with tempfile.TemporaryDirectory() as folder:
        command = ["-m", "effssl", "pretrain", "--data", data, "--out", f"{folder}/r", "--checkpoint-every", "1"]
        started = time.perf_counter()
        running = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not pathlib.Path(folder, "r", "checkpoint.pt").exists():
                if running.poll() is not None:
                    raise RuntimeError("the run ended before its first step")
                time.sleep(0.005)
            return time.perf_counter() - started
        finally:
            running.kill()
            running.wait()
