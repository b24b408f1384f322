"""The first losses are the stored ones; `python -m tests.reference_losses write` stores those of a meant change."""

from __future__ import annotations

import math

import pytest

from tests.reference_losses import OBJECTIVES, PROCESSES, STEPS, difference, first_losses, machine, of_processes, stored

WRITE = "if the change is meant: python -m tests.reference_losses write"
NEAR = 1e-3  # how far the first loss may be off on another machine


def losses_of_this_machine(processes: int) -> dict[str, list[float]]:
    found = stored().get(machine())
    if found is None:
        known = ", ".join(stored())
        pytest.skip(f"losses are stored for {known}, not for {machine()}: python -m tests.reference_losses write")
    return found[str(processes)]


def test_all_objectives_are_stored_for_a_machine() -> None:
    assert stored()
    for of_machine in stored().values():
        assert set(of_machine) == {str(count) for count in PROCESSES}
        for losses in of_machine.values():
            assert set(losses) == set(OBJECTIVES)
            assert len(OBJECTIVES) == 8
            assert all(len(values) == STEPS and all(map(math.isfinite, values)) for values in losses.values())


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_first_losses_are_those_that_are_stored(objective: str) -> None:
    losses = first_losses(objective)
    assert len(losses) == STEPS
    anywhere = next(iter(stored().values()))["1"][objective]
    assert losses[0] == pytest.approx(anywhere[0], abs=NEAR), f"on any machine; {WRITE}"
    changed = difference(losses_of_this_machine(1)[objective], losses)
    assert not changed, f"{changed}; {WRITE}"


@pytest.mark.long
def test_the_first_losses_of_two_processes_are_those_that_are_stored() -> None:
    expected, losses = losses_of_this_machine(2), of_processes(2)
    changed = {objective: difference(expected[objective], losses[objective]) for objective in OBJECTIVES}
    assert not any(changed.values()), f"{changed}; {WRITE}"
