"""One page to browse images by their features: a file of its own, or a server on this machine.

collection.py  the images with their features, pictures and tags    page.py    a page as HTML (browse.html, *.css, *.js)
analysis.py    map, clusters, neighbors, groups                     server.py  pictures, searches, tags and copies
pictures.py    thumbnails and whole pictures                        tags.py    tags in a CSV file
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from effssl.browsing.collection import open_collection
from effssl.browsing.views import ViewOptions
from effssl.explore.embedding import FeaturesLike
from effssl.explore.encoder import EncoderLike, FeatureOptions
from effssl.runtime.errors import RequestError
from effssl.runtime.files import check_output, write_atomically

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["ViewOptions", "browse"]


def browse(
    run: EncoderLike | None = None,
    data: str | Path | None = None,
    out: str | Path | None = None,
    *,
    features: FeaturesLike | None = None,
    views: ViewOptions | None = None,
    tags: str | Path | None = None,
    **options: Unpack[FeatureOptions],
) -> Path:
    """Write one page to browse images: map, clusters, neighbors, duplicates, outliers, a subset; it may exist.

    `effssl browse RUN` without `--out` opens the same page with a local server, which adds searches by a new picture.
    """
    if out is None:
        raise RequestError("which file? out='page.html'; effssl browse without --out opens a page with a server")
    path = Path(out).expanduser()
    check_output(path, overwrite=True)
    collection = open_collection(run, data, features, tags, options)
    write_atomically(path, collection.file(views or ViewOptions()))
    return path
