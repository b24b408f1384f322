"""What holds for every evaluation protocol."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

import effssl
from effssl.data import Data
from effssl.evaluation import protocol_names
from effssl.features.extract import Features
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
    assert set(QUICK) | {"detect", "agreement"} == set(protocol_names())


def test_agreement_needs_neither_labels_nor_test_images(encoder: LoadedEncoder, digits: Data) -> None:
    bare = Data("bare", dataclasses.replace(digits.train, labels=None, classes=[]))
    before = encoder.fingerprint()
    score = effssl.evaluate("agreement", encoder, bare, images=100)
    assert encoder.fingerprint() == before
    assert score.constants["chance"] == pytest.approx(100 * 10 / 99)
    assert score.constants["chance"] < score.value < 100
    assert score.source["train_images"] == 100
    assert effssl.evaluate("agreement", encoder, digits, images=100).value == score.value
    with pytest.raises(effssl.RequestError, match="agreement: images is 9"):
        effssl.evaluate("agreement", encoder, bare, images=9)


def test_chance_stands_beside_an_accuracy(encoder: LoadedEncoder, digits: Data) -> None:
    assert digits.test is not None
    assert digits.test.labels is not None
    most = 100 * float(digits.test.labels.bincount().max()) / 360
    for what in ("knn", "robustness"):
        score = effssl.evaluate(what, encoder, digits)
        assert score.constants["chance"] == pytest.approx(most)
        assert score.constants["k"] == 1437 // 10  # as many as a class has images
    assert effssl.evaluate("knn", encoder, digits, k=200).constants["k"] == 200


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


def test_evaluation_leaves_the_encoder_as_it_was_and_asserts_that_it_is_frozen(encoder: LoadedEncoder) -> None:
    data = effssl.open_data("digits")
    before = encoder.fingerprint()
    effssl.evaluate("knn", encoder, data)
    effssl.evaluate("linear", encoder, data, epochs=2)
    assert encoder.fingerprint() == before
    encoder.train()
    with pytest.raises(AssertionError, match="eval mode"):
        effssl.evaluate("knn", encoder, data)
    encoder.eval().requires_grad_(True)
    with pytest.raises(AssertionError, match="frozen"):
        effssl.evaluate("knn", encoder, data)
    encoder.requires_grad_(False)


def test_no_test_image_is_dropped(features: tuple[Features, Features]) -> None:
    assert len(features[0].h) == 1437
    assert len(features[1].h) == 360


def test_unknown_evaluation(encoder: LoadedEncoder) -> None:
    with pytest.raises(effssl.RequestError, match="did you mean linear"):
        effssl.evaluate("liner", encoder, effssl.open_data("digits"))


def test_labels_and_classes_must_fit(encoder: LoadedEncoder, digits: Data) -> None:
    bare = dataclasses.replace(digits.train, labels=None)
    with pytest.raises(effssl.RequestError, match="no labels"):
        effssl.evaluate("knn", encoder, dataclasses.replace(digits, train=bare))
    with pytest.raises(effssl.RequestError, match="no labelled test images"):
        effssl.evaluate("linear", encoder, dataclasses.replace(digits, test=None))
    other = dataclasses.replace(digits.test, labels=digits.test.labels + 5)
    with pytest.raises(effssl.RequestError, match="classes that train does not have"):
        effssl.evaluate("knn", encoder, dataclasses.replace(digits, test=other))
    with pytest.raises(effssl.RequestError, match=r"unknown key 'kk' \(did you mean k"):
        effssl.evaluate("knn", encoder, digits, kk=5)
