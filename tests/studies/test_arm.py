"""An arm's metrics are scores in its run's results.json: none is evaluated twice, none is lost to another process."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from effssl.runtime.errors import RequestError
from effssl.runtime.files import locked
from effssl.studies.arm import child_job, mean_snr, train, train_and_evaluate, value_of
from effssl.studies.study import METRICS, Metric
from effssl.verbs import Run

FLAGS = {
    "data": "digits", "objective": "byol", "epochs": 1, "subset": 96, "batch_size": 32, "image_size": 16,
    "health": {"every": 100, "bank": 32, "queries": 32}, "projector": {"layers": 2},
}  # fmt: skip


def neighbors(*ks: int) -> dict[str, Metric]:
    return {f"knn {k}": Metric("knn", {"k": k}) for k in ks}


def test_metrics_are_scores_of_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "arms" / "one"
    assert train_and_evaluate(FLAGS, folder, neighbors(1, 200)) == {}
    run = Run(folder)
    assert set(run.results()) == {"knn k=1", "knn k=200"}
    assert value_of(run, Metric("knn", {"k": 1})) == run.results()["knn k=1"]["value"]
    assert value_of(run, Metric("knn", {"k": 3})) is None
    assert value_of(run, METRICS["linear"]) is None


def test_nothing_is_evaluated_twice(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    metrics = {"first": Metric("linear", {"epochs": 1}), "second": Metric("linear", {"epochs": 1}, key="top5")}
    train_and_evaluate(FLAGS, folder, metrics)
    run = Run(folder)
    assert set(run.results()) == {"linear epochs=1"}  # both values belong to one score
    assert value_of(run, metrics["first"]) != value_of(run, metrics["second"])
    stored = json.loads(run.results_path.read_text())
    stored["linear epochs=1"]["value"] = 12.5  # an evaluation would replace it
    run.results_path.write_text(json.dumps(stored))
    train_and_evaluate(FLAGS, folder, metrics | neighbors(1))
    assert value_of(run, metrics["first"]) == 12.5


def test_a_score_of_effssl_eval_counts(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    train_and_evaluate(FLAGS, folder, {})
    score = Run(folder).evaluate("knn", "digits", k=5)
    assert value_of(Run(folder), Metric("knn", {"k": 5}, data="digits")) == score.value


def test_what_is_missing_is_explained(tmp_path: Path) -> None:
    metrics = {
        "voc": METRICS["AP"],
        "snr": METRICS["snr"],
        "set": Metric("transfer", {"grid": 2, "max_iter": 5}, key="cars", needs="sets", data="digits"),
        "average": Metric("transfer", {"grid": 2, "max_iter": 5}, needs="sets", data="digits"),
        "nowhere": Metric("knn", data="no/such/folder"),
    }
    missing = train_and_evaluate(FLAGS, tmp_path / "one", metrics)
    assert set(missing) == {"voc", "snr", "set", "nowhere"}
    assert missing["voc"] == "needs voc=, a folder"
    assert missing["set"] == "not among sets="
    assert "signal-to-noise" in missing["snr"]
    assert "no/such/folder" in missing["nowhere"]


def test_transfer_is_the_mean_over_sets(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    average = Metric("transfer", {"grid": 2, "max_iter": 5}, needs="sets", data="cars=digits,pets=digits")
    assert train_and_evaluate(FLAGS, folder, {"transfer": average}) == {}
    run = Run(folder)
    assert value_of(run, average) == value_of(run, dataclasses.replace(average, key="pets"))
    with pytest.raises(RequestError, match="not among sets="):
        value_of(run, dataclasses.replace(average, key="food"))


def test_a_child_process_says_what_is_missing(tmp_path: Path) -> None:
    job = child_job("one", FLAGS, tmp_path / "one", {"AP": METRICS["AP"], **neighbors(1)})
    assert str(tmp_path / "one") in job.command  # so that `ps` shows which run it is
    done = subprocess.run(job.command, input=job.stdin, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"AP": "needs --voc, a folder"}
    assert done.stderr == ""
    bad = child_job("two", {**FLAGS, "lr": 1e30}, tmp_path / "two")
    failed = subprocess.run(bad.command, input=bad.stdin, capture_output=True, text=True)
    assert failed.returncode == 1
    assert "not finite" in failed.stderr.splitlines()[-1]


def work(folder: Path, metrics: Mapping[str, Metric], results: Any) -> None:
    import torch

    torch.set_num_threads(1)
    results.put(train_and_evaluate(FLAGS, folder, metrics))


def test_two_processes_lose_no_score(tmp_path: Path) -> None:
    """Two studies that share an arm, started at once, and a third process that evaluates the same run by itself."""
    folder = tmp_path / "shared"
    train_and_evaluate(FLAGS, folder, {})
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    mine, theirs, other = range(1, 26), range(26, 51), range(51, 61)
    studies = [context.Process(target=work, args=(folder, neighbors(*ks), results)) for ks in (mine, theirs)]
    for process in studies:
        process.start()
    for k in other:
        Run(folder).evaluate("knn", k=k)
    assert [results.get(timeout=120) for _ in studies] == [{}, {}]
    for process in studies:
        process.join()
    assert set(Run(folder).results()) == {f"knn k={k}" for k in (*mine, *theirs, *other)}


def test_an_arm_in_use_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with locked(folder.with_name("shared.lock"), "the arm is in use", "wait"):
        process = context.Process(target=work, args=(folder, neighbors(1), results))
        process.start()
        time.sleep(5)
        assert process.is_alive()
        assert not folder.exists()
    assert results.get(timeout=120) == {}
    process.join()
    assert set(Run(folder).results()) == {"knn k=1"}


def test_the_signal_to_noise_ratio_leaves_the_start_up_of_its_averages_out(tmp_path: Path) -> None:
    settings = {"data": "digits", "objective": "simsiam", "subset": 96, "batch_size": 32, "image_size": 16, "epochs": 5}
    run = train(settings | {"health": {"snr": True, "snr_beta": 0.5}}, tmp_path / "run", quiet=True)
    lines = [line for line in run.metrics() if "step" in line]
    assert [line["step"] for line in lines] == [3, 6, 9, 12, 15]
    later = [line["snr"] for line in lines[2:]]  # three time constants of 2 steps: those of epochs 1 and 2
    assert mean_snr(run) == pytest.approx(1000 * sum(later) / 3)
    assert mean_snr(run, "snr_literal") == pytest.approx(1000 * sum(line["snr_literal"] for line in lines[2:]) / 3)
