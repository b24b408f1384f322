"""LeJEPA: views agree with their mean, and SIGReg makes z a standard normal variable. Balestriero & LeCun 2025."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.network.network import Network
from effssl.objectives.online import require_two_views
from effssl.objectives.options import SIGRegOptions
from effssl.objectives.step import Step
from effssl.objectives.term import Outcome, RunInfo, Term
from effssl.runtime.distribution import gather

T_MAX = 3.0  # the released code's, where the window e^(−t²/2) is 0.01; the paper's knots lie on [−5, 5]


def epps_pulley(x: Tensor, knots: int) -> Tensor:
    """B ∫ |φ(t) − e^(−t²/2)|² e^(−t²/2) dt from −3 to 3, V×S: how far each slice is from a standard normal variable.

    x: V×B×S. φ is its characteristic function over the B images, e^(−t²/2) that of the normal variable. The integrand
    is even, so the trapezoidal rule needs knots on [0, 3] only.
    """
    t = torch.linspace(0, T_MAX, knots, dtype=x.dtype, device=x.device)  # K
    normal = (-t.square() / 2).exp()
    angle = x[..., None] * t  # V×B×S×K
    error = (angle.cos().mean(1) - normal).square() + angle.sin().mean(1).square()  # V×S×K
    return 2 * x.shape[1] * torch.trapezoid(error * normal, t)


class SIGReg(Term):
    """L = (1 − λ)·mean of (z_v − z̄)² + λ·mean over views and slices of the Epps–Pulley statistic of z_v.

    z̄ is the mean over all online views of an image. A slice is z along a random direction, new ones in every step.
    """

    reads = ("online",)

    def __init__(self, options: SIGRegOptions, network: Network, info: RunInfo) -> None:
        super().__init__(options, network, info)
        require_two_views(info, "sigreg")

    def loss(self, step: Step) -> Outcome:
        z = gather(step.online(), dim=1)  # V×B×D, of all processes
        invariance = (z - z.mean(0)).square().mean()
        options = self.options
        # Named by the step alone: all processes, and a run that resumes, have the same directions.
        directions = torch.randn(z.shape[2], options.slices, generator=step.views.generator("sigreg"))  # D×S
        slices = z @ F.normalize(directions, dim=0).to(z, non_blocking=True)  # V×B×S
        statistic = epps_pulley(slices, options.knots).mean()
        return Outcome((1 - options.regularization) * invariance + options.regularization * statistic)
