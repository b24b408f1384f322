"""What is said of devices that cannot be used."""

from __future__ import annotations

import pytest
import torch

from effssl.runtime.device import pick_device
from effssl.runtime.errors import RequestError


@pytest.mark.parametrize("name", ["xla", "meta", "other", ""])
def test_a_device_that_nothing_runs_on(name: str) -> None:
    with pytest.raises(RequestError, match=r"cannot be used; use auto, cpu, cuda, mps$"):
        pick_device(name)


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="it can be used here")
def test_of_what_torch_says_the_first_sentence() -> None:
    with pytest.raises(RequestError, match="'mps' cannot be used: ") as error:
        pick_device("mps")
    assert len(str(error.value)) < 200
    assert ". " not in str(error.value)
