"""Every random draw comes from a generator named by (seed, purpose, step).

No generator is shared or carried along, so a resume, another number of workers or one more term in the objective
cannot shift anybody's stream.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def seed_of(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed that depends on every part of its name."""
    name = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A fresh CPU generator for one purpose, e.g. `generator(0, "angles", step)`."""
    return torch.Generator().manual_seed(seed_of(seed, *purpose))


@contextmanager
def seeded(seed: int, *purpose: str | int) -> Iterator[None]:
    """Run a block that uses torch's global generator (weight initialization) with its own seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, *purpose))
        yield
