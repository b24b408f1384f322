"""What must hold for any input: the expression language, configs, and the decoding of files."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import tempfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_sample_image

from effssl.config import Config
from effssl.data.folder import load_folder
from effssl.data.image_files import decode
from effssl.objectives.expression import parse
from effssl.objectives.options import TERMS
from effssl.runtime.errors import RequestError
from effssl.schema import build, read_yaml, to_dict

PHOTO = Image.fromarray(load_sample_image("china.jpg")).resize((40, 30))
FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
weights = st.none() | st.floats(0, 1e6, allow_nan=False)


@given(st.dictionaries(st.sampled_from(sorted(TERMS)), weights, min_size=1), st.sampled_from(["", " ", "  "]))
def test_what_is_written_is_read(terms: dict[str, float | None], space: str) -> None:
    text = f"{space}+{space}".join(name if weight is None else f"{weight}*{name}" for name, weight in terms.items())
    assert parse(text) == terms
    assert list(parse(text)) == list(terms)


@given(st.text(max_size=30))
def test_any_text_is_an_objective_or_a_clear_mistake(text: str) -> None:
    with contextlib.suppress(RequestError):  # anything else is a crash
        assert set(parse(text)) <= set(TERMS)


values = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
)
names = st.sampled_from([f.name for f in dataclasses.fields(Config)]) | st.text(max_size=5)


@given(st.dictionaries(names, values | st.dictionaries(names, values, max_size=2), max_size=4))
def test_any_mapping_is_a_config_or_a_clear_mistake(mapping: dict) -> None:
    with contextlib.suppress(RequestError):
        assert isinstance(build(Config, mapping, "here"), Config)


storable = st.characters(codec="utf-8", exclude_characters="\0")  # a null character is refused


@FEW
@given(
    lr=st.floats(1e-12, 1e6), epochs=st.integers(1, 10**9), data=st.text(storable, max_size=20),
    angles=st.lists(st.floats(-360, 360), min_size=1, max_size=4), flip=st.booleans(),
)  # fmt: skip
def test_configs_survive_yaml(lr: float, epochs: int, data: str, angles: list[float], flip: bool) -> None:
    flags = {"lr": lr, "epochs": epochs, "data": data, "views": {"rotated": {"angles": angles, "update_stats": flip}}}
    config = build(Config, flags, "here")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.yaml"
        path.write_text(yaml.safe_dump(to_dict(config)), encoding="utf-8")
        assert build(Config, read_yaml(path), "there") == config


@FEW
@given(st.binary(max_size=300), st.sampled_from([".jpg", ".png", ".webp", ".bmp"]))
def test_bytes_that_are_no_image_are_refused_and_never_crash(content: bytes, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a{suffix}"
        path.write_bytes(content)
        with pytest.raises(OSError, match=r"."):
            decode(path)
        with pytest.raises(RequestError, match=r"can be (read|decoded)"):
            load_folder(Path(folder))


@FEW
@given(
    st.sampled_from(["JPEG", "PNG", "WEBP", "BMP"]), st.integers(0, 10**6), st.integers(0, 255), st.floats(0.05, 1.0)
)
def test_damaged_images_decode_or_are_refused(kind: str, place: int, value: int, share: float) -> None:
    buffer = io.BytesIO()
    PHOTO.save(buffer, kind)
    content = bytearray(buffer.getvalue())
    content[place % len(content)] = value
    content = content[: int(len(content) * share) + 1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.img"
        path.write_bytes(content)
        try:
            image = decode(path)
        except OSError:
            return
        assert image.mode == "RGB"


@FEW
@given(
    st.binary(min_size=1, max_size=80), st.sampled_from([b"II*\0\x08\0\0\0", b"MM\0*\0\0\0\x08"]), st.integers(0, 12)
)
def test_damaged_exif_is_no_reason_to_crash(rest: bytes, head: bytes, kind: int) -> None:
    """A directory with one entry, orientation, of any type and count, and then anything."""
    order = "little" if head.startswith(b"II") else "big"
    entry = (1).to_bytes(2, order) + (0x0112).to_bytes(2, order) + kind.to_bytes(2, order) + rest
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.jpg")
        PHOTO.save(path, exif=b"Exif\0\0" + head + entry)
        with contextlib.suppress(OSError):
            assert decode(path).mode == "RGB"


@FEW
@given(st.sampled_from(["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"]), st.integers(1, 40), st.integers(1, 40))
def test_every_mode_becomes_rgb_of_the_same_size(mode: str, width: int, height: int) -> None:
    pixels = np.arange(width * height, dtype=np.uint16).reshape(height, width) * 50
    image = Image.fromarray(pixels) if mode == "I;16" else PHOTO.resize((width, height)).convert(mode)
    kind = "TIFF" if mode == "CMYK" else "PNG"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.img"
        image.save(path, kind)
        shown = decode(path)
    assert shown.mode == "RGB"
    assert shown.size == (width, height)
