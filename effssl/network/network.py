"""f and g as one module that can be run in part."""

from __future__ import annotations

from torch import Tensor, nn

from effssl.config import Config, Projector
from effssl.network.encoders import Encoder, build_encoder
from effssl.network.heads import mlp
from effssl.runtime.randomness import seeded


class Network(nn.Module):
    """M = g∘f. `run(x)` is z; `run(x, stop=n)` and `run(y, start=n)` are its parts, stage by stage."""

    def __init__(self, encoder: Encoder, projector: Projector) -> None:
        super().__init__()
        self.encoder = encoder
        hidden = [projector.hidden] * (projector.layers - 1)
        widths = [encoder.dim, *hidden, projector.out] if projector.layers else [encoder.dim]
        self.projector = mlp(widths, projector.norm, projector.output_norm)
        self.h_dim, self.z_dim, self.hidden = encoder.dim, widths[-1], projector.hidden

    def stages(self) -> list[nn.Module]:
        """The encoder's stages and the projector; the last but one ends at h, the last at z."""
        return [*self.encoder.stages(), self.projector]

    def run(self, x: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Run stages start … stop − 1."""
        for stage in self.stages()[start:stop]:
            x = stage(x)
        return x

    def project(self, x: Tensor) -> Tensor:
        """z = g(f(x))."""
        return self.g(self.f(x))

    def f(self, x: Tensor) -> Tensor:
        """h, the feature that is kept: N×h_dim."""
        return self.encoder(x)

    def g(self, h: Tensor) -> Tensor:
        """z, where losses act: N×z_dim."""
        return self.projector(h)


def build_network(config: Config) -> Network:
    """The network of a run; its initial weights depend on the seed and on nothing else."""
    with seeded(config.seed, "init", "encoder"):
        encoder = build_encoder(config.encoder, config.image_size, config.stem)
    with seeded(config.seed, "init", "projector"):
        return Network(encoder, config.projector)
