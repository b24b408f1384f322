"""Faults on purpose, the short form of `make chaos`: each kind once, and what needs no process of its own."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import effssl
from effssl.training.checkpoint import load_checkpoint, previous, save_checkpoint, set_aside_damaged
from effssl.training.trainer import Trainer
from tests import kill_points, study_faults
from tests.chaos import ROOT, Case, ask, corrupt, full_disk, kill, lose_a_process

QUICK = {"quiet": True, "encoder": "small", "batch_size": 64, "subset": 512}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case("byol+rotation", 1, tmp_path_factory.mktemp("chaos"))


@pytest.mark.parametrize("fault", [kill, ask, corrupt, full_disk], ids=lambda fault: fault.__name__)
def test_a_disturbed_run_equals_an_undisturbed_one(alone: Case, fault) -> None:
    outcome = fault(alone, random.Random(fault.__name__))
    assert outcome.survived, outcome.difference
    assert outcome.difference == ""


@pytest.mark.long
def test_a_run_killed_before_a_file_operation_equals_an_undisturbed_one(tmp_path: Path) -> None:
    outcomes = list(kill_points.of_a_run(tmp_path / "runs", step=6))
    assert len(outcomes) >= 4
    assert not any(outcomes), outcomes


@pytest.mark.long
def test_studies_that_are_disturbed_measure_the_same(tmp_path: Path) -> None:
    outcomes = study_faults.all_faults(tmp_path, random.Random(0), trials=1)
    assert [wrong for _, wrong in outcomes] == ["", ""]


@pytest.mark.long
def test_a_lost_process_comes_back(tmp_path: Path) -> None:
    case = Case("moco+rotation", 2, tmp_path)
    outcome = lose_a_process(case, random.Random(0))
    assert outcome.survived, outcome.difference
    assert outcome.difference == ""


# Inside an epoch, and at its very end.
@pytest.mark.parametrize(("number", "at"), [(signal.SIGTERM, 3), (signal.SIGINT, 8), (signal.SIGUSR1, 5)])
def test_signals_save_and_the_run_goes_on_to_the_bit(
    number: signal.Signals, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = effssl.pretrain("digits", "byol", epochs=2, out=tmp_path / "whole", **QUICK)
    real, calls, before = Trainer.step, 0, signal.getsignal(number)

    def signalled(self, views):
        nonlocal calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), number)
        return real(self, views)

    monkeypatch.setattr(Trainer, "step", signalled)
    with pytest.raises(effssl.Stopped, match='resume with resume="auto"'):
        effssl.pretrain("digits", "byol", epochs=2, out=tmp_path / "cut", **QUICK)
    assert calls == at  # the step in flight was finished, no further one begun
    assert signal.getsignal(number) == before
    cut = effssl.pretrain("digits", "byol", epochs=2, out=tmp_path / "cut", resume="auto", **QUICK)
    assert calls == 16  # nothing was done twice
    assert cut.encoder_path.read_bytes() == whole.encoder_path.read_bytes()


def test_a_second_interrupt_stops_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted_twice(self, views):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
        raise AssertionError("still running")

    monkeypatch.setattr(Trainer, "step", interrupted_twice)
    with pytest.raises(KeyboardInterrupt):
        effssl.pretrain("digits", "byol", epochs=1, out=tmp_path / "r", **QUICK)


def test_the_exit_code_of_a_stopped_run_is_75(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "effssl", "pretrain", "--data", "digits", "--epochs", "500", "--out", "r"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    running = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "r" / "checkpoint.pt").exists():
        assert running.poll() is None
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    _, said = running.communicate(timeout=100)
    assert running.returncode == 75
    assert "SIGTERM: finishing the step and saving" in said
    assert "effssl: stopped and saved after epoch" in said


def test_a_worker_that_is_ended_from_outside_ends_the_run_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for i, pixels in enumerate(load_digits().images[:16]):
        Image.fromarray((pixels * 15).astype("uint8")).resize((140, 120)).save(tmp_path / "photos" / f"{i}.jpg")
    command = [sys.executable, "-m", "effssl", "pretrain", "--data", "photos", "--image-size", "32"]
    command += ["--batch-size", "2", "--epochs", "5000", "--workers", "1", "--cache", "off", "--out", "r"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    running = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    while not ((tmp_path / "r" / "checkpoint.pt").exists() and children.read_text()):
        assert running.poll() is None
        time.sleep(0.05)
    os.kill(int(children.read_text().split()[-1]), signal.SIGKILL)
    _, said = running.communicate(timeout=100)
    assert running.returncode == 1
    assert "effssl: a process that decodes images was ended from outside" in said
    assert "Traceback" not in said


def test_a_folder_is_trained_by_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"epochs": 2, "out": tmp_path / "r", **QUICK}
    real = Trainer.step

    def somebody_else_comes(self, views):
        with pytest.raises(effssl.RequestError, match="is being trained by process"):
            effssl.pretrain("digits", "byol", resume="auto", **settings)
        return real(self, views)

    monkeypatch.setattr(Trainer, "step", somebody_else_comes)
    assert effssl.pretrain("digits", "byol", **settings).finished
    with effssl.Run(tmp_path / "r").locked():
        pass  # it is free again


def test_the_old_checkpoint_stays_until_the_new_one_is_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint.pt"
    for number in (1, 2):
        save_checkpoint(path, {"number": number})

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            save_checkpoint(path, {"number": 3})
    assert load_checkpoint(path) == {"number": 2}
    assert load_checkpoint(previous(path)) == {"number": 1}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint.previous.pt", "checkpoint.pt"]


def test_a_damaged_checkpoint_does_not_replace_a_good_one(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    for number in (1, 2):
        save_checkpoint(path, {"number": number})
    path.write_bytes(path.read_bytes()[:-1])
    set_aside_damaged(path)
    save_checkpoint(path, {"number": 3})
    assert load_checkpoint(path) == {"number": 3}
    assert load_checkpoint(previous(path)) == {"number": 1}
    assert (tmp_path / "checkpoint.damaged.pt").exists()
    set_aside_damaged(path)
    assert load_checkpoint(path) == {"number": 3}  # a good one stays


def test_a_checkpoint_is_there_at_every_moment_of_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen, real = tmp_path / "checkpoint.pt", [], os.replace
    save_checkpoint(path, {"number": 1})

    def watched(source: Path, target: Path) -> None:
        seen.append(load_checkpoint(path))
        real(source, target)
        seen.append(load_checkpoint(path))

    monkeypatch.setattr(os, "replace", watched)
    save_checkpoint(path, {"number": 2})
    assert [state["number"] for state in seen] == [1, 1, 1, 2]


def test_half_written_files_of_a_killed_run_are_swept(tmp_path: Path) -> None:
    left = tmp_path / "r" / ".checkpoint.pt.12345.partial"
    effssl.pretrain("digits", "byol", epochs=1, out=tmp_path / "r", **QUICK)
    (tmp_path / "r" / "encoder.safetensors").unlink()
    left.write_bytes(b"half")
    assert effssl.pretrain("digits", "byol", epochs=1, out=tmp_path / "r", resume="auto", **QUICK).finished
    assert not left.exists()


def test_a_run_killed_while_its_configuration_was_written_can_be_started(tmp_path: Path) -> None:
    left = tmp_path / "r/.config.yaml.123.partial"
    left.parent.mkdir()
    left.write_text("data: dig")
    assert effssl.pretrain("digits", "byol", epochs=1, out=tmp_path / "r", resume="auto", **QUICK).finished
    assert not left.exists()


def test_another_number_of_threads_is_named(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    run = effssl.pretrain("digits", "byol", epochs=1, out=tmp_path / "r", **QUICK)
    state = load_checkpoint(run.checkpoint_path)
    assert state is not None
    assert state["threads"] == torch.get_num_threads()
    save_checkpoint(run.checkpoint_path, state | {"threads": 7})
    run.encoder_path.unlink()
    effssl.pretrain("digits", "byol", epochs=1, out=tmp_path / "r", resume="auto", **QUICK)
    assert "threads: 7 became 1" in capfd.readouterr().err  # although it is quiet


def test_a_restarted_job_leaves_the_run_of_another_job_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun starts a job again that was refused; the second attempt must be refused, too."""
    run = effssl.pretrain("digits", "byol", epochs=1, out=tmp_path / "r", **QUICK)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert effssl.pretrain("digits", "byol", epochs=1, out=tmp_path / "r", **QUICK).finished  # begun by this process
    lock = (run.folder / "lock").read_text()
    (run.folder / "lock").write_text(lock.replace(f"started by {os.getppid()}", "started by 1"))
    with pytest.raises(effssl.RequestError, match="exists and is finished"):
        effssl.pretrain("digits", "byol", epochs=1, out=tmp_path / "r", **QUICK)


