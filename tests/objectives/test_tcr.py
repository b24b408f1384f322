"""The coding rate by numpy's determinant, the loss by a loop, and that it undoes a collapse."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.augment.options import ViewGroup
from effssl.data import Data
from effssl.objectives.tcr import coding_rate
from effssl.runtime.errors import RequestError
from tests.objectives.identity import almost_collapsed, descend, large, step_of, term
from tests.objectives.making import losses_of_epochs, make, random, some_views, trainer_of


def rate_by_slogdet(z: np.ndarray, epsilon_squared: float) -> float:
    """R(Z) of one view, B×D, as it is written: with the D×D matrix."""
    images, dim = z.shape
    sign, logdet = np.linalg.slogdet(np.eye(dim) + dim / (images * epsilon_squared) * z.T @ z)
    assert sign == 1
    return logdet / 2


def loss_by_loop(views: np.ndarray, weight: float = 200.0, epsilon_squared: float = 0.2) -> float:
    """V×B×D, of any length."""
    views = views / np.linalg.norm(views, axis=2, keepdims=True)
    cosines = []
    for i in range(views.shape[1]):
        mean = sum(view[i] for view in views) / len(views)
        cosines += [view[i] @ mean / np.linalg.norm(mean) for view in views]
    rates = [rate_by_slogdet(view, epsilon_squared) for view in views]
    return weight * (1 - sum(cosines) / len(cosines)) - sum(rates) / len(rates)


@pytest.mark.parametrize("images", [3, 6, 20])
@pytest.mark.parametrize("epsilon_squared", [0.01, 0.2, 1.0])
def test_coding_rate_equals_the_determinant(images: int, epsilon_squared: float) -> None:
    """With fewer and with more images than dimensions."""
    z = F.normalize(random(2, images, 6), dim=2)
    expected = [rate_by_slogdet(view, epsilon_squared) for view in z.numpy()]
    assert coding_rate(z, epsilon_squared).tolist() == pytest.approx(expected, abs=1e-9)
    assert coding_rate(z.float(), epsilon_squared).tolist() == pytest.approx(expected, rel=1e-5)


def test_coding_rate_is_precise_in_float32_at_the_size_of_a_run() -> None:
    """Of the two extremes too: all images the same, and all directions used alike."""
    same = F.normalize(torch.ones(1, 256, 128, dtype=torch.float64), dim=2)
    basis = torch.eye(128, dtype=torch.float64).repeat(2, 1)[None]
    for z, known in [
        (F.normalize(random(1, 256, 128), dim=2), None),
        (same, math.log(1 + 128 / 0.2) / 2),
        (basis, 64 * math.log(1 + 1 / 0.2)),
    ]:
        expected = rate_by_slogdet(z[0].numpy(), 0.2)
        if known is not None:
            assert expected == pytest.approx(known)
        # The condition number is up to 641, where float32 has four digits of the value and two of the gradient.
        assert float(coding_rate(z.float(), 0.2)) == pytest.approx(expected, rel=1e-4)
        grads = []
        for leaf in (z.clone().requires_grad_(), z.float().requires_grad_()):
            coding_rate(leaf, 0.2).sum().backward()
            grads.append(leaf.grad.double())
        assert float((grads[1] - grads[0]).norm() / grads[0].norm()) < 1e-2


@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize("options", [{}, {"invariance": 20.0, "epsilon_squared": 0.5}])
def test_loss_equals_the_loop(views: int, options: dict) -> None:
    z = random(views, 8, 5)
    expected = loss_by_loop(z.numpy(), *options.values())
    assert float(term("tcr", large(views), **options).loss(step_of(z)).loss) == pytest.approx(expected, rel=1e-5)


def test_all_online_views_count_and_targets_do_not() -> None:
    groups = large(2) | {"small": ViewGroup(2, online=True), "target": ViewGroup(1, target=True)}
    z = {"large": random(2, 8, 5), "small": random(2, 8, 5, seed=1), "target": random(1, 8, 5, seed=2)}
    expected = loss_by_loop(torch.cat([z["large"], z["small"]]).numpy())
    assert float(term("tcr", groups).loss(step_of(z, groups)).loss) == pytest.approx(expected, rel=1e-5)


def test_gradient_is_that_of_the_value_and_the_loss_ignores_length() -> None:
    for images in (3, 8):
        assert torch.autograd.gradcheck(lambda z: coding_rate(z, 0.2), random(2, images, 5).requires_grad_())
    z = random(2, 8, 5)
    short, long = (float(term("tcr").loss(step_of(scale * z)).loss) for scale in (0.1, 10.0))
    assert short == pytest.approx(long, rel=1e-5)


def test_gradient_is_finite_where_all_images_are_the_same() -> None:
    same = torch.ones(2, 6, 3, requires_grad=True)
    term("tcr").loss(step_of(same)).loss.backward()
    assert torch.isfinite(same.grad).all()


def test_it_undoes_a_collapse() -> None:
    z, losses = descend(term("tcr"), almost_collapsed(32, 6), lr=0.05, steps=150)
    assert losses[-1] < losses[0] - 1
    z = F.normalize(z, dim=2)
    spectrum = [np.linalg.svd(view)[1] for view in z.numpy()]
    assert all(values.min() > 0.5 * values.max() for values in spectrum)  # no direction is lost
    assert float((z[0] * z[1]).sum(1).mean()) > 0.99


def test_on_photographs_by_the_loop(tiny_photos: Tensor) -> None:
    objective = make("tcr", recipe="cpu-tcr")
    views = some_views(objective, tiny_photos)
    loss = float(objective.outcomes(views)["tcr"].loss.detach())
    assert loss == pytest.approx(loss_by_loop(objective.step(views).online().detach().double().numpy()), rel=1e-4)


def test_its_recipe_learns(data: Data) -> None:
    first, _, last = losses_of_epochs(trainer_of("tcr", data, recipe="cpu-tcr", epochs=3), 3)
    assert last < first


def test_a_single_online_view_is_refused() -> None:
    with pytest.raises(RequestError, match=r"tcr needs at least two online views of an image, got 1"):
        make("tcr", recipe="cpu-tcr", views={"large": {"count": 1}})
