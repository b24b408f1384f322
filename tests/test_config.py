"""Settings: types, ranges, YAML in and out, and which differences matter."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml

import effssl
from effssl.config import Config, config_type, differences
from effssl.recipes import resolve
from effssl.runtime.errors import RequestError
from effssl.schema import Between, build, check, digest, flatten, merge, nest, read_yaml, to_dict, written_by


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"epochs": "three"}, "test: epochs takes a value of type int, got 'three'"),
        ({"epochs": 1.5}, "epochs takes a value of type int"),
        ({"epochs": True}, "epochs takes a value of type int"),
        ({"lr": True}, "lr takes a value of type float"),
        ({"compile": 1}, "type bool"),
        ({"rotation": 3}, "rotation holds several values"),
        ({"rotation": {"on": "y"}}, "choose one of z, h"),
        ({"rotation": {"hiden": 1}}, "did you mean hidden"),
        ({"views": {"rotated": {"sice": 1}}}, "views: rotated: unknown key 'sice'"),
        ({"augment": {"scale": [0.1, 0.2, 0.3]}}, "takes 2 values"),
        ({"augment": {"blur": ["a"]}}, "type float"),
    ],
)
def test_wrong_types_and_names_are_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        build(config_type(), values, "test")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"epochs": 0}, "epochs is 0; it must be at least 1"),
        ({"batch_size": 1}, "batch_size is 1; it must be at least 2"),
        ({"checkpoint_every": -1}, "checkpoint_every is -1"),
        ({"workers": -2}, "workers is -2; it must be between -1 and 1024"),
        ({"seed": 2**32}, "seed is 4294967296"),
        ({"lr": float("inf")}, "lr is inf"),
        ({"augment": {"flip": 7.0}}, "augment.flip is 7.0; it must be between 0 and 1"),
        ({"augment": {"blur": []}}, "augment.blur needs at least one value"),
        ({"augment": {"blur": [0.5, 2.0]}}, r"augment.blur is \[0.5, 2.0\]; it must be between 0 and 1"),
        ({"augment": {"std": [0.0, 1.0, 1.0]}}, "augment.std"),
        ({"augment": {"mean": [0.0, float("nan"), 1.0]}}, "augment.mean .* must be finite"),
        ({"views": {"rotated": {"count": -1}}}, "views.rotated.count is -1"),
        ({"views": {"rotated": {"angles": [0.0, float("nan")]}}}, "views.rotated.angles"),
        ({"optimizer": {"momentum": -1.0}}, "optimizer.momentum"),
        ({"schedule": {"milestones": [1.5]}}, "schedule.milestones"),
        ({"rotation": {"weight": -1.0}}, "rotation.weight"),
        ({"moco": {"queue": 0}}, "moco.queue is 0; it must be at least 1"),
        ({"jigsaw": {"permutations": 400_000}}, "between 2 and 362880"),
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        check(build(config_type(), values, "test"))


def test_defaults_and_the_ends_of_a_range_are_allowed() -> None:
    check(config_type()())
    check(build(config_type(), {"augment": {"hue": 0.5}, "optimizer": {"momentum": 1.0}, "subset": 0}, "test"))


def test_a_range_states_itself() -> None:
    assert [str(Between(0)), str(Between(high=2)), str(Between(0, 0.5))] == [
        "at least 0", "at most 2", "between 0 and 0.5",
    ]  # fmt: skip

    @dataclass(frozen=True)
    class Example:
        share: Annotated[float, Between(0, 1)] = 0.5

    with pytest.raises(RequestError, match=r"eval\.share is 2"):
        check(Example(2.0), "eval.")


def test_numbers_and_lists_become_what_a_field_holds() -> None:
    config = build(config_type(), {"lr": 1, "augment": {"blur": 0.5, "scale": [0, 1]}}, "test")
    assert (config.lr, type(config.lr)) == (1.0, float)
    assert (config.augment.blur, config.augment.scale) == ((0.5,), (0.0, 1.0))


def test_a_config_survives_yaml(tmp_path: Path) -> None:
    config = resolve({"data": "x", "objective": "simclr + 0.3*rotation", "augment": {"blur": [1.0, 0.1]}}).config
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(to_dict(config)))
    again = build(type(config), read_yaml(tmp_path / "c.yaml"), "c.yaml")
    assert again == config
    assert digest(again) == digest(config)


def test_equal_settings_are_equal() -> None:
    """The class is the same for the same terms."""
    assert resolve({"data": "x"}).config == resolve({"data": "x"}).config
    assert config_type() is config_type()


def test_differences_leave_out_the_machine() -> None:
    one, other, elsewhere = (
        resolve({"data": data, "device": device}).config for data, device in [("x", "cpu"), ("y", "cpu"), ("x", "cuda")]
    )
    assert differences(one, other) == ["data: x → y"]
    assert differences(one, elsewhere) == []
    assert digest(one) != digest(other)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("on: h", {"on": "h"}),
        ("x: on", {"x": "on"}),
        ("x: no", {"x": "no"}),
        ("x: true", {"x": True}),
        ("x: 1e-4", {"x": 1e-4}),
        ("x: 1.5", {"x": 1.5}),
        ("x: 3", {"x": 3}),
        ("x: {y: [1, 2.0]}", {"x": {"y": [1, 2.0]}}),
        ("x: 2020-01-31", {"x": "2020-01-31"}),
        ("x: 2020-13-45", {"x": "2020-13-45"}),
        ("x: &a [1]\ny: *a", {"x": [1], "y": [1]}),
    ],
)
def test_yaml_as_people_mean_it(text: str, values: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text)
    read = read_yaml(tmp_path / "c.yaml")
    assert read == values
    assert [type(value) for value in read.values()] == [type(value) for value in values.values()]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("epochs: 3\nepochs: 4\n", "'epochs' stands there twice"),
        ("a: {b: 1, b: 2}\n", "'b' stands there twice"),
        ("- 1\n", "does not hold 'key: value' lines"),
        ("1: 2\n", "does not hold 'key: value' lines"),
        ("a: [1\n", "is not readable as YAML"),
        ("a: !!map [1, 2]\n", "a mapping that is none"),
        ("a: !!int abc\n", "invalid literal"),
        ("a: !!bool abc\n", "is not readable as YAML"),
        ("a: !!timestamp abc\n", "is not readable as YAML"),
        ("lr: &a [*a]\n", "more than 10,000 values"),
        ("a: " + "9" * 5000 + "\n", "is not readable as YAML"),
        ("a: b\n" * 30_000, "bytes, and settings have"),
        ("!!map [1, 2]\n", "calls something a mapping that is none"),
        ("epochs: !!int abc\n", "invalid literal"),
    ],
)
def test_files_that_are_no_settings(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(RequestError, match=says):
        read_yaml(tmp_path / "c.yaml")


def alias_bomb(levels: int, each: int) -> str:
    lines = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}' if i else 'x'] * each)}]" for i in range(levels)]
    return "\n".join([*lines, f"lr: *l{levels - 1}\n"])


@pytest.mark.parametrize(
    ("levels", "each", "says"), [(9, 9, "more than 10 aliases"), (3, 4, "unknown key"), (2, 10_000, "bytes|aliases")]
)
def test_aliases_of_aliases_do_not_explode(levels: int, each: int, says: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(alias_bomb(levels, each))
    started = time.monotonic()
    with pytest.raises(RequestError, match=says) as error:
        resolve({"data": "x"}, tmp_path / "c.yaml")
    assert time.monotonic() - started < 5
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize("value", ["x" * 10_000, list(range(10_000)), 10**400, -(10**400)])
def test_an_error_does_not_repeat_a_long_value(value: Any) -> None:
    with pytest.raises(RequestError) as error:
        check(build(Config, {"lr": value}, "here"))
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("text", ['data: "a\\0b"', 'augment: {saliency: "a\\0b"}', "data: 2020-13-45"])
def test_text_that_names_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text + "\n")
    with pytest.raises(RequestError, match=r"no text has a null character|no data set or folder named '2020-13-45'"):
        effssl.pretrain(config=tmp_path / "c.yaml", out=tmp_path / "r", data="" if text[0] == "d" else "digits")


def test_versions_that_are_none() -> None:
    assert written_by({"versions": 3}) == written_by({"versions": None}) == ""
    assert len(written_by({"versions": {"effssl": "9" * 5000}})) < 200


def test_a_newer_versions_file_says_so() -> None:
    values: dict[str, Any] = {"epochs": 3, "versions": {"effssl": "999.0"}}
    assert "written by effssl 999.0" in written_by(values)
    assert values == {"epochs": 3}
    assert written_by({"versions": {"effssl": "0.0"}}) == written_by({}) == ""


def test_nested_settings_flatten_merge_and_nest() -> None:
    nested = {"lr": 0.1, "views": {"large": {"count": 2}}}
    assert nest(flatten(nested)) == nested
    assert merge(nested, {"views": {"large": {"size": 0.5}}})["views"] == {"large": {"count": 2, "size": 0.5}}
    assert nested["views"] == {"large": {"count": 2}}
