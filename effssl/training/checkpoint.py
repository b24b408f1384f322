"""Checkpoints: written beside, synced, renamed; each carries a checksum, and the one before stays."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from pathlib import Path
from typing import Any

import torch

from effssl.runtime.errors import RequestError, RunFailed
from effssl.runtime.files import atomic_path, link_atomically, write_synced
from effssl.runtime.progress import say
from effssl.runtime.reading import check_weight_archive, describe, one_line, read_bytes

DIGEST = 32  # bytes of SHA-256 in front of the content


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Store a state; the file that was there becomes `….previous.pt`."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    # Only when the new one is complete on the disk does the old one step aside.
    with atomic_path(path) as temporary:
        write_synced(temporary, checksum(content) + content)
        if path.exists():
            link_atomically(path, previous(path))


def previous(path: Path) -> Path:
    """Where the checkpoint before this one is kept."""
    return path.with_name("checkpoint.previous.pt")


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """The newest good state, or None if there is no checkpoint; a damaged one is skipped, saying so."""
    found = [candidate for candidate in (path, previous(path)) if candidate.exists()]
    for candidate in found:
        try:
            content = read_bytes(candidate)
        except OSError as error:
            say(f"the checkpoint cannot be read: {one_line(error)}")
            continue
        if not _whole(content):
            say(f"{candidate} is damaged (its checksum does not fit)")
            continue
        try:
            check_weight_archive(content[DIGEST:])
            state = torch.load(io.BytesIO(content[DIGEST:]), map_location="cpu", weights_only=True)
            if isinstance(state, dict):
                return state
            say(f"{candidate} does not hold the state of a run")
        except pickle.UnpicklingError:
            say(f"{candidate} holds more than weights and numbers and is not loaded: it could run code")
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, EOFError) as error:
            say(f"{candidate} is not a checkpoint: {describe(error)}")
    if found:
        raise RunFailed(f"no good checkpoint in {path.parent}; start again in another folder")
    return None


def evaluated_weights(state: dict[str, Any]) -> dict[str, Any]:
    """The objective's weights of a state as they are evaluated: averaged ones, if the run has them."""
    weights, average = state.get("objective"), state.get("average") or {}
    if not isinstance(weights, dict) or not isinstance(average, dict):
        raise RequestError("the checkpoint does not hold the state of a run")
    return weights | average


def set_aside_damaged(path: Path) -> None:
    """Rename a damaged checkpoint, so that it does not become the one before the next."""
    if path.is_file() and not _whole(path.read_bytes()):
        os.replace(path, path.with_name("checkpoint.damaged.pt"))


def checksum(content: bytes) -> bytes:
    """What stands in front of a checkpoint's content."""
    return hashlib.sha256(content).digest()


def _whole(content: bytes) -> bool:
    return checksum(content[DIGEST:]) == content[:DIGEST]
