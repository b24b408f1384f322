"""effssl neighbors: the images most similar to others."""

from __future__ import annotations

from dataclasses import dataclass

from effssl.commands.image_source import ExploreOptions
from effssl.commands.image_tables import check_table, columns_of, row_of, show_table, write_table
from effssl.commands.one_line import parse_command


@dataclass(frozen=True)
class NeighborsOptions(ExploreOptions):
    """The images most similar to each query image, by whitened features where the encoder whitens them."""

    query: tuple[str, ...] = ()
    """image files, or indices of images that have no paths"""
    k: int = 10
    """number of neighbors"""


def neighbors_(args: list[str]) -> None:
    """Parse the command line and search."""
    options = parse_command(NeighborsOptions, args, "effssl neighbors")
    check_table(options)
    from effssl.explore.neighbors import Neighbor, neighbors

    queries = tuple(dict.fromkeys(options.query))
    rows = []
    for result in neighbors(**options.source(), query=queries, k=options.k, **options.feature_options()):
        found = [{"query": result.query, "rank": rank} | row_of(image) for rank, image in enumerate(result.found, 1)]
        show_table(found, f"nearest to {result.query}", without="query", out=options.out)
        rows += found
    write_table(options, rows, "nearest images", ["query", "rank", *columns_of(Neighbor)])
