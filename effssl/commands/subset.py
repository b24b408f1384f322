"""effssl subset: a diverse subset of many images."""

from __future__ import annotations

from dataclasses import dataclass

from effssl.commands.image_source import ExploreOptions
from effssl.commands.image_tables import SUFFIXES, check_table, show_table, write_table
from effssl.commands.one_line import parse_command


@dataclass(frozen=True)
class SubsetOptions(ExploreOptions):
    """A diverse subset for an overview: images that are as different from each other as possible.

    They are odd ones. To train a classifier, label images first that were drawn at random.
    """

    size: int = 0
    """number of images to choose"""
    seed: int = 0
    """of the first image"""
    out: str = ""
    """also write the table to this .csv or .json file, the paths to a .txt file, or an .html page of the images"""
    copy_to: str = ""
    """also copy the chosen images to this folder"""


def subset_(args: list[str]) -> None:
    """Parse the command line and choose a subset."""
    options = parse_command(SubsetOptions, args, "effssl subset")
    check_table(options, (*SUFFIXES, ".txt"))
    from effssl.explore.copies import check_copies, copy_images
    from effssl.explore.subset import subset

    folder = check_copies(options.copy_to, options.overwrite) if options.copy_to else None
    chosen = subset(**options.source(), size=options.size, seed=options.seed, **options.feature_options())
    columns = zip(chosen.names, chosen.distances, chosen.labels, strict=True)
    rows = [{"image": name, "distance": distance, "label": label} for name, distance, label in columns]
    title = f"{len(rows)} diverse images; no image is farther than {chosen.radius:.3f} from one of them"
    show_table(rows, title, out=options.out)
    write_table(options, rows, title, ["image", "distance", "label"])
    if folder is not None:
        copy_images(chosen.names, folder, options.images())
        print(f"copied: {len(rows)} images to {folder}")
