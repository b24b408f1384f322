"""The page in a real browser: at three widths, by mouse, touch and keys, as a file and with its server."""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from effssl.browsing.collection import open_collection
from effssl.browsing.server import PageServer, Service
from effssl.browsing.views import ViewOptions
from effssl.cli import main
from tests.browsing.conftest import ENCODER, EVIL, EVIL_LABEL, LONG
from tests.pages import WIDTHS

VIEWS = ("map", "clusters", "all", "neighbors", "duplicates", "outliers", "subset")
OVERFLOW = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def url(album: Path, features: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    tags = tmp_path_factory.mktemp("tags") / "labels.csv"
    options: Any = {"weights": "random", "image_size": 32, "workers": 0, "labels": "folders"}
    collection = open_collection("small", album, features, tags, options)
    with PageServer(
        Service(collection, collection.values(ViewOptions(), server=True, saves=str(tags)), tags)
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.url
        server.shutdown()
    assert "flower/noise.png,odd" in tags.read_text()  # the last test's tag


def row_of(page: Any, name: str) -> int:
    return page.evaluate("name => DATA.names.findIndex((n) => n.endsWith(name))", name)


def saved(page: Any, selector: str) -> str:
    """What a button lets the browser download."""
    with page.expect_download() as download:
        page.click(selector)
    return Path(download.value.path()).read_text(encoding="utf-8")


def until(page: Any, condition: str) -> None:
    """Wait for a condition; playwright's own function would be evaluated by the page, whose policy refuses that."""
    for _ in range(400):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(25)
    raise AssertionError(condition)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_view_at_every_width(page_file: Path, visit: Any, width: int) -> None:
    page = visit(page_file, width, "dark" if width == 820 else "light", touch=width == 360)
    for view in VIEWS:
        page.click(f"#tab-{view}")
        assert not page.evaluate(OVERFLOW)
        assert page.locator("nav [aria-selected=true]").get_attribute("id") == f"tab-{view}"
        if view == "map":
            assert page.locator("#plane canvas").bounding_box()["height"] > 200
            continue
        assert page.locator(".cell").count() > 1
        until(page, "[...document.querySelectorAll('.cell img')].every((i) => i.complete && i.naturalWidth)")
        # No picture is shown larger than its pixels, and no text leaves its cell.
        assert page.evaluate("""[...document.querySelectorAll('.cell img:not(.crisp)')].every((i) => {
            const box = i.getBoundingClientRect();
            return box.width <= i.naturalWidth + 1 && box.height <= i.naturalHeight + 1 })""")
        assert page.evaluate("""[...document.querySelectorAll('.cell')].every((c) => [...c.querySelectorAll('.label')]
            .every((l) => l.getBoundingClientRect().right <= c.getBoundingClientRect().right + 1))""")
    page.click("#tab-outliers")
    page.locator(".cell").first.click()
    assert page.locator("#inspector .large img").is_visible()
    assert page.locator("#inspector .near button").count() == 24
    assert not page.evaluate(OVERFLOW)
    page.keyboard.press("Escape")
    assert page.evaluate("state.chosen") is None
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(20, 23, 26)" if width == 820 else "rgb(251, 250, 247)")


def test_names_are_text_cut_and_whole_on_hover(page_file: Path, visit: Any) -> None:
    page = visit(page_file)
    page.fill("#search", "onerror")
    page.click("#tab-all")
    cell = page.locator(".cell")
    assert cell.count() == 1
    assert EVIL in cell.get_attribute("title")
    cell.click()
    assert page.locator("#inspector h2").inner_text() == EVIL
    assert page.locator("#inspector a.large").get_attribute("href").endswith("%3D1%3E%20%26%20'it'%20%22is%22.png")
    with page.context.expect_page() as opened:
        page.click("#inspector a.large")
    assert opened.value.evaluate("document.images[0].naturalWidth") == 96  # the file itself
    page.fill("#search", "longer than any")
    until(page, "document.querySelectorAll('.cell').length === 1")
    shown = cell.locator(".label").inner_text()
    assert "…" in shown
    assert shown.endswith("while.png")
    assert LONG in cell.get_attribute("title")
    page.fill("#search", "script")
    until(page, "document.querySelectorAll('.cell').length === 16")
    assert cell.first.locator(".caption").inner_text() == EVIL_LABEL
    page.click("#tab-map")
    assert EVIL_LABEL in page.locator("#plane .key").inner_text()
    page.fill("#search", "cluster 1")
    page.click("#tab-clusters")
    assert page.locator("#grid h2").all_inner_texts() == ["Cluster 1"]
    page.fill("#search", "no such thing")
    until(page, "document.querySelector('.empty')")
    assert page.evaluate("window.broken") is None


def test_a_file_shows_the_whole_chosen_image_and_says_once_that_there_are_no_duplicates(
    album: Path, in_tmp: Path, visit: Any
) -> None:
    with Image.open(album / "china/00.png") as one, Image.open(album / "flower/01.png") as other:
        for number, image, name in ("95", one, "large.png"), ("89", other, "unknown-to-browsers.tif"):
            Path("photos", number).mkdir(parents=True)
            image.resize((400, 400)).save(Path("photos", number, name))
    main(["browse", *ENCODER, "--data", "photos", "--labels", "folders", "--threshold", "1", "--out", "page.html"])
    page = visit(Path("page.html"))
    page.click("#tab-all")
    assert page.locator(".cell .caption").all_inner_texts() == ["class 89", "class 95"]
    page.locator(".cell").last.click()
    until(page, "document.querySelector('.large img').naturalWidth === 400")  # a thumbnail has 224
    page.locator(".cell").first.click()
    until(page, "document.querySelector('.large.own-size img')?.naturalWidth === 224")
    assert page.locator(".large").bounding_box()["width"] < 230
    page.click("#tab-duplicates")
    assert page.locator(".empty").inner_text() == "No two images have a similarity of 1 or more."
    assert "No two" not in page.locator("#bar").inner_text()


def test_select_tag_and_export(page_file: Path, visit: Any) -> None:
    page = visit(page_file)
    assert not page.locator("#actions").is_visible()
    page.click("#tab-duplicates")
    page.get_by_role("button", name="select the other").first.click()
    duplicate = page.evaluate("[...state.selected]")
    assert duplicate == page.evaluate("DATA.views.find((v) => v.name === 'duplicates').sections[0].rows.slice(1)")
    page.click("#tab-all")
    page.locator(".cell").nth(2).click(modifiers=["Control"])
    page.locator(".cell").nth(5).click(modifiers=["Shift"])
    rows = sorted({*duplicate, 2, 3, 4, 5})
    assert page.locator("#actions strong").inner_text() == f"{len(rows)} selected"
    names = page.evaluate("DATA.names")
    assert saved(page, "#export-txt").splitlines() == [f"{page.evaluate('DATA.root')}/{names[row]}" for row in rows]
    page.fill("#tag", 'a "b", c')
    page.press("#tag", "Enter")
    assert page.locator(".cell .tag").first.inner_text() == 'a "b", c'
    lines = list(csv.DictReader(io.StringIO(saved(page, "#export-csv"))))
    assert [line["file"] for line in lines] == [names[row] for row in rows]
    assert {line["label"] for line in lines} == {'a "b", c'}
    page.click("#clear")
    assert page.evaluate("state.selected.size") == 0
    page.click("#tab-subset")
    page.fill("#bar input[type=number]", "4")
    page.click("#bar button:has-text('select')")
    assert page.locator("#actions strong").inner_text() == "4 selected"
    lines = list(csv.DictReader(io.StringIO(saved(page, "#export-tags"))))
    assert [line["file"] for line in lines] == [names[row] for row in rows]
    page.reload()
    assert page.evaluate("state.tags.size") == len(rows)  # the browser has kept them


def test_keys(page_file: Path, visit: Any) -> None:
    page = visit(page_file)
    page.keyboard.press("3")
    assert page.evaluate("state.view") == "all"
    page.focus("#grid")
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "Home", "ArrowRight", "Enter", "Space"):
        page.keyboard.press(key)
    assert page.evaluate("[state.chosen, [...state.selected]]") == [1, [1]]
    assert page.locator("#cell1").get_attribute("aria-selected") == "true"
    assert page.locator("#grid").get_attribute("aria-activedescendant") == "cell1"
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    assert page.evaluate("[...state.selected].sort()") == [1, 2, 3]
    page.keyboard.press("t")
    page.keyboard.type("temple")
    page.keyboard.press("Enter")
    assert page.evaluate("[...state.tags]") == [[1, "temple"], [2, "temple"], [3, "temple"]]
    page.focus("#grid")
    page.keyboard.press("End")
    last = page.evaluate("COUNT - 1")
    assert page.locator(f"#cell{last}").is_visible()
    page.keyboard.press("Control+a")
    assert page.evaluate("state.selected.size") == last + 1
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("noise")
    page.keyboard.press("Enter")
    assert page.evaluate("state.chosen") == row_of(page, "noise.png")
    page.keyboard.press("Escape")
    assert page.evaluate("state.wanted") == ""
    page.keyboard.press("1")
    page.focus("#plane canvas")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("state.chosen") != row_of(page, "noise.png")
    page.keyboard.press("?")
    assert "select it" in page.locator("#keys").inner_text()
    assert "null" not in page.locator("#keys").inner_text()


def test_the_map(page_file: Path, visit: Any) -> None:
    page = visit(page_file)
    frame = page.locator("#plane canvas").bounding_box()
    x, y = page.evaluate("map.place(7)")
    page.mouse.move(frame["x"] + x, frame["y"] + y)
    assert page.locator("#plane .tip img").is_visible()
    page.mouse.down()
    page.mouse.up()
    assert page.evaluate("state.chosen") is not None
    page.mouse.move(frame["x"] + 12, frame["y"] + 12)
    page.keyboard.down("Shift")
    page.mouse.down()
    page.mouse.move(frame["x"] + frame["width"] - 12, frame["y"] + frame["height"] - 12, steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    count = page.evaluate("COUNT")
    assert page.evaluate("state.selected.size") == count
    page.locator("#plane .key button").first.click()  # one label is off: its images cannot be selected
    page.evaluate("select([...state.selected], false)")
    page.click("button:has-text('select area')")
    page.mouse.move(frame["x"] + 12, frame["y"] + 12)
    page.mouse.down()
    page.mouse.move(frame["x"] + frame["width"] - 12, frame["y"] + frame["height"] - 12, steps=3)
    page.mouse.up()
    shown = page.evaluate("state.selected.size")
    assert 0 < shown < count
    pixels = "document.querySelector('#plane canvas').toDataURL()"
    before = page.evaluate(pixels)
    page.click("button:has-text('thumbnails')")
    until(page, f"{pixels} !== {before!r}")


def test_a_file_says_that_a_new_picture_needs_the_server(page_file: Path, visit: Any) -> None:
    page = visit(page_file)
    page.click("#by-picture")
    assert "Start the page with its local server: effssl browse RUN" in page.locator("#keys").inner_text()


def test_with_its_server(url: str, album: Path, visit: Any, tmp_path: Path) -> None:
    page = visit(url, 820)
    page.click("#tab-outliers")
    until(page, "[...document.querySelectorAll('.cell img')].every((i) => i.complete && i.naturalWidth)")
    page.set_input_files("#picture", str(album / "flower/noise.png"))
    page.wait_for_selector(".query")
    noise = row_of(page, "noise.png")
    assert page.evaluate("answer.rows[0]") == noise
    assert page.locator(".cell .caption").first.inner_text() == "1.000"
    page.locator(".cell").first.click()
    page.keyboard.press("f")
    until(page, "document.querySelector('#whole img').naturalWidth === 96")
    page.keyboard.press("Escape")
    page.fill("#inspector input", "odd")
    page.press("#inspector input", "Enter")
    page.click("#inspector button:has-text('select')")
    page.click("#inspector .close")
    page.click("#copy")
    page.fill("#keys input", str(tmp_path / "copied"))
    page.click("#keys button:has-text('copy')")
    until(page, "document.getElementById('said').textContent.includes('1 image copied')")
    assert [file.name for file in (tmp_path / "copied").rglob("*.png")] == ["noise.png"]
    assert "saved in" in page.locator("#actions").inner_text()
    page.reload()
    assert page.evaluate("[...state.tags.values()]") == ["odd"]
