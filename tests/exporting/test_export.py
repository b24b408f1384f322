"""Every file is loaded with the code of its card, in a process without effssl, and gives the same features."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from safetensors import safe_open
from sklearn.datasets import load_sample_image
from torch import Tensor

import effssl
from effssl.cli import main
from effssl.data.decoding import least_side
from effssl.exporting.weights import SAME_IN_TIMM

# Source, target, arguments of load. The run has a stem for small images.
CASES = [
    ("run", "onnx", {}),  # first those without torch
    ("resnet18", "onnx", {"weights": "random", "image_size": 96}),
    ("whitened", "onnx", {}),
    ("tiny", "onnx", {"weights": "random", "image_size": 32, "preprocess": "off"}),
    ("whitened", "pt2", {}),
    ("run", "torchvision", {}),
    ("run", "timm", {}),
    ("run", "pt2", {}),
    ("resnet18", "torchvision", {"weights": "random", "image_size": 96}),
    ("resnet18", "timm", {"weights": "random", "image_size": 96}),
    ("mobilenet_v3_small", "torchvision", {"weights": "random", "image_size": 64}),
    ("timm:vit_tiny_patch16_224", "timm", {"weights": "random", "image_size": 32}),
    ("small", "pt2", {"weights": "random", "image_size": 32}),
]
RUNS = ("run", "whitened")
ENDINGS = {"torchvision": ".pth", "timm": ".safetensors", "onnx": ".onnx", "pt2": ".pt2"}
# A user of the file runs the code of its card, then computes features of other images, without effssl.
USER = """
import json, sys

cases = json.load(open("cases.json"))
scopes = [{} for _ in cases]
for case, scope in zip(cases, scopes):
    exec(case["code"], scope)
    scope["of_photo"] = scope["features"]
    exec(case["test"], scope)  # its assertion holds
    assert case["to"] != "onnx" or "torch" not in sys.modules

import torch

for case, scope in zip(cases, scopes):
    images = torch.load(f"{case['file']}.in", weights_only=True)
    with torch.no_grad():
        if case["to"] == "onnx":
            features = scope["model"].run(None, {"images": images.numpy()})[0]
        else:
            features = scope["model"](images)
            features = features[0] if isinstance(features, tuple) else features
    torch.save([torch.as_tensor(features), torch.as_tensor(scope["of_photo"])], f"{case['file']}.out")
assert "effssl" not in sys.modules
"""


def digests(folder: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


def code_of(file: Path) -> list[str]:
    """The Python code of a file's card: how to use it, and where there is one its test."""
    return re.findall(r"```python\n(.*?)```", file.with_name(f"{file.name}.md").read_text(), re.DOTALL)


def split(arguments: dict) -> tuple[dict, bool]:
    """Arguments of load, and whether the file resizes."""
    return {k: v for k, v in arguments.items() if k != "preprocess"}, "preprocess" not in arguments


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, tiny_photos: Tensor) -> Path:
    """A folder with a photograph and a run on photographs that has a score."""
    folder = tmp_path_factory.mktemp("desk")
    tiles, labels = tiny_photos.numpy(), [0] * 128 + [1] * 128  # which photograph a tile is from
    parts = {"images": tiles[::4], "labels": labels[::4], "test_images": tiles[1::32], "test_labels": labels[1::32]}
    np.savez(folder / "tiles.npz", **parts)
    run = effssl.pretrain(
        str(folder / "tiles.npz"), "simsiam", encoder="resnet18", batch_size=32, epochs=1, quiet=True,
        out=folder / "run",
    )  # fmt: skip
    run.knn(k=5)
    effssl.pretrain(
        str(folder / "tiles.npz"), "simclr", encoder="tiny", stem="pca", batch_size=32, epochs=1, quiet=True,
        whiten="on", readout={"dim": 16, "patches": 8, "patch_dim": 12}, out=folder / "whitened",
    )  # fmt: skip
    (folder / "photos").mkdir()
    for name in ("photo.jpg", "photos/photo.jpg"):
        Image.fromarray(load_sample_image("china.jpg")).save(folder / name, quality=95)
    return folder


