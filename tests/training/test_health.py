from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import effssl
from effssl.data.digits import open_digits
from effssl.training.health import Monitor, effective_rank, spread
from tests.objectives.making import trainer_of


def test_spread_is_one_for_random_directions_and_zero_for_one_point() -> None:
    torch.manual_seed(0)
    assert spread(torch.randn(2000, 64)) == pytest.approx(1, abs=0.02)
    assert spread(torch.ones(100, 64) + 1e-4 * torch.randn(100, 64)) < 0.001


def test_effective_rank_counts_directions() -> None:
    torch.manual_seed(0)
    assert effective_rank(torch.randn(4000, 32)) == pytest.approx(32, rel=0.02)
    low = torch.randn(500, 3) @ torch.linalg.qr(torch.randn(32, 3)).Q.T
    assert effective_rank(low) == pytest.approx(3, rel=0.05)
    assert effective_rank(torch.ones(50, 8)) == 1.0
    two = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert effective_rank(two) == pytest.approx(math.exp(math.log(2)))


def test_without_images_to_compare_there_are_no_baselines() -> None:
    """They are not computed anew at every evaluation."""
    trainer = trainer_of("simclr", open_digits())
    monitor = Monitor(trainer)
    monitor.bank = monitor.bank.select(torch.arange(0))
    assert monitor.baselines() == {}
    assert not trainer.position.baselines


QUICK = {"objective": "simclr", "epochs": 2, "batch_size": 32, "image_size": 16, "quiet": True, "encoder": "tiny"}


def test_without_labels_a_run_stands_beside_what_costs_nothing(tiny_photos: Tensor, tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", tiny_photos[:64].permute(0, 2, 3, 1).numpy())
    run = effssl.pretrain(str(tmp_path / "images.npy"), out=tmp_path / "run", **QUICK)
    first, *others = run.metrics()
    assert {"baseline/pixels", "baseline/patches", "baseline/chance", "agreement"} <= others[0].keys()
    assert "baseline/untrained" not in others[0]  # it is the first evaluation itself
    assert others[0]["baseline/chance"] == pytest.approx(100 * 10 / 63, abs=1e-3)
    assert all("knn" not in line and 0 <= line["agreement"] <= 100 for line in others)
    assert "agreement of neighbors" in others[-1]["why"]
    again = effssl.pretrain(
        str(tmp_path / "images.npy"), out=tmp_path / "again", start_from=str(run.folder), **(QUICK | {"epochs": 1})
    )
    first_again, second_again = again.metrics()
    assert first_again["agreement"] == pytest.approx(others[-1]["agreement"], abs=1e-3)  # of the starting weights
    assert second_again["baseline/pixels"] == others[0]["baseline/pixels"]  # the same protocol on the same images
    assert second_again["baseline/untrained"] == pytest.approx(first["agreement"], abs=25)  # of other random weights
