"""`snowmelt upgrade`: print the schema version of the catalog, and upgrade it."""

from __future__ import annotations

import argparse

import snowmelt
from snowmelt.cli.command_context import load_settings, may_have_catalog, opening_catalog
from snowmelt.config import Settings
from snowmelt.errors import UserError

NAME = "upgrade"
SUMMARY = "upgrade the catalog to this version of Snowmelt, or check its version"
EXAMPLES = """examples:
  snowmelt upgrade --check
  snowmelt upgrade

`snowmelt serve` upgrades the catalog, too. An older Snowmelt cannot open an upgraded catalog. To go
back, restore a copy, so copy the catalog first. --check changes nothing; its exit code is 0 if the
catalog has the version of this Snowmelt, 1 if not.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="change nothing, print the versions")


def run(options: argparse.Namespace) -> int:
    """Print the versions, and upgrade the catalog unless --check is given."""
    from snowmelt.catalog.db.database import find_sqlite_path, read_catalog_version

    settings = load_settings(options)
    if not may_have_catalog(settings):
        raise UserError(f"Catalog not found: {find_sqlite_path(settings.catalog_url)}.")
    found = read_catalog_version(settings.catalog_url)
    print(f"Catalog:  version {found.current or 'none'}")
    print(f"Snowmelt: {snowmelt.__version__}, catalog version {found.newest}")
    if found.current == found.newest:
        print("Nothing to upgrade.")
        return 0
    if found.current is not None and not found.is_known:
        raise UserError(
            f"Cannot upgrade the catalog: version {found.current} is newer than version "
            f"{found.newest} of this Snowmelt. Install the Snowmelt that wrote it, or a newer one."
        )
    if options.check:
        print(
            f"To upgrade, copy the catalog ({_describe_copy(settings)}) and run `snowmelt upgrade`."
        )
        return 1
    with opening_catalog(settings):
        pass
    print(f"Upgraded to version {found.newest}.")
    return 0


def _describe_copy(settings: Settings) -> str:
    from snowmelt.catalog.db.database import find_sqlite_path

    path = find_sqlite_path(settings.catalog_url)
    return "pg_dump" if path is None else f'sqlite3 {path} ".backup copy.db"'
