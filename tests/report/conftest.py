"""Runs that the tests of reports share: trained once, small, with labels that try to break a page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

import effssl
from effssl.run import Run

EVIL = "</script><script>window.broken=1</script>"  # a class name; must be shown as it is
QUICK = {"epochs": 2, "batch_size": 32, "health": {"every": 1, "bank": 64, "queries": 32}, "quiet": True}


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="session")
def digits(desk: Path) -> Run:
    """Labelled images, byol+rotation, with a score; one class has a name made to break a page."""
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
def drawn(digits: Run) -> Path:
    return digits.report(images=200)
