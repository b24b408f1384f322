"""A score is never without the protocol that it was measured by."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from torch import Tensor

from effssl.data import Data, Images
from effssl.runtime.notebook import table_html
from effssl.runtime.versions import versions

if TYPE_CHECKING:
    from effssl.network.loaded import LoadedEncoder

NAMED = 20  # unreadable files that a score names; of more it holds the count


@dataclass(frozen=True)
class Score:
    """One result: its value in percent, how it was measured, and on what."""

    protocol: str
    value: float
    metric: str = "accuracy"
    constants: dict[str, Any] = field(default_factory=dict)
    also: dict[str, Any] = field(default_factory=dict)  # further metrics of the same evaluation, in percent
    source: dict[str, Any] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        """The value, whatever the protocol calls it."""
        return self.value

    def on(self, data: Data, **parts: tuple[Images, Tensor]) -> Score:
        """The same score, saying what it was measured on: the images of each part, and which rows could be read."""
        source: dict[str, Any] = {"data": data.name}
        lost = list(data.unreadable)
        for part, (images, rows) in parts.items():
            source |= {f"{part}_images": len(rows), f"{part}_fingerprint": images.fingerprint()}
            if images.paths is not None and len(rows) < len(images):
                read = set(rows.tolist())
                lost += [str(path) for row, path in enumerate(images.paths) if row not in read]
        lost = list(dict.fromkeys(lost))
        source |= {"unreadable": len(lost), "unreadable_files": lost[:NAMED]}
        return replace(self, source=self.source | source)

    def of(self, encoder: LoadedEncoder) -> Score:
        """The same score, saying which encoder it belongs to."""
        name = str(encoder.about.get("encoder", ""))
        used = {"scikit-learn": version("scikit-learn")} | ({"timm": version("timm")} if "timm:" in name else {})
        source = {"encoder": name, "encoder_fingerprint": encoder.fingerprint(), "versions": versions() | used}
        if encoder.encoder.readout is not None:
            source["readout"] = asdict(encoder.encoder.readout.options)
        if "weights" in encoder.about:
            source["encoder_weights"] = encoder.about["weights"]
        return replace(self, source=self.source | source)

    def _repr_html_(self) -> str:
        """What a notebook shows of a score."""
        rows = [(self.metric, f"{self.value:.2f} %"), *((name, _text(value)) for name, value in self.also.items())]
        on = [self.source[name] for name in ("test_images", "data", "encoder") if name in self.source]
        if len(on) == 3:
            rows.append(("measured on", f"{on[0]} test images of {on[1]}, encoder {on[2]}"))
        rows += [(name, _text(value)) for name, value in self.constants.items()]
        return table_html(self.protocol, rows)

    def record(self) -> dict[str, Any]:
        """As results.json holds it."""
        return asdict(self)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
