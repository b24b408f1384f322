"""Detection: the reader of the VOC layout, and short real runs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor
from torchvision.ops import FrozenBatchNorm2d

from effssl.data.voc import CLASSES, fingerprint, read_voc
from effssl.evaluation import evaluate
from effssl.evaluation.protocols import detect
from effssl.evaluation.protocols.detect import (
    DetectionSchedule,
    DetectOptions,
    batch_rows,
    build_detector,
    evaluate_detect,
    find_boxes,
    resnet_body,
    train_detector,
    train_sides,
    training_example,
)
from effssl.evaluation.voc import voc_ap
from effssl.network.encoders import build_encoder
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.errors import RequestError, RunFailed
from effssl.runtime.randomness import generator, seeded
from effssl.verbs import load

CAT, DOG = CLASSES.index("cat"), CLASSES.index("dog")
QUICK = DetectOptions(mode="finetune", schedule=3 / 144_000, short_side=48, batch=2, lr=0.005)


# The reader


def annotation(*objects: tuple[str, list, int]) -> str:
    """An annotation in VOC's form: corners are pixels counted from 1."""
    text = "<annotation><filename>ignored.jpg</filename><segmented>0</segmented>"
    for name, (x1, y1, x2, y2), difficult in objects:
        text += f"<object><name>{name}</name><difficult>{difficult}</difficult><bndbox><xmin>{x1}</xmin>"
        text += f"<ymin>{y1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax></bndbox>"
        text += "<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox>"
        text += "</part></object>"
    return text + "</annotation>"


def write_year(root: Path, year: int, lists: dict[str, list[str]]) -> Path:
    """A small VOC<year>: tiles of a photograph, each with a cat or a dog in a place of its own."""
    photo = np.ascontiguousarray(load_sample_image("china.jpg"))  # 427×640×3
    folder = root / f"VOC{year}"
    for part in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (folder / part).mkdir(parents=True)
    for name, stems in lists.items():
        (folder / "ImageSets" / "Main" / f"{name}.txt").write_text("".join(f"{stem}\n" for stem in stems))
        for stem in stems:
            n = int(stem)
            Image.fromarray(photo[20 * n : 20 * n + 60, 50 * n : 50 * n + 80]).save(folder / f"JPEGImages/{stem}.jpg")
            place = [5 + n, 3 + n, 50 + n, 40 + n]
            other = ("person", [60, 41, 80, 60], 1)
            xml = annotation(("cat" if n % 2 else "dog", place, 0), other)
            (folder / f"Annotations/{stem}.xml").write_text(xml)
    return folder


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    """A folder with two years; only the first has a test list."""
    write_year(tmp_path / "VOCdevkit", 2007, {"trainval": ["000001", "000002"], "test": ["000003", "000004"]})
    write_year(tmp_path / "VOCdevkit", 2012, {"trainval": ["000005", "000006"]})
    return tmp_path


def test_voc_boxes_classes_and_flags(voc: Path) -> None:
    images = read_voc(voc, "trainval")
    years_and_names = [(image.path.parent.parent.name, image.path.name) for image in images]
    assert years_and_names == [
        ("VOC2007", "000001.jpg"), ("VOC2007", "000002.jpg"), ("VOC2012", "000005.jpg"), ("VOC2012", "000006.jpg"),
    ]  # fmt: skip
    assert images[0].boxes.tolist() == [[5, 3, 51, 41], [59, 40, 80, 60]]  # parts of objects are no objects
    assert [CLASSES[label] for label in images[0].labels] == ["cat", "person"]
    assert images[0].difficult.tolist() == [False, True]
    assert images[0].boxes[1, 2:].tolist() == [80, 60]  # a box that ends at the last pixel ends at the border


def test_voc_lists_limits_and_places(voc: Path) -> None:
    assert len(read_voc(voc, "trainval,test")) == 6
    assert [image.path.name for image in read_voc(voc, "trainval,test", limit=1)] == ["000001.jpg", "000003.jpg"]
    assert len(read_voc(voc, "test, test")) == 2
    kit = voc / "VOCdevkit"
    assert fingerprint(read_voc(kit, "trainval")) == fingerprint(read_voc(voc, "trainval"))
    assert len(read_voc(kit / "VOC2012", "trainval")) == 2
    assert fingerprint(read_voc(voc, "test")) != fingerprint(read_voc(voc, "trainval"))