@pytest.fixture(scope="module")
def exported(desk: Path, photos: Tensor) -> dict[tuple[str, str], tuple[Path, list[Tensor]]]:
    """The file of every case, and the features that a user computed with it."""
    before, cases = digests(desk / "run"), []
    for source, to, arguments in CASES:
        given = str(desk / source) if source in RUNS else source
        file = effssl.export(given, to, desk / f"{source[:8]}-{to}{ENDINGS[to]}", **arguments)
        load, resizes = split(arguments)
        encoder = effssl.load(given, **load)
        images = encoder.preprocess(photos[:3, :, :90])  # of the run's size, normalized
        if to in ("onnx", "pt2"):
            mean, std = (torch.tensor(encoder.about[key]).view(3, 1, 1) for key in ("mean", "std"))
            images = photos[:3, :, :90].permute(0, 2, 3, 1) if resizes else images * std + mean
        torch.save(images.contiguous(), f"{file}.in")
        code, *test = code_of(file)
        assert len(test) == (to in ("onnx", "pt2") and resizes)
        cases.append({"file": file.name, "to": to, "code": code, "test": "".join(test)})
    assert digests(desk / "run") == before  # export does not change the run
    (desk / "cases.json").write_text(json.dumps(cases))
    done = subprocess.run([sys.executable, "-c", USER], cwd=desk, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    files = [desk / case["file"] for case in cases]
    return {
        (source, to): (file, torch.load(f"{file}.out", weights_only=True))
        for (source, to, _), file in zip(CASES, files, strict=True)
    }


@pytest.mark.parametrize(("source", "to", "arguments"), CASES, ids=lambda value: str(value))
def test_a_user_gets_the_same_features(
    exported: dict, desk: Path, photos: Tensor, source: str, to: str, arguments: dict
) -> None:
    encoder = effssl.load(desk / source if source in RUNS else source, **split(arguments)[0])
    features, of_photo = exported[source, to][1]
    assert torch.allclose(features, encoder(photos[:3, :, :90]), atol=1e-4)
    ours = torch.from_numpy(effssl.embed(encoder, desk / "photos", workers=0).features[:1])
    if to == "timm":  # its own transform resizes before it crops
        assert torch.cosine_similarity(of_photo, ours).item() > 0.99
    else:
        assert torch.allclose(of_photo, ours, atol=1e-4 * max(1, float(ours.abs().max())))


def test_the_card_describes_encoder_training_and_scores(exported: dict) -> None:
    file = exported["run", "timm"][0]
    card = file.with_name(f"{file.name}.md").read_text()
    training = (
        "resnet18",
        "simsiam",
        "| data | tiles.npz |",
        "| epochs | 1 |",
        "torch 2",
        "License of the training data",
    )
    for text in (*training, "24×24", "bilinear", "0.4914, 0.4822, 0.4465", "| knn k=5 |", "k 5"):
        assert text in card
    assert "## Scores\n\nNone." in exported["small", "pt2"][0].with_name("small-pt2.pt2.md").read_text()


def test_torchvision_lacks_only_the_classifier(exported: dict) -> None:
    model = torchvision.models.resnet18(weights=None)
    state = torch.load(exported["resnet18", "torchvision"][0], weights_only=True)
    assert model.load_state_dict(state, strict=False).missing_keys == ["fc.weight", "fc.bias"]


def test_safetensors_come_back_with_their_preprocessing(
    desk: Path, photos: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = effssl.export(effssl.Run(desk / "run"), "safetensors", desk / "mine.safetensors")
    again = effssl.load(file)
    assert torch.equal(again(photos[:2]), effssl.load(desk / "run")(photos[:2]))
    monkeypatch.chdir(desk)
    scope: dict = {}
    exec(code_of(file)[0], scope)
    least = least_side(again.size, again.share)
    photo = Image.open("photo.jpg")
    photo.draft("RGB", (least, least))
    assert torch.equal(scope["features"], again.embed([photo]))
    bicubic = desk / "bicubic.safetensors"
    loaded = effssl.load("small", weights="random", image_size=48)
    effssl.export("small", "safetensors", bicubic, weights="random", image_size=48)
    assert (effssl.load(bicubic).size, effssl.load(bicubic).share) == (48, loaded.share)
    with safe_open(str(file), "pt") as opened:
        assert json.loads(opened.metadata()["effssl"])["data"] == "tiles.npz"


def test_folders_of_the_images_are_not_published(desk: Path, in_tmp: Path) -> None:
    for i in range(8):
        Path("secret/place/pets").mkdir(parents=True, exist_ok=True)
        Image.open(desk / "photo.jpg").crop((9 * i, 9 * i, 99 + 9 * i, 99 + 9 * i)).save(f"secret/place/pets/{i}.png")
    effssl.pretrain(
        "secret/place/pets", "simsiam", encoder="small", image_size=16, batch_size=4, epochs=1, quiet=True, out="pets"
    )
    file = effssl.export("pets", "safetensors")
    assert file == Path("pets.safetensors")
    assert "| data | pets |" in Path("pets.safetensors.md").read_text()
    assert b"secret" not in file.read_bytes() + Path("pets.safetensors.md").read_bytes()


@pytest.mark.parametrize("name", SAME_IN_TIMM)
def test_timm_and_torchvision_have_the_same_keys(name: str) -> None:
    with torch.device("meta"):
        theirs = timm.create_model(name, num_classes=0).state_dict()
        ours = torchvision.models.get_model(name, weights=None).state_dict()
    shapes = {key: value.shape for key, value in ours.items() if not key.startswith("fc.")}
    assert shapes == {key: value.shape for key, value in theirs.items()}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["small", "--weights", "random", "--to", "torchvision"],
            "no small network; export to safetensors, onnx or pt2",
        ),
        (["small", "--weights", "random", "--to", "timm"], "timm has no small network"),
        (
            ["tiny-32", "--weights", "random", "--to", "torchvision"],
            "no tiny-32 network; export to safetensors, onnx or pt2",
        ),
        (
            ["small-32", "--weights", "random", "--to", "timm"],
            "timm has no small-32 network with these keys; export to safetensors, onnx or pt2",
        ),
        (["timm:resnet10t", "--weights", "random", "--to", "torchvision"], "export to timm, safetensors, onnx or pt2"),
        (["alexnet", "--weights", "random", "--to", "timm"], "export to torchvision, safetensors, onnx or pt2"),
        (
            ["run", "--to", "timm", "--out", "there.safetensors"],
            "there.safetensors exists; choose another --out, or add --overwrite",
        ),
        (["run", "--to", "timm", "--out", "new.safetensors"], "new.safetensors.md exists"),
        (["run", "--to", "timm", "--out", "a.pth"], "the name of a file for timm ends with .safetensors"),
        (["run", "--to", "timm", "--out", "nowhere/a.safetensors"], "--out names a file in an existing folder"),
        (["run", "--to", "timm", "--out", "run/encoder.safetensors", "--overwrite"], "is inside the run folder"),
        (
            ["own.safetensors", "--to", "safetensors", "--out", "own.safetensors", "--overwrite"],
            "the exported file itself",
        ),
        (["run", "--to", "timm", "--encoder", "resnet18"], "needs no --encoder"),
        (["unfinished", "--to", "timm"], "has no checkpoint yet"),
        (["missing", "--to", "pt2"], "no run folder, weight file or torchvision model named 'missing'"),
    ],
)
def test_requests_that_are_refused(
    args: list[str], message: str, desk: Path, in_tmp: Path, capsys: pytest.CaptureFixture
) -> None:
    Path("run").symlink_to(desk / "run")
    Path("there.safetensors").write_text("mine")
    Path("new.safetensors.md").write_text("mine")
    Path("own.safetensors").write_bytes((desk / "run/encoder.safetensors").read_bytes())
    Path("unfinished").mkdir()
    Path("unfinished/config.yaml").write_bytes((desk / "run/config.yaml").read_bytes())
    before = digests(in_tmp)
    with pytest.raises(SystemExit) as stop:
        main(["export", *args])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert digests(in_tmp) == before


