"""Event files for TensorBoard, beside metrics.jsonl and with the same figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from effssl.runtime.errors import RequestError


class Events:
    """Writes each line of a run to `tensorboard/` in its folder; opened with the first line."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise RequestError("--tensorboard needs tensorboard: pip install tensorboard") from None
        self.folder, self._make = folder / "tensorboard", SummaryWriter
        self._writer: Any = None

    def write(self, line: dict[str, Any]) -> None:
        """One line of metrics.jsonl; a resumed run takes the place of what it does again."""
        step = int(line.get("step", 0))
        if self._writer is None:
            self._writer = self._make(str(self.folder), purge_step=step)
        for name, value in line.items():
            if isinstance(value, (int, float)) and name != "step":
                self._writer.add_scalar(name, value, step)
        if "verdict" in line:
            self._writer.add_text("verdict", f"{line['verdict']}: {line['why']}", step)
        self._writer.flush()

    def close(self) -> None:
        """Nothing more will come."""
        if self._writer is not None:
            self._writer.close()