def test_a_disk_that_is_full_from_the_start_leaves_no_half_run(tmp_path: Path) -> None:
    def tiny_files_only() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    command = [sys.executable, "-m", "effssl", "pretrain", "--data", "digits", "--subset", "128", "--epochs", "1"]
    command += ["--batch-size", "64", "--out", "r", "--resume", "auto"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    starved = subprocess.run(
        command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True, preexec_fn=tiny_files_only, check=False
    )
    assert starved.returncode == 2
    assert starved.stderr.strip().endswith("cannot be created: File too large")
    assert list((tmp_path / "r").iterdir()) == []
    reader, writer = os.pipe()
    os.close(reader)  # nobody reads what it says, which is no reason to stop
    done = subprocess.run(command, cwd=tmp_path, env=env, stdout=writer, stderr=writer, check=False)
    os.close(writer)
    assert effssl.Run(tmp_path / "r").finished
    assert done.returncode == 0


def test_a_signal_before_training_ends_it_with_the_same_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from effssl.training import health

    def asked(self, network):
        os.kill(os.getpid(), signal.SIGUSR1)
        raise AssertionError("still running")

    with monkeypatch.context() as patch:
        patch.setattr(health.Monitor, "measure", asked)
        with pytest.raises(effssl.Stopped, match="SIGUSR1: stopped before training began"):
            effssl.pretrain("digits", "byol", epochs=1, out=tmp_path / "r", **QUICK)
    assert effssl.pretrain("digits", "byol", epochs=1, out=tmp_path / "r", resume="auto", **QUICK).finished


class _Evil:
    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("owned"),))


