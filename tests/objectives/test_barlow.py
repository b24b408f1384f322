"""The cross-correlation by numpy, over any list of views, and that it undoes a collapse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from effssl.augment.options import ViewGroup
from effssl.data import Data
from effssl.objectives.barlow import standardize
from tests.objectives.identity import almost_collapsed, descend, large, step_of, term
from tests.objectives.making import losses_of_epochs, make, random, some_views, trainer_of


def barlow_by_numpy(a: np.ndarray, b: np.ndarray, weight: float = 0.005) -> float:
    """The loss of two views, B×D, one correlation at a time."""
    total = 0.0
    for i in range(a.shape[1]):
        for j in range(b.shape[1]):
            c = float(np.corrcoef(a[:, i], b[:, j])[0, 1])
            total += (1 - c) ** 2 if i == j else weight * c**2
    return total


def test_two_views_are_the_published_loss() -> None:
    z = random(2, 12, 5) @ random(5, 5, seed=1)
    loss = float(term("barlow").loss(step_of(z)).loss)
    assert loss == pytest.approx(barlow_by_numpy(*z.numpy()), rel=1e-3)
    heavy = float(term("barlow", redundancy=1.0).loss(step_of(z)).loss)
    assert heavy == pytest.approx(barlow_by_numpy(*z.numpy(), weight=1.0), rel=1e-3)
    assert heavy > loss + 0.1


def test_scale_and_mean_of_a_dimension_do_not_matter() -> None:
    z = random(2, 16, 4)
    loss = float(term("barlow").loss(step_of(z)).loss)
    changed = z * torch.tensor([1.0, 5.0, 20.0, 3.0]) + 7
    assert float(term("barlow").loss(step_of(changed)).loss) == pytest.approx(loss, rel=1e-3)


def test_small_views_are_compared_with_large_ones_only() -> None:
    groups = large(2) | {"small": ViewGroup(2, online=True)}
    z = {"large": random(2, 9, 4), "small": random(2, 9, 4, seed=1)}
    views = torch.cat(list(z.values())).numpy()
    expected = np.mean([barlow_by_numpy(views[v], views[t]) for v in range(4) for t in range(2) if v != t])
    assert float(term("barlow", groups).loss(step_of(z, groups)).loss) == pytest.approx(expected, rel=1e-3)


def test_gradients_are_those_of_the_value_and_finite_where_all_images_are_the_same() -> None:
    z = random(2, 6, 3).requires_grad_()
    assert torch.autograd.gradcheck(standardize, z)
    same = torch.ones(2, 6, 3, requires_grad=True)
    term("barlow").loss(step_of(same)).loss.backward()
    assert torch.isfinite(same.grad).all()


def test_it_undoes_a_collapse() -> None:
    z, losses = descend(term("barlow", redundancy=0.1), almost_collapsed(32, 6), lr=0.02, steps=200)
    assert losses[-1] < 0.05 * losses[0]
    between = np.corrcoef(z[0].T.numpy(), z[1].T.numpy())[:6, 6:]
    assert np.abs(between - np.eye(6)).max() < 0.2


def test_on_photographs_by_numpy(tiny_photos: Tensor) -> None:
    objective = make("barlow", recipe="cpu-barlow", projector={"out": 16})
    views = some_views(objective, tiny_photos)
    loss = float(objective.outcomes(views)["barlow"].loss.detach())
    a, b = objective.step(views).online().detach().double().numpy()
    assert loss == pytest.approx(barlow_by_numpy(a, b), rel=1e-2)


def test_its_recipe_learns(data: Data) -> None:
    first, _, last = losses_of_epochs(trainer_of("barlow", data, recipe="cpu-barlow", epochs=3), 3)
    assert last < first
