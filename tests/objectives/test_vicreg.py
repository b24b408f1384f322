"""The three parts of the loss by numpy, over any list of views, and that it undoes a collapse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from effssl.augment.options import ViewGroup
from effssl.data import Data
from effssl.objectives.vicreg import covariance, variance
from effssl.runtime.errors import RequestError
from tests.objectives.identity import almost_collapsed, descend, large, step_of, term
from tests.objectives.making import ONE_SIDED, losses_of_epochs, make, random, some_views, trainer_of


def variance_by_loop(z: np.ndarray) -> float:
    """v(Z) of one view, B×D."""
    return sum(max(0.0, 1 - np.sqrt(np.var(z[:, j], ddof=1) + 1e-4)) for j in range(z.shape[1])) / z.shape[1]


def covariance_by_loop(z: np.ndarray) -> float:
    """c(Z) of one view, B×D."""
    cov = np.cov(z.T)
    return sum(cov[i, j] ** 2 for i in range(len(cov)) for j in range(len(cov)) if i != j) / len(cov)


def squared_distance(a: np.ndarray, b: np.ndarray) -> float:
    """s(Z, Z′), a mean over dimensions too."""
    return sum(float(np.sum((x - y) ** 2)) for x, y in zip(a, b, strict=True)) / a.size


def test_two_views_are_the_published_loss() -> None:
    z = 0.6 * random(2, 12, 5) @ random(5, 5, seed=1)
    a, b = z.numpy()
    expected = 25 * squared_distance(a, b) + 25 * (variance_by_loop(a) + variance_by_loop(b))
    expected += covariance_by_loop(a) + covariance_by_loop(b)
    assert float(term("vicreg").loss(step_of(z)).loss) == pytest.approx(expected, rel=1e-5)


def test_each_part_has_its_weight() -> None:
    z = 0.5 * random(2, 12, 5)
    for name, expected in [
        ("invariance", squared_distance(*z.numpy())),
        ("variance", sum(map(variance_by_loop, z.numpy()))),
        ("covariance", sum(map(covariance_by_loop, z.numpy()))),
    ]:
        weights = {"invariance": 0.0, "variance": 0.0, "covariance": 0.0, name: 3.0}
        assert expected > 0.01
        assert float(term("vicreg", **weights).loss(step_of(z)).loss) == pytest.approx(3 * expected, rel=1e-5)


def test_three_views_and_no_view_with_itself() -> None:
    z = 0.6 * random(3, 12, 5)
    views = z.numpy()
    distances = [squared_distance(views[v], views[t]) for v in range(3) for t in range(3) if v != t]
    spread = [25 * variance_by_loop(view) + covariance_by_loop(view) for view in views]
    expected = 25 * np.mean(distances) + 2 * np.mean(spread)
    assert float(term("vicreg", large(3)).loss(step_of(z)).loss) == pytest.approx(expected, rel=1e-5)


def test_small_views_are_compared_with_large_ones_only() -> None:
    groups = large(2) | {"small": ViewGroup(2, online=True)}
    z = {"large": 0.6 * random(2, 8, 4), "small": 0.6 * random(2, 8, 4, seed=1)}
    views = torch.cat(list(z.values())).numpy()
    distances = [squared_distance(views[v], views[t]) for v in range(4) for t in range(2) if v != t]
    spread = [25 * variance_by_loop(view) + covariance_by_loop(view) for view in views]
    expected = 25 * np.mean(distances) + 2 * np.mean(spread)
    assert float(term("vicreg", groups).loss(step_of(z, groups)).loss) == pytest.approx(expected, rel=1e-5)


def test_no_gradient_goes_through_views_that_are_only_targets() -> None:
    groups = {"large": ViewGroup(2, online=True), "target": ViewGroup(1, target=True)}
    z = {name: random(count, 8, 4).requires_grad_() for name, count in (("large", 2), ("target", 1))}
    term("vicreg", groups).loss(step_of(z, groups)).loss.backward()
    assert z["target"].grad is None
    assert z["large"].grad.abs().sum() > 0


def test_variance_is_a_hinge_and_covariance_ignores_the_mean() -> None:
    z = random(2, 64, 4)
    assert float(variance(3 * z)) == 0
    assert float(covariance(z + 100)) == pytest.approx(float(covariance(z)), rel=1e-6)
    assert float(covariance(z[..., :1])) == 0  # a single dimension has no other


def test_gradients_are_those_of_the_value_and_finite_where_all_images_are_the_same() -> None:
    z = (0.5 * random(2, 6, 3)).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: variance(z) + covariance(z), z)
    same = torch.ones(2, 6, 3, requires_grad=True)
    term("vicreg").loss(step_of(same)).loss.backward()
    assert torch.isfinite(same.grad).all()


def test_it_undoes_a_collapse() -> None:
    z, losses = descend(term("vicreg"), almost_collapsed(32, 6), lr=0.05, steps=150)
    assert losses[-1] < 0.1 * losses[0]
    assert float(z.std(1).min()) > 0.9  # every dimension
    for view in z.numpy():
        assert np.abs(np.corrcoef(view.T) - np.eye(6)).max() < 0.1
    assert float((z[0] - z[1]).square().mean()) < 0.01


def test_on_photographs_by_numpy(tiny_photos: Tensor) -> None:
    objective = make("vicreg", recipe="cpu-vicreg")
    views = some_views(objective, tiny_photos)
    loss = float(objective.outcomes(views)["vicreg"].loss.detach())
    a, b = objective.step(views).online().detach().double().numpy()
    expected = 25 * squared_distance(a, b) + 25 * (variance_by_loop(a) + variance_by_loop(b))
    expected += covariance_by_loop(a) + covariance_by_loop(b)
    assert loss == pytest.approx(expected, rel=1e-4)


def test_its_recipe_learns(data: Data) -> None:
    first, _, last = losses_of_epochs(trainer_of("vicreg", data, recipe="cpu-vicreg", epochs=3), 3)
    assert last < first


@pytest.mark.parametrize(
    ("views", "says"),
    [({"large": {"count": 1}}, "another view as its target"), (ONE_SIDED, "two online views of an image, got 1")],
)
def test_a_single_online_view_is_refused(views: dict, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        make("vicreg", recipe="cpu-vicreg", views=views)