def test_a_checkpoint_cannot_run_code(in_tmp: Path) -> None:
    save_checkpoint(in_tmp / "checkpoint.pt", {"objective": _Evil()})  # with a correct checksum
    with pytest.raises(effssl.RunFailed, match="no good checkpoint"):
        load_checkpoint(in_tmp / "checkpoint.pt")
    assert not Path("owned").exists()


def test_accumulated_gradients_are_those_of_the_batch_where_images_are_not_compared(tmp_path: Path) -> None:
    """Without batch norm in the way (eval mode) and for a term that looks at one image at a time."""
    from effssl.data import open_data
    from effssl.recipes import resolve

    grads = []
    for parts in (1, 4):
        flags = {"data": "digits", "objective": "supervised+rotation", "batch_size": 64, "accumulate": parts}
        plan = resolve(flags | {"image_size": 16, "encoder": "small", "rotation": {"noise": 0.2}})
        assert any("not the same as the large batch" in note for note in plan.notes) == (parts > 1)
        trainer = Trainer(plan, open_data("digits"), torch.device("cpu"))
        trainer.objective.eval()
        trainer.step(next(trainer.loader.epoch(0)))
        grads.append([p.grad for p in trainer.objective.parameters() if p.grad is not None])
    for a, b in zip(*grads, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    with pytest.raises(effssl.RequestError, match="cannot be split into 3 micro-batches on each of 1 processes"):
        effssl.pretrain("digits", "byol", out=tmp_path / "r", accumulate=3, **QUICK)


@pytest.mark.parametrize(("objective", "taken"), [("moco", 128), ("swav", 64), ("nnclr", 64)])
def test_queues_take_all_micro_batches(objective: str, taken: int) -> None:
    from effssl.data import open_data
    from effssl.recipes import resolve

    flags = {"data": "digits", "objective": objective, "batch_size": 64, "accumulate": 2, "image_size": 16}
    plan = resolve(
        flags | {"encoder": "small", "swav": {"queue": 100}, "moco": {"queue": 256}, "nnclr": {"queue": 256}}
    )
    trainer = Trainer(plan, open_data("digits"), torch.device("cpu"))
    trainer.step(next(trainer.loader.epoch(0)))
    term = trainer.objective.terms[objective]
    assert (term.filled if objective == "swav" else int(term.position)) == taken


CHANGES = {
    "epoch": {"position": {"epoch": -1}}, "epoch 7 of 2": {"position": {"epoch": 7}},
    "step": {"position": {"step": -3}}, "updates": {"position": {"updates": 0.5}},
    "seconds": {"position": {"seconds": float("nan")}},
    "processes": {"processes": 0}, "total_steps": {"total_steps": 0}, "threads": {"threads": "x"},
}  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without its encoder file, whose last checkpoint has come to the end."""
    run = effssl.pretrain("digits", "byol", epochs=2, out=tmp_path_factory.mktemp("saved") / "run", **QUICK)
    run.encoder_path.unlink()
    return run.folder


@pytest.fixture
def edited(saved: Path, tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    """That run with other values in its checkpoint, whose checksum is right."""

    def edit(changes: dict[str, Any]) -> Path:
        folder = shutil.copytree(saved, tmp_path / "run")
        state = load_checkpoint(folder / "checkpoint.pt")
        assert state is not None
        for key, value in changes.items():
            state[key] = state[key] | value if isinstance(value, dict) else value
        save_checkpoint(folder / "checkpoint.pt", state)
        return folder

    return edit


def test_a_checkpoint_of_weights_that_are_not_finite_makes_no_encoder(edited: Callable, saved: Path) -> None:
    weights = load_checkpoint(saved / "checkpoint.pt")["objective"]
    key = next(key for key in weights if key.endswith("conv1.weight"))
    folder = edited({"objective": {key: torch.full_like(weights[key], float("nan"))}})
    with pytest.raises(effssl.RunFailed, match=r"does not hold the state of this run \(its weights are not finite\)"):
        effssl.pretrain("digits", "byol", epochs=2, out=folder, resume="auto", **QUICK)
    assert not (folder / "encoder.safetensors").exists()


@pytest.mark.parametrize("what", CHANGES)
def test_a_checkpoint_of_a_place_that_no_run_comes_to(what: str, edited: Callable) -> None:
    folder = edited(CHANGES[what])
    with pytest.raises(effssl.RunFailed, match=f"its {what.split()[0]} is"):
        effssl.pretrain("digits", "byol", epochs=2, out=folder, resume="auto", **QUICK)


def test_an_untouched_checkpoint_at_the_end_gives_its_encoder(edited: Callable) -> None:
    assert effssl.pretrain("digits", "byol", epochs=2, out=edited({}), resume="auto", **QUICK).finished


def test_a_pipe_is_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    os.mkfifo(tmp_path / "checkpoint.pt")
    with pytest.raises(effssl.RunFailed, match="no good checkpoint"):
        load_checkpoint(tmp_path / "checkpoint.pt")
    assert "checkpoint.pt is not a regular file" in " ".join(capsys.readouterr().err.split())