def test_voc_fingerprint_knows_boxes_and_flags(voc: Path) -> None:
    before = fingerprint(read_voc(voc, "test"))
    file = voc / "VOCdevkit/VOC2007/Annotations/000003.xml"
    text = file.read_text()
    seen = {before}
    for old, new in (("<xmin>8<", "<xmin>9<"), ("<difficult>0", "<difficult>1"), (">cat<", ">cow<")):
        assert old in text
        file.write_text(text.replace(old, new))
        seen.add(fingerprint(read_voc(voc, "test")))
    assert len(seen) == 4


def test_voc_refusals(voc: Path, tmp_path: Path) -> None:
    def refuse(message: str, root: Path = voc, lists: str = "test") -> None:
        with pytest.raises(RequestError, match=message) as caught:
            read_voc(root, lists)
        assert "\n" not in str(caught.value)

    refuse("no VOC layout", root=voc / "nowhere")
    refuse("no VOC layout", root=voc / "VOCdevkit/VOC2007/JPEGImages")
    refuse("did you mean trainval.*test, trainval", lists="trainvla")
    refuse("at least one image list", lists=" , ")
    file = voc / "VOCdevkit/VOC2007/Annotations/000003.xml"
    good = file.read_text()
    for text, message in (
        (annotation(("unicorn", [1, 1, 5, 5], 0)), "unicorn.*20 VOC classes"),
        (annotation(("cat", [9, 1, 5, 5], 0)), "empty"),
        (annotation(("cat", ["nan", 1, 5, 5], 0)), "empty"),
        (annotation(("cat", ["left", 1, 5, 5], 0)), "cannot be read"),
        (good.replace("<xmax>", "<most>").replace("</xmax>", "</most>"), "bndbox"),
        (good[:-20], "cannot be read"),
        ("", "cannot be read"),
        ('<!DOCTYPE a [<!ENTITY e "cat">]>' + good.replace("cat", "&e;"), "DOCTYPE"),
        ('<!DOCTYPE a SYSTEM "file:///etc/hostname">' + good, "DOCTYPE"),
    ):
        file.write_text(text)
        refuse(message)
    file.write_bytes(('<!DOCTYPE a [<!ENTITY e "cat">]>' + good).encode("utf-16"))
    refuse("DOCTYPE")
    file.unlink()
    refuse("000003.xml is missing")
    file.write_text(good)
    (voc / "VOCdevkit/VOC2007/JPEGImages/000003.jpg").unlink()
    refuse("000003.jpg is missing")
    (voc / "VOCdevkit/VOC2007/ImageSets/Main/test.txt").write_text("\n")
    refuse("lists no images")


# The detector


