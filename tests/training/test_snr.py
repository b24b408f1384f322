from __future__ import annotations

from pathlib import Path

import pytest
import torch

import effssl
from effssl.network.encoders import build_encoder
from effssl.network.network import Network
from effssl.network.options import Projector
from effssl.training.snr import GradientNoise


def observed(mean: float, noise: float, scale: float = 1.0, steps: int = 400) -> dict[str, float]:
    network = Network(build_encoder("small", 16), Projector(hidden=8, out=4))
    monitor, g = GradientNoise(network), torch.Generator().manual_seed(0)
    for _ in range(steps):
        for p in network.parameters():
            p.grad = scale * (mean + noise * torch.randn(p.shape, generator=g))
        ratios = monitor.observe()
    return {name: float(value) for name, value in ratios.items()}


def test_ratio_of_a_known_signal() -> None:
    """Gradients of mean 1 and standard deviation 0.5: |m|/√v is near 2, m²/v near 4, |m|/v near 4."""
    ratios = observed(1.0, 0.5)
    assert ratios["snr_abs"] == pytest.approx(2, rel=0.15)
    assert ratios["snr"] == pytest.approx(4, rel=0.25)
    assert observed(1.0, 2.0)["snr"] < 1 < ratios["snr"]


def test_the_primary_ratio_does_not_depend_on_the_scale_of_the_loss() -> None:
    one, ten = observed(1.0, 0.5, steps=50), observed(1.0, 0.5, scale=10, steps=50)
    assert one["snr"] == pytest.approx(ten["snr"], rel=1e-3)
    assert one["snr_literal"] == pytest.approx(10 * ten["snr_literal"], rel=1e-3)


def test_any_run_can_switch_it_on_and_resume_it(tmp_path: Path) -> None:
    quick = {"quiet": True, "subset": 256, "batch_size": 64, "health": {"snr": True}}
    whole = effssl.pretrain("digits", "simsiam+rotation", epochs=2, out=tmp_path / "a", **quick)
    values = [line["snr"] for line in whole.metrics() if "snr" in line]
    assert len(values) == 2
    assert all(value > 0 for value in values)
