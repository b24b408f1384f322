"""Trackers, with their real packages and without an account: each has each line of metrics.jsonl once."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import effssl
from effssl.cli import main
from effssl.training.tracking import read_records
from effssl.training.trainer import Trainer

QUICK: dict[str, Any] = {"subset": 64, "batch_size": 32, "epochs": 3, "health": {"every": 1}, "quiet": True}
ALL = "csv,tensorboard,wandb,mlflow"


@pytest.fixture(scope="module")
def local_trackers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Settings of users who have neither an account nor a server. MLflow's files are quicker than its database."""
    store = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", store.as_uri())
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        patch.setenv("WANDB_MODE", "offline")
        yield store


@pytest.fixture(scope="module")
def run(local_trackers: Path, tmp_path_factory: pytest.TempPathFactory) -> effssl.Run:
    """A run that failed in its third epoch and was resumed from the second one, without naming its trackers again."""
    out, real, calls = tmp_path_factory.mktemp("tracked") / "run", Trainer.step, 0

    def failing(self, views):
        nonlocal calls
        calls += 1
        if calls == 5:
            raise effssl.RunFailed("the power is gone")
        return real(self, views)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", failing)
        with pytest.raises(effssl.RunFailed):
            effssl.pretrain("digits", "byol", log=ALL, out=out, **QUICK)
        before = read_records(out)
        # As after a crash between a line and its checkpoint: trackers have the second epoch, which is trained again.
        (out / "checkpoint.previous.pt").replace(out / "checkpoint.pt")
        found = effssl.pretrain("digits", "byol", out=out, resume="auto", **QUICK)
    assert calls == 5 + 4
    after = read_records(out)
    assert {name: record.known for name, record in before.items()} == {name: r.known for name, r in after.items()}
    return found


def epochs(run: effssl.Run) -> list[int]:
    return [line["epoch"] for line in run.metrics()]


def test_csv_is_the_table_of_all_lines(run: effssl.Run) -> None:
    with (run.folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [{name: text for name, text in row.items() if text} for row in rows] == [
        {name: str(value) for name, value in line.items()} for line in run.metrics()
    ]


def test_tensorboard_has_each_line_once(run: effssl.Run) -> None:
    events = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    assert {"loss", "loss/byol", "lr", "knn", "std_h", "rank_h"} <= set(events.Tags()["scalars"])
    assert [(e.step, e.value) for e in events.Scalars("knn")] == [
        (line.get("step", 0), pytest.approx(line["knn"])) for line in run.metrics()
    ]


def test_mlflow_continues_one_run(run: effssl.Run, local_trackers: Path) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(local_trackers.as_uri())
    (experiment,) = [one for one in client.search_experiments() if one.name == "effssl"]
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_id == read_records(run.folder)["mlflow"].known["id"]
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.data.params["objective"] == "byol"
    assert found.data.params["optimizer.momentum"] == str(run.config.optimizer.momentum)
    assert found.data.tags["verdict"].startswith(run.metrics()[-1]["verdict"])
    history = client.get_metric_history(found.info.run_id, "knn")
    assert [(one.step, one.value) for one in history] == [(line.get("step", 0), line["knn"]) for line in run.metrics()]
    assert len(client.get_metric_history(found.info.run_id, "loss.byol")) == 3


def test_wandb_continues_one_run(run: effssl.Run) -> None:
    attempts = sorted((run.folder / "wandb").glob("offline-run-*"))
    identity = read_records(run.folder)["wandb"].known["id"]
    assert len(attempts) == 2
    assert all(folder.name.endswith(f"-{identity}") for folder in attempts)
    lines = [line for folder in attempts for line in wandb_history(folder / f"run-{identity}.wandb")]
    assert [(line["epoch"], line["step"], line["knn"]) for line in lines] == [
        (line["epoch"], line.get("step", 0), line["knn"]) for line in run.metrics()
    ]


def wandb_history(path: Path) -> list[dict[str, Any]]:
    """The logged lines of an offline run: a log of records as LevelDB writes it, in blocks of 32 kB, after 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    content, at, record, found = path.read_bytes(), 7, b"", []
    while at + 7 <= len(content):
        if (left := (1 << 15) - at % (1 << 15)) < 7:  # too little for the head of a record
            at += left
            continue
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        record += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # the whole record, or its last part
            read = wandb_internal_pb2.Record.FromString(record)
            record = b""
            if read.WhichOneof("record_type") == "history":
                items = read.history.item
                found.append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in items})
    return found


def test_a_tracker_that_is_added_later_gets_the_lines_before(run: effssl.Run, tmp_path: Path) -> None:
    first = effssl.pretrain("digits", "byol", out=tmp_path / "run", **QUICK | {"epochs": 1})
    assert not (first.folder / "trackers.json").exists()
    longer = effssl.pretrain(out=first.folder, resume="auto", epochs=2, quiet=True, log=["csv", "tensorboard"])
    events = EventAccumulator(str(longer.folder / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("knn")] == [line.get("step", 0) for line in longer.metrics()]
    assert epochs(longer) == [0, 1, 2]


def test_a_tracker_that_fails_gets_the_lines_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from torch.utils.tensorboard import SummaryWriter

    real, calls = SummaryWriter.flush, 0

    def away(self):
        nonlocal calls
        calls += 1
        if calls in (2, 3):
            raise OSError("the server is away")
        real(self)

    monkeypatch.setattr(SummaryWriter, "flush", away)
    run = effssl.pretrain("digits", "byol", out=tmp_path / "r", log="tensorboard", **QUICK)
    assert capsys.readouterr().err.count("tensorboard has not taken epoch 1 and will get it later") == 1
    assert run.finished
    assert read_records(run.folder)["tensorboard"].epoch == 3


def test_without_its_package_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(effssl.RequestError, match=r"needs wandb: pip install 'effssl\[wandb\]'"):
        effssl.pretrain("digits", "byol", log="csv,wandb", out=tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("log", "said"), [("wandbb", "did you mean wandb?"), ("disk", "choose among csv, tensorboard")]
)
def test_an_unknown_tracker(log: str, said: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["pretrain", "--data", "digits", "--log", log])
    assert (ended.value.code, list(in_tmp.iterdir())) == (2, [])
    assert f"--log: no tracker is called '{log}'" in (error := capsys.readouterr().err)
    assert said in error


def test_damaged_records_are_refused(tmp_path: Path) -> None:
    run = effssl.pretrain("digits", "byol", out=tmp_path / "r", log="csv", **QUICK | {"epochs": 1})
    (run.folder / "trackers.json").write_text("[1]")
    with pytest.raises(effssl.RequestError, match=r"trackers\.json cannot be read .*; delete it"):
        run.extend(2, quiet=True)


def test_mlflow_without_a_setting_uses_its_default_store(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = effssl.pretrain("digits", "byol", log="mlflow", out="runs/a", **QUICK | {"epochs": 1})
    monkeypatch.chdir(run.folder)  # a run is resumed where its store is, from wherever
    assert effssl.pretrain(out=in_tmp / "runs" / "a", resume="auto", epochs=2, quiet=True).finished
    assert not (in_tmp / "runs" / "a" / "mlflow.db").exists()
    from mlflow import MlflowClient

    uri, identity = (read_records(in_tmp / "runs" / "a")["mlflow"].known[name] for name in ("uri", "id"))
    assert (in_tmp / "mlflow.db").is_file()
    assert [one.step for one in MlflowClient(uri).get_metric_history(identity, "epoch")] == [0, 2, 4]
