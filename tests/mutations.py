"""Damaged files: bytes as a bad disk or a careless hand leaves them, and whole files that hold odd values.

Flipped bytes rarely pass the checksum of a container, so that what is behind it would never be tried: archives, arrays,
weights and JSON are also taken apart, one of their parts is replaced, and they are written again as they should be.
"""

from __future__ import annotations

import io
import json
import math
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from effssl.training.checkpoint import DIGEST, checksum

TOKENS = (
    b"nan", b"-1", b"1e400", b"[]", b"{}", b"null", b'"', b"\x00", b"\xff\xfe", b"9" * 400, b"[" * 2000, b"!!int a",
    b"\n", b",", b"../", b": ", b"\x80", b"PK\x03\x04",
)  # fmt: skip
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 10**30, 0.5, math.nan, math.inf, "", "x", "a\nb", "a\0b", "../../etc/passwd", "9" * 400, [], {},
    [[]], {"x": 1}, [None] * 3, "\udcff", [1, "a"], -(2**63), 2**31,
)  # fmt: skip
BOMB = 3 << 30  # bytes that an archive unpacks to
BOMBS = 0.05  # share of the archives that are taken apart


def mutated(name: str, content: bytes, dice: random.Random) -> bytes:
    """The content of a file of this name with some damage."""
    inside = INSIDE.get(Path(name).suffix)
    if inside is not None and dice.random() < 0.5:
        return inside(content, dice)
    return mutated_bytes(content, dice)


def mutated_bytes(content: bytes, dice: random.Random) -> bytes:
    """The content with some bytes flipped, cut, repeated, or replaced by what parsers dislike."""
    data = bytearray(content)
    for _ in range(dice.choice((1, 1, 2, 8))):
        at = dice.randrange(len(data) + 1)
        kind = dice.randrange(5)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            data[at : at + dice.randrange(1, 9)] = dice.choice(TOKENS)
        elif kind == 3:
            data[at:at] = data[at : at + dice.randrange(1, 64)]
        else:
            data[at : at + 4] = dice.randbytes(4)
    return bytes(data)


# ---------------------------------------------------------------------------------------------------------------
# Values


def odd_value(value: Any, dice: random.Random) -> Any:
    """A nested value with one of its parts, or all of it, replaced, missing, or under another name."""
    if isinstance(value, dict) and value and dice.random() < 0.9:
        key = dice.choice(list(value))
        kind = dice.randrange(6)
        if kind == 0:
            return {k: v for k, v in value.items() if k != key}
        if kind == 1:
            return value | {dice.choice(("x", "", "a.b")): dice.choice(ODD)}
        return value | {key: odd_value(value[key], dice)}
    if isinstance(value, list) and value and dice.random() < 0.9:
        at, kind = dice.randrange(len(value)), dice.randrange(6)
        if kind == 0:
            return value[:at]
        if kind == 1:
            return value + value
        return [*value[:at], odd_value(value[at], dice), *value[at + 1 :]]
    if isinstance(value, np.ndarray):
        return odd_array(value, dice)
    if isinstance(value, torch.Tensor):
        return odd_tensor(value, dice)
    return dice.choice(ODD)


def odd_array(array: np.ndarray, dice: random.Random) -> np.ndarray:
    """An array of another shape, type or with other values."""
    kind = dice.randrange(8)
    if kind == 0:
        return array[:0] if array.ndim else np.array([])
    if kind == 1:
        return array.reshape(-1)[: dice.randrange(array.size + 1)]
    if kind == 2:
        return array[..., None]
    if kind == 3:
        return array.astype(dice.choice(("S3", "U3", "O"))) if array.dtype.kind != "c" else array
    if kind == 4:
        return np.full(array.shape, dice.choice((math.nan, -math.inf, -1.0, 1e300)))
    if kind == 5:
        return np.full(array.shape, dice.choice((-1, 2**62, 2**31, 0)), np.int64)
    if kind == 6:
        return np.array(dice.choice((0, "x", 1j, b"\xff")))
    return np.concatenate([array, array]) if array.ndim else array


def odd_tensor(tensor: torch.Tensor, dice: random.Random) -> Any:
    """A tensor that is no plain one of real numbers, has another shape, or is none."""
    kind = dice.randrange(9)
    if kind == 0:
        return tensor.to_sparse() if tensor.ndim else tensor
    if kind == 1:
        return tensor.to("meta")
    if kind == 2:
        return tensor.to(torch.complex64)
    if kind == 3:
        return torch.full_like(tensor, math.nan) if tensor.is_floating_point() else tensor - 10**6
    if kind == 4:
        return tensor.reshape(-1)[:-1]
    if kind == 5:
        return tensor[None]
    if kind == 6:
        return tensor.to(dice.choice((torch.bool, torch.float16, torch.int64, torch.float64)))
    if kind == 7:
        return torch.empty(0)
    return dice.choice(ODD)


# ---------------------------------------------------------------------------------------------------------------
# Files that are taken apart and written again


