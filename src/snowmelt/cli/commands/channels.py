"""`snowmelt channels`: list channels, set the offset token of a channel, or drop a channel."""

from __future__ import annotations

import argparse
import datetime as dt
import sys

from snowmelt.cli.command_context import (
    StatementOutput,
    add_action,
    add_service_options,
    create_client,
    is_remote,
    load_settings,
    opening_catalog,
    opening_statement_runner,
    run_action,
)
from snowmelt.cli.output import add_format_option, format_age, print_rows
from snowmelt.clock import SystemClock

NAME = "channels"
SUMMARY = "list channels, set an offset token, or drop a channel that is no longer needed"
EXAMPLES = """examples:
  snowmelt channels list
  snowmelt channels list --table demo.public.flights --format json
  snowmelt channels list --url https://ingest.example.com:8080 --user loader --private-key loader.pem
  snowmelt channels set-token clicks:P0 --table demo.public.clicks --token 41
  snowmelt channels drop EWR --table demo.public.flights
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="action", required=True)
    listing = add_action(
        actions, "list", _list_channels, help="list channels and their offset tokens"
    )
    listing.add_argument("--table", metavar="NAME", help="list the channels of this table only")
    add_format_option(listing)
    dropping = add_action(
        actions,
        "drop",
        _drop_channel,
        help="drop a channel and its offset token",
        description="Drop a channel and its offset token. Committed rows stay. The service "
        "rejects rows that its client has not committed.",
    )
    setting = add_action(
        actions,
        "set-token",
        _set_token,
        help="set the offset token of a channel",
        description="Set the offset token of a channel, and create a missing channel. The current "
        "owner is fenced: the service rejects the rows that it has not committed, and its source "
        "resumes after the new token.",
    )
    for action in (dropping, setting):
        action.add_argument(
            "channel", help="name of the channel, in upper and lower case as in SHOW CHANNELS"
        )
        action.add_argument("--table", metavar="NAME", required=True, help="database.schema.table")
    setting.add_argument(
        "--token", required=True, help="offset token; the source resumes after this position"
    )
    for action in (listing, dropping, setting):
        action.add_argument("--role", help="role to act as (default: as for `snowmelt sql`)")
        service = action.add_argument_group("service (default: the catalog of this machine)")
        add_service_options(service, is_optional=True)


run = run_action


def _list_channels(options: argparse.Namespace) -> None:
    scope = f" IN TABLE {options.table}" if options.table is not None else ""
    with opening_statement_runner(options) as execute:
        shown = execute(f"SHOW CHANNELS{scope}")
    if options.format == "table" and sys.stdout.isatty():
        _print_short(shown)
    else:
        print_rows(shown.columns, shown.rows, options.format)


def _print_short(shown: StatementOutput) -> None:
    """Print the main columns as a table. JSON and CSV have all columns."""
    now = SystemClock().now()
    rows = []
    for row in shown.rows:
        values = dict(zip(shown.columns, row, strict=True))
        table = ".".join(str(values[f"{part}_name"]) for part in ("database", "schema", "table"))
        at = values["last_commit_on"]
        commit = format_age(at, now) if isinstance(at, dt.datetime) else None
        facts = (values["offset_token"], values["rows"], commit)
        # An older service does not return the state.
        rows.append((values["name"], table, values.get("state"), *facts))
    columns = ("channel", "table", "state", "offset_token", "rows", "last_commit")
    print_rows(columns, rows, "table")


def _drop_channel(options: argparse.Namespace) -> None:
    if is_remote(options):
        with create_client(options) as client:
            name = options.channel.replace('"', '""')
            client.drop_channel(f'"{name}"', table=options.table)
        print(f"Channel {options.channel} of {options.table} dropped.")
        return
    from snowmelt.catalog.model.records import ACCOUNTADMIN
    from snowmelt.catalog.objects.tables import find_table
    from snowmelt.catalog.sql.cursor import parse_table_name
    from snowmelt.catalog.streaming.channels import drop_channel

    name = parse_table_name(options.table)
    with opening_catalog(load_settings(options)) as database, database.writing() as connection:
        table = find_table(connection, name)
        dropped = drop_channel(
            connection, table, options.channel, user=ACCOUNTADMIN, now=SystemClock().now()
        )
    token = "none" if dropped.offset_token is None else repr(dropped.offset_token)
    print(f"Channel {options.channel} of {name} dropped; its last offset token was {token}.")


def _set_token(options: argparse.Namespace) -> None:
    from snowmelt.client.channel_state import check_offset_token

    check_offset_token(options.token)
    if is_remote(options):
        with create_client(options) as client:
            name = options.channel.replace('"', '""')
            client.open_channel(
                f'"{name}"', table=options.table, offset_token=options.token
            ).close()
        print(f"Channel {options.channel} of {options.table} has offset token {options.token!r}.")
        return
    from snowmelt.catalog.model.records import ACCOUNTADMIN
    from snowmelt.catalog.objects.tables import find_table
    from snowmelt.catalog.sql.cursor import parse_table_name
    from snowmelt.catalog.streaming.channels import find_channel, open_channel

    name = parse_table_name(options.table)
    with opening_catalog(load_settings(options)) as database, database.writing() as connection:
        table = find_table(connection, name)
        before = find_channel(connection, table, options.channel)
        open_channel(
            connection,
            table,
            options.channel,
            user=ACCOUNTADMIN,
            client_prefix=None,
            request_id=None,
            offset_token=options.token,
            now=SystemClock().now(),
        )
    token = "none" if before is None or before.offset_token is None else repr(before.offset_token)
    print(
        f"Channel {options.channel} of {name} has offset token {options.token!r}; it was {token}."
    )
