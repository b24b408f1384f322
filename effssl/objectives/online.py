"""What the terms ask of the online views that a run declares."""

from __future__ import annotations

from effssl.objectives.term import RunInfo
from effssl.runtime.errors import RequestError


def require_two_views(info: RunInfo, term: str) -> None:
    """Refuse a run with fewer than two online views."""
    views = sum(group.views for group in info.groups.values() if group.online)
    if views < 2:
        raise RequestError(f"{term} needs at least two online views of an image, got {views}; see --views.large.count")