def test_unknown_targets_and_missing_software(desk: Path, in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(effssl.RequestError, match="no target 'onx' \\(did you mean onnx"):
        effssl.export(desk / "run", "onx")
    with pytest.raises(effssl.RequestError, match="only onnx and pt2 files have preprocessing"):
        effssl.export(desk / "run", "timm", preprocess="off")
    with pytest.raises(TypeError, match="size"):
        effssl.export("small", "onnx", weights="random", size=32)  # type: ignore[call-arg]
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(effssl.RequestError, match=r'to="onnx" needs onnxruntime: pip install effssl\[onnx\]'):
        effssl.export(desk / "run", "onnx")
    assert not list(in_tmp.iterdir())


def test_overwrite(desk: Path, in_tmp: Path) -> None:
    main(["export", str(desk / "run"), "--to", "timm"])
    Path("run.timm.safetensors").write_text("old")
    main(["export", str(desk / "run"), "--to", "timm", "--overwrite"])
    assert Path("run.timm.safetensors").stat().st_size > 1_000_000
    assert sorted(path.name for path in in_tmp.iterdir()) == ["run.timm.safetensors", "run.timm.safetensors.md"]


def test_an_encoder_of_ours_has_no_place_in_torchvision(tmp_path: Path) -> None:
    with pytest.raises(effssl.RequestError, match="torchvision has no pixels network; export to safetensors, onnx"):
        effssl.export("pixels", "torchvision", tmp_path / "a.pth")
