"""Every command and every Python snippet of README and docs runs, on small data in place of the real ones.

A line of a code block, fenced or indented, that starts with effssl, torchrun, make, python, srun, pip or
tensorboard is a command. It is run here, or a comment before its block says why not:

    <!-- not run: needs two machines -->
"""

from __future__ import annotations

import importlib
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import av
import datasets
import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from sklearn.datasets import load_sample_image
from torch.distributed.run import get_args_parser

import effssl
from effssl.cli import main
from effssl.training.verdict import TO_DO, Moment, Reference, Representation, TaskAccuracy, advice, verdict

ROOT = Path(__file__).parent.parent
# Pages that studies write (docs/results/E06-cpu/README.md) are records: the command on them is the one that was run.
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(p for p in sorted((ROOT / "docs").rglob("*.md")) if p.parent.parent != ROOT / "docs/results"),
]
COMMAND = re.compile(r"(?:\$ )?(?:[A-Z_]+=\S+ )*(effssl|torchrun|make|python3?|srun|pip|tensorboard)\s")
SAMPLE = "<!-- sample of the command above -->"
NUMBER = re.compile(r"[-+−]?\d[\d.,:]*( h)?")
NOT_RUN = re.compile(r"<!-- not run: (\S.*?) -->")
# What a snippet needs to be quick; everything else is run as it is written.
QUICK = ["--epochs", "1", "--batch-size", "8"]
SMALLER = {"E06": "E16", "100": "5"}  # a study with 2 arms in place of one with 18; a subset of the ten photographs


@dataclass(frozen=True)
class Block:
    """A code block: its language, its lines with continued ones joined, and why it is not run."""

    language: str
    code: str
    reason: str = ""

    @property
    def commands(self) -> list[str]:
        lines = self.code.replace("\\\n", " ").splitlines()
        return [line.strip() for line in lines if COMMAND.match(line.strip() + " ")]


