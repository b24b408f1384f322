"""A server for one page on this machine: pictures of the data set, searches by a new picture, copies, tags.

It listens on the loopback address only; a request needs the token in the page's address and names images by number.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from effssl.browsing.collection import Collection, tag_values
from effssl.browsing.page import render_browse
from effssl.browsing.tags import write_tags
from effssl.data.image_files import opened, upright_rgb
from effssl.explore.copies import check_copies, copy_images
from effssl.explore.neighbors import neighbors
from effssl.runtime.errors import RequestError
from effssl.runtime.reading import describe, parse_json

LOOPBACK = "127.0.0.1"
HOSTS = (LOOPBACK, "localhost")  # a page elsewhere whose name leads here is refused
LARGEST_PICTURE, LARGEST_TEXT = 100 << 20, 64 << 20  # bytes of a request
MOST_PIXELS = 50_000_000  # of a picture that is searched by
LARGEST_SIDE = 640  # pixels of a thumbnail
FOUND = 60  # images that a search shows
LONGEST_TAG = 200
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
NO_CODE = "default-src 'none'; style-src 'unsafe-inline'; sandbox"  # of everything but the page, whose head has its own


@dataclass(frozen=True)
class Answer:
    """What a request gets."""

    content: bytes
    kind: str
    status: HTTPStatus = HTTPStatus.OK
    cached: bool = False


def as_json(value: Any, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    """A value for the page's script."""
    return Answer(json.dumps(value).encode(), "application/json", status)


@dataclass(frozen=True)
class Service:
    """What the page can ask for."""

    collection: Collection
    values: dict[str, Any]  # of the page
    file: Path | None = None  # where tags are saved
    lock: threading.Lock = field(default_factory=threading.Lock)  # one search or change at a time

    def get(self, place: str, query: dict[str, list[str]]) -> Answer | None:
        """The page, a thumbnail or an image; None for anything else."""
        what, _, number = place.partition("/")
        if place == "":
            return Answer(render_browse(self.values | tag_values(self.collection.tags)), "text/html; charset=utf-8")
        if not (number.isascii() and number.isdigit() and int(number) < len(self.collection.embedding)):
            return None
        try:
            if what == "thumb":
                side = query.get("side", ["128"])[0]
                pixels = min(LARGEST_SIDE, max(16, int(side))) if side.isascii() and side.isdigit() else 128
                return Answer(self.collection.pictures.thumbnail(int(number), pixels), "image/webp", cached=True)
            if what == "image":
                return Answer(*self.collection.pictures.whole(int(number)))
        except OSError:  # moved, deleted, damaged
            return None
        return None

    def post(self, place: str, body: bytes) -> Answer | None:
        """A search, a copy, new tags; None for anything else."""
        actions: dict[str, Callable[[bytes], Any]] = {"search": self._search, "copy": self._copy, "tags": self._save}
        if place not in actions:
            return None
        try:
            with self.lock:
                return as_json(actions[place](body))
        except (RequestError, OSError, ValueError, KeyError, TypeError) as error:
            text = str(error) if isinstance(error, RequestError) else describe(error)
            return as_json({"error": text}, HTTPStatus.BAD_REQUEST)

    def _search(self, body: bytes) -> dict[str, Any]:
        """The images most similar to a picture."""
        collection = self.collection
        if collection.encoder is None:
            raise RequestError("search by a new picture needs RUN, the encoder that computed the features")
        try:
            with opened(body) as file:
                if file.width * file.height > MOST_PIXELS:
                    raise RequestError(
                        f"{file.width}×{file.height} pixels are too many to search by; use a smaller one"
                    )
                picture = upright_rgb(file)
        except OSError:
            raise RequestError("this is not a picture that can be read (JPEG, PNG, WebP, BMP, GIF, TIFF)") from None
        found = neighbors(collection.encoder, query=picture, features=collection.embedding, k=FOUND)[0].found
        rows = {name: row for row, name in enumerate(collection.embedding.names)}
        return {"rows": [rows[one.name] for one in found], "similarity": [one.similarity for one in found]}

    def _copy(self, body: bytes) -> dict[str, str]:
        """Copy files to a new or an empty folder."""
        asked = parse_json(body)
        rows, text = self._rows(asked["rows"]), str(asked["folder"]).strip()
        if not text or not rows:
            raise RequestError("which folder? a new or an empty one")
        folder = check_copies(text, overwrite=False)
        copy_images([self.collection.embedding.names[row] for row in rows], folder, self.collection.data)
        return {"folder": str(folder.resolve())}

    def _save(self, body: bytes) -> dict[str, int]:
        """Take over all tags, and save them if there is a file for that."""
        asked = parse_json(body)
        if not isinstance(asked, dict):
            raise RequestError("tags are a mapping")
        rows = self._rows([int(row) for row in asked])
        tags = {row: " ".join(str(tag).split())[:LONGEST_TAG] for row, tag in zip(rows, asked.values(), strict=True)}
        tags = {row: tag for row, tag in tags.items() if tag}
        if self.file is not None:
            write_tags(self.file, tags, self.collection.names)
        self.collection.tags.clear()
        self.collection.tags.update(tags)
        return {"tags": len(tags)}

    def _rows(self, values: Any) -> list[int]:
        count = len(self.collection.embedding)
        if not isinstance(values, list) or not all(type(row) is int and 0 <= row < count for row in values):
            raise RequestError("these are not numbers of images")
        return values


