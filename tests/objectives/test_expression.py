from __future__ import annotations

import pytest

from effssl.objectives.expression import parse
from effssl.runtime.errors import RequestError


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("byol", {"byol": None}),
        ("byol+rotation", {"byol": None, "rotation": None}),
        ("simclr + 0.5*rotation", {"simclr": None, "rotation": 0.5}),
        (" 2 * BYOL+1e-1*rotation ", {"byol": 2.0, "rotation": 0.1}),
        ("1e+1*simsiam+0*rotation", {"simsiam": 10.0, "rotation": 0.0}),
    ],
)
def test_reads(text: str, terms: dict) -> None:
    assert parse(text) == terms
    assert list(parse(text)) == list(terms)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("byool+rotation", "did you mean byol"),
        ("nothing", "terms: simclr"),
        ("byol++rotation", "cannot parse ''"),
        ("", "cannot parse"),
        ("byol+-1*rotation", "not a finite number of 0 or more"),
        ("byol+nan*rotation", "not a finite number"),
        ("byol+x*rotation", "not a finite number"),
        ("byol+byol", "appears twice"),
        ("byol rotation", "cannot parse"),
    ],
)
def test_refuses_with_a_reason(text: str, says: str) -> None:
    with pytest.raises(RequestError) as error:
        parse(text)
    assert says in str(error.value)
