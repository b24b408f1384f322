"""The screenshot of docs/explore.md: views of a page of `effssl browse` at three widths, beside each other.

    python docs/screenshots.py page.html docs/browse-widths.webp

The page was made of a part of Oxford's 102 flowers:

    effssl pretrain --data flowers --objective simclr+rotation --image-size 64 --epochs 12 --out runs/flowers
    effssl browse runs/flowers --threshold 0.99 --out page.html
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

HEIGHT, GAP = 640, 12  # pixels of the picture, and between the screens
SELECT = "select([...document.querySelectorAll('.cell')].slice(1, 4).map((cell) => Number(cell.dataset.row)))"
# width, height and colors of a window, and what is done in it
SCREENS = (
    (1400, 980, "light", ("map.thumbnails = true; map.draw(); choose(40)", "map.draw()")),
    (820, 980, "dark", ("go('clusters')", SELECT)),
    (360, 780, "light", ("go('outliers')",)),
)


def screen(browser: Browser, page: Path, width: int, height: int, scheme: str, steps: tuple[str, ...]) -> Image.Image:
    """A window of the page."""
    window = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    window.goto(page.resolve().as_uri())
    for step in steps:
        window.evaluate(step)
        window.wait_for_timeout(800)
    shot = Image.open(io.BytesIO(window.screenshot())).convert("RGB")
    window.close()
    return shot.resize((round(width * HEIGHT / height), HEIGHT), Image.Resampling.LANCZOS)


def main(page: Path, out: Path) -> None:
    """Write the screens beside each other."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--headless", "--no-sandbox"]
        )
        shots = [screen(browser, page, *one) for one in SCREENS]
        browser.close()
    whole = Image.new("RGB", (sum(shot.width for shot in shots) + GAP * (len(shots) + 1), HEIGHT + 2 * GAP), "#8a8f98")
    left = GAP
    for shot in shots:
        whole.paste(shot, (left, GAP))
        left += shot.width + GAP
    whole.save(out, quality=70, method=6)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
