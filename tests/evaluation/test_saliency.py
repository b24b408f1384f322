from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import effssl
from effssl.cli import main

QUICK = ["--data", "digits", "--subset", "256", "--batch-size", "32", "--image-size", "32", "--quiet"]
SUPERVISED = ["pretrain", "--objective", "supervised", "--recipe", "cpu-supervised", *QUICK, "--out", "reference"]


def test_from_a_supervised_run_to_chosen_crops(in_tmp: Path, capsys: pytest.CaptureFixture) -> None:
    main([*SUPERVISED, "--epochs", "6"])
    run = effssl.Run("reference")
    assert run.metrics()[-1]["accuracy/supervised"] > 0.25  # chance is 0.1
    main(["saliency", "reference", "--out", "maps.npz"])
    with np.load("maps.npz") as file:
        maps = file["maps"].astype(np.float32)
    assert maps.shape == (256, 2, 2)
    assert (maps >= 0).all()
    assert maps.std() > 0
    main(["pretrain", "--epochs", "1", *QUICK, "--augment.saliency", "maps.npz", "--out", "chosen"])
    assert effssl.Run("chosen").finished
    with pytest.raises(SystemExit):
        main(["saliency", "reference", "--out", "maps.npz"])  # nothing is overwritten
    assert "exists" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["saliency", "reference", "--out", "maps"])  # NumPy would add the suffix, after the check
    assert "ends with .npz" in capsys.readouterr().err


def test_grad_cam_by_hand(in_tmp: Path) -> None:
    """Weights are the mean gradients of the class score by channel; the map is the positive part of their sum."""
    main([*SUPERVISED, "--epochs", "1"])
    main(["saliency", "reference", "--out", "maps.npz"])
    run = effssl.Run("reference")
    encoder, classifier, data = run.encoder(), run.classifier(), run.data()
    seen = {}
    encoder.backbone.layer4.register_forward_hook(lambda _, __, out: seen.update(block=out))
    x = encoder.preprocess(data.train.pixels[:3]).requires_grad_()
    score = classifier(encoder.backbone(x)).gather(1, data.train.labels[:3, None]).sum()
    gradient = torch.autograd.grad(score, seen["block"])[0]
    expected = (gradient.mean((2, 3), keepdim=True) * seen["block"]).sum(1).relu()
    with np.load("maps.npz") as file:
        maps = torch.from_numpy(file["maps"][:3].astype(np.float32))
    assert torch.allclose(maps, expected, rtol=0.01, atol=1e-3)


def test_a_run_without_labels_has_no_classifier(in_tmp: Path) -> None:
    main(["pretrain", "--epochs", "1", *QUICK, "--out", "plain"])
    with pytest.raises(effssl.RequestError, match="supervised"):
        effssl.Run("plain").classifier()
