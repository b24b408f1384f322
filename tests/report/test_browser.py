"""The page in a real browser: no errors, no requests, and it works at three widths.

Skipped if there is no Chromium; playwright does not download one.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from effssl.report import write_report
from effssl.verbs import Run
from tests.pages import WIDTHS
from tests.report.conftest import EVIL, study_folder


def point(page: Any, index: int) -> tuple[float, float]:
    """Where an image's point lies in the window."""
    page.locator("#map canvas").scroll_into_view_if_needed()
    x, y = page.evaluate(
        "i => { const c = document.querySelector('#map canvas'); c.scrollIntoView({block: 'center'});"
        "const p = document.getElementById('map').place(i), r = c.getBoundingClientRect();"
        "return [r.left + p[0], r.top + p[1]] }",
        index,
    )
    return x, y


@pytest.mark.parametrize("width", WIDTHS)
def test_at_every_width(written: Path, visit: Any, width: int) -> None:
    page = visit(written, width, "dark" if width == 820 else "light")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.locator(".chart svg[role=img]").count() == 6
    assert page.locator("h1").inner_text() == "digits"
    assert page.evaluate("window.broken") is None
    assert page.locator(".chart line.chance").count() == 4  # of the task; pixels, patches and guessing beside kNN
    assert page.locator(".standing tr").count() == 5
    assert page.locator(".standing .own").inner_text().startswith("this run")
    assert page.locator("#examples .pair").count() == 6
    assert page.locator("#examples .pair").first.locator(".tile").count() == 11  # an image, and twice five neighbors
    page.fill("#map-bar input[type=search]", "17")
    page.press("#map-bar input[type=search]", "Enter")  # its neighbors are shown
    cut = """() => [...document.querySelectorAll('figcaption, .views .name, .near span')].filter(
        e => e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1).map(e => e.textContent)"""
    assert page.evaluate(cut) == []
    overlapping = """() => {
        const boxes = [...document.querySelectorAll('section, header')].map(e => e.getBoundingClientRect());
        return boxes.some((a, i) => boxes.slice(i + 1).some(b => a.bottom > b.top + 1 && b.bottom > a.top + 1)) }"""
    assert not page.evaluate(overlapping)


def test_the_largest_bar_is_as_long_as_there_is_room(written: Path, visit: Any) -> None:
    page = visit(written, 360)
    shares = page.evaluate("""() => [...document.querySelectorAll('.standing i')].map(
        i => i.getBoundingClientRect().width / i.parentElement.clientWidth)""")
    assert shares[0] > 0.9
    assert shares == sorted(shares, reverse=True)
    assert page.evaluate("document.querySelector('.standing .length').clientWidth") > 80


def test_a_comparison_shows_what_costs_nothing_where_the_runs_agree(
    digits: Run, plain: Run, tmp_path: Path, visit: Any
) -> None:
    other = Run(shutil.copytree(plain.folder, tmp_path / "other"))
    journal = other.folder / "metrics.jsonl"
    changed = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in changed:
        if "baseline/pixels" in line:
            line |= {"baseline/pixels": 1.0, "baseline/chance": 2.0}
    journal.write_text("".join(json.dumps(line) + "\n" for line in changed))
    names = """() => [...document.querySelectorAll('#curves .chart')].filter(c => c.innerText.includes('kNN accuracy'))
        .flatMap(c => [...c.querySelectorAll('line.chance + text')].map(t => t.textContent))"""
    page = visit(write_report([digits.folder, plain.folder], tmp_path / "same.html"))
    assert page.evaluate(names) == ["k-means patches", "raw pixels", "chance"]
    page = visit(write_report([digits.folder, other.folder], tmp_path / "differ.html"))
    assert page.evaluate(names) == ["k-means patches", "chance, digits", "chance, other"]


