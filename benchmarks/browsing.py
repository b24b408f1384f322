"""A page of many images in Chromium: seconds to write and to open it, and how long its frames take.

python -m benchmarks.browsing [--images 20000] [--page page.html]

Photographs are crops of scikit-learn's, features are random points around forty centers: what is measured is the page.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

import effssl
from effssl.runtime.progress import progress_bar, say, table

SIDE, DIM, CENTERS = 160, 128, 40
STEPS = 120  # frames of each kind
# Every frame does one step; a frame's time is what the page needs until the next one can be shown.
FRAMES = """async (steps) => {
  const act = (k) => { STEP }, times = [];
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  await frame();
  for (let k = 0; k < steps; k++) {
    const start = performance.now();
    act(k);
    await frame();
    times.push(performance.now() - start);
  }
  return times;
}"""
CASES = {
    "scrolling all images": ("all", "document.getElementById('grid').scrollTop += 240"),
    "jumping through all images": ("all", "document.getElementById('grid').scrollTop = (k * 7919) % 100000"),
    "moving through all images by key": ("all", "press('#grid', 'ArrowDown')"),
    "scrolling clusters": ("clusters", "document.getElementById('grid').scrollTop += 240"),
    "zooming the map": ("map", "press('#plane canvas', k % 20 < 10 ? '+' : '-')"),
    "hovering over the map": ("map", "hover(k)"),
    "zooming the map with thumbnails": (
        "map",
        "map.thumbnails = true; press('#plane canvas', k % 20 < 10 ? '+' : '-')",
    ),
}
HELPERS = """
window.press = (where, key) => {
  document.querySelector(where).dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
};
window.hover = (k) => {
  const canvas = document.querySelector("#plane canvas"), frame = canvas.getBoundingClientRect();
  const [x, y] = map.place(k * 131 % COUNT), at = { clientX: frame.left + x, clientY: frame.top + y };
  canvas.dispatchEvent(new PointerEvent("pointermove", { pointerId: 1, bubbles: true, ...at }));
};
"""


def make_page(folder: Path, count: int) -> Path:
    """Write a page of so many images."""
    generator, photos = np.random.default_rng(0), load_sample_images().images
    names = []
    with progress_bar("photographs", count) as advance:
        for i in range(count):
            photo = photos[i % 2]
            top, left = (generator.integers(0, photo.shape[d] - SIDE) for d in (0, 1))
            names.append(str(folder / f"album {i % 50:02}" / f"photograph {i:05}.jpg"))
            Path(names[-1]).parent.mkdir(exist_ok=True)
            Image.fromarray(photo[top : top + SIDE, left : left + SIDE]).save(names[-1], quality=85)
            advance(1)
    centers = generator.normal(size=(CENTERS, DIM))
    features = centers[generator.integers(0, CENTERS, count)] + 0.6 * generator.normal(size=(count, DIM))
    np.savez(folder / "features.npz", path=np.array(names), features=features.astype(np.float32))
    start = time.perf_counter()
    page = effssl.browse(features=folder / "features.npz", out=folder / "page.html")
    say(f"written in {time.perf_counter() - start:.0f} s, {page.stat().st_size / 1e6:.1f} MB")
    return page


def measure(page: Any, file: Path) -> list[list[str]]:
    """Milliseconds until the page can be used, and of its frames."""
    start = time.perf_counter()
    page.goto(file.resolve().as_uri())
    assert page.evaluate("document.querySelector('nav [aria-selected=true]') !== null")
    rows = [["opening the page", f"{1000 * (time.perf_counter() - start):.0f}", "", ""]]
    page.evaluate(HELPERS)
    for name, (view, step) in CASES.items():
        page.evaluate("view => go(view)", view)
        times = sorted(page.evaluate(FRAMES.replace("STEP", step), STEPS))
        rows.append([name, *(f"{value:.0f}" for value in (np.median(times), np.quantile(times, 0.95), times[-1]))])
    times = page.evaluate(
        "['album 17', 'photograph 01', 'cluster 3', ''].map((text) => { const start = performance.now();"
        "state.wanted = text; show(); return performance.now() - start })"
    )
    rows.append(["searching by name", f"{np.median(times):.0f}", "", f"{max(times):.0f}"])
    heap = page.evaluate("performance.memory ? performance.memory.usedJSHeapSize / 1e6 : 0")
    say(f"{heap:.0f} MB of memory for scripts and data")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--page", type=Path, help="a page that exists, in place of a new one")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = options.page or make_page(Path(folder), options.images)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        rows = measure(page, file)
        browser.close()
    table("milliseconds of a frame", ["", "median", "95 %", "longest"], rows)


if __name__ == "__main__":
    main()
