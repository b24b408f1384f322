"""Frames of video files: footage.mp4:25 is every 25th frame of one, "clips/*.mp4:25" of several.

Without a number it is about one frame a second. Frames are found by going to the key frame before and decoding from
there; `effssl pack` and the cache of a run decode every frame once.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from effssl.data.archive import ArchiveImages
from effssl.data.dataset import Data
from effssl.data.decoding import stamp_of
from effssl.data.parts import divide
from effssl.runtime.errors import RequestError, Stopped
from effssl.runtime.progress import progress_bar, say
from effssl.runtime.reading import check_regular, describe

SUFFIXES = (".mp4", ".mov", ".mkv", ".avi", ".webm", ".m4v", ".mpg", ".mpeg")
MOST_STEP = 1_000_000  # frames from one that is used to the next
AHEAD = 64  # frames that are decoded in passing rather than by going to a key frame

_open: dict[str, Any] = {}  # the video that was read last: opening one takes long
_inherited: list[Any] = []  # a worker never closes what its parent opened: it would wait for the parent's threads


@dataclass(frozen=True)
class VideoFrames:
    """Frames of videos, by the time at which each is shown."""

    videos: list[Path]
    rows: np.ndarray  # N×3 int64: number of the video, number of the frame, its time in units of the stream

    def __len__(self) -> int:
        return len(self.rows)

    def pick(self, rows: np.ndarray) -> VideoFrames:
        """Some of them."""
        return replace(self, rows=self.rows[rows])

    def path(self, row: int) -> Path:
        """The video and the number of the frame; no such file exists."""
        video, frame, _ = self.rows[row].tolist()
        return self.videos[video] / f"{frame:07}"

    def name(self, row: int) -> str:
        """What messages call a frame."""
        return str(self.path(row))

    def stamp(self, row: int) -> str | None:
        """Path, size and modification time of the video, and the number of the frame."""
        video, frame, _ = self.rows[row].tolist()
        return stamp_of(self.videos[video], f"frame {frame}")

    def content(self, row: int) -> bytes:
        """A frame as a PPM file; raises OSError if it cannot be decoded."""
        video, _, time = self.rows[row].tolist()
        pixels = _reader(self.videos[video]).frame(time)
        height, width, _ = pixels.shape
        return b"P6 %d %d 255\n" % (width, height) + pixels.tobytes()

    def records(self) -> Iterator[bytes]:
        """Of each frame, its video with that one's size, and its number."""
        about = [f"{path.name} {path.stat().st_size}" for path in self.videos]
        for video, frame, _ in self.rows.tolist():
            yield f"{about[video]} {frame}\n".encode("utf-8", "surrogateescape")


class _Reader:
    """An open video and the frame that it is at."""

    def __init__(self, path: Path) -> None:
        import av

        check_regular(path)
        self.container = av.open(str(path), metadata_errors="ignore")
        self.stream = self.container.streams.video[0]
        self.stream.thread_type = "NONE"  # one worker process per core
        self.frames: Iterator[Any] = iter(())
        self.time: int | None = None

    def frame(self, time: int) -> np.ndarray:
        """The pixels of the frame at a time, height×width×3."""
        try:
            if self.time is None or not 0 < time - self.time <= AHEAD * self._unit():
                self.container.seek(time, stream=self.stream, backward=True)
                self.frames = self.container.decode(self.stream)
            for frame in self.frames:
                self.time = frame.pts
                if frame.pts is not None and frame.pts >= time:
                    if frame.pts > time:
                        break
                    return frame.to_ndarray(format="rgb24")
        except Stopped:
            raise
        except Exception as error:  # damaged videos raise anything: InvalidDataError, ValueError, MemoryError …
            self.time = None
            raise OSError(describe(error)) from None
        self.time = None
        raise OSError("the video has no such frame any more")

    def _unit(self) -> int:
        """Time of one frame in units of the stream."""
        rate = self.stream.average_rate or 25
        return max(1, round(1 / (rate * (self.stream.time_base or Fraction(1, 90_000)))))


def _reader(path: Path) -> _Reader:
    """The open video of this process; one that was inherited is not used, since its position is shared."""
    key = f"{os.getpid()} {path} {path.stat().st_mtime_ns}"
    if key not in _open:
        _inherited.extend(reader for opened, reader in _open.items() if not opened.startswith(f"{os.getpid()} "))
        _open.clear()
        try:
            _open[key] = _Reader(path)
        except (OSError, Stopped):
            raise
        except Exception as error:
            raise OSError(describe(error)) from None
    return _open[key]


def is_video(spec: str) -> bool:
    """Whether a value names a video, or a pattern of videos, perhaps with a number of frames behind a colon."""
    return _place(spec)[0].lower().endswith(SUFFIXES) and not Path(spec).expanduser().is_dir()


def _place(spec: str) -> tuple[str, str]:
    """The file or pattern, and the text behind its colon."""
    if not Path(spec).expanduser().exists():
        name, colon, every = spec.rpartition(":")
        if colon and name.lower().endswith(SUFFIXES):
            return name, every
    return spec, ""


def open_video(spec: str, labels: str = "auto") -> Data:
    """Open the frames of one or several videos, which have no labels."""
    if labels == "folders":
        raise RequestError(f"--labels folders is for folders of images; the frames of {spec} have no labels")
    name, number = _place(spec)
    text = os.path.abspath(os.path.expanduser(name))
    videos = [Path(found) for found in ([text] if os.path.isfile(text) else sorted(glob.glob(text)))]
    if not videos:
        raise RequestError(f"no files match {name}" if glob.has_magic(name) else f"no such file: {text}")
    if number and not (number.isascii() and number.isdigit() and 1 <= int(number) <= MOST_STEP):
        raise RequestError(f"{spec}: the number of frames behind the colon is {number!r}; give one from 1 on")
    try:
        import av
    except ImportError:
        raise RequestError(f"{name} needs the package av: pip install 'effssl[video]'") from None
    parts, sizes = [], []
    with progress_bar(f"reading {len(videos)} videos", len(videos)) as advance:
        for index, video in enumerate(videos):
            times, size, rate = _index(av, video)
            every = int(number) if number else max(1, round(rate))
            frames = np.arange(0, len(times), every)
            if not number:
                say(f"{video.name}: one of {every} frames is used, about one a second; {video.name}:N is every Nth")
            parts.append(np.stack([np.full(len(frames), index), frames, times[frames]], 1))
            sizes += [size] * len(frames)
            advance(1)
    rows = VideoFrames(videos, np.concatenate(parts).astype(np.int64))
    stem = videos[0].stem if len(videos) == 1 else videos[0].parent.name
    return divide(stem, ArchiveImages(rows, torch.tensor(sizes)), None, None, [])


def _index(av: ModuleType, video: Path) -> tuple[np.ndarray, tuple[int, int], float]:
    """Times of all frames in order, their height and width, and frames per second; nothing is decoded."""
    try:
        check_regular(video)
        with av.open(str(video), metadata_errors="ignore") as container:
            if not container.streams.video:
                raise ValueError("it has no pictures")
            stream = container.streams.video[0]
            times = sorted({packet.pts for packet in container.demux(stream) if packet.pts is not None})
            height, width = stream.codec_context.height, stream.codec_context.width
            if not times or not height or not width:
                raise ValueError("it has no frames")
            return np.array(times, np.int64), (height, width), float(stream.average_rate or 1)
    except Stopped:
        raise
    except Exception as error:  # damaged videos raise anything: InvalidDataError, ValueError, UnicodeDecodeError …
        raise RequestError(f"{video} is not a video that can be read: {describe(error)}") from None