def test_hover_shows_a_thumbnail_and_click_the_neighbors(written: Path, visit: Any) -> None:
    page = visit(written)
    assert not page.locator(".tip").is_visible()
    page.mouse.move(*point(page, 5))
    tip = page.locator(".tip")
    assert tip.is_visible()
    hovered = int(tip.locator(".tile").get_attribute("data-index"))
    page.mouse.down()
    page.mouse.up()
    data = page.evaluate("({neighbors: DATA.map.neighbors})")
    shown = [int(tile.get_attribute("data-index")) for tile in page.locator("#neighbors .near .tile").all()]
    assert shown == data["neighbors"][hovered]
    page.locator("#neighbors .near button").first.click()  # one can walk from neighbor to neighbor
    assert int(page.locator(".chosen .tile").get_attribute("data-index")) == data["neighbors"][hovered][0]
    page.mouse.move(0, 0)
    assert not tip.is_visible()


def test_a_tap_shows_a_thumbnail_until_the_next(written: Path, visit: Any) -> None:
    page = visit(written, 360, touch=True)
    page.touchscreen.tap(*point(page, 5))
    assert page.locator(".tip").is_visible()
    assert page.locator("#neighbors .near .tile").count() > 0
    box = page.locator("#map canvas").bounding_box()
    page.touchscreen.tap(box["x"] + 15, box["y"] + 15)  # where no image is
    assert not page.locator(".tip").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_confusion_matrix_can_be_read(written: Path, visit: Any, scheme: str) -> None:
    """Contrast as WCAG defines it, of the text and the strongest tint that a cell can have."""
    page = visit(written, scheme=scheme)
    contrast = page.evaluate("""() => {
        const rgba = (text) => text.match(/[\\d.]+/g).map(Number);
        const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, w, k) => {
            const v = c[k] / 255;
            return sum + w * (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4) }, 0);
        const cells = [...document.querySelectorAll("#probe .matrix td")].filter((cell) => cell.textContent);
        return Math.min(...cells.map((cell) => {
            let behind = cell.parentElement;
            while (rgba(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
            const paper = rgba(getComputedStyle(behind).backgroundColor);
            const share = Number(cell.textContent) / 100, tint = rgba(getComputedStyle(cell).backgroundColor);
            const strongest = (tint[3] ?? 1) / share, ink = light(rgba(getComputedStyle(cell).color));
            const back = light(paper.slice(0, 3).map((v, k) => v + (tint[k] - v) * strongest));
            return (Math.max(ink, back) + 0.05) / (Math.min(ink, back) + 0.05) })) }""")
    assert contrast >= 4.5


def test_tiles_show_pixels(written: Path, visit: Any) -> None:
    page = visit(written)
    picture = page.evaluate("getComputedStyle(document.querySelector('.tile.sample')).backgroundImage")
    assert picture.startswith('url("data:image/jpeg;base64,')
    loaded = (
        "new Promise(r => { const i = new Image(); i.onload = () => r(i.naturalWidth); i.src = DATA.map.sheet.src })"
    )
    assert page.evaluate(loaded) == page.evaluate("DATA.map.sheet.columns * DATA.map.sheet.side")


def test_a_class_can_be_shown_alone_and_searched_for(written: Path, visit: Any) -> None:
    page = visit(written)
    classes = page.evaluate("DATA.map.classes")
    assert EVIL in page.locator("#only").inner_text()
    page.select_option("#only", label=classes[2])
    on = page.locator(".key button[aria-pressed=true]")
    assert on.count() == 1
    assert classes[2] in on.inner_text()
    of_another = page.evaluate("DATA.map.labels.findIndex(k => k !== 2)")
    page.mouse.move(*point(page, of_another))
    if page.locator(".tip").is_visible():  # a point of the class that is shown may lie there, too
        index = int(page.locator(".tip .tile").get_attribute("data-index"))
        assert page.evaluate("i => DATA.map.labels[i]", index) == 2
    page.select_option("#only", "")
    assert page.locator(".key button[aria-pressed=true]").count() == len(classes)
    page.fill("#map-bar input[type=search]", "17")
    page.press("#map-bar input[type=search]", "Enter")
    assert int(page.locator(".chosen .tile").get_attribute("data-index")) == 17
    page.locator("#map-bar select").first.select_option("cluster")
    assert "cluster 1" in page.locator(".key").inner_text()


