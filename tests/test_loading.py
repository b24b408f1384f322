"""What is loaded from a run: the encoder, the projector and the classifier that its terms trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import effssl
from effssl.loading import load_run_classifier, load_run_encoder, open_run_data
from effssl.run import RunFolder
from effssl.training.checkpoint import load_checkpoint

QUICK = {"epochs": 1, "quiet": True, "subset": 32, "batch_size": 16, "image_size": 32}


def test_the_classifier_is_the_one_on_the_features(in_tmp: Path) -> None:
    """Two terms have a layer of that name; the one of jigsaw reads nine tiles."""
    settings = QUICK | {"image_size": 64, "projector": {"layers": 2}, "encoder": "small"}
    effssl.pretrain("digits", "supervised+jigsaw", out="run", **settings)
    run = RunFolder("run")
    weights = load_checkpoint(run.checkpoint_path)["objective"]
    names = [key for key in weights if key.endswith(".classifier.weight")]
    assert len(names) == 2
    classifier, encoder, data = load_run_classifier(run), load_run_encoder(run), open_run_data(run)
    assert (classifier.in_features, classifier.out_features) == (encoder.dim, 10)
    assert torch.equal(classifier.weight, weights["terms.supervised.classifier.weight"])
    assert torch.equal(classifier.bias, weights["terms.supervised.classifier.bias"])
    assert not any(p.requires_grad for p in classifier.parameters())
    assert len(data.train) == 32
    assert encoder.projector is None
    z = load_run_encoder(run, projector=True).project(encoder(data.train.pixels[:2]))
    assert z.shape == (2, run.config.projector.out)


def test_what_a_run_does_not_have(in_tmp: Path) -> None:
    effssl.pretrain("digits", "rotation", out="run", projector={"layers": 0}, rotation={"on": "h"}, **QUICK)
    run = RunFolder("run")
    with pytest.raises(effssl.RequestError, match="has no classifier on its features"):
        load_run_classifier(run)
    assert load_run_encoder(run, projector=True).projector is None  # z = h
    for path in (run.encoder_path, *run.folder.glob("checkpoint*.pt")):
        path.unlink()
    with pytest.raises(effssl.RequestError, match='has no checkpoint yet; resume it with resume="auto"'):
        load_run_encoder(run)
