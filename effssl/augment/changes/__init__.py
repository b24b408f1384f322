"""Changes of some views, in alphabetical order: each module holds a `CHANGE`."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from effssl.augment.change import Change


@cache
def all_changes() -> tuple[Change, ...]:
    """The changes of all modules of this package."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(importlib.import_module(f"{__name__}.{name}").CHANGE for name in names)
