"""What a notebook shows of runs and scores."""

from __future__ import annotations

import re

import pytest

import effssl
from effssl.evaluation.score import Score
from effssl.verbs import Run


def test_a_run(digits: Run) -> None:
    page = digits._repr_html_()
    assert f"<b>{digits.folder}</b>" in page
    assert f'kNN, test</th><td style="{style(page)}">{digits.results()["knn"]["value"]:.1f} %' in page
    assert page.count("data:image/png;base64,") == 2  # loss and kNN


def test_a_comparison(digits: Run, plain: Run) -> None:
    found = effssl.Comparison(digits, plain.folder)
    assert found.names == ["digits", "plain"]
    assert found.differences["objective"] == ["byol+rotation", "byol"]
    assert found.scores["kNN, test"] == [pytest.approx(digits.results()["knn"]["value"]), None]
    page = found._repr_html_()
    assert re.search(r"objective</th><td[^>]*>byol\+rotation</td><td[^>]*>byol</td>", page)
    assert re.search(r"kNN, test</th><td[^>]*>[\d.]+ %</td><td[^>]*>–</td>", page)
    assert "Comparison of digits, plain\n" in repr(found)


def test_text_of_users_is_escaped() -> None:
    page = Score("<b>", 41.256, source={"data": "<script>"}, constants={"k": 5})._repr_html_()
    assert "<script>" not in page
    assert "&lt;b&gt;" in page
    assert "41.26 %" in page


def style(page: str) -> str:
    return re.findall(r'<td style="([^"]*)"', page)[0]