def blocks(text: str) -> list[Block]:
    """All code blocks of a page, fenced or indented by four."""
    found: list[Block] = []
    lines, at, reason = text.splitlines(), 0, ""
    while at < len(lines):
        line, before = lines[at], lines[at - 1] if at else ""
        if fence := re.match(r" *(```+)(\w*)", line):
            end = next(i for i in range(at + 1, len(lines)) if lines[i].strip().startswith(fence[1]))
            found.append(Block(fence[2], "\n".join(lines[at + 1 : end]) + "\n", reason))
            at, reason = end + 1, ""
        elif line.startswith("    ") and not before.strip():
            end = next((i for i in range(at, len(lines)) if lines[i].strip() and not lines[i].startswith("    ")), None)
            code = [part[4:] for part in lines[at:end]]
            found.append(Block("", "\n".join(code) + "\n", reason))
            at, reason = len(lines) if end is None else end, ""
        else:
            marked = NOT_RUN.fullmatch(line.strip())
            reason = marked[1] if marked else reason if not line.strip() else ""
            at += 1
    return found


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def page_blocks(page: Path) -> list[Block]:
    return blocks(page.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def desk_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photographs where the docs say they are."""
    desk = tmp_path_factory.mktemp("desk")
    photo = Image.fromarray(load_sample_image("flower.jpg"))
    (desk / "path/to/photos").mkdir(parents=True)
    for i in range(10):
        photo.crop((20 * i, 10 * i, 200 + 20 * i, 150 + 10 * i)).save(desk / f"path/to/photos/{i}.jpg")
    (desk / "labels.csv").write_text("file,label\n0.jpg,left\n1.jpg,left\n8.jpg,right\n9.jpg,right\n")
    table = "\n".join(["path", *(f"photos/{i}.jpg" for i in range(10))])
    (desk / "path/to/photos.csv").write_text(table)
    shutil.make_archive(str(desk / "path/to/photos"), "zip", desk / "path/to/photos")
    (desk / "path/to/shards").mkdir()
    for i in range(2):
        with tarfile.open(desk / f"path/to/shards/train-000{i}.tar", "w") as shard:
            for j in range(5 * i, 5 * i + 5):
                shard.add(desk / f"path/to/photos/{j}.jpg", f"{j}.jpg")
    bands = np.random.default_rng(0).integers(0, 4096, (64, 20, 20, 9)).astype(np.uint16)
    np.savez(desk / "path/to/bands.npz", images=bands)
    write_film(desk / "path/to/film.mp4", photo)
    save_for_hub(desk / "path/to/saved", photo)
    shutil.copy(desk / "path/to/photos/3.jpg", desk / "cat.jpg")
    photo.save(desk / "a.jpg")
    photo.rotate(90).save(desk / "b.jpg")
    for part in ("train", "test"):
        for side in ("left", "right"):
            folder = desk / "path/to/labelled" / part / side
            folder.mkdir(parents=True)
            for i in range(5):
                photo.crop((40 * i, 10 * i, 200 + 40 * i, 150 + 10 * i)).save(folder / f"{part}{i}.jpg")
    published_sets(desk / "path/to/sets", photo)
    weights = torchvision.models.resnet18(weights=None).state_dict()
    torch.save({"state_dict": {f"module.encoder_q.{k}": v for k, v in weights.items()}}, desk / "path/to/moco.pth")
    return desk


def write_film(path: Path, photo: Image.Image) -> None:
    """A video of 50 frames, at 5 frames a second."""
    with av.open(str(path), "w") as film:
        stream = film.add_stream("mpeg4", rate=5)
        stream.width, stream.height, stream.pix_fmt = 96, 96, "yuv420p"
        for i in range(50):
            frame = av.VideoFrame.from_image(photo.crop((10 * i, 4 * i, 96 + 10 * i, 96 + 4 * i)))
            film.mux(stream.encode(frame))
        film.mux(stream.encode())


def save_for_hub(path: Path, photo: Image.Image) -> None:
    """A data set as the package datasets saves it."""
    images = [photo.crop((20 * i, 10 * i, 100 + 20 * i, 100 + 10 * i)) for i in range(10)]
    features = datasets.Features({"image": datasets.Image()})
    whole = datasets.Dataset.from_dict({"image": images}, features=features)
    datasets.DatasetDict({"train": whole}).save_to_disk(str(path))


@pytest.fixture(scope="module")
def trained(desk_once: Path) -> Path:
    """Runs that pages use before, or without, making them: trained once."""
    runs = desk_once / "runs"
    quick = {"epochs": 1, "batch_size": 8, "quiet": True}
    effssl.pretrain("digits", "byol+rotation", out=runs / "first", subset=64, **quick)
    shutil.copytree(runs / "first", runs / "digits")
    effssl.pretrain(str(desk_once / "path/to/photos"), "simsiam", out=runs / "photos", **quick)
    few = {"bank": 8, "queries": 8}
    effssl.pretrain("digits", "simsiam", encoder="resnet18", out=runs / "resnet", subset=64, health=few, **quick)
    return runs


@pytest.fixture
def desk(desk_once: Path, in_tmp: Path) -> Path:
    """The same folder, fresh for every page."""
    shutil.copytree(desk_once, in_tmp, dirs_exist_ok=True, ignore=shutil.ignore_patterns("runs"))
    return in_tmp


def lend(code: str, trained: Path) -> None:
    """Put a trained run where code expects one that it does not make itself."""
    read = re.sub(r"\bout[ =]\S+", "", code)
    for run in trained.iterdir():
        if re.search(rf"\bruns/{run.name}\b", read) and not Path("runs", run.name).exists():
            shutil.copytree(run, Path("runs", run.name))


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
    for i, image in enumerate(names):
        photo.crop((7 * i, 7 * i, 90 + 7 * i, 90 + 7 * i)).save(root / "dtd/dtd/images" / image)
    for part in ("train", "val", "test"):
        (root / f"dtd/dtd/labels/{part}1.txt").write_text("\n".join(names))


def adapt(command: str) -> list[str]:
    """The command's words, with small data and one epoch."""
    words = shlex.split(command.replace("--data cifar10", "--data digits"), comments=True)
    args = [SMALLER.get(word, word) for word in words[words.index("effssl") + 1 :]]
    if args[0] not in ("pretrain", "sweep"):
        return args
    if "--over" in args:  # one value of those to try
        args[args.index("--over") + 1] = args[args.index("--over") + 1].split(",")[0]
    if "--budget" in args and "digits" in args:
        # A budget that also chooses the recipe fits patches first.
        args[args.index("--budget") + 1] = "5s" if "--objective" in args else "20s"
        return [*args, *QUICK[2:]]
    for flag in ("--budget", "--epochs"):  # timing steps on photographs takes longer than the run itself
        if flag in args:
            del args[args.index(flag) : args.index(flag) + 2]
    if "digits" in args:
        args += ["--subset", "64"]
    return [*args, *QUICK, *([] if "--out" in args else ["--out", f"runs/{abs(hash(command))}"])]


def carry_out(command: str) -> None:
    """Run a command in this process.

    What torchrun is told is read by its own parser, and what it would start is run once; that several processes work
    together is for tests/training/test_distribution.py.
    """
    if command.startswith("torchrun "):
        told = get_args_parser().parse_args(shlex.split(command)[1:])
        assert (told.module, told.training_script) == (True, "effssl")
    else:
        assert command.startswith("effssl "), f"this test cannot run {command!r}; say why before its block"
    main(adapt(command))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands(page: Path, desk: Path, trained: Path) -> None:
    found = [c for block in page_blocks(page) if not block.reason for c in block.commands]
    for command in found:
        lend(command, trained)
        carry_out(command)
    must = ("README.md", *(f"docs/{stem}.md" for stem in ("images", "terms", "evaluation", "explore")))
    assert found or name(page) not in must


@dataclass(frozen=True)
class Sample:
    """Output that a page shows, and the command before it."""

    command: str
    text: str


def samples(page: Path) -> list[Sample]:
    """The marked samples of a page."""
    found = []
    for before, after in itertools.pairwise(page.read_text(encoding="utf-8").split(SAMPLE)):
        command = [command for block in blocks(before) for command in block.commands][-1]
        found.append(Sample(command, after.lstrip().removeprefix("```text\n").partition("```")[0]))
    return found


def shapes(line: str) -> list[str]:
    """The parts of a line without numbers: its beginning, and verdict and advice, which short runs may not share."""
    beginning, *rest = re.split(r"  \| |   (?=\S)", line)
    parts = [beginning, *(part for text in rest for part in text.split(TO_DO))]
    return [re.sub("# (above|below)|equal to", "# from", NUMBER.sub("#", part)).strip() for part in parts]


def verdict_shapes() -> set[str]:
    """Every verdict that a run on labelled images may get, and every advice, as they are printed."""
    start, better = Representation(0.3, 0.3, 90, 80, 50.0), Representation(0.6, 0.7, 70, 40, 60.0)
    last = [better, *(replace(better, knn=score) for score in (40.0, 50.0)), replace(better, std_z=0.01)]
    last += [replace(better, std_h=0.01), replace(better, rank_z=1.0), replace(better, std_z=0.1)]
    frees = [{}, {"pixels": 30.0}, {"pixels": 80.0}, {"pixels": 80.0, "patches": 90.0}]
    tasks = [[], [TaskAccuracy("rotation", 0.5, 0.25)]]
    moments = [Moment(), Moment(0.1), Moment(1.0, 10), Moment(0.1, 10)]
    told = [
        verdict([start, one], task, Reference(baselines=free), moment)
        for one, task, free, moment in itertools.product(last, tasks, frees, moments)
    ]
    words = [f"{word}: {why}" for word, why in told]
    return {part for text in words for part in shapes(f"  | {text}")[1:]} | {f"next: {advice(why)}" for _, why in told}


def standings(printed: Iterable[str]) -> set[str]:
    """What a last line may say of scores that were printed: each with any verdict."""
    words = {text.partition(":")[0] for text in verdict_shapes()}
    return {f"{word}: {text.partition(': ')[2]}" for text in printed for word in words if "(untrained network" in text}


def test_a_stale_verdict_is_found() -> None:
    """The words of a verdict count, its numbers and its direction do not."""
    line = "epoch 4/10  loss -0.8  | collapsing: all images get nearly the same projections (spread 0.018 of 1)"
    assert shapes(line)[1] in verdict_shapes()
    assert shapes(line.replace("projections", "features"))[1] in verdict_shapes()
    assert shapes(line.replace("nearly the same", "similar"))[1] not in verdict_shapes()
    early = "  | too early to tell: kNN 66.4 %, {} the untrained network; spread 0.36"
    assert shapes(early.format("11.9 below"))[1] in verdict_shapes()
    assert shapes(early.format("equal to"))[1] in verdict_shapes()
    assert shapes(early.format("-11.9 over"))[1] not in verdict_shapes()
    last = ["done: runs/a", "learning: kNN 93.7 % (untrained network 79.7)", "next: effssl eval knn runs/a"]
    assert shapes("   ".join(last))[1] in standings(["collapsing: kNN # % (untrained network #)"])


SAMPLED = [page for page in PAGES if samples(page)]


@pytest.mark.parametrize("page", SAMPLED, ids=name)
def test_samples_have_the_shape_of_what_is_printed(
    page: Path, desk: Path, trained: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command, shortened: a line of the page that no longer looks like a printed one is stale."""
    monkeypatch.setenv("EFFSSL_REPORT", "on")
    for sample in samples(page):
        carry_out(sample.command)
        printed = {part for text in capsys.readouterr() for line in text.splitlines() for part in shapes(line)}
        # A short run may get an advice where the page's run leads to a command, which the page runs, too.
        commands = {f"next: {command}" for block in page_blocks(page) for command in block.commands}
        known = printed | verdict_shapes() | standings(printed) | commands
        stale = [line for line in sample.text.splitlines() if not known.issuperset(shapes(line))]
        assert not stale, f"{name(page)}; write it anew: python -m pytest -m long tests/test_docs.py --write-samples"


@pytest.mark.long
@pytest.mark.parametrize("page", SAMPLED, ids=name)
def test_samples_are_what_is_printed(
    page: Path, in_tmp: Path, capsys: pytest.CaptureFixture, request: pytest.FixtureRequest
) -> None:
    """The whole command gives the same words; with --write-samples the page gets what it prints now."""
    writes = request.config.getoption("--write-samples")
    text = page.read_text(encoding="utf-8")
    for sample in samples(page):
        args = shlex.split(sample.command)[1:]
        done = subprocess.run(
            [sys.executable, "-m", "effssl", *args],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "EFFSSL_REPORT": "on"},
        )
        lines = (done.stderr + done.stdout).splitlines()
        epochs = [line for line in lines if line.startswith("epoch")]
        # Of the epochs those with a verdict: the first, the one in the middle and the last.
        judged = [line for line in epochs if "  | " in line]
        shown = {judged[0], judged[(len(judged) - 1) // 2], judged[-1]}
        new = "".join(f"{line}\n" for line in lines if line not in epochs or line in shown)
        if writes:
            text = text.replace(sample.text, new)
        else:
            assert [NUMBER.sub("#", line) for line in sample.text.splitlines()] == [
                NUMBER.sub("#", line) for line in new.splitlines()
            ]
    if writes:
        page.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_snippets(page: Path, desk: Path, trained: Path) -> None:
    scope = {"images": torch.zeros(2, 3, 32, 32, dtype=torch.uint8)}
    for block in page_blocks(page):
        if block.language != "python" or block.reason:
            continue
        lend(block.code, trained)
        code = block.code.replace('"cifar10"', '"digits"').replace("epochs=20", "epochs=1, subset=256, quiet=True")
        # Elsewhere a page is read from its top; of this one a single block is copied.
        exec(compile(code, page.name, "exec"), {} if page.name == "export.md" else scope)


def test_a_command_that_is_not_run_says_why() -> None:
    """The blocks are found wherever they stand, and a mark counts for the block after it alone."""
    text = """
Words.

    effssl eval knn a  # b

<!-- not run: slow -->

    make demo
    pip install .

and

```bash
torchrun \\
    -m effssl pretrain
```

- item

    effssl recipes

<!-- not run: two machines -->
```
OMP_NUM_THREADS=1 srun effssl
```

    L = a + b
"""
    found = [(block.reason, block.commands) for block in blocks(text)]
    assert found == [
        ("", ["effssl eval knn a  # b"]),
        ("slow", ["make demo", "pip install ."]),
        ("", ["torchrun      -m effssl pretrain"]),
        ("", ["effssl recipes"]),
        ("two machines", ["OMP_NUM_THREADS=1 srun effssl"]),
        ("", []),
    ]


def test_make_targets_exist() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    targets = set(re.findall(r"(?:`|^    )make (\w+)", text, re.MULTILINE))
    known = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test", "docs"} <= targets <= known


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert target.startswith("http") or (page.parent / target).exists(), f"{name(page)}: {target}"


def test_api_page_shows_every_public_name() -> None:
    shown = re.findall(r"^::: (\S+)", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    public = {getattr(effssl, each) for each in effssl.__all__}
    documented = {
        getattr(importlib.import_module(module), each) for module, _, each in (p.rpartition(".") for p in shown)
    }
    assert not {each.__name__ for each in public - documented}
