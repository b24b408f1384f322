"""A protocol is one file: its options, their ranges, its function and its description."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import effssl
from effssl.cli import main
from effssl.data import Data
from effssl.evaluation import find_protocol, protocol_names, protocols
from effssl.evaluation.catalog import describe_protocol
from effssl.network.loaded import LoadedEncoder

ONE_FILE = '''"""How many test images there are, in percent of a number."""

from dataclasses import dataclass
from typing import Annotated

from effssl.evaluation.protocol import EvaluationProtocol
from effssl.evaluation.score import Score
from effssl.schema import Between


@dataclass(frozen=True)
class CountingOptions:
    """Options of counting."""

    of: Annotated[int, Between(1, 1000)] = 720
    """what is 100 %"""


def evaluate_counting(encoder, data, options):
    """The share of test images."""
    share = 100 * len(data.test) / options.of
    return Score("counting-images", share, "share", {"of": options.of}, source={"data": data.name})


PROTOCOL = EvaluationProtocol("counting-images", CountingOptions, evaluate_counting)
'''


def test_a_new_protocol_is_one_file(
    encoder: LoadedEncoder,
    digits: Data,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    (tmp_path / "counting_images.py").write_text(ONE_FILE)
    monkeypatch.setattr(protocols, "__path__", [*protocols.__path__, str(tmp_path)])
    assert effssl.evaluate("counting-images", encoder, digits).value == 50
    with pytest.raises(effssl.RequestError, match="counting-images: of is 0; it must be between 1 and 1000"):
        effssl.evaluate("counting-images", encoder, digits, of=0)
    main(["eval", "--help"])
    assert "counting images    How many test images there are" in capsys.readouterr().out
    main(["eval", "counting", "images", "small", "--weights", "random", "--data", "digits", "--of", "360"])
    assert "100.00 %" in capsys.readouterr().out


@pytest.mark.parametrize("name", protocol_names())
def test_names_descriptions_and_defaults(name: str) -> None:
    protocol = find_protocol(name)
    assert protocol.name == name
    assert describe_protocol(name).endswith(".")
    assert protocol.options_of({}) == protocol.options()  # the defaults are in range
    assert protocol.changed(protocol.options()) == []


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys; from effssl.cli import main; main(['eval', '--help']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
    assert "knn" in done.stdout
