"""Every command and every Python snippet of README and docs runs, on small data in place of the real ones."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

import effssl
from effssl.cli import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# What a snippet needs to be quick; everything else is run as it is written.
QUICK = ["--epochs", "1", "--batch-size", "8"]


def commands(page: Path) -> list[str]:
    return [line.strip() for line in page.read_text().splitlines() if line.startswith("    effssl ")]


def snippets(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.fixture
def desk(in_tmp: Path) -> Path:
    """A folder with photographs where the docs say they are."""
    photo = Image.fromarray(load_sample_image("flower.jpg"))
    (in_tmp / "path/to/photos").mkdir(parents=True)
    for i in range(10):
        photo.crop((20 * i, 10 * i, 200 + 20 * i, 150 + 10 * i)).save(in_tmp / f"path/to/photos/{i}.jpg")
    photo.save(in_tmp / "a.jpg")
    for part in ("train", "test"):
        for name in ("left", "right"):
            folder = in_tmp / "path/to/labelled" / part / name
            folder.mkdir(parents=True)
            for i in range(5):
                photo.crop((40 * i, 10 * i, 200 + 40 * i, 150 + 10 * i)).save(folder / f"{part}{i}.jpg")
    published_sets(in_tmp / "path/to/sets", photo)
    return in_tmp


def published_sets(root: Path, photo: Image.Image) -> None:
    """Pets and DTD as their authors lay them out, with a handful of images."""
    (root / "oxford-iiit-pet/images").mkdir(parents=True)
    (root / "oxford-iiit-pet/annotations/trimaps").mkdir(parents=True)
    lines = [f"{('Abyssinian', 'beagle')[i % 2]}_{i} {i % 2 + 1} 1 1" for i in range(20)]
    for i, line in enumerate(lines):
        photo.crop((9 * i, 9 * i, 100 + 9 * i, 90 + 9 * i)).save(root / f"oxford-iiit-pet/images/{line.split()[0]}.jpg")
    for part in ("trainval", "test"):
        (root / f"oxford-iiit-pet/annotations/{part}.txt").write_text("\n".join(lines))
    for folder in ("dtd/dtd/labels", "dtd/dtd/imdb", "dtd/dtd/images/banded", "dtd/dtd/images/dotted"):
        (root / folder).mkdir(parents=True)
    names = [f"{('banded', 'dotted')[i % 2]}/{i}.jpg" for i in range(10)]
    for i, name in enumerate(names):
        photo.crop((7 * i, 7 * i, 90 + 7 * i, 90 + 7 * i)).save(root / "dtd/dtd/images" / name)
    for part in ("train", "val", "test"):
        (root / f"dtd/dtd/labels/{part}1.txt").write_text("\n".join(names))


def adapt(command: str) -> list[str]:
    args = shlex.split(command.replace("--data cifar10", "--data digits"), comments=True)[1:]
    if args[0] not in ("pretrain", "sweep"):
        return args
    if "--budget" in args:  # whether it is kept is for another test
        args[args.index("--budget") + 1] = "8s"
        return [*args, *QUICK[2:]]
    if "--epochs" in args:
        del args[args.index("--epochs") : args.index("--epochs") + 2]
    if "digits" in args:
        args += ["--subset", "64"]
    return args + QUICK + (["--out", f"runs/{abs(hash(command))}"] if "--out" not in args else [])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands(page: Path, desk: Path) -> None:
    found = commands(page)
    for command in found:
        if command.startswith("effssl eval") and not Path("runs/first").exists():
            main(adapt("effssl pretrain --data cifar10 --out runs/first"))
        main(adapt(command))
    assert found or page.name not in ("README.md", "images.md", "terms.md", "evaluation.md", "explore.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_snippets(page: Path, desk: Path) -> None:
    scope = {"images": torch.zeros(2, 3, 32, 32, dtype=torch.uint8)}
    for code in snippets(page):
        if '"runs/photos"' in code and not Path("runs/photos").exists():
            effssl.pretrain("path/to/photos", "simsiam", out="runs/photos", epochs=1, batch_size=8, quiet=True)
        code = code.replace('"cifar10"', '"digits"').replace("epochs=20", "epochs=1, subset=256, quiet=True")
        exec(compile(code, page.name, "exec"), scope)


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"
