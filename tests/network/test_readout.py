"""Whitening by numpy, and a finished encoder whose features are joined and whitened."""

from __future__ import annotations

import numpy as np
import torch

from effssl.network.readout import Whitening
from effssl.runtime.randomness import generator


def features(count: int = 2000, dim: int = 12) -> torch.Tensor:
    mix = torch.randn(dim, dim, generator=generator(0, "mix"))
    return torch.randn(count, dim, generator=generator(1, "features")) @ mix + 5


def test_whitened_features_are_uncorrelated_with_unit_variance() -> None:
    x = features()
    whitening = Whitening(12, 8)
    whitening.fit([x])
    covariance = np.cov(whitening(x).double().numpy().T)
    assert np.abs(covariance - np.eye(8)).max() < 0.02
    assert whitening(x).mean(0).abs().max() < 1e-4


def test_they_are_the_largest_principal_components_of_standardized_features() -> None:
    x = features() * torch.logspace(-3, 3, 12)  # scales do not matter
    whitening = Whitening(12, 3)
    whitening.fit([x])
    standard = ((x - x.mean(0)) / x.std(0, unbiased=False)).double().numpy()
    _, values, rows = np.linalg.svd(standard, full_matrices=False)
    expected = standard @ rows[:3].T / (values[:3] / np.sqrt(len(x)))
    cosines = np.abs((whitening(x).numpy() * expected).mean(0))
    assert np.allclose(cosines, 1, atol=0.01)


def test_batches_give_what_all_features_at_once_give() -> None:
    x = features()
    one, many = Whitening(12, 6), Whitening(12, 6)
    one.fit([x])
    many.fit(x.split(77))
    assert torch.allclose(one(x), many(x), atol=1e-4)


def test_constant_features_do_no_harm() -> None:
    x = torch.cat([features(), torch.full((2000, 3), 7.0)], 1)
    whitening = Whitening(15, 15)
    whitening.fit([x])
    assert whitening(x).isfinite().all()
    assert whitening(x).abs().max() < 100


def test_few_features_give_few_components() -> None:
    x = features(count=20)
    whitening = Whitening(12, 12)
    whitening.fit([x])
    assert (whitening(features()).std(0) > 0).tolist() == [True] * 5 + [False] * 7
