"""effssl browse: one page to look through images by their features."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from effssl.commands.image_source import ExploreOptions
from effssl.commands.one_line import parse_command
from effssl.runtime.errors import RequestError
from effssl.runtime.files import check_output, write_atomically

if TYPE_CHECKING:
    from effssl.browsing.collection import Collection
    from effssl.browsing.views import ViewOptions


@dataclass(frozen=True)
class BrowseOptions(ExploreOptions):
    """One page of all images: map, clusters, neighbors, duplicates, outliers, a subset; search, select, tag, export.

    Without --out, the page is opened with a server that only this machine can reach; Ctrl-C ends it.
    """

    features: str = ""
    """file of an earlier effssl embed; then RUN is only needed to search by a new picture"""
    out: str = ""
    """write the page to this .html file, which needs no server, and exit"""
    tags: str = ""
    """CSV file of tags (columns file, label), read at the start; the server saves tags there"""
    threshold: float = 0.97
    """cosine similarity from which on two images are candidates for duplicates"""
    size: int = 100
    """images of the diverse subset, at most"""
    top: int = 100
    """outliers, at most"""
    port: int = 0
    """of the server; 0 is any free one"""
    open: bool = True
    """open the page in a browser"""


def browse_(args: list[str]) -> None:
    """Parse the command line, compute the page, and write or serve it."""
    options = parse_command(BrowseOptions, args, "effssl browse")
    out = Path(options.out).expanduser() if options.out else None
    if out is not None and out.suffix != ".html":
        raise RequestError(f"--out is {options.out}; the page is an .html file")
    if out is not None:
        check_output(out, options.overwrite)
    if not options.run and not options.features:
        raise RequestError("which encoder? effssl browse RUN, or --features with a file of effssl embed")
    if not 0 <= options.port <= 65535:
        raise RequestError(f"--port is {options.port}; it must be between 0 and 65535")
    from effssl.browsing.collection import open_collection
    from effssl.browsing.views import ViewOptions

    views = ViewOptions(options.threshold, options.size, options.top)
    collection = open_collection(**options.source(), tags=options.tags or None, options=options.feature_options())
    if out is None:
        _serve(collection, views, options)
        return
    write_atomically(out, collection.file(views))
    print(f"written: {options.out} ({out.stat().st_size / 1e6:.1f} MB, {len(collection.embedding)} images)")


def _serve(collection: Collection, views: ViewOptions, options: BrowseOptions) -> None:
    from effssl.browsing.server import PageServer, Service

    tags = Path(options.tags).expanduser() if options.tags else None
    values = collection.values(views, server=True, saves=str(tags) if tags else "")
    with PageServer(Service(collection, values, tags), options.port) as server:
        print(f"{server.url}   (on this machine only; Ctrl-C ends it)", flush=True)
        if options.open:
            _open_browser(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("ended")


def _open_browser(url: str) -> None:
    """Open a page where there is a screen; a browser for the terminal would take it over."""
    import webbrowser

    if sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(url)
