"""Retrieval, clusters, robustness; and what holds for every protocol."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score

import effssl
from effssl.data import ArrayImages, Data
from effssl.evaluation import PROTOCOLS, Features
from effssl.network.loaded import LoadedEncoder

QUICK = {
    "knn": {},
    "linear": {"epochs": 2},
    "finetune": {"epochs": 1},
    "semi": {"epochs": 1},
    "probe-rotation": {"epochs": 1},
    "probe-contrastive": {"batch": 64},
    "transfer": {"grid": 2, "max_iter": 5},
    "retrieval": {},
    "clusters": {"restarts": 1},
    "robustness": {},
}


@pytest.mark.parametrize("what", QUICK)
def test_every_protocol_leaves_the_encoder_untouched_and_says_how_it_measured(
    what: str, encoder: LoadedEncoder, digits: Data
) -> None:
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    score = effssl.evaluate(what, encoder, digits, **QUICK[what])
    for key, value in encoder.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert not encoder.training
    record = json.loads(json.dumps(score.record()))
    assert 0 <= record["value"] <= 100
    assert record["protocol"] == what
    source = record["source"]
    assert source["data"] == "digits"
    assert source["encoder_fingerprint"] == encoder.fingerprint()
    assert source["test_fingerprint"] == digits.test.fingerprint()
    assert source["test_images"] == 360  # none is dropped
    assert "torch" in source["versions"]
    assert "seed" in record["constants"] or what in ("knn", "retrieval", "robustness")
    again = effssl.evaluate(what, encoder, digits, **QUICK[what])
    assert again.value == score.value  # the seed says it all


def test_no_protocol_is_forgotten() -> None:
    assert set(QUICK) | {"detect"} == set(PROTOCOLS)


@pytest.mark.parametrize("what", ["linear", "transfer"])
def test_nothing_is_chosen_on_test(what: str, encoder: LoadedEncoder, digits: Data) -> None:
    """With other test labels every choice stays the same; only the score changes."""
    settings = {"linear": {"epochs": 5}, "transfer": {"grid": 4}}[what]
    score = effssl.evaluate(what, encoder, digits, **settings)
    shuffled = dataclasses.replace(digits.test, labels=digits.test.labels.roll(17))
    other = effssl.evaluate(what, encoder, dataclasses.replace(digits, test=shuffled), **settings)
    for key in ("lr", "C"):
        assert other.constants.get(key) == score.constants.get(key)
    assert other.value < score.value - 20


def test_retrieval_equals_scikit_learn(
    encoder: LoadedEncoder, digits: Data, features: tuple[Features, Features]
) -> None:
    train, test = (F.normalize(part.h.double(), dim=1) for part in features)
    similarity = (test @ train.T).numpy()
    relevant = (features[1].labels[:, None] == features[0].labels).numpy()
    expected = np.mean([average_precision_score(r, s) for r, s in zip(relevant, similarity, strict=True)])
    score = effssl.evaluate("retrieval", encoder, digits, recall_at=[1, 3])
    assert score.value == pytest.approx(100 * expected, abs=0.05)
    order = np.argsort(-similarity, axis=1)
    for k in (1, 3):
        hits = np.take_along_axis(relevant, order[:, :k], 1).any(1).mean()
        assert score.also[f"recall_at_{k}"] == pytest.approx(100 * hits, abs=0.6)


def test_clusters_find_what_is_there(encoder: LoadedEncoder, digits: Data) -> None:
    """Copies of four images are four clusters, whatever the classes are called."""
    four = ArrayImages(digits.test.pixels[:4].repeat(20, 1, 1, 1), torch.tensor([2, 0, 3, 1]).repeat(20), list("abcd"))
    score = effssl.evaluate("clusters", encoder, dataclasses.replace(digits, train=four, test=four))
    assert score.value == pytest.approx(100)
    assert score.also["ARI"] == pytest.approx(100)
    real = effssl.evaluate("clusters", encoder, digits)
    assert 5 < real.value < 95
    with pytest.raises(effssl.RequestError, match="make no sense"):
        effssl.evaluate("clusters", encoder, digits, clusters=1000)


def test_robustness_is_knn_on_rotated_images(encoder: LoadedEncoder, digits: Data) -> None:
    score = effssl.evaluate("robustness", encoder, digits, k=20)
    for turns in (0, 1, 2, 3):
        turned = dataclasses.replace(digits.test, pixels=torch.rot90(digits.test.pixels, turns, (2, 3)))
        plain = effssl.evaluate("knn", encoder, dataclasses.replace(digits, test=turned), k=20)
        assert score.also[f"at_{90 * turns}"] == pytest.approx(plain.value, abs=0.3)
    assert score.value == pytest.approx(sum(score.also.values()) / 4)
