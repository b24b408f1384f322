"""effssl outliers: images that are far from all others."""

from __future__ import annotations

from dataclasses import dataclass

from effssl.commands.image_source import ExploreOptions
from effssl.commands.image_tables import check_table, columns_of, row_of, show_table, write_table
from effssl.commands.one_line import parse_command


@dataclass(frozen=True)
class OutliersOptions(ExploreOptions):
    """Outliers: images that are far from even their nearest neighbors, by whitened features where there are such."""

    k: int = 10
    """number of nearest neighbors whose mean distance counts"""
    top: int = 20
    """number of outliers to show"""


def outliers_(args: list[str]) -> None:
    """Parse the command line and find outliers."""
    options = parse_command(OutliersOptions, args, "effssl outliers")
    check_table(options)
    from effssl.explore.outliers import Outlier, outliers

    found = outliers(**options.source(), k=options.k, top=options.top, **options.feature_options())
    rows = [row_of(outlier) for outlier in found]
    show_table(rows, "outliers", out=options.out)
    write_table(options, rows, "outliers", columns_of(Outlier))
