"""Training views and examples of tasks."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import effssl
from effssl.network.encoders import build_encoder
from effssl.network.loaded import LoadedEncoder
from effssl.objectives.term import TaskExamples
from effssl.report import gather
from effssl.report.views import task_section, view_columns
from effssl.verbs import Run
from tests.report.conftest import SHORT


@pytest.mark.parametrize(
    ("objective", "views", "titles", "inputs"),
    [
        ("rotation", {}, ["rotated 1", "rotated 2", "rotated 3", "rotated 4"], 4 * 64),  # alone: at every angle
        ("byol+rotation", {"large": {"rotated": True}, "rotated": {"count": 0}}, ["large 1", "large 2"], 2 * 64),
    ],
)
def test_every_form_of_the_task(
    objective: str, views: dict, titles: list[str], inputs: int, desk: Path, digits: Run
) -> None:
    out = desk / f"{objective}-{inputs}"
    settings = SHORT | {"views": views, "recipe": "cpu-byol"} if views else SHORT
    run = effssl.pretrain(str(desk / "digits.npz"), objective, subset=64, out=out, **settings)
    found = gather(run, 30)
    captions = dict(zip(found["views"]["columns"], found["views"]["captions"], strict=True))
    assert all(re.fullmatch(r"\d+°", caption) for title in titles for caption in captions[title])
    (task,) = found["tasks"]
    assert sum(count for _, _, count in task["confusion"]["cells"]) == inputs


@pytest.fixture
def encoder() -> LoadedEncoder:
    return LoadedEncoder(build_encoder("small", 16), {"image_size": 16, "mean": [0.5] * 3, "std": [0.25] * 3}).eval()


def colors(count: int, logits: Tensor | None) -> TaskExamples:
    """A task that is easy to solve: which color channel is bright."""
    labels = torch.arange(count) // 2 % 3
    pixels = torch.zeros(count, 3, 16, 16)
    pixels[torch.arange(count), labels] = 2.0
    return TaskExamples(pixels, labels, logits, ["red", "green", "blue"])


def test_predictions_of_a_task(encoder: LoadedEncoder) -> None:
    logits = torch.eye(3)[torch.tensor([0, 0, 1, 1, 2, 0])]
    task = task_section("color", [colors(6, logits), colors(6, logits)], encoder, trained=True)
    assert task["captions"] == ["red ✓", "red ✓", "green ✓", "green ✓", "blue ✓", "blue ✗ red"]
    assert task["confusion"]["cells"] == [[0, 0, 4], [1, 1, 4], [2, 0, 2], [2, 2, 2]]
    assert task["confusion"]["accuracy"] == pytest.approx(100 * 10 / 12)
    untrained = task_section("color", [colors(6, logits)], encoder, trained=False)
    assert untrained["captions"] == ["red", "red", "green", "green", "blue", "blue"]
    assert untrained["confusion"] is None


def test_the_probe_of_a_task_is_tested_on_other_examples(encoder: LoadedEncoder) -> None:
    found = task_section("color", [colors(30, None)], encoder, trained=True)["confusion"]
    assert found["accuracy"] == 100
    assert sum(count for _, _, count in found["cells"]) == 15  # the other half of the examples
    assert task_section("color", [colors(6, None)], encoder, trained=True)["confusion"] is None  # too few


def test_views_of_every_group() -> None:
    pixels = {"large": torch.rand(2, 5, 3, 8, 8), "turned": torch.rand(1, 5, 3, 4, 4)}
    views: Any = SimpleNamespace(pixels=pixels, angles={"turned": torch.tensor([[0, 2, 1, 1, 0]])}, clean=None)
    columns = view_columns(views, {"turned": (0.0, 45.0, 90.0)}, 3)
    assert [column.title for column in columns] == ["large 1", "large 2", "turned 1"]
    assert columns[0].captions == ["", "", ""]
    assert columns[2].captions == ["0°", "90°", "45°"]
    assert torch.equal(columns[1].pixels, pixels["large"][1, :3])
