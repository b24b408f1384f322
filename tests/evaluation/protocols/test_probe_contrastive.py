"""The contrastive probe: partners found, by hand and on the training views."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import effssl
from effssl.data import Data
from effssl.evaluation.protocols.probe_contrastive import partner_found
from effssl.network.loaded import LoadedEncoder


def test_partners() -> None:
    g = torch.Generator().manual_seed(0)
    z = torch.randn(20, 6, generator=g)
    assert partner_found(torch.cat([z, z])).all()
    noise = torch.randn(2000, 16, generator=g)
    assert float(partner_found(noise).float().mean()) < 0.005  # chance is 1/1999
    near = torch.cat([z, z + 0.8 * torch.randn(20, 6, generator=g)])
    expected = []
    for a in range(40):
        others = [b for b in range(40) if b != a]
        best = max(others, key=lambda b: float(F.cosine_similarity(near[a], near[b], dim=0)))
        expected.append(best == (a + 20) % 40)
    assert partner_found(near).tolist() == expected
    assert 0 < sum(expected) < 40


def test_contrastive_probe_uses_the_training_views_and_whole_batches(encoder: LoadedEncoder, digits: Data) -> None:
    score = effssl.evaluate("probe-contrastive", encoder, digits, batch=100)
    assert score.constants["batches"] == 3
    assert score.constants["images_left_out"] == 60
    assert score.constants["chance"] == pytest.approx(100 / 199)
    assert set(score.also) == {"on_z"}
    with pytest.raises(effssl.RequestError, match="larger than the 360 test images"):
        effssl.evaluate("probe-contrastive", encoder, digits)
