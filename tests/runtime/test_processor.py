"""A product that would kill the process is tried in a copy of it."""

from __future__ import annotations

import os
import signal

import torch

from effssl.runtime.processor import bf16_kills, bf16_slowdown, dies_in_a_copy


def test_only_the_copy_dies() -> None:
    assert dies_in_a_copy(lambda: os.kill(os.getpid(), signal.SIGILL))
    assert not dies_in_a_copy(lambda: None)


def test_a_product_in_a_copy_of_a_process_that_has_computed() -> None:
    torch.ones(300, 300) @ torch.ones(300, 300)
    assert not dies_in_a_copy(lambda: (torch.set_num_threads(1), torch.ones(300, 300) @ torch.ones(300, 300)))


def test_bf16_is_safe_here() -> None:
    """conftest.py called `avoid_broken_amx` before the first product."""
    assert not bf16_kills()
    assert bf16_slowdown() > 0