class PageServer(ThreadingHTTPServer):
    """A server of one page; `url` opens it."""

    daemon_threads = True

    def __init__(self, service: Service, port: int = 0) -> None:
        self.service, self.token = service, secrets.token_urlsafe(32)
        try:
            super().__init__((LOOPBACK, port), PageHandler)
        except (OSError, OverflowError) as error:
            raise RequestError(f"port {port} cannot be used ({describe(error)}); choose another --port") from None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that has closed its connection is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """The address of the page, with its token."""
        return f"http://{LOOPBACK}:{self.server_address[1]}/{self.token}/"


class PageHandler(BaseHTTPRequestHandler):
    """Requests with the right token from a page of this server."""

    protocol_version = "HTTP/1.1"
    server: PageServer
    timeout = 60

    def do_GET(self) -> None:
        """Answer a request for something."""
        place, query = self._place(), self.path.partition("?")[2]
        self._answer(None if place is None else self.server.service.get(place, parse_qs(query)))

    def do_POST(self) -> None:
        """Answer a request to do something."""
        place, length = self._place(), self.headers.get("Content-Length", "")
        most = LARGEST_PICTURE if place == "search" else LARGEST_TEXT
        if not (length.isascii() and length.isdigit()) or int(length) > most or self._foreign():
            self.close_connection = True  # its body is not read
            self._answer(None)
            return
        body = self.rfile.read(int(length))
        self._answer(None if place is None else self.server.service.post(place, body))

    def _place(self) -> str | None:
        """What is asked for below the token; None if the token or the host is another one."""
        host = (self.headers.get("Host") or "").rpartition(":")[0] or self.headers.get("Host")
        token, slash, place = self.path.partition("?")[0].removeprefix("/").partition("/")
        right = secrets.compare_digest(token.encode(), self.server.token.encode())
        return place if right and slash and host in HOSTS else None

    def _foreign(self) -> bool:
        """Whether a page from elsewhere has sent this."""
        origin = self.headers.get("Origin")
        return origin is not None and re.sub(r"^http://|:\d+$", "", origin) not in HOSTS

    def _answer(self, answer: Answer | None) -> None:
        found = answer or as_json({"error": "not found"}, HTTPStatus.NOT_FOUND)
        self.send_response(found.status)
        headers = HEADERS | {"Content-Type": found.kind, "Content-Length": str(len(found.content))}
        headers["Cache-Control"] = "private, max-age=3600" if found.cached else "no-store"
        if not found.kind.startswith("text/html"):
            headers["Content-Security-Policy"] = NO_CODE
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(found.content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