@pytest.fixture
def thin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pyramid of few channels, so that a step takes a moment and not seconds."""
    monkeypatch.setattr(detect, "PYRAMID", 8)


def make_encoder(name: str = "small", size: int = 32) -> LoadedEncoder:
    about = {"image_size": size, "mean": [0.5, 0.5, 0.4], "std": [0.25, 0.25, 0.3]}
    with seeded(0, "test"):
        made = build_encoder(name, size)
        for module in made.modules():
            if isinstance(module, torch.nn.BatchNorm2d):  # as if trained: no statistic is 0 or 1
                torch.nn.init.normal_(module.running_mean, 0, 0.1)
                torch.nn.init.uniform_(module.running_var, 0.5, 2)
                torch.nn.init.uniform_(module.weight, 0.5, 1.5)
    return LoadedEncoder(made, about).requires_grad_(False).eval()


def conv_weights(model: torch.nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in model.backbone.body.state_dict().items()}


@pytest.mark.parametrize(
    ("name", "size", "sizes"),
    [("small", 32, (16, 32, 64, 128, 256)), ("resnet18", 32, (8, 16, 32, 64, 128)),
     ("resnet18", 224, (32, 64, 128, 256, 512))],
)  # fmt: skip
def test_anchors_follow_strides_and_batch_norm_is_fixed(thin: None, name: str, size: int, sizes: tuple) -> None:
    encoder = make_encoder(name, size)
    model = build_detector(encoder, DetectOptions(short_side=400))
    assert [level[0] for level in model.rpn.anchor_generator.sizes] == list(sizes)
    assert (model.transform.min_size[0], model.transform.min_size[-1], model.transform.max_size) == (240, 400, 666)
    assert model.transform.image_std == [0.25, 0.25, 0.3]
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in model.modules())
    assert any(isinstance(module, FrozenBatchNorm2d) for module in model.modules())
    x = torch.randn(1, 3, 32, 32, generator=generator(0, "x"))
    body = model.train().backbone.body  # what is fixed is fixed in training too
    pooled = list(body(x).values())[-1].mean((2, 3))
    assert torch.allclose(pooled, encoder.encoder(x), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("mode", ["frozen", "frozen-all", "finetune"])
def test_what_trains(thin: None, voc: Path, mode: str) -> None:
    encoder = make_encoder()
    before = encoder.fingerprint()
    options = replace(QUICK, mode=mode)  # type: ignore[arg-type]
    with seeded(0, "new"):
        model = build_detector(encoder, options)
    was, head = conv_weights(model), model.roi_heads.box_predictor.cls_score.weight.clone()
    train_detector(model, read_voc(voc, "trainval"), options, DetectionSchedule(2, (), 0))
    changed = {key for key, value in conv_weights(model).items() if not torch.equal(value, was[key])}
    convs = {key for key in was if key.endswith("conv1.weight") or "conv2" in key or "downsample.0" in key}
    expected = {"finetune": convs, "frozen": {key for key in convs if key.startswith("layer4")}, "frozen-all": set()}
    assert changed == expected[mode]
    assert any(key.startswith("layer4") for key in convs)
    assert not torch.equal(model.roi_heads.box_predictor.cls_score.weight, head)
    assert encoder.fingerprint() == before
    assert not any(p.requires_grad for p in encoder.parameters())


def test_a_run_is_repeatable_and_leaves_no_trace(thin: None, voc: Path) -> None:
    encoder = make_encoder()
    before, state = encoder.fingerprint(), torch.get_rng_state()
    first, again = (evaluate_detect(encoder, str(voc), QUICK) for _ in range(2))
    assert first == again
    assert encoder.fingerprint() == before
    assert torch.equal(torch.get_rng_state(), state)
    record = json.loads(json.dumps(first.record()))
    assert (record["protocol"], record["metric"], record["constants"]["steps"]) == ("detect", "AP", 3)
    assert (record["source"]["train_images"], record["source"]["test_images"]) == (4, 2)
    assert record["constants"]["classes_counted"] == 2  # the person is difficult
    assert set(record["also"]["AP50_per_class"]) == {"cat", "dog"}


def test_seeds_and_steps_decide_the_weights(thin: None, voc: Path) -> None:
    images = read_voc(voc, "trainval")

    def trained(seed: int) -> Tensor:
        with seeded(0, "new"):
            model = build_detector(make_encoder(), QUICK)
        train_detector(model, images, replace(QUICK, seed=seed), DetectionSchedule(2, (), 0))
        return model.backbone.body.layer4[0].conv2.weight

    torch.manual_seed(5)
    first = trained(0)
    torch.manual_seed(6)
    assert torch.equal(trained(0), first)
    assert not torch.equal(trained(1), first)


@pytest.mark.long
def test_training_finds_objects_where_they_are(thin: None, voc: Path) -> None:
    """One image, learned by heart: the box that scores highest is the object's, in the pixels of the file."""
    image = read_voc(voc, "trainval", limit=1)[0]
    image = replace(image, boxes=image.boxes[:1], labels=image.labels[:1], difficult=image.difficult[:1])
    options = replace(QUICK, batch=1, lr=0.02, short_side=60)
    with seeded(0, "new"):
        model = build_detector(make_encoder(), options)
    train_detector(model, [image], options, DetectionSchedule(60, (50,), 5))
    dets = find_boxes(model, [image])
    assert voc_ap(dets, [image]).ap50 == pytest.approx(100)


