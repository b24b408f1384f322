"""A score never travels without the protocol it was measured by."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from effssl.data import Data
from effssl.run import versions


@dataclass(frozen=True)
class Score:
    """One result: the number in percent, how it was measured, on what."""

    protocol: str
    accuracy: float
    constants: dict[str, Any] = field(default_factory=dict)
    also: dict[str, Any] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)

    def with_source(self, data: Data, encoder: str) -> Score:
        """The same score, saying what it was measured on."""
        assert data.test is not None
        source = {
            "data": data.name,
            "train_images": len(data.train),
            "test_images": len(data.test),
            "train_fingerprint": data.train.fingerprint(),
            "test_fingerprint": data.test.fingerprint(),
            "encoder_fingerprint": encoder,
            "versions": versions(),
        }
        return replace(self, source=source)

    def record(self) -> dict[str, Any]:
        """As results.json holds it."""
        return asdict(self)
