"""What the page escapes."""

from __future__ import annotations

from pathlib import Path

from tests.report.conftest import data_of


def test_class_names_cannot_break_the_page(written: Path) -> None:
    text = written.read_text()
    assert text.count("<script") == 2
    assert "</script><script>window" not in text
    assert any("</script>" in name for name in data_of(written)["map"]["classes"])
