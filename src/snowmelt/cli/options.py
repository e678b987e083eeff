"""Options that all commands take."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_global_options(parser: argparse.ArgumentParser, *, is_top_level: bool = False) -> None:
    """Add the global options, which may stand before a command, after it, and after its action.

    Only the outermost parser brings defaults: an inner one would undo what stood further left.
    """
    absent = None if is_top_level else argparse.SUPPRESS
    group = parser.add_argument_group("everywhere")
    group.add_argument(
        "--data-dir",
        metavar="FOLDER",
        type=Path,
        default=absent,
        help="where everything is kept (SNOWMELT_DATA_DIR, or ./snowmelt-data)",
    )
    group.add_argument(
        "--catalog",
        metavar="URL",
        default=absent,
        help="catalog database: sqlite:///PATH or postgresql://… (SNOWMELT_CATALOG_URL, "
        "or catalog.db in the data folder)",
    )
    group.add_argument(
        "--debug",
        action="store_true",
        default=False if is_top_level else argparse.SUPPRESS,
        help="show where an error came from",
    )
