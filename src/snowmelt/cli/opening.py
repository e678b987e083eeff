"""From options to settings and an open catalog."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from snowmelt.config import Settings
from snowmelt.errors import ConfigurationError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from snowmelt.catalog.database import Database

_CATALOG_FILE = "catalog.db"


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

    if create:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    elif not has_catalog(settings):
        raise ConfigurationError(
            setting="data_dir",
            reason=f"there is no catalog in {settings.data_dir}; "
            "`snowmelt serve` and `snowmelt sql` make one",
        )
    with contextlib.closing(open_database(settings.catalog_url)) as database:
        yield database


def has_catalog(settings: Settings) -> bool:
    """Tell whether the catalog may be there: a file inside the data folder is looked for."""
    inside = settings.data_dir / _CATALOG_FILE
    return settings.catalog_url != f"sqlite:///{inside}" or inside.exists()
