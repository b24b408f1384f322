"""The wheel and the source archive hold what they must, and run where nothing else of the project is."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import effssl

ROOT = Path(__file__).parent.parent
NOT_CODE = (".yaml", ".txt", ".html", ".css", ".js", ".svg")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel and source archive, built from the files that a clone would hold."""
    folder = tmp_path_factory.mktemp("package")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    names = listed.stdout.splitlines() if listed.returncode == 0 else [str(p.relative_to(ROOT)) for p in _files()]
    for name in names:
        if (ROOT / name).is_file():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "source" / name).write_bytes((ROOT / name).read_bytes())
    # Without isolation: what it needs is installed, and nothing is downloaded.
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), "source"],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def _files() -> list[Path]:
    """Where there is no git: everything but what tools leave behind."""
    skipped = {".git", ".venv", "__pycache__", "build", "dist", "runs"}
    return [path for path in ROOT.rglob("*") if path.is_file() and not skipped & set(path.relative_to(ROOT).parts)]


def test_wheel_and_archive_hold_every_file(built: Path) -> None:
    version = effssl.__version__
    wheel = zipfile.ZipFile(built / f"dist/effssl-{version}-py3-none-any.whl")
    source = built / "source"
    kept = {str(p.relative_to(source)) for p in (source / "effssl").rglob("*") if p.suffix in (".py", *NOT_CODE)}
    assert {name for name in wheel.namelist() if name.startswith("effssl/")} == kept
    assert "effssl/recipes/cpu-byol.yaml" in kept
    assert "effssl/data/imagenet100.txt" in kept
    assert "effssl = effssl.cli:main" in wheel.read(f"effssl-{version}.dist-info/entry_points.txt").decode()
    with tarfile.open(built / f"dist/effssl-{version}.tar.gz") as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert kept | {"README.md", "LICENSE", "CITATION.cff", "pyproject.toml", "examples/plain_loop.py"} <= names
    assert {"Makefile", "mkdocs.yml", "docs/index.md"} <= names  # make docs works


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == effssl.__version__
    assert citation["references"][0]["title"].startswith("Towards Efficient and Effective Self-Supervised Learning")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["whl", "tar.gz"])
def test_installed_into_a_clean_environment(built: Path, tmp_path: Path, kind: str) -> None:
    """Only the installed package is seen, and torch and the like, which take minutes to install."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    python = str(venv / "bin/python")
    file = next((built / "dist").glob(f"*.{kind}"))
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # A path line in a .pth file comes after the environment's own packages, and editable installs there are not read.
    (site / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(python, "-m", "pip", "uninstall", "--yes", "setuptools")  # one that Python brings along may be too old to build
    run(python, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", str(file))
    assert run(python, "-c", "import effssl; print(effssl.__file__)").startswith(str(site))
    program = str(venv / "bin/effssl")
    assert "usage: effssl VERB" in run(program, "--help")
    assert run(program, "--version").strip() == effssl.__version__
    assert "cpu-byol" in run(program, "recipes")
    run(program, "pretrain", "--data", "digits", "--epochs", "1", "--out", "runs/first")
    run(program, "export", "runs/first", "--to", "pt2")
    assert (tmp_path / "first.pt2.md").is_file()
    assert "accuracy" in run(program, "eval", "knn", "runs/first")
