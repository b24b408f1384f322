"""A score never travels without the protocol it was measured by."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from effssl.data import Images
from effssl.run import versions


@dataclass(frozen=True)
class Score:
    """One result: the number in percent, how it was measured, on what."""

    protocol: str
    value: float
    metric: str = "accuracy"
    constants: dict[str, Any] = field(default_factory=dict)
    also: dict[str, Any] = field(default_factory=dict)  # further figures of the same measurement, in percent
    source: dict[str, Any] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        """The value, whatever the protocol calls it."""
        return self.value

    def on(self, name: str, **parts: Images) -> Score:
        """The same score, saying which images it was measured on."""
        source: dict[str, Any] = {"data": name}
        for part, images in parts.items():
            source |= {f"{part}_images": len(images), f"{part}_fingerprint": images.fingerprint()}
        return replace(self, source=self.source | source)

    def of(self, encoder: str) -> Score:
        """The same score, saying which encoder it belongs to."""
        return replace(self, source=self.source | {"encoder_fingerprint": encoder, "versions": versions()})

    def record(self) -> dict[str, Any]:
        """As results.json holds it."""
        return asdict(self)
