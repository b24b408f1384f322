"""A process that hangs is noticed by the others."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import time, torch.distributed as dist
from effssl.runtime import heartbeat
heartbeat.INTERVAL, heartbeat.TIMEOUT = 0.05, 1.0
store = dist.TCPStore("127.0.0.1", 0, is_master=True)
with heartbeat.heartbeats(lambda: store, 0, 2):
    for count in range(20):
        store.set("beat/1", str(count)); time.sleep(0.1)
    print("both are alive", flush=True)
    time.sleep(60)
"""


def test_a_process_without_heartbeats_ends_the_others() -> None:
    """One that hangs is alive for torchrun; the heartbeat thread of the other process ends it."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=55)
    assert done.returncode == 1
    assert done.stdout == "both are alive\n"
    assert done.stderr.startswith("effssl: process 1 of 2 has sent no heartbeat for 1 s; the last checkpoint is intact")
