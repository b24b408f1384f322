"""Files that anybody may have written: whatever bytes they hold, a reader raises OSError or ValueError of one line."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.lib.npyio import NpzFile

LINE = 200  # characters of an error or a value that a message repeats
MEMORY = 1 << 28  # bytes that an archive may always unpack to: more take seconds
EXPANSION = 100  # how many times its own size beyond that


def one_line(text: object, length: int = LINE) -> str:
    """Text for a message: without line breaks, and without its middle if it is long.

    >>> one_line("a\\n b" + "c" * 20, 10)
    'a bcc … cc'
    """
    line = " ".join(str(text).split())
    return line if len(line) <= length else f"{line[: length // 2]} … {line[-(length // 2 - 3) :]}"


def describe(error: BaseException) -> str:
    """What an error says, or its kind where it says nothing."""
    return one_line(getattr(error, "strerror", None) or error) or type(error).__name__


def check_regular(path: Path) -> None:
    """Refuse what is not a file: reading a pipe would wait forever, and a device has no end."""
    try:
        mode = os.stat(path).st_mode
    except ValueError as error:  # a null character in its name
        raise OSError(f"{one_line(repr(str(path)))}: {error}") from None
    if not stat.S_ISREG(mode):
        raise OSError(f"{path} is not a regular file")


def read_bytes(path: Path) -> bytes:
    """All of a regular file."""
    check_regular(path)
    return path.read_bytes()


def read_start(path: Path, length: int) -> bytes:
    """The first bytes of a regular file; nothing of one that cannot be read."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            return file.read(length)
    except OSError:
        return b""


def read_text(path: Path) -> str:
    """All of a regular file, which holds UTF-8."""
    return read_bytes(path).decode("utf-8")  # its error is a ValueError


def parse_json(text: str | bytes) -> Any:
    """What a JSON text holds."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path) -> Any:
    """What a JSON file holds."""
    return parse_json(read_text(path))


def read_array(path: Path) -> np.ndarray:
    """The array of an .npy file; Python objects, which could run code, are refused."""
    return _load_array(path, None)


def map_array(path: Path) -> np.ndarray:
    """The same without reading it: its values are read from the file when they are needed."""
    import numpy as np

    return np.asarray(_load_array(path, "r"))  # a plain view: indexing it is quicker


def _load_array(path: Path, mode: Literal["r"] | None) -> np.ndarray:
    import numpy as np

    check_regular(path)
    try:
        content = np.load(path, mode, allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # a damaged header raises anything: SyntaxError, TypeError, MemoryError …
        raise ValueError(describe(error)) from None
    if not isinstance(content, np.ndarray):
        raise ValueError("it is an .npz archive, not a single array")
    return content


def _size_of(source: Path | bytes) -> int:
    return len(source) if isinstance(source, bytes) else source.stat().st_size


def _check_unpacked(unpacked: int, packed: int) -> None:
    """Refuse, with a ValueError, an archive that a few bytes make fill the memory."""
    if unpacked > max(MEMORY, EXPANSION * packed):
        raise ValueError(f"its {packed:,} bytes unpack to {unpacked:,}, more than {EXPANSION} times as many")


def checked_text(array: np.ndarray) -> np.ndarray:
    """The array; ValueError if it holds text of characters that there are none: using it would end in a SystemError."""
    if array.dtype.kind == "U" and array.size:
        import numpy as np

        characters = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))).reshape(-1).view(np.uint32)
        if characters.max(initial=0) > sys.maxunicode:
            raise ValueError("its text has characters that there are none")
    return array


def check_archive(archive: zipfile.ZipFile, packed: int) -> None:
    """Refuse, with a ValueError, a zip archive of `packed` bytes whose members together would fill the memory."""
    _check_unpacked(sum(member.file_size for member in archive.infolist()), packed)


def check_weight_archive(source: Path | bytes) -> None:
    """The same for a file of torch.save, which may be something else than an archive."""
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    if not zipfile.is_zipfile(file):
        return
    try:
        with zipfile.ZipFile(file) as archive:
            check_archive(archive, _size_of(source))
    except OSError:
        raise
    except Exception as error:  # a damaged directory raises anything: BadZipFile, struct.error, UnicodeDecodeError …
        raise ValueError(describe(error)) from None


@contextmanager
def opened_arrays(source: Path | bytes) -> Iterator[NpzFile]:
    """An .npz file whose arrays can be read: none is of Python objects, and together they do not fill the memory."""
    import numpy as np

    if isinstance(source, Path):
        check_regular(source)
    content = np.load(io.BytesIO(source) if isinstance(source, bytes) else source, allow_pickle=False)
    if isinstance(content, np.ndarray):
        raise ValueError("it is a single array, not an .npz archive")
    with content as file:
        check_archive(file.zip, _size_of(source))
        yield file


def read_arrays(source: Path | bytes) -> dict[str, np.ndarray]:
    """All arrays of an .npz file by name; arrays of Python objects, which could run code, are refused."""
    import numpy as np

    try:
        with opened_arrays(source) as file:
            return {name: checked_text(np.asarray(file[name])) for name in file.files}
    except OSError:
        raise
    except Exception as error:  # damaged archives raise anything: zlib.error, RuntimeError, SyntaxError, MemoryError …
        raise ValueError(describe(error)) from None
