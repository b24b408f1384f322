"""A term from outside: one class and one line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from torch import nn

import effssl
from effssl.network.network import Network
from effssl.objectives.options import TERMS, TermOptions
from effssl.objectives.step import Step
from effssl.objectives.term import Outcome, RunInfo, Term


class MeanColor(Term):
    """Predict a view's mean color from its feature."""

    @dataclass(frozen=True)
    class Options(TermOptions):
        pretext: ClassVar[bool] = True
        weight: float = 0.5
        squared: bool = True

    reads = ("online",)

    def __init__(self, options: Options, network: Network, info: RunInfo) -> None:
        super().__init__(options, network, info)
        self.head = nn.Linear(network.h_dim, 3)

    def loss(self, step: Step) -> Outcome:
        wrong = step.run(self.head, step.online("h")) - step.views.pixels["large"].mean((3, 4))
        return Outcome((wrong.square() if self.options.squared else wrong.abs()).mean())


def pretrain(objective: str, out: str, **flags) -> effssl.Run:
    settings = {"epochs": 2, "subset": 256, "batch_size": 32, "quiet": True, "lr": 0.05}
    return effssl.pretrain("digits", objective, out=out, **settings | flags)


def test_a_registered_term_trains_resumes_and_keeps_its_options(in_tmp: Path) -> None:
    effssl.register("mean_color", MeanColor)
    run = pretrain("byol + mean_color", "a", mean_color={"squared": False})
    assert run.config.mean_color == MeanColor.Options(0.5, False)
    lines = [line for line in run.metrics() if "loss/mean_color" in line]
    assert lines[-1]["loss/mean_color"] < lines[0]["loss/mean_color"]
    assert pretrain("byol + mean_color", "a", mean_color={"squared": False}, resume="auto").finished
    with pytest.raises(effssl.RequestError, match=r"mean_color\.squared: False → True"):
        pretrain("byol + mean_color", "a", resume="auto")
    alone = pretrain("2*mean_color", "b")  # no recipe of its own
    assert alone.config.mean_color.weight == 2
    del TERMS["mean_color"]  # somebody else, who only wants the encoder
    assert run.knn().accuracy > 20
    with pytest.raises(effssl.RequestError, match="unknown term 'mean_color'"):
        pretrain("byol + mean_color", "c")


def test_names_and_options_are_checked(in_tmp: Path) -> None:
    with pytest.raises(effssl.RequestError, match="comes with effssl"):
        effssl.register("byol", MeanColor)
    with pytest.raises(effssl.RequestError, match="lower-case word"):
        effssl.register("mean color", MeanColor)
    with pytest.raises(effssl.RequestError, match="dataclass `Options`"):
        effssl.register("color", nn.Linear)
    effssl.register("color", MeanColor)
    with pytest.raises(effssl.RequestError, match=r"unknown key 'sqared' \(did you mean squared"):
        pretrain("byol + color", "a", color={"sqared": True})
    effssl.register("lr", MeanColor)
    with pytest.raises(effssl.RequestError, match="setting's name"):
        pretrain("byol", "a")
