"""A real browser for pages; a test that uses it is skipped where there is no Chromium (playwright downloads none)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
]  # fmt: skip
WIDTHS = (360, 820, 1400)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Any]:
    """Open a file or an address; when the test is over, nothing may have gone wrong on the page or out of it."""
    problems: list[str] = []
    contexts = []

    def opened(where: Path | str, width: int = 1400, scheme: str = "light", touch: bool = False) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, has_touch=touch)
        contexts.append(context)
        page = context.new_page()
        home = where if isinstance(where, str) else "file:"
        page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "request", lambda r: None if r.url.startswith((home, "file:", "data:", "blob:")) else problems.append(r.url)
        )
        page.goto(where if isinstance(where, str) else where.resolve().as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert problems == []