def test_curves_can_be_read_zoomed_and_hidden(written: Path, visit: Any) -> None:
    page = visit(written)
    chart = page.locator(".chart").first
    chart.scroll_into_view_if_needed()
    box = chart.locator("svg[role=img]").bounding_box()
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 50)
    last = page.evaluate("DATA.curves.columns.loss.at(-1)")
    assert f"{last:.4g}"[:5] in chart.locator(".reading").inner_text()
    ticks = chart.locator("svg[role=img] text").all_text_contents()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 50)
    page.mouse.up()
    assert chart.locator("svg[role=img] text").all_text_contents() != ticks
    chart.get_by_text("reset").click()
    assert chart.locator("svg[role=img] text").all_text_contents() == ticks
    box = chart.locator("svg[role=img]").bounding_box()  # the click may have scrolled
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"] + 5, box["y"] + 50)
    selection = chart.locator("svg[role=img] > rect")
    assert selection.get_attribute("visibility") == "visible"
    page.mouse.up()  # too short to be meant
    assert selection.get_attribute("visibility") == "hidden"
    assert chart.locator("svg[role=img] text").all_text_contents() == ticks
    lines = chart.locator("svg[role=img] path[fill=none]").count()
    chart.locator(".legend button").first.click()
    assert chart.locator("svg[role=img] path[fill=none]").count() == lines - 1
    page.locator("#curve-bar select").first.select_option("tflop")
    assert "TFLOP" in page.locator(".chart").first.inner_text()


def test_comparison_and_lonely_curves(digits: Run, plain: Run, desk: Path, visit: Any) -> None:
    page = visit(write_report([digits.folder, plain.folder], desk / "two.html"), 360)
    first = page.locator(".chart").first
    assert first.locator(".legend button").all_inner_texts() == ["digits", "plain"]
    dashes = {line.get_attribute("stroke-dasharray") for line in first.locator("svg[role=img] path[fill=none]").all()}
    assert len(dashes) == 2  # distinct without color
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert "objective" in page.locator("#differences").inner_text()
    page.locator("#curve-bar select").nth(2).select_option("objective")
    names = page.locator(".chart").first.locator(".legend button").all_inner_texts()
    assert names == ["byol+rotation (1)", "byol (1)"]
    page.locator("#curve-bar select").nth(1).select_option("3")
    assert page.locator(".chart").first.locator(".legend button").count() == 2
    visit(write_report(digits.folder, desk / "curves.html", images=0), 360)


def test_tasks_and_their_chance_levels(written: Path, visit: Any) -> None:
    page = visit(written)
    assert page.locator("#task-rotation figure .tile").count() == 24
    assert page.locator("#task-rotation .matrix td.diagonal").count() == 4
    names = page.locator(".chart", has_text="Task accuracy").locator("svg[role=img] text").all_text_contents()
    assert names.count("chance") == 1


def test_tasks_with_different_chance_levels(digits: Run, tmp_path: Path, visit: Any) -> None:
    run = Run(shutil.copytree(digits.folder, tmp_path / "run"))
    run.log({"epoch": 3, "accuracy/puzzle": 0.5, "chance/puzzle": 0.01})
    page = visit(write_report(run.folder, tmp_path / "page.html", images=0))
    chart = page.locator(".chart", has_text="Task accuracy")
    assert chart.locator("line.chance").count() == 2
    assert "chance, puzzle" in chart.locator("svg[role=img] text").all_text_contents()


@pytest.mark.parametrize(
    ("arms", "selector"),
    [
        ({"base": (None, [40.0, 41.0]), "with task": (None, [50.0])}, ".chart title"),  # rows of arms
        ({f"base at {at}": (at, [40.0 + at]) for at in (1, 2, 3)}, ".chart path[fill=none]"),  # curves
    ],
)
def test_studies(arms: dict, selector: str, tmp_path: Path, visit: Any) -> None:
    page = visit(write_report(study_folder(tmp_path / "E14", arms)), 360)
    assert page.locator(selector).count() > 0
    assert page.locator("#claims tr").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