@pytest.mark.parametrize("name", ["resnet18", "timm:resnet10t", "timm:skresnet18"])
def test_resnets_from_elsewhere(thin: None, voc: Path, name: str) -> None:
    """timm calls the activation of the stem act1, and some of its norms hold the one that follows."""
    encoder = load(name, weights="random", image_size=64)
    body = resnet_body(encoder.backbone).eval()
    x = torch.rand(1, 3, 64, 64, generator=generator(0, "image"))
    with torch.no_grad():
        assert torch.allclose(body(x).mean((2, 3)), encoder.backbone(x), atol=1e-4)
    settings = asdict(QUICK) | {"schedule": 1 / 144_000, "batch": 1, "limit": 1, "mode": "frozen"}
    assert 0 <= evaluate("detect", encoder, str(voc), **settings).value <= 100


def test_flipping_moves_boxes_with_pixels(voc: Path) -> None:
    image = read_voc(voc, "trainval", limit=1)[0]
    plain, there = training_example(image, False)
    flipped, mirrored = training_example(image, True)
    for (x1, y1, x2, y2), (u1, v1, u2, v2) in zip(
        there["boxes"].int().tolist(), mirrored["boxes"].int().tolist(), strict=True
    ):
        assert torch.equal(plain[:, y1:y2, x1:x2], flipped[:, v1:v2, u1:u2].flip(-1))
    assert there["labels"].tolist() == [CAT + 1, CLASSES.index("person") + 1]


def test_schedule_is_the_papers() -> None:
    full = DetectionSchedule.scaled(1)
    assert (full.steps, full.milestones, full.warmup) == (144_000, (96_000, 128_000), 100)
    rates = [full.rate(step) for step in (0, 49, 100, 95_999, 96_000, 127_999, 128_000)]
    assert rates == pytest.approx([1 / 101, 50 / 101, 1, 1, 0.1, 0.1, 0.01])
    short = DetectionSchedule.scaled(0.001)
    assert (short.steps, short.milestones, short.warmup) == (144, (96, 128), 14)
    assert DetectionSchedule.scaled(1e-9).steps == 1
    assert train_sides(800) == [480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800]


def test_every_image_comes_once_per_round() -> None:
    rows = [row for batch in batch_rows(9, 2, 9, 0) for row in batch]
    assert sorted(rows[:9]) == sorted(rows[9:]) == list(range(9))
    assert rows[:9] != rows[9:]
    assert [len(batch) for batch in batch_rows(1, 3, 2, 0)] == [3, 3]


def test_detection_refusals(thin: None, voc: Path) -> None:
    encoder = make_encoder()

    def refuse(message: str, by: LoadedEncoder = encoder, **settings: object) -> None:
        with pytest.raises(RequestError, match=message):
            evaluate("detect", by, str(voc), **asdict(QUICK) | settings)

    refuse("ResNet-like", by=make_encoder("mobilenet_v3_small"))
    refuse("choose one of frozen, frozen-all, finetune", mode="thawed")
    refuse("lr is 0.0; it must be", lr=0.0)
    refuse("schedule is 0.0; it must be", schedule=0.0)
    refuse("proposals is 0; it must be at least 4", proposals=0)
    refuse("at least 32", short_side=16)
    refuse("image list val.txt", train="val")
    file = voc / "VOCdevkit/VOC2007/Annotations/000003.xml"
    for text, message in ((annotation(("cat", [1, 1, 5, 5], 1)), "difficult"), (annotation(), "difficult")):
        file.write_text(text)
        refuse(message, limit=1)
        refuse("train on" if text == annotation() else message, train="test", limit=1)
    (voc / "VOCdevkit/VOC2007/JPEGImages/000001.jpg").write_bytes(b"no image")
    refuse("000001.jpg cannot be decoded", test="trainval", limit=1)
    file.write_text(annotation(("cat", [1, 1, 5, 5], 0)))
    never = {"lr": 1e12, "schedule": 20 / 144_000}  # training would fail: it is refused before
    refuse("000001.jpg cannot be decoded", train="test", test="trainval", limit=1, **never)


def test_a_loss_that_is_not_finite_stops_the_run(thin: None, voc: Path) -> None:
    with pytest.raises(RunFailed, match=r"not finite.*lower lr="):
        evaluate_detect(make_encoder(), str(voc), replace(QUICK, lr=1e12, schedule=20 / 144_000))
