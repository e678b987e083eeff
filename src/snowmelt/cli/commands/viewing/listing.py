"""Action `list` of histories: runs SHOW in the catalog or through a service."""

from __future__ import annotations

import argparse
from functools import partial

from snowmelt.cli.command_context import add_action, add_service_options, opening_statement_runner
from snowmelt.cli.output import add_format_option, print_rows

_DEFAULT_LIMIT = 50


def add_list_action(parser: argparse.ArgumentParser, history: str) -> None:
    """Add the action `list` of the history that has the name of the command."""
    actions = parser.add_subparsers(metavar="action", required=True)
    run = partial(_print_history, history)
    listing = add_action(actions, "list", run, help=f"list {history}, newest first")
    listing.add_argument(
        "--limit",
        type=int,
        default=_DEFAULT_LIMIT,
        metavar="N",
        help="maximum number of rows, 1 to 10,000 (default: %(default)s)",
    )
    add_format_option(listing)
    listing.add_argument("--role", help="role to act as (default: as for `snowmelt sql`)")
    add_service_options(listing.add_argument_group("a service elsewhere"), is_optional=True)


def _print_history(history: str, options: argparse.Namespace) -> None:
    with opening_statement_runner(options) as execute:
        shown = execute(f"SHOW {history.upper()} LIMIT {options.limit}")
    print_rows(shown.columns, shown.rows, options.format)
