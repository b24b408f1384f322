"""f and g as one module that can be run in part."""

from __future__ import annotations

from torch import Tensor, nn

from effssl.network.encoders import Encoder
from effssl.network.heads import mlp
from effssl.network.options import Projector


class Network(nn.Module):
    """M = g∘f. `project(x)` is z; `run(x, stop=n)` and `run(y, start=n)` are its parts, stage by stage."""

    def __init__(self, encoder: Encoder, projector: Projector) -> None:
        super().__init__()
        self.encoder = encoder
        hidden = [projector.hidden] * (projector.layers - 1)
        widths = [encoder.h_dim, *hidden, projector.out] if projector.layers else [encoder.h_dim]
        self.projector = mlp(widths, projector.norm, projector.output_norm)
        self.h_dim = encoder.h_dim
        self.z_dim = widths[-1]
        self.hidden = projector.hidden

    def f(self, x: Tensor) -> Tensor:
        """h, the feature that is kept: N×h_dim."""
        return self.encoder(x)

    def g(self, h: Tensor) -> Tensor:
        """z, where losses act: N×z_dim."""
        return self.projector(h)

    def project(self, x: Tensor) -> Tensor:
        """z = g(f(x))."""
        return self.g(self.f(x))

    def stages(self) -> list[nn.Module]:
        """The encoder's stages and the projector; the last but one ends at h, the last at z."""
        return [*self.encoder.stages(), self.projector]

    def run(self, x: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Run stages start … stop − 1."""
        for stage in self.stages()[start:stop]:
            x = stage(x)
        return x
