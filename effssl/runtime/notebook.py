"""What a notebook shows instead of a terminal: one bar that is updated, small tables, plain lines."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

UPDATE_INTERVAL = 0.2  # seconds between two updates of a bar: each is a message to the browser
CELL = "padding:2px 10px 2px 0;text-align:left;border:0"


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this program; IPython in a terminal is a terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class NotebookBar:
    """A bar that is updated in its place."""

    def __init__(self, text: str, total: int, done: int) -> None:
        from IPython.display import HTML, display

        self._html = HTML
        self.text, self.total, self.done = text, total, done
        self._first, self._started, self._shown = done, time.monotonic(), 0.0
        self._handle: Any = display(HTML(self._content()), display_id=True)

    def update(self, done: int, text: str = "") -> None:
        """Show how many steps are done."""
        self.done, self.text = done, text or self.text
        if time.monotonic() - self._shown > UPDATE_INTERVAL:
            self._show()

    def close(self, transient: bool) -> None:
        """Show the last state, or nothing any more."""
        if transient:
            self._handle.update(self._html(""))
        else:
            self._show()

    def _show(self) -> None:
        self._shown = time.monotonic()
        self._handle.update(self._html(self._content()))

    def _content(self) -> str:
        passed, new = time.monotonic() - self._started, self.done - self._first
        left = passed / new * (self.total - self.done) if new else 0.0
        minutes, seconds = divmod(round(left), 60)
        rest = f", {minutes}:{seconds:02d} left" if left else ""
        value = f'value="{self.done}" max="{self.total}"' if self.total else ""
        return f"<progress {value}></progress> {html.escape(self.text)} {self.done}/{self.total}{rest}"


@contextmanager
def notebook_bar(text: str, total: int, done: int = 0, transient: bool = False) -> Iterator[NotebookBar]:
    """A block with a bar; a transient one disappears with it."""
    bar = NotebookBar(text, total, done)
    try:
        yield bar
    finally:
        bar.close(transient)


def table_html(title: str, rows: Iterable[Sequence[object]], header: Sequence[object] = ()) -> str:
    """A small table, with its first column in bold type.

    >>> table_html("", [("kNN", "<41 %>")])[-40:]
    'border:0">&lt;41 %&gt;</td></tr></table>'
    """
    lines = [f"<b>{html.escape(title)}</b>"] if title else []
    lines.append('<table style="border:0">')
    if header:
        lines.append("<tr>" + "".join(f'<th style="{CELL}">{html.escape(str(one))}</th>' for one in header) + "</tr>")
    for first, *rest in rows:
        cells = "".join(f'<td style="{CELL}">{html.escape(str(one))}</td>' for one in rest)
        lines.append(f'<tr><th style="{CELL}">{html.escape(str(first))}</th>{cells}</tr>')
    return "".join([*lines, "</table>"])
