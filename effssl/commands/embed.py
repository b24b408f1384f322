"""effssl embed: features of every image in a file."""

from __future__ import annotations

from dataclasses import dataclass

from effssl.commands.image_source import ImageSource
from effssl.commands.one_line import parse_command
from effssl.runtime.errors import RequestError, Stopped


@dataclass(frozen=True)
class EmbedOptions(ImageSource):
    """Features of every image, with its path and label, in a file for other tools.

    After an interruption, the same command resumes. Images that cannot be read are counted and listed.
    """

    out: str = ""
    """file to write: .parquet (needs pyarrow), .npz or .csv"""


def embed_(args: list[str]) -> None:
    """Parse the command line and write a feature file."""
    options = parse_command(EmbedOptions, args, "effssl embed")
    if not options.out:
        raise RequestError("which file to write? --out features.parquet, .npz or .csv")
    if not options.run:
        raise RequestError("which encoder? effssl embed RUN --out FILE")
    from effssl.explore.embedding import embed_file

    try:
        path, metadata, count = embed_file(
            options.run, options.data or None, options.out, overwrite=options.overwrite, **options.feature_options()
        )
    except KeyboardInterrupt:
        raise Stopped("stopped; the same command resumes") from None
    unreadable = f", {len(metadata.unreadable)} could not be read" if metadata.unreadable else ""
    print(f"{path}: {count} images × {metadata.dim} features{unreadable}   next: effssl outliers --features {path}")
