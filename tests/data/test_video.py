"""Frames of video files, written for the purpose: each one's content is its number."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import effssl
from effssl.data import open_data
from effssl.data.archive import ArchiveImages
from effssl.data.images import Reading, crop_batches, whole_boxes
from effssl.runtime.errors import RequestError

av = pytest.importorskip("av")
import torch
from torch import Tensor


def write_video(path: Path, photos: Tensor, frames: int = 60, codec: str = "mpeg4") -> Path:
    """A film of photographs, each with a brightness of its own in the corner; key frames are 12 frames apart."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = 96, 96, "yuv420p", 12
        stream.bit_rate = 4_000_000
        for i in range(frames):
            pixels = photos[i].permute(1, 2, 0).numpy().copy()
            pixels[:48, :48] = 4 * i
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


@pytest.fixture
def film(tmp_path: Path, photos: Tensor) -> Path:
    return write_video(tmp_path / "film.mp4", photos)


def numbers(images: ArchiveImages) -> list[int]:
    corners = [np.asarray(images.image(row))[8:40, 8:40].mean() for row in range(len(images))]
    return [round(float(corner) / 4) for corner in corners]


def test_every_nth_frame_in_any_order(film: Path) -> None:
    images = open_data(f"{film}:7").train
    assert isinstance(images, ArchiveImages)
    assert [path.name for path in images.paths] == [f"{7 * i:07}" for i in range(9)]
    assert images.sizes.tolist() == [[96, 96]] * 9
    assert numbers(images) == [7 * i for i in range(9)]
    order = torch.tensor([8, 3, 0, 5, 4, 2, 8])
    assert numbers(images.select(order)) == [7 * int(i) for i in order]
    in_order, mixed = (
        torch.cat([x for x, _ in crop_batches(some, whole_boxes(some.sizes), 32, 3, Reading(workers=workers))])
        for some, workers in ((images, 0), (images.select(order), 2))
    )
    assert torch.equal(in_order[order], mixed)


def test_a_frame_a_second_and_patterns(film: Path, photos: Tensor, capsys: pytest.CaptureFixture) -> None:
    assert numbers(open_data(str(film)).train) == [0, 10, 20, 30, 40, 50]
    assert "film.mp4: one of 10 frames is used" in capsys.readouterr().err
    write_video(film.with_name("second.mp4"), photos, 20)
    both = open_data(f"{film.parent}/*.mp4:10").train
    assert [path.parent.name for path in both.paths] == ["film.mp4"] * 6 + ["second.mp4"] * 2
    assert numbers(both) == [0, 10, 20, 30, 40, 50, 0, 10]


def test_videos_that_cannot_be_used(film: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "noise.mp4").write_bytes(b"no video")
    for spec, says in (
        (f"{tmp_path}/noise.mp4", r"noise\.mp4 is not a video that can be read"),
        (f"{tmp_path}/nothing.mp4", "no such file"),
        (f"{tmp_path}/nothing*.mp4", "no files match"),
        (f"{film}:0", "give one from 1 on"),
    ):
        with pytest.raises(RequestError, match=says) as error:
            open_data(spec)
        assert "\n" not in str(error.value)
    with pytest.raises(RequestError, match="is needed: a folder for the pack"):
        effssl.pack(f"{film}:7")
    images = open_data(f"{film}:20").train
    content = bytearray(film.read_bytes())
    content[len(content) // 4 : -4000] = bytes(len(content) - 4000 - len(content) // 4)
    film.write_bytes(content)
    assert len(open_data(f"{film}:20").train) == len(images)  # its index is whole
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(RequestError, match=r"pip install 'effssl\[video\]'"):
        open_data(str(film))


def test_a_video_trains_resumes_evaluates_embeds_and_packs(film: Path, tmp_path: Path) -> None:
    spec = f"{film}:6"
    quick = {"batch_size": 4, "image_size": 32, "workers": 1, "quiet": True, "encoder": "tiny"}
    run = effssl.pretrain(spec, "simsiam", epochs=1, out=tmp_path / "run", cache=str(tmp_path / "kept"), **quick)
    assert run.config.data == spec
    effssl.pretrain(spec, "simsiam", epochs=2, out=tmp_path / "run", resume="auto", **quick)
    near = effssl.neighbors(tmp_path / "run", spec, f"{film}/{12:07}", k=1, workers=0)
    assert near[0].query == f"{film}/{12:07}"
    features = effssl.embed(tmp_path / "run", spec, tmp_path / "features.npz", workers=0)
    assert features.names[1] == f"{film}/{6:07}"
    packed = open_data(str(effssl.pack(spec, tmp_path / "packed", workers=0))).train
    assert packed.image(4).tobytes() == open_data(spec).train.image(4).tobytes()
