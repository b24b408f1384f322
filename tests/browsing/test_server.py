"""The server: this machine only, with its token, images of the data set only, nothing written but what was asked."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from effssl.browsing.collection import open_collection
from effssl.browsing.server import PageServer, Service
from effssl.browsing.tags import write_tags
from effssl.browsing.views import ViewOptions
from effssl.explore.labels import Names
from tests.browsing.conftest import EVIL

OPTIONS: Any = {"weights": "random", "image_size": 32, "workers": 0, "labels": "folders"}


@pytest.fixture
def tags(tmp_path: Path) -> Path:
    path = tmp_path / "labels.csv"
    path.write_text("file,label,by\nflower/01.png,,me\nchina/00.png,old,you\n")
    return path


@pytest.fixture
def server(album: Path, features: Path, tags: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tags.parent)
    collection = open_collection("small", album, features, tags, OPTIONS)
    service = Service(collection, collection.values(ViewOptions(), server=True, saves=str(tags)), tags)
    with PageServer(service) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()

        def ask(path: str, body: bytes | None = None, **headers: str) -> Any:
            """Send a request below the token, or with a leading slash anywhere; its status, type and content."""
            connection = http.client.HTTPConnection(*running.server_address[:2], timeout=20)
            where = path if path.startswith("/") else f"/{running.token}/{path}"
            connection.request("GET" if body is None else "POST", where, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            return SimpleNamespace(
                status=answer.status, kind=answer.headers["Content-Type"], headers=answer.headers, content=content
            )

        yield SimpleNamespace(ask=ask, url=running.url, running=running, names=collection.names)
        running.shutdown()


def test_it_listens_on_this_machine_only_and_needs_its_token(server: Any) -> None:
    assert server.running.server_address[0] == "127.0.0.1"
    assert server.url.startswith("http://127.0.0.1:")
    assert len(server.running.token) >= 40
    page = server.ask("")
    assert page.status == 200
    assert page.kind.startswith("text/html")
    assert b'id="data"' in page.content
    for path in (
        "/",
        "/thumb/0",
        f"/{server.running.token[:-1]}/",
        f"/{server.running.token}",
        "/x/thumb/0",
        "//[",
        "/%C3%A9/thumb/0",
    ):
        answer = server.ask(path)
        assert (answer.status, answer.content) == (404, b'{"error": "not found"}')
    assert server.ask("", Host="elsewhere.example").status == 404
    assert server.ask("tags", b"{}", Origin="http://elsewhere.example").status == 404
    assert server.ask("tags", b"{}", Origin="null").status == 404


def test_it_serves_images_of_the_data_set_only(server: Any, album: Path, tags: Path) -> None:
    row = next(i for i, name in enumerate(server.names.names) if name.endswith(EVIL))
    whole, small = server.ask(f"image/{row}"), server.ask(f"thumb/{row}?side=64")
    assert whole.content == (album / "china" / EVIL).read_bytes()
    assert (whole.kind, small.kind) == ("image/png", "image/webp")
    assert "default-src 'none'" in whole.headers["Content-Security-Policy"]
    assert whole.headers["X-Content-Type-Options"] == "nosniff"
    count = len(server.names.names)
    bad = [f"image/{count}", "image/-1", "image/", "image/0/..", "image/../labels.csv", "image/%2e%2e%2flabels.csv"]
    bad += ["image/..%2f..%2fetc%2fpasswd", "../../etc/passwd", "labels.csv", "etc/0", "image/%D9%A3", "image/1e0"]
    for place in bad:
        assert server.ask(place).status == 404
    file = Path(server.names.names[3])
    content = file.read_bytes()
    try:
        file.write_text("<script>no image any more</script>")
        assert server.ask("image/3").status == 404
        assert server.ask("thumb/3").status == 404
    finally:
        file.write_bytes(content)
    for side in ("0", "99999", "x", "-5", "%D9%A3"):
        assert server.ask(f"thumb/0?side={side}").status == 200


def test_search_by_a_picture(server: Any, album: Path) -> None:
    found = server.ask("search", (album / "flower/noise.png").read_bytes())
    assert found.status == 200
    values = json.loads(found.content)
    assert server.names.names[values["rows"][0]].endswith("noise.png")
    assert values["similarity"][0] == pytest.approx(1, abs=1e-4)
    wrong = server.ask("search", b"no picture")
    assert wrong.status == 400
    assert "not a picture that can be read" in json.loads(wrong.content)["error"]


def test_copies_go_to_a_new_folder_and_nowhere_else(server: Any, album: Path, tmp_path: Path) -> None:
    row = next(i for i, name in enumerate(server.names.names) if name.endswith(EVIL))

    def copy(rows: Any, folder: str) -> tuple[int, dict]:
        answer = server.ask("copy", json.dumps({"rows": rows, "folder": folder}).encode())
        return answer.status, json.loads(answer.content)

    assert copy([row, 0], "chosen")[0] == 200
    assert (tmp_path / "chosen/china" / EVIL).read_bytes() == (album / "china" / EVIL).read_bytes()
    before = sorted(tmp_path.rglob("*"))
    for rows, folder, expected in (
        ([0], "chosen", "is not empty"), ([0], "", "which folder?"), ([9999], "new", "not numbers of images"),
        (["0"], "new", "not numbers of images"), ([], "new", "which folder?"), ([0], "labels.csv", "is not a folder"),
    ):  # fmt: skip
        status, answer = copy(rows, folder)
        assert status == 400
        assert expected in answer["error"]
    assert sorted(tmp_path.rglob("*")) == before
    for body in (b"", b"[]", b"{", b"null", b'{"rows": 3}'):
        assert server.ask("copy", body).status == 400


def test_tags_are_saved_beside_what_the_file_holds(server: Any, tags: Path) -> None:
    rows = {name: row for row, name in enumerate(map(server.names.relative, server.names.names))}
    given = {str(rows["flower/01.png"]): "rose, red", str(rows["china/03.png"]): "temple"}
    assert server.ask("tags", json.dumps(given).encode()).status == 200
    assert tags.read_text() == 'file,label,by\nflower/01.png,"rose, red",me\nchina/00.png,,you\nchina/03.png,temple,\n'
    for body in (b"[1]", b'{"x": "y"}', b'{"9999": "y"}'):
        assert server.ask("tags", body).status == 400
    assert "temple" in tags.read_text()


def test_tags_are_written_into_the_column_of_files_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("path,label\nb.png,old\n")
    write_tags(path, {0: "new", 1: "old"}, Names("", ["a.png", "b.png"]))
    assert path.read_text() == "path,label\nb.png,old\na.png,new\n"
