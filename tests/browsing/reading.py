"""What a page of `effssl browse` holds."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
from PIL import Image


def data_of(file: Path) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', file.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def unpacked(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), kind)


def thumbnails(file: Path) -> list[Image.Image]:
    found = re.search(r'<script type="text/plain" id="thumbs">(.*?)</script>', file.read_text(), re.DOTALL)
    assert found is not None
    ends = unpacked(data_of(file)["thumbs"], "<u4").tolist()
    parts = [found[1][start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return [Image.open(io.BytesIO(base64.b64decode(part))) for part in parts if part]
