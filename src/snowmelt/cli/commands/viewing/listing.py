"""Lists of the catalog's views: from the catalog, or from a service elsewhere."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from snowmelt.cli.command_context import (
    add_action,
    add_service_options,
    create_console_client,
    is_remote,
    load_settings,
    opening_catalog,
)
from snowmelt.cli.output import add_format_option, print_rows

_DEFAULT_LIMIT = 50


def add_list_action(
    parser: argparse.ArgumentParser, what: str, run: Callable[[argparse.Namespace], object]
) -> None:
    """Add the action `list` with its options."""
    actions = parser.add_subparsers(metavar="action", required=True)
    listing = add_action(actions, "list", run, help=f"list {what}, newest first")
    listing.add_argument(
        "--limit",
        type=int,
        default=_DEFAULT_LIMIT,
        metavar="N",
        help="at most so many (up to 1000)",
    )
    add_format_option(listing)
    listing.add_argument("--role", help="role to act as at a service elsewhere")
    add_service_options(listing.add_argument_group("a service elsewhere"), is_optional=True)


def print_list(
    options: argparse.Namespace,
    name: str,
    columns: Sequence[str],
    fetch: Callable[..., Any],
) -> None:
    """Print a view; `name` is its path and key in the console's JSON."""
    if is_remote(options):
        with create_console_client(options) as client:
            found = client.fetch(f"/{name}", limit=str(options.limit))
        rows = [[each.get(column) for column in columns] for each in found[name]]
    else:
        from snowmelt.catalog.model.records import ACCOUNTADMIN
        from snowmelt.catalog.views.visibility import read_visibility

        settings = load_settings(options)
        with opening_catalog(settings) as database, database.reading() as connection:
            visibility = read_visibility(connection, ACCOUNTADMIN)
            page = fetch(connection, visibility, limit=options.limit)
        rows = [[_plain(getattr(each, column)) for column in columns] for each in page.rows]
    print_rows(columns, rows, options.format)


def _plain(value: object) -> object:
    return value if value is None or not hasattr(value, "display_name") else str(value)
