"""Runs that the tests of reports share: trained once, small, with labels that try to break a page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

import effssl
from effssl.report.page import data_of as read_data
from effssl.verbs import Run

EVIL = "</script><script>window.broken=1</script>"  # a class name; must be shown as it is
QUICK = {"epochs": 2, "batch_size": 32, "health": {"every": 1, "bank": 64, "queries": 32}, "quiet": True}
SHORT = {"epochs": 1, "batch_size": 8, "quiet": True}


def data_of(file: Path) -> dict:
    """The data of a page."""
    found = read_data(file.read_text())
    assert found is not None
    return found


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="session")
def digits(desk: Path) -> Run:
    """Labelled images, byol+rotation, with a score; the name of one class would break a page without escaping."""
    images, labels = load_digits(return_X_y=True)
    names = np.array([EVIL, *"123456789"])
    pixels = (images.reshape(-1, 8, 8) * 15).astype(np.uint8)
    some = {"images": pixels[:300], "labels": names[labels[:300]]}
    np.savez(desk / "digits.npz", **some, test_images=pixels[300:400], test_labels=names[labels[300:400]])
    run = effssl.pretrain(str(desk / "digits.npz"), "byol+rotation", out=desk / "digits", **QUICK)
    run.knn()
    return run


@pytest.fixture(scope="session")
def plain(desk: Path, digits: Run) -> Run:
    """The same images without the rotation task, at another learning rate."""
    return effssl.pretrain(str(desk / "digits.npz"), "byol", lr=0.01, out=desk / "plain", **QUICK)


@pytest.fixture(scope="session")
def written(digits: Run) -> Path:
    return digits.report(images=200)


def study_folder(folder: Path, arms: dict[str, tuple[float | None, list[float]]]) -> Path:
    """A folder with the results.json of a study: by arm its position on the axis and its kNN per seed."""
    runs = [
        {"arm": arm, "seed": seed, "objective": arm.split(" at ")[0], "at": at, "values": {"knn": value},
         "published": {"knn": 42.0}, "flops": 2e12}
        for arm, (at, values) in arms.items()
        for seed, value in enumerate(values)
    ]  # fmt: skip
    claims = [{"claim": "the task helps", "verdict": "held"}]
    study = {"study": folder.name, "title": "a study", "scale": "smoke", "runs": runs, "claims": claims}
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(study))
    return folder
