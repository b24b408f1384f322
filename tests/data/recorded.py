"""Images that record which crops are requested of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from effssl.data import ArrayImages
from effssl.data.images import CropRequest, Crops, Reading


@dataclass(frozen=True)
class RecordedImages(ArrayImages):
    requests: list[CropRequest] = field(default_factory=list)

    def crops(self, requests: Iterable[CropRequest], reading: Reading) -> Iterator[Crops]:
        def recorded() -> Iterator[CropRequest]:
            for request in requests:
                self.requests.append(request)
                yield request

        return super().crops(recorded(), reading)
