"""The screenshots of README and docs, taken in Chromium.

    python docs/screenshots.py report runs/cifar/report.html docs/report.png
    python docs/screenshots.py report-widths runs/cifar/report.html docs/report-widths.png
    python docs/screenshots.py browse page.html docs/browse-widths.webp

The pages were made by these commands; flowers is a part of Oxford's 102 flowers:

    effssl pretrain --data cifar10 --budget 1m --out runs/cifar
    effssl pretrain --data flowers --objective simclr+rotation --image-size 64 --epochs 12 --out runs/flowers
    effssl browse runs/flowers --threshold 0.99 --out page.html
"""

from __future__ import annotations

import io
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

GAP = 12  # pixels between screens beside each other
SELECT = "select([...document.querySelectorAll('.cell')].slice(1, 4).map((cell) => Number(cell.dataset.row)))"


@dataclass(frozen=True)
class Screen:
    """A window, and what is done in it before it is shown."""

    width: int
    height: int
    scheme: str = "light"
    steps: tuple[str, ...] = ()


# Height of a picture in pixels, and the screens on it.
PICTURES = {
    "report": (2000, [Screen(1160, 2000)]),
    "report-widths": (640, [Screen(1400, 980), Screen(820, 980, "dark"), Screen(360, 780)]),
    "browse": (
        640,
        [
            Screen(1400, 980, "light", ("map.thumbnails = true; map.draw(); choose(40)", "map.draw()")),
            Screen(820, 980, "dark", ("go('clusters')", SELECT)),
            Screen(360, 780, "light", ("go('outliers')",)),
        ],
    ),
}


def taken(browser: Browser, page: Path, screen: Screen, height: int) -> Image.Image:
    """A window of the page, as high as the picture."""
    size = {"width": screen.width, "height": screen.height}
    window = browser.new_page(viewport=size, color_scheme=screen.scheme)
    window.goto(page.resolve().as_uri())
    window.wait_for_timeout(800)
    for step in screen.steps:
        window.evaluate(step)
        window.wait_for_timeout(800)
    shot = Image.open(io.BytesIO(window.screenshot())).convert("RGB")
    window.close()
    return shot.resize((round(screen.width * height / screen.height), height), Image.Resampling.LANCZOS)


def beside(shots: list[Image.Image], height: int) -> Image.Image:
    """The screens on one picture; one alone is the picture."""
    if len(shots) == 1:
        return shots[0]
    whole = Image.new("RGB", (sum(shot.width for shot in shots) + GAP * (len(shots) + 1), height + 2 * GAP), "#8a8f98")
    left = GAP
    for shot in shots:
        whole.paste(shot, (left, GAP))
        left += shot.width + GAP
    return whole


def main(kind: str, page: Path, out: Path) -> None:
    """Write a picture of a page."""
    height, screens = PICTURES[kind]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--headless", "--no-sandbox"]
        )
        shots = [taken(browser, page, screen, height) for screen in screens]
        browser.close()
    whole = beside(shots, height)
    if out.suffix == ".png":
        whole.quantize(256).save(out, optimize=True)
    else:
        whole.save(out, quality=70, method=6)


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:4]))
