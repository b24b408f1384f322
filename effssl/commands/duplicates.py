"""effssl duplicates: candidates for near-duplicates."""

from __future__ import annotations

from dataclasses import dataclass

from effssl.commands.image_source import ExploreOptions
from effssl.commands.image_tables import check_table, columns_of, row_of, show_table, write_table
from effssl.commands.one_line import parse_command


@dataclass(frozen=True)
class DuplicatesOptions(ExploreOptions):
    """Groups of candidates for near-duplicates, and which of each to keep: the largest. Nothing is deleted.

    Similarities are of features before whitening, for which the threshold is meant; other verbs use whitened ones.
    """

    threshold: float = 0.97
    """cosine similarity from which on two images are candidates"""


def duplicates_(args: list[str]) -> None:
    """Parse the command line and compare all pairs of images."""
    options = parse_command(DuplicatesOptions, args, "effssl duplicates")
    check_table(options)
    from effssl.explore.duplicates import Copy, duplicates

    groups = duplicates(**options.source(), threshold=options.threshold, **options.feature_options())
    rows = [
        {"group": number, "do": "?" if group.missing else "keep" if copy is group.keep else "candidate"} | row_of(copy)
        for number, group in enumerate(groups, 1)
        for copy in (group.keep, *group.others)
    ]
    extra = sum(len(group.others) for group in groups)
    title = f"candidates for near-duplicates: {len(groups)} groups, {extra} images besides those to keep"
    if rows:
        show_table(rows, title, out=options.out)
    else:
        print(f"no two images have a similarity of {options.threshold} or more")
    write_table(options, rows, title, ["group", "do", *columns_of(Copy)])
