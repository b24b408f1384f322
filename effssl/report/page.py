"""Rendering of a dict as one HTML file with its style, scripts and data inside; it loads nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from effssl.report.standing import sign
from effssl.runtime.reading import parse_json

FOLDER = Path(__file__).parent
MARK = '<meta name="generator" content="effssl report">'
POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">"
)
SCRIPTS = ("elements.js", "curves.js", "map.js", "embedding.js", "page.js")


def render(data: dict[str, Any]) -> bytes:
    """Render the page of a report."""
    scripts = "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return render_template(
        FOLDER, "page.html", data=data, block=as_block(data),
        style=(FOLDER / "page.css").read_text(encoding="utf-8"), scripts=scripts, mark=MARK,
        policy=POLICY, icon=sign(data.get("verdict", "")),
    )  # fmt: skip


def render_template(folder: Path, name: str, **values: Any) -> bytes:
    """Render a template. Jinja escapes text; `as_block` escapes data."""
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_with_fixed_percent,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template(name).render(**values)
    return text.encode("utf-8", "replace")  # file names may contain bytes that are not UTF-8


def _with_fixed_percent(value: Any) -> Any:
    """Text with a non-breaking space before each percent sign; HTML stays as it is."""
    return value.replace(" %", "\u00a0%") if isinstance(value, str) and not hasattr(value, "__html__") else value


def data_of(text: str) -> dict[str, Any] | None:
    """The data of a page, or None if it is not a report of effssl."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    if not found or MARK not in text[:1000]:
        return None
    try:
        data = parse_json(found[1])
    except ValueError:  # damaged
        return None
    return data if isinstance(data, dict) and "kind" in data else None


def as_block(data: dict[str, Any]) -> str:
    """JSON for a script element: without <, > and &, data cannot end the element or start another.

    >>> as_block({"class": "</script>"})
    '{"class":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
