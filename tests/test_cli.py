"""The command line as a user meets it: real processes, exit codes, one line for a mistake."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from effssl import recipes
from effssl.cli import main
from effssl.commands.pretrain import last_line
from effssl.verbs import Run


def effssl(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "effssl", *args], capture_output=True, text=True, cwd=cwd, timeout=300)


def test_help_needs_no_torch() -> None:
    code = (
        "import sys, effssl, effssl.cli as c\n"
        "c.main(['--help'])\n"
        "try: c.main(['pretrain', '--help'])\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: effssl VERB" in done.stdout
    assert "--views.rotated.size" in done.stdout


def test_recipes_are_listed_and_shown(capsys: pytest.CaptureFixture) -> None:
    main(["recipes"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == recipes.names()
    assert all("MFLOP" in line or "GFLOP" in line for line in lines)
    main(["recipes", "cpu-byol"])
    assert "--recipe cpu-byol" in capsys.readouterr().out


def test_train_evaluate_from_the_command_line(tmp_path: Path) -> None:
    done = effssl("pretrain", "--data", "digits", "--epochs", "2", "--subset", "256", "--batch-size", "32",
                  "--views.rotated.size", "8", "--views.rotated.no-update-stats", "--out", "run",
                  cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "scaled to" in done.stderr  # another batch size scales the recipe's lr, and says so
    assert "warm-up shortened" in done.stderr
    assert "epoch 2/2" in done.stderr
    assert "worse than pixels" in done.stdout  # after two epochs, so what to do comes next
    assert "next: train longer" in done.stdout
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert "size: 8" in config
    assert "update_stats: false" in config
    scored = effssl("eval", "knn", "run", "--k", "20", "--out", "score.json", cwd=tmp_path)
    assert scored.returncode == 0, scored.stderr
    assert "accuracy" in scored.stdout
    assert '"k": 20' in (tmp_path / "score.json").read_text()
    again = effssl("pretrain", "--data", "digits", "--epochs", "2", "--out", "run", cwd=tmp_path)
    assert again.returncode == 2
    assert "exists and is finished" in again.stderr


def test_without_labels_the_next_step_needs_none(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("EFFSSL_REPORT", "on")
    np.save("my images.npy", np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), np.uint8))
    main(
        [
            "pretrain",
            *shlex.split("--data 'my images.npy' --objective simsiam --epochs 1 --batch-size 16 --out 'my run'"),
        ]
    )
    said = capsys.readouterr().out
    assert "no better than untrained" in said  # of noise, so what to do comes next
    assert "next: train longer" in said
    assert ": agreement of neighbors " in said  # beside what costs nothing, with a verdict
    assert "raw pixels" in said
    (Path("my run") / "metrics.jsonl").write_text('{"epoch": 1, "verdict": "learning", "why": "better"}\n')
    todo = last_line(Run("my run"))[-1]
    assert "next: open 'my run/report.html', or effssl outliers" in todo
    main(shlex.split(todo)[shlex.split(todo).index("effssl") + 1 :])  # as it is told
    assert capsys.readouterr().out.startswith("outliers")


@pytest.fixture
def bad_folders(tmp_path: Path) -> Path:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    for i in range(3):
        (tmp_path / "broken" / f"{i}.jpg").write_bytes(b"not an image")
    (tmp_path / "notarun").mkdir()
    (tmp_path / "notarun" / "x.txt").write_text("x")
    (tmp_path / "few").mkdir()
    for i in range(5):
        Image.new("RGB", (80, 80), (i, 50, 90)).save(tmp_path / "few" / f"{i}.png")
    sizes = np.empty(2, dtype=object)
    sizes[:] = [np.zeros((4, 4, 3), np.uint8), np.zeros((5, 5, 3), np.uint8)]
    np.save(tmp_path / "sizes.npy", sizes, allow_pickle=True)
    (tmp_path / "wrong.yaml").write_text("epochs: many\n")
    (tmp_path / "unknown.yaml").write_text("epocs: 3\n")
    return tmp_path


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["pretrian"], "did you mean pretrain"),
        (["pretrain"], "--data is needed"),
        (["pretrain", "--data", "digits", "--objective", "byool"], "did you mean byol"),
        (["pretrain", "--data", "digits", "--objective", "byol+rotatoin"], "did you mean rotation"),
        (["pretrain", "--data", "cifar11"], "did you mean cifar10"),
        (["pretrain", "--lamda", "0.3"], "--lamda (did you mean --TERM.weight?)"),
        (["pretrain", "--wandb"], "--wandb (did you mean --log wandb?)"),
        (
            ["pretrain", "--epoch", "3", "--learning-rate", "1"],
            "--epoch (did you mean --epochs?), --learning-rate (did",
        ),
        (["embed", "run", "--dataset", "x"], "--dataset (did you mean --data?)"),
        (["pretrain", "--data", "nowhere/photos"], "no data set or folder named"),
        (["pretrain", "--data", "digits", "--recipe", "cifar10-byl"], "did you mean cifar10-byol"),
        (["pretrain", "--data", "digits", "--encoder", "resnet81"], "did you mean resnet18"),
        (["pretrain", "--data", "digits", "--encoder", "timm:resnet81"], "timm has no model"),
        (["pretrain", "--data", "digits", "--device", "cuda:7"], "cannot be used"),
        (["pretrain", "--data", "digits", "--batch-size", "5000"], "larger than the set of 1437"),
        (["pretrain", "--data", "digits", "--batch-size", "1"], "at least 2"),
        (["pretrain", "--data", "digits", "--epochs", "0"], "at least 1"),
        (["pretrain", "--data", "digits", "--subset", "5000"], "a subset of 5000"),
        (["pretrain", "--data", "digits", "--objective", "0*byol"], "every term has weight 0"),
        (["pretrain", "--data", "empty"], "no images under empty (looked for .jpg"),
        (["pretrain", "--data", "broken"], "none of the 3 image files"),
        (["pretrain", "--data", "few", "--batch-size", "6"], "larger than the set of 5"),
        (["pretrain", "--data", "sizes.npy"], "images differ in size"),
        (["pretrain", "--data", "wrong.yaml"], "neither a folder"),
        (["pretrain", "--data", "digits", "--config", "wrong.yaml"], "epochs takes a value of type int, got 'many'"),
        (["pretrain", "--data", "digits", "--config", "unknown.yaml"], "did you mean epochs"),
        (["pretrain", "--data", "digits", "--config", "missing.yaml"], "no such file"),
        (["pretrain", "--data", "digits", "--out", "notarun"], "not empty and not a run folder"),
        (["pretrain", "--data", "digits", "--out", "wrong.yaml"], "is a file"),
        (["pretrain", "--data", "digits", "--out", "wrong.yaml/x"], "cannot be created"),
        (["eval", "knn", "notarun"], "not a run folder"),
        (["eval", "knn", "missing"], "no run folder, weight file or torchvision model named 'missing'"),
        (["eval", "knn", "resnet19", "--data", "digits"], "did you mean resnet1"),
        (["eval", "knn", "small", "--weights", "random"], "needs --data"),
        (["eval", "knn", "notarun/a.pth"], "no run folder or weight file"),
        (["eval", "kn", "notarun"], "did you mean knn"),
        (["eval", "probe", "rotatoin", "notarun"], "did you mean probe-rotation"),
        (["eval", "probe"], "probe contrastive RUN, or effssl eval probe rotation RUN"),
        (["eval", "probe", "--seed", "1"], "which probe?"),
        (["eval", "knn"], "which encoder?"),
        (["eval", "detect", "small", "--weights", "random"], "detect needs --data"),
        (["eval", "transfer", "small", "--weights", "random", "--sets", "foods"], "did you mean food"),
        (["recipes", "cifar10-byl"], "did you mean cifar10-byol"),
        (["pretrain", "--data", "digits", "--lr", "nan"], "--lr is nan; it must be a finite number"),
    ],
)
def test_a_mistake_gets_one_line_and_exit_code_2(
    args: list[str], says: str, bad_folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(bad_folders)
    before = sorted(path for path in bad_folders.rglob("*"))
    with pytest.raises(SystemExit) as stop:
        main(args)
    assert stop.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("effssl: ")]
    assert len(lines) == 1
    assert says in lines[0]
    assert sorted(path for path in bad_folders.rglob("*")) == before


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no folder that even root cannot write to")
@pytest.mark.parametrize(
    "args",
    [
        ["pretrain", "--data", "nowhere", "--out", "/proc/x"],
        ["pretrain", "--data", "nowhere", "--budget", "1m", "--out", "/proc/x/y"],
        ["sweep", "--data", "digits", "--over", "lr=0.1", "--out", "/proc/x"],
        ["study", "run", "E06", "--scale", "smoke", "--out", "/proc/x"],
        ["pack", "broken", "--out", "/proc/x"],
        ["eval", "knn", "small", "--weights", "random", "--data", "nowhere", "--out", "/proc/x.json"],
        ["embed", "small", "--weights", "random", "--data", "nowhere", "--out", "/proc/x.csv"],
        ["outliers", "small", "--weights", "random", "--data", "nowhere", "--out", "/proc/x.csv"],
        ["export", "missing", "--to", "pt2", "--out", "/proc/x.pt2"],
        ["import", "missing.pth", "--encoder", "resnet18", "--out", "/proc/x.safetensors"],
    ],
    ids=lambda args: args[0],
)
def test_a_place_that_takes_no_files_is_noticed_before_anything_else(
    args: list[str], bad_folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(bad_folders)  # data and encoders are missing, too, which would be said if they were looked for
    with pytest.raises(SystemExit) as stop:
        main(args)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("effssl: ")
    assert "/proc is not writable" in said
    assert said.count("\n") == 1


def test_a_mistyped_flag_gets_the_nearest_right_one(tmp_path: Path) -> None:
    done = effssl("pretrain", "--data", "digits", "--rotation.wieght", "1", cwd=tmp_path)
    assert done.returncode == 2
    assert "--rotation.weight" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"RANK": "1"}, "cifar11"),
        ({"RANK": "abc"}, "cifar11"),
        ({"WORLD_SIZE": "abc"}, "WORLD_SIZE is 'abc'; it must be a whole number"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "MASTER_ADDR, MASTER_PORT is not set; start with torchrun"),
        ({"WORLD_SIZE": "2", "RANK": "1"}, "MASTER_ADDR, MASTER_PORT is not set; start with torchrun"),
        ({"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "x"}, "MASTER_PORT is 'x'"),
        ({"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}, "do not fit together"),
        ({"WORLD_SIZE": "2", "RANK": "x", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}, "RANK is 'x'"),
        ({"TORCHELASTIC_RESTART_COUNT": "x"}, "TORCHELASTIC_RESTART_COUNT is 'x'|cifar11"),
    ],
)
def test_an_odd_environment_gets_one_line(
    variables: dict[str, str], says: str, in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as stopped:
        main(["pretrain", "--data", "cifar11", "--out", "r"])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1
    assert re.search(says, said)


def test_a_mistake_in_a_real_process_has_no_traceback(tmp_path: Path) -> None:
    done = effssl("pretrain", "--data", "nowhere", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_a_terminal_that_knows_ascii_only() -> None:
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-m", "effssl", "recipes"], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\xb1" in done.stdout
