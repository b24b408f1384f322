"""Weights that a network starts from, in place of random ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from effssl.network.encoders import Encoder
from effssl.network.foreign import LoadResult, load_weights
from effssl.network.network import Network
from effssl.runtime.errors import RequestError


@dataclass(frozen=True)
class StartingWeights:
    """Weights of an encoder, where they come from, and the settings that go with them."""

    source: str  # as the configuration records it
    digest: str
    tensors: dict[str, Tensor]
    settings: dict[str, Any]  # encoder, preprocessing …, nested as in a configuration
    projector: dict[str, Tensor] = field(default_factory=dict)  # of a run; empty where there is none
    image_size: int = 0  # that a run was trained with; 0 is not known
    assumed: tuple[str, ...] = ()  # parts of the preprocessing that are ImageNet's because nothing says otherwise

    def fill(self, encoder: Encoder) -> LoadResult:
        """Load them into an encoder, adapted where that is possible."""
        return load_weights(encoder.backbone, self.tensors, self.source, adapting=True)

    def load_into(self, network: Network, projector: bool = False) -> str:
        """Load them into a network; what was done, in one line."""
        found = self.fill(network.encoder)
        parts = [f"starts from {self.source} (digest {self.digest}): {found.loaded} tensors of the encoder"]
        if found.unused:
            parts.append(f"not taken: {', '.join(f'{part} ({count})' for part, count in found.unused.items())}")
        if found.adapted:
            parts.append(f"adapted: {', '.join(found.adapted)}")
        if self.assumed:
            flags = "/".join(f"--augment.{name}" for name in self.assumed)
            parts.append(f"{' and '.join(self.assumed)} of ImageNet assumed; give {flags}")
        if projector:
            parts.append(self._load_projector(network))
        return "; ".join(parts)

    def _load_projector(self, network: Network) -> str:
        if not self.projector:
            raise RequestError(f"{self.source} has no projector; leave --start-projector out")
        wanted = {key: value.shape for key, value in network.projector.state_dict().items()}
        if {key: value.shape for key, value in self.projector.items()} != wanted:
            return "its projector has other shapes and starts anew"
        network.projector.load_state_dict(self.projector)
        return "its projector too"