def _json(content: bytes, dice: random.Random) -> bytes:
    lines = content.decode().splitlines() if content.count(b"\n{") else [content.decode()]
    at = dice.randrange(len(lines))
    lines[at] = json.dumps(odd_value(json.loads(lines[at]), dice))
    return ("\n".join(lines) + "\n").encode()


def _yaml(content: bytes, dice: random.Random) -> bytes:
    lines = content.decode().splitlines()
    at = dice.randrange(len(lines))
    key = lines[at].partition(":")[0]
    lines[at] = f"{key}: {json.dumps(dice.choice(ODD))}" if dice.random() < 0.8 else dice.choice(lines)
    return "\n".join(lines).encode()


def _arrays(content: bytes, dice: random.Random) -> bytes:
    if dice.random() < BOMBS:
        return _bomb(content, dice)
    if dice.random() < 0.3:
        return _zip(content, dice)
    with np.load(io.BytesIO(content)) as file:
        arrays = odd_value({name: file[name] for name in file.files}, dice)
    buffer = io.BytesIO()
    if isinstance(arrays, dict):
        np.savez(buffer, **{name or "arr": np.asarray(value, _kind(value)) for name, value in arrays.items()})
    return buffer.getvalue()


def _bomb(content: bytes, dice: random.Random) -> bytes:
    """A few megabytes of which one member, after a header as arrays have it, unpacks to gigabytes of zeros."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        members = [(info.filename, file.read(info)) for info in file.infolist()]
    at = dice.randrange(len(members))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for number, (name, data) in enumerate(members):
            if number == at:
                write_zeros(file, name, dice.choice((BOMB, BOMB // 16)))
            else:
                file.writestr(name, data)
    return buffer.getvalue()


def write_zeros(archive: zipfile.ZipFile, name: str, size: int) -> None:
    """Add an array of so many zeros, compressed, without holding them."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (size,)})
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    first = packer.compress(header.getvalue()) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)  # does not depend on what is before it
    count = size >> 20
    packed = first + block * count + packer.flush()
    member = zipfile.ZipInfo(name)
    member.compress_type = zipfile.ZIP_DEFLATED
    member.compress_size, member.file_size = len(packed), len(header.getvalue()) + (count << 20)
    member.CRC = 0  # never reached
    member.header_offset = archive.start_dir
    archive.fp.seek(archive.start_dir)  # type: ignore[union-attr]
    archive.fp.write(member.FileHeader(False) + packed)  # type: ignore[union-attr]
    archive.start_dir = archive.fp.tell()  # type: ignore[union-attr]
    archive.filelist.append(member)
    archive.NameToInfo[name] = member
    archive._didModify = True  # type: ignore[attr-defined]


def _kind(value: Any) -> Any:
    return object if isinstance(value, (list, dict)) or value is None or isinstance(value, int) else None


def _array(content: bytes, dice: random.Random) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, odd_array(np.load(io.BytesIO(content)), dice))
    return buffer.getvalue()


def _zip(content: bytes, dice: random.Random) -> bytes:
    """One member damaged, with the checksum of what it is now."""
    if dice.random() < BOMBS:
        return _bomb(content, dice)
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        members = [(info.filename, file.read(info)) for info in file.infolist()]
    at = dice.randrange(len(members))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", dice.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as file:
        for number, (name, data) in enumerate(members):
            file.writestr(name, mutated_bytes(data, dice) if number == at else data)
    return buffer.getvalue()


def _saved(content: bytes, dice: random.Random) -> bytes:
    if dice.random() < BOMBS:
        return _bomb(content, dice)
    if dice.random() < 0.3:
        return _zip(content, dice)
    buffer = io.BytesIO()
    torch.save(odd_value(torch.load(io.BytesIO(content), weights_only=True), dice), buffer)
    return buffer.getvalue()


def _checkpoint(content: bytes, dice: random.Random) -> bytes:
    inside = _saved(content[DIGEST:], dice)
    return checksum(inside) + inside


def _safetensors(content: bytes, dice: random.Random) -> bytes:
    """Another header, with the length of what it is now; in half of them without the digest of the content."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    about = json.loads(header["__metadata__"]["effssl"])
    if dice.random() < 0.5:
        about.pop("digest", None)
    if dice.random() < 0.7:
        about = odd_value(about, dice)
        header["__metadata__"]["effssl"] = json.dumps(about)
    else:
        header = odd_value(header, dice)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


def _png(content: bytes, dice: random.Random) -> bytes:
    """A chunk damaged, with the checksum of what it is now."""
    chunks, at = [], 8
    while at + 12 <= len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        chunks.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + length]))
        at += 12 + length
    chosen = dice.randrange(len(chunks))
    out = content[:8]
    for number, (kind, data) in enumerate(chunks):
        data = mutated_bytes(data, dice) if number == chosen else data
        out += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return out


INSIDE: dict[str, Callable[[bytes, random.Random], bytes]] = {
    ".json": _json, ".jsonl": _json, ".yaml": _yaml, ".npz": _arrays, ".npy": _array, ".zip": _zip, ".pth": _saved,
    ".pt": _checkpoint, ".safetensors": _safetensors, ".png": _png,
}  # fmt: skip
