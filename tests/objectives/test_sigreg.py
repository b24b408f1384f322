"""The Epps–Pulley statistic by its definition and in closed form, the directions, and that it undoes a collapse."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from effssl.augment.options import ViewGroup
from effssl.data import Data
from effssl.objectives.sigreg import epps_pulley
from effssl.runtime.errors import RequestError
from tests.objectives.identity import almost_collapsed, descend, large, step_of, term
from tests.objectives.making import losses_of_epochs, make, random, some_views, trainer_of


def statistic_by_definition(x: np.ndarray, knots: int) -> float:
    """B ∫ |φ(t) − e^(−t²/2)|² e^(−t²/2) dt of B numbers, with complex φ and knots on all of [−3, 3]."""
    t = np.linspace(-3, 3, 2 * knots - 1)
    values = []
    for at in t:
        phi = sum(np.exp(1j * at * value) for value in x) / len(x)
        values.append(abs(phi - np.exp(-(at**2) / 2)) ** 2 * np.exp(-(at**2) / 2))
    step = t[1] - t[0]
    return len(x) * step * (sum(values) - (values[0] + values[-1]) / 2)


def statistic_in_closed_form(x: np.ndarray) -> float:
    """The same over the whole line: Gaussian integrals."""
    pairs = np.exp(-((x[:, None] - x[None, :]) ** 2) / 2).mean()
    return len(x) * (
        math.sqrt(2 * math.pi) * pairs
        - 2 * math.sqrt(math.pi) * np.exp(-(x**2) / 4).mean()
        + math.sqrt(2 * math.pi / 3)
    )


def directions_of(step: int, dim: int, slices: int) -> np.ndarray:
    """The directions of a step, D×S: its own random numbers, each column scaled to unit length."""
    drawn = torch.randn(dim, slices, generator=step_of(torch.zeros(2, 1, 1), step=step).views.generator("sigreg"))
    return (drawn / drawn.norm(dim=0)).double().numpy()


def loss_by_loop(views: np.ndarray, share: float, directions: np.ndarray, knots: int) -> float:
    """V×B×D."""
    mean = sum(views) / len(views)
    distance = sum(float(np.sum((view - mean) ** 2)) for view in views) / views.size
    tests = [statistic_by_definition(view @ a, knots) for view in views for a in directions.T]
    return (1 - share) * distance + share * sum(tests) / len(tests)


@pytest.mark.parametrize("knots", [5, 17])
def test_statistic_equals_its_definition(knots: int) -> None:
    x = 1.5 * random(2, 10, 3) + 0.3
    expected = np.array([[statistic_by_definition(x[v, :, s].numpy(), knots) for s in range(3)] for v in range(2)])
    assert epps_pulley(x, knots).numpy() == pytest.approx(expected, abs=1e-9)
    assert epps_pulley(x.float(), knots).numpy() == pytest.approx(expected, rel=1e-4)


def test_statistic_is_near_the_integral_over_the_whole_line() -> None:
    """Seventeen knots, and what lies beyond 3, make little difference."""
    for x in (random(64), 0.3 * random(64), random(64) + 1, 2 * random(64).sign()):
        exact = statistic_in_closed_form(x.numpy())
        assert float(epps_pulley(x[None, :, None], 17)) == pytest.approx(exact, abs=0.15, rel=0.05)
        assert float(epps_pulley(x[None, :, None], 1001)) == pytest.approx(exact, abs=0.15, rel=0.01)


def test_statistic_tells_a_normal_variable_from_others() -> None:
    x = random(2048)
    normal = float(epps_pulley(x[None, :, None], 17))
    assert normal < 2
    for other in (0 * x, 0.7 * x, 1.4 * x, x + 0.5, x.sign(), x.abs()):
        assert float(epps_pulley(other[None, :, None], 17)) > 10 * normal


@pytest.mark.parametrize("views", [2, 3])
def test_loss_equals_the_loop(views: int) -> None:
    z = random(views, 8, 5)
    sigreg = term("sigreg", large(views), regularization=0.3, slices=7, knots=9)
    expected = loss_by_loop(z.numpy(), 0.3, directions_of(4, 5, 7), 9)
    assert float(sigreg.loss(step_of(z, step=4)).loss) == pytest.approx(expected, rel=1e-5)


def test_the_defaults_are_those_of_the_paper() -> None:
    z = random(2, 8, 5)
    expected = loss_by_loop(z.numpy(), 0.05, directions_of(0, 5, 256), 17)
    assert float(term("sigreg").loss(step_of(z)).loss) == pytest.approx(expected, rel=1e-5)


def test_all_online_views_count_and_targets_do_not() -> None:
    groups = large(2) | {"small": ViewGroup(2, online=True), "target": ViewGroup(1, target=True)}
    z = {"large": random(2, 8, 5), "small": random(2, 8, 5, seed=1), "target": random(1, 8, 5, seed=2)}
    online = torch.cat([z["large"], z["small"]]).numpy()
    expected = loss_by_loop(online, 0.05, directions_of(0, 5, 7), 17)
    assert float(term("sigreg", groups, slices=7).loss(step_of(z, groups)).loss) == pytest.approx(expected, rel=1e-5)


def test_directions_are_new_in_every_step_and_the_same_when_it_is_repeated() -> None:
    z, sigreg = random(2, 8, 5), term("sigreg", slices=4)
    first, again, other = (sigreg.loss(step_of(z, step=step)).loss for step in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_gradient_is_that_of_the_value_and_finite_where_all_images_are_the_same() -> None:
    assert torch.autograd.gradcheck(lambda x: epps_pulley(x, 17), random(2, 5, 3).requires_grad_())
    same = torch.ones(2, 6, 3, requires_grad=True)
    term("sigreg").loss(step_of(same)).loss.backward()
    assert torch.isfinite(same.grad).all()


def test_it_undoes_a_collapse() -> None:
    z, losses = descend(term("sigreg", slices=64), almost_collapsed(64, 4), lr=0.05, steps=200)
    assert losses[-1] < 0.2 * losses[0]
    for view in z.numpy():
        assert np.abs(view.mean(0)).max() < 0.2
        assert np.abs(np.cov(view.T) - np.eye(4)).max() < 0.3
    assert float((z[0] - z[1]).square().mean()) < 0.1


def test_on_photographs_by_the_loop(tiny_photos: Tensor) -> None:
    objective = make("sigreg", recipe="cpu-sigreg", sigreg={"slices": 3})
    views = some_views(objective, tiny_photos)
    loss = float(objective.outcomes(views)["sigreg"].loss.detach())
    z = objective.step(views).online().detach().double().numpy()
    assert loss == pytest.approx(loss_by_loop(z, 0.05, directions_of(0, 128, 3), 17), rel=1e-4)


def test_its_recipe_learns(data: Data) -> None:
    first, _, last = losses_of_epochs(trainer_of("sigreg", data, recipe="cpu-sigreg", epochs=3), 3)
    assert last < first


def test_a_single_online_view_is_refused() -> None:
    with pytest.raises(RequestError, match=r"sigreg needs at least two online views of an image, got 1"):
        make("sigreg", recipe="cpu-sigreg", views={"large": {"count": 1}})
