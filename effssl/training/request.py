"""What the user asked for, before anything of it is resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from effssl.runtime.errors import RequestError


@dataclass(frozen=True)
class Request:
    """A pretraining run as requested: settings that were given, and how to carry it out."""

    flags: Mapping[str, Any] = field(default_factory=dict)  # settings that were really given, nested as in a recipe
    out: Path | None = None  # run folder
    resume: str = "never"  # or auto: continue what is in `out`
    config: Path | None = None  # YAML file with settings; flags win over it
    quiet: bool = False
    report: bool = True
    log: tuple[str, ...] | None = None  # trackers; None: those that the run was started with, if any
    started: float | None = None  # monotonic time from which a time budget counts; None is now

    def __post_init__(self) -> None:
        if self.resume not in ("never", "auto"):
            raise RequestError(f"resume is {self.resume!r}; choose never or auto")
