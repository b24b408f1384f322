"""Logistic regression with a limit of iterations."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.linear_model import LogisticRegression

from effssl.features.logistic import fit_quietly


def test_fit_that_has_not_converged_warns_nobody() -> None:
    """The model is the one that scikit-learn fits, which warns."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 20)), np.arange(60) % 3
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loud = LogisticRegression(max_iter=2).fit(x, y)
        assert caught
        caught.clear()
        model = fit_quietly(LogisticRegression(max_iter=2), x, y)
        assert not caught
    np.testing.assert_array_equal(model.coef_, loud.coef_)
