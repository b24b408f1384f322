"""Robustness against kNN on images that are rotated beforehand."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import effssl
from effssl.data import Data
from effssl.network.loaded import LoadedEncoder


def test_robustness_is_knn_on_rotated_images(encoder: LoadedEncoder, digits: Data) -> None:
    score = effssl.evaluate("robustness", encoder, digits, k=20)
    for turns in (0, 1, 2, 3):
        turned = dataclasses.replace(digits.test, pixels=torch.rot90(digits.test.pixels, turns, (2, 3)))
        plain = effssl.evaluate("knn", encoder, dataclasses.replace(digits, test=turned), k=20)
        assert score.also[f"at_{90 * turns}"] == pytest.approx(plain.value, abs=0.3)
    assert score.value == pytest.approx(sum(score.also.values()) / 4)
