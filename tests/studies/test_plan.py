"""A plan names every run of a study by its configuration, so that studies share runs; impossible plans are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from effssl.runtime.errors import RequestError
from effssl.studies import load
from effssl.studies.plan import Setup, plan_runs
from effssl.studies.scales import Sources


def test_studies_share_the_runs_of_the_same_configuration(tmp_path: Path) -> None:
    def folders(name: str) -> dict[str, Path]:
        return {run.arm.name: run.folder for run in plan_runs(load(name), Setup("cpu", 1, tmp_path))}

    main, other, jitter = folders("E06"), folders("E05"), folders("E14")
    assert main["BYOL"] == other["BYOL"] == jitter["BYOL"]
    assert main["BYOL+R"] == jitter["BYOL+R"] == folders("E04")["BYOL+R, 0 %"] == folders("E15")["cross-entropy"]
    assert "BYOL, C100" not in main  # on CIFAR-10, which would replace CIFAR-100, it would be the same run
    assert len(set(main.values())) == len(main) == 9
    base, curve, ours = folders("C01"), folders("E07"), folders("C02")
    assert base["BYOL × 1"] == main["BYOL"] == curve["BYOL, 600 epochs"]
    assert base["BYOL+R × 1"] == curve["BYOL+R, 600 epochs"]
    assert ours["SimCLR+R × 1"] == main["SimCLR+R"]


def test_seeds_have_folders_of_their_own(tmp_path: Path) -> None:
    runs = plan_runs(load("E14"), Setup("smoke", 3, tmp_path))
    assert len({run.folder for run in runs}) == len(runs) == 12
    assert [run.seed for run in runs[:3]] == [0, 1, 2]


def test_long_axes_have_fewer_points_at_cpu_scale(tmp_path: Path) -> None:
    runs = plan_runs(load("E07"), Setup("cpu", 1, tmp_path))
    assert {run.arm.at for run in runs} == {100, 200, 300, 600}
    assert {run.flags["epochs"] for run in runs} == {1, 2, 3, 6}


def test_impossible_plans_are_refused(tmp_path: Path) -> None:
    def plan(name: str, scale: str, sources: Sources | None = None) -> None:
        plan_runs(load(name), Setup(scale, 1, tmp_path, sources or Sources()))

    with pytest.raises(RequestError, match="images="):
        plan("E08", "cpu")
    with pytest.raises(RequestError, match="maps="):
        plan("E02", "cpu", Sources(images="x"))
    with pytest.raises(RequestError, match="unknown scale"):
        plan("E06", "large")
