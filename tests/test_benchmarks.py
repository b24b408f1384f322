"""The benchmarks' own arithmetic; their timings are nobody's test."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import caching, shapes, speedrun, tasks
from benchmarks.compare import worse
from benchmarks.growth import cases, one
from benchmarks.timing import interleaved
from effssl.network import encoders
from effssl.network.encoders import build_encoder


def test_only_ratios_that_fell_by_more_than_a_tenth_are_worse() -> None:
    before = {
        "machine": {"cores": 2},
        "training": {"a": {"share": 0.95, "images_per_second": 100.0}, "b": {"share": 1}},
    }
    latest = {"machine": {"cores": 1}, "training": {"a": {"share": 0.84, "images_per_second": 10.0}}}
    assert worse(before, latest) == ["worse: training, a: share 0.95 → 0.84"]
    assert worse(before, {"training": {"a": {"share": 0.86}}}) == []
    assert worse(before, before) == []


def test_functions_take_turns_after_a_warm_up() -> None:
    calls: list[str] = []
    times = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3)
    assert calls == ["a", "b"] * 4
    assert [len(each) for each in times.values()] == [3, 3]


def test_growth_measures_an_epoch(capsys) -> None:
    case = cases()["batch"][0] | {"images": 96, "batch": 32, "threads": 1}
    one(case, Path())
    assert '"seen": 96' in capsys.readouterr().out


def test_every_shape_of_the_small_encoder_has_its_features(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = build_encoder("small", 32)
    monkeypatch.setattr(encoders, "SmallEncoder", encoders.SmallEncoder)  # put back afterwards
    for name, (_, blocks) in shapes.SHAPES.items():
        shapes.use(name)
        encoder = build_encoder("small", 32)
        assert encoder.dim == next(block[0] for block in reversed(blocks) if block is not None)
        assert encoder(torch.zeros(2, 3, 32, 32)).shape == (2, encoder.dim)
        if name == "as it is":
            assert [p.shape for p in encoder.parameters()] == [p.shape for p in plain.parameters()]


def row(entry: str, seed: int, linear: float) -> dict:
    measured = {"seconds": 60.0 + seed, "linear": linear, "knn": 50.0, "machine": "2 cores", "commit": "abc"}
    return {"entry": entry, "budget": "1m", "seed": seed} | measured


def test_the_table_of_the_speed_run_has_a_line_for_each_entry_and_budget() -> None:
    rows = [row("effssl", seed, 70.0 + seed) for seed in range(3)] + [row("lightly", 0, 40.0)]
    lines = speedrun.table(rows).splitlines()[2:]
    assert lines == [
        "| effssl | 61.0 ± 1.0 s | 71.0 ± 1.0 | 50.0 ± 0.0 | 3 | 2 cores | abc |",
        "| lightly | 60.0 s | 40.0 | 50.0 | 1 | 2 cores | abc |",
    ]


def test_a_record_needs_five_seeds_and_significance() -> None:
    old = [70.0, 70.2, 69.8, 70.1, 69.9]
    assert speedrun.is_record([value + 1 for value in old], old)
    assert not speedrun.is_record([value + 0.05 for value in old], old)  # within the noise
    assert not speedrun.is_record([value + 1 for value in old[:4]], old)
    assert not speedrun.is_record([value - 1 for value in old], old)


def test_the_tasks_table_pairs_an_arm_with_its_control_by_seed():
    def row(arm, seed, linear):
        return {"key": ["simclr", arm, "λ 1", seed], "flops": 10, "knn": 50.0, "linear": linear}

    rows = [row("base", 0, 60.0), row("control", 0, 61.0), row("control", 1, 71.0)]
    rows += [row("words", 1, 73.0), row("words", 0, 62.0), {"key": ["simclr", "words", "λ 5", 0], "flops": 10}]
    lines = tasks.table(rows, seeds=3).splitlines()[2:]
    # Differences of 1 and 2: mean 1.5, standard error 0.5, t quantile of one degree of freedom 12.7.
    assert lines[2] == "| simclr | words | λ 1 | 1.00× | 50.0 ± 0.0 | 67.5 ± 7.8 | +1.5 ± 6.4 |"
    assert "one seed" in tasks.table([row("base", 0, 60.0), row("control", 0, 61.0), row("words", 0, 62.0)], 3)


def test_the_cache_is_measured_against_decoding() -> None:
    with caching.photographs(100, "") as images:
        rows = caching.measure(images, 16, 0, 1)
    assert list(rows) == ["decoded every time", "from the cache", "filling the cache"]
    assert rows["filling the cache"]["megabytes"] > 1
    assert rows["from the cache"]["times_as_fast"] > 0
