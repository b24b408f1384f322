"""The images that are browsed: their features, pictures and tags."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from effssl.browsing.analysis import analyze
from effssl.browsing.page import analysis_values, image_values, render_browse, with_thumbnails
from effssl.browsing.pictures import Pictures
from effssl.browsing.tags import read_tags
from effssl.browsing.views import MOST, ViewOptions
from effssl.explore.embedding import FeaturesLike, embed, load_embedding
from effssl.explore.encoder import EncoderLike, FeatureOptions, encoder_digest, open_encoder, own_data
from effssl.explore.feature_files import Embedding
from effssl.explore.gallery import open_gallery
from effssl.explore.labels import Names
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.device import pick_device
from effssl.runtime.errors import RequestError


@dataclass(frozen=True)
class Collection:
    """Images with features, and perhaps the encoder that computes those of a new picture."""

    title: str
    embedding: Embedding
    plain: Embedding  # features without whitening, by which duplicates are judged
    encoder: LoadedEncoder | None
    pictures: Pictures
    names: Names
    tags: dict[int, str]
    data: str | None
    device: str

    def values(self, views: ViewOptions, server: bool = False, saves: str = "") -> dict[str, Any]:
        """All values of the page but thumbnails; `saves` is the file in which a server saves tags."""
        analysis = analyze(self.embedding, self.plain, views, pick_device(self.device))
        about = self.embedding.metadata
        found = image_values(self.names, self.embedding.labels, self.pictures) | analysis_values(analysis)
        return found | {
            "title": self.title,
            "about": f"{about.encoder} encoder, {about.dim} features" if about else "",
            "unreadable": len(about.unreadable) if about else 0,
            "server": server,
            "saves": saves,
            "query": server and self.encoder is not None,
            **tag_values(self.tags),
        }

    def file(self, views: ViewOptions) -> bytes:
        """The page as one file that needs no server."""
        return render_browse(*with_thumbnails(self.values(views), self.pictures))


def tag_values(tags: dict[int, str]) -> dict[str, Any]:
    """Tags as the page has them."""
    return {"tags": {str(row): tag for row, tag in tags.items()}}


def open_collection(
    run: EncoderLike | None,
    data: str | Path | None,
    features: FeaturesLike | None,
    tags: str | Path | None,
    options: FeatureOptions,
) -> Collection:
    """Compute or read the features; with `features`, the run is only needed for new pictures, the data for pixels."""
    if features is None and data is None:
        data = own_data(run)
    gallery = open_gallery(data, options.get("labels", "auto")) if data is not None else None
    if gallery is not None:  # what cannot work is refused before anything slow
        _check_count(len(gallery))
        if tags:
            read_tags(Path(tags).expanduser(), Names.of(gallery.names + gallery.unreadable, data))
    encoder = open_encoder("" if run is None else run, options) if features is None or run is not None else None
    if features is None:
        assert encoder is not None
        assert data is not None
        embedding = plain = embed(encoder, data, **options)
        if (without := encoder.without_whitening()) is not encoder:
            plain = embed(without, data, **options)
    else:
        embedding = plain = load_embedding(None, None, features, options)
        _check_encoder(embedding, encoder)
        _check_count(len(embedding))
    names = Names.of(embedding.names, data)
    known = read_tags(Path(tags).expanduser(), names) if tags else {}
    title = Path(str(data)).name if data is not None else Path(names.root).name or "images"
    source = None if data is None else str(data)
    pictures = Pictures.of(embedding.names, gallery)
    return Collection(title, embedding, plain, encoder, pictures, names, known, source, options.get("device", "auto"))


def _check_count(count: int) -> None:
    if count > MOST:
        raise RequestError(f"{count} images are too many for a page, which takes {MOST}; browse a folder of fewer")


def _check_encoder(embedding: Embedding, encoder: LoadedEncoder | None) -> None:
    if encoder and embedding.metadata and embedding.metadata.encoder_digest != encoder_digest(encoder):
        raise RequestError("the features are of another encoder than RUN; compute them again, or leave out RUN")
