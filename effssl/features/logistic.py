"""Logistic regression with a limit of iterations."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression


def fit_quietly(model: LogisticRegression, x: np.ndarray, y: np.ndarray) -> LogisticRegression:
    """Fit the model; that it stops at its limit of iterations is no news to a user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(x, y)
