from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from sklearn.datasets import load_sample_image

import effssl
from effssl.augment.color import normalize
from effssl.cli import main
from effssl.data import open_data
from effssl.data.images import crop_batches, whole_boxes

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
    said = capsys.readouterr().err
    assert "exists" in said
    assert "--overwrite" not in said  # which this verb does not have
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
    with pytest.raises(effssl.RequestError, match="no classifier"):
        effssl.Run("plain").classifier()


@pytest.fixture
def photos(in_tmp: Path) -> Path:
    """Twelve photographs of three classes."""
    photo = Image.fromarray(load_sample_image("flower.jpg"))
    for side in ("left", "middle", "right"):
        folder = in_tmp / "photos" / "train" / side
        folder.mkdir(parents=True)
        for i in range(4):
            left = {"left": 0, "middle": 150, "right": 300}[side] + 10 * i
            photo.crop((left, 10 * i, left + 200, 180 + 10 * i)).save(folder / f"{i}.jpg")
    shutil.copytree(in_tmp / "photos" / "train", in_tmp / "photos" / "test")
    return in_tmp / "photos"


def weight_file(classes: int) -> torch.nn.Module:
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=classes).eval()
    torch.save({"state_dict": {f"module.{key}": value for key, value in model.state_dict().items()}}, "weights.pth")
    return model


def stored_maps(name: str = "maps.npz") -> torch.Tensor:
    with np.load(name) as file:
        return torch.from_numpy(file["maps"].astype(np.float32))


def grad_cam(model: torch.nn.Module, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    seen = {}
    model.layer4.register_forward_hook(lambda _, __, out: seen.update(block=out))  # type: ignore[union-attr]
    score = model(x).gather(1, target[:, None]).sum()
    gradient = torch.autograd.grad(score, seen["block"])[0]
    return (gradient.mean((2, 3), keepdim=True) * seen["block"]).sum(1).relu()


@pytest.mark.parametrize("target", ["label", "predicted"])
def test_a_weight_file_with_its_classifier(photos: Path, target: str) -> None:
    model = weight_file(3)
    main(["saliency", "weights.pth", "--encoder", "resnet18", "--data", "photos", "--target", target, "--out", "m.npz"])
    data, encoder = open_data("photos"), effssl.load("weights.pth", encoder="resnet18")
    pixels = next(iter(crop_batches(data.train, whole_boxes(data.train.sizes), encoder.size, 12)))[0]
    x = normalize(pixels, encoder.about["mean"], encoder.about["std"])
    labels = data.train.labels if target == "label" else model(x).argmax(1)
    assert labels is not None
    assert torch.allclose(stored_maps("m.npz"), grad_cam(model, x, labels), rtol=0.01, atol=1e-3)


def test_a_classifier_of_all_classes_explains_those_that_are_read(photos: Path) -> None:
    weight_file(3)
    (photos.parent / "two.txt").write_text("left\nright\n")
    every = ["saliency", "weights.pth", "--encoder", "resnet18", "--data", "photos"]
    main([*every, "--out", "all.npz"])
    main([*every, "--classes", "two.txt", "--out", "two.npz"])
    assert torch.allclose(stored_maps("two.npz"), stored_maps("all.npz")[[0, 1, 2, 3, 8, 9, 10, 11]], atol=1e-3)


def test_without_a_fitting_classifier_one_is_fitted(photos: Path) -> None:
    weight_file(7)
    main(["saliency", "weights.pth", "--encoder", "resnet18", "--data", "photos", "--out", "maps.npz"])
    maps = stored_maps()
    assert maps.shape == (12, 7, 7)
    assert maps.std() > 0


def test_other_architectures(photos: Path, capsys: pytest.CaptureFixture) -> None:
    torch.save(torchvision.models.mobilenet_v3_small(num_classes=3).state_dict(), "mobile.pth")
    main(["saliency", "mobile.pth", "--encoder", "mobilenet_v3_small", "--data", "photos", "--out", "maps.npz"])
    assert stored_maps().shape == (12, 7, 7)
    torch.save(torchvision.models.vit_b_32(num_classes=3).state_dict(), "vit.pth")
    with pytest.raises(SystemExit):
        main(["saliency", "vit.pth", "--encoder", "vit_b_32", "--data", "photos", "--out", "vit.npz"])
    assert "no feature maps" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["saliency", "mobile.pth", "--encoder", "mobilenet_v3_small", "--out", "other.npz"])
    assert "--data is needed" in capsys.readouterr().err
