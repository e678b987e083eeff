"""From options to settings and an open catalog."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from snowmelt.config import Settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from snowmelt.catalog.database import Database


def settings_of(options: argparse.Namespace, **overrides: object) -> Settings:
    """Settle the settings of a command; `overrides` are its own options, None for not given.

    Raises:
        ConfigurationError: A value does not fit.
    """
    return Settings.load(options.data_dir, catalog_url=options.catalog, **overrides)


@contextlib.contextmanager
def opened_catalog(settings: Settings, *, create: bool = False) -> Iterator[Database]:
    """Open the catalog for a command; only with `create` a missing data folder is made.

    Raises:
        ConfigurationError: There is no catalog.
        CatalogUnavailable: The database cannot be reached.
    """
    from snowmelt.catalog.database import open_database

    is_new = not has_catalog(settings)
    if create and is_new:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(open_database(settings.catalog_url, create=create)) as database:
        if is_new:
            print(f"snowmelt: created a new catalog in {settings.data_dir}", file=sys.stderr)
        yield database


def has_catalog(settings: Settings) -> bool:
    """Tell whether the catalog may be there: of SQLite its file is looked for.

    Raises:
        ConfigurationError: `catalog_url` is the URL of no catalog.
        MissingExtra: The URL needs a package that is not installed.
    """
    from snowmelt.catalog.database import sqlite_file

    file = sqlite_file(settings.catalog_url)
    return file is None or file.exists()
