"""Notebooks: examples/first.ipynb in a real kernel: one bar and a line per epoch, tables, errors in Python's words."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from effssl.runtime.notebook import in_notebook

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict]]:
    """Outputs of the example's cells, by the first words of their code."""
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.read(ROOT / "examples" / "first.ipynb", as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
            patch.setenv(name, str(folder / name))
        NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return {re.split(r"\W+", cell.source)[0] + f" {i}": cell.outputs for i, cell in enumerate(code)}


def streams(outputs: list[dict]) -> dict[str, str]:
    found: dict[str, str] = {}
    for out in outputs:
        if out["output_type"] == "stream":
            found[out["name"]] = found.get(out["name"], "") + out["text"]
    return found


def pages(outputs: list[dict]) -> list[str]:
    return [out["data"]["text/html"] for out in outputs if "text/html" in out.get("data", {})]


def test_training_shows_one_bar_and_a_line_per_epoch(cells: dict[str, list[dict]]) -> None:
    outputs = cells["import 0"]
    assert set(streams(outputs)) == {"stdout"}  # stderr is red
    assert re.findall(r"^epoch (\d)/2", streams(outputs)["stdout"], re.MULTILINE) == ["1", "2"]
    bars = [page for page in pages(outputs) if "<progress" in page]
    assert len(bars) == 1
    done, total = re.findall(r"(\d+)/(\d+)", bars[0])[-1]
    assert done == total
    assert 'value="0"' not in bars[0]
    assert "--" not in streams(outputs)["stdout"]  # notes name keyword arguments, too


def test_a_run_is_a_table_with_a_picture(cells: dict[str, list[dict]]) -> None:
    page = pages(cells["import 0"])[-1]
    assert all(text in page for text in ("simclr+rotation", "2 of 2", "kNN, validation", "data:image/png;base64"))


def test_a_score_and_a_comparison_are_tables(cells: dict[str, list[dict]]) -> None:
    assert re.search(r"<b>knn</b>.*accuracy.*\d+\.\d\d %", pages(cells["run 1"])[-1])
    page = pages(cells["other 2"])[-1]
    assert all(text in page for text in ("with-rotation", "without", "objective", "kNN, test", "data:image/png;base64"))


def test_nothing_is_written_to_stderr(cells: dict[str, list[dict]]) -> None:
    assert [name for name, outputs in cells.items() if "stderr" in streams(outputs)] == []


def test_an_error_is_one_line_in_the_words_of_python(cells: dict[str, list[dict]]) -> None:
    (error,) = [out for out in cells["effssl 4"] if out["output_type"] == "error"]
    text = "\n".join(error["traceback"])
    assert text == "RequestError: the run runs/without exists and is finished; choose another out="


def test_a_program_is_no_notebook() -> None:
    assert not in_notebook()
