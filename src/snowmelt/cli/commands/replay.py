"""`snowmelt replay`: insert the rows of an error table again, optionally changed."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from snowmelt.cli.command_context import (
    add_service_options,
    create_client,
    load_settings,
    opening_catalog,
)
from snowmelt.cli.output import format_count
from snowmelt.clock import SystemClock
from snowmelt.errors import UserError
from snowmelt.schema.types import to_internal_name

if TYPE_CHECKING:
    from snowmelt.loaders.error_replay import Change, ReplayResult

NAME = "replay"
SUMMARY = "insert the rows of an error table into its table again"
EXAMPLES = """examples:
  snowmelt replay demo.public.flights --dry-run
  snowmelt replay demo.public.flights --user loader --private-key key.pem
  snowmelt replay demo.public.flights --since 2026-11-21T10:00:00Z
  snowmelt replay demo.public.flights --rename dep=departure --without comment --set gate=null
  snowmelt replay demo.public.sales --csv id,name,price --delimiter '|'

Each row is inserted at most once, even if the command is killed or repeated. Rows stay in the error
table, where rows with PROTOCOL 'replay' record what was inserted. Run it after removing the cause, for
example with ALTER TABLE, or change the rows with options. It reads the error table from the data
folder, and inserts through the service.
"""
_MAX_SHOWN_REASONS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", help="database.schema.table (not the error table)")
    parser.add_argument(
        "--since", metavar="INSTANT", help="only rows rejected at this time or later (UTC)"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="show which rows would be inserted, and change nothing",
    )
    parser.add_argument(
        "--former-name",
        action="append",
        default=[],
        metavar="NAME",
        help="include rows that were rejected under this former name of the table",
    )
    change = parser.add_argument_group("changes of rows (repeatable)")
    change.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="COLUMN=VALUE",
        help="set a column of each row to this JSON value",
    )
    change.add_argument(
        "--rename",
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="store the values of OLD in NEW",
    )
    change.add_argument(
        "--without", action="append", default=[], metavar="COLUMN", help="omit the column"
    )
    form = parser.add_argument_group("rows that are lines of files, rejected by COPY")
    form.add_argument("--csv", metavar="COLUMNS", help="columns, separated by commas")
    form.add_argument("--delimiter", default=",", help="delimiter of fields (default: ,)")
    parser.add_argument(
        "--time-zone",
        help="zone of TIMESTAMP_LTZ and TIMESTAMP_TZ values without one (default: UTC, "
        "but required for such rows of the Python SDK)",
    )
    service = parser.add_argument_group("service")
    add_service_options(service)
    service.add_argument(
        "--role", help="role (default: of the profile, or the default role of the user)"
    )


def run(options: argparse.Namespace) -> int:
    """Insert the rows and print those that are still rejected. Return 2 if there are any."""
    from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
    from snowmelt.catalog.sql.cursor import parse_table_name
    from snowmelt.loaders.error_replay import ErrorReplay, ErrorTableReadContext, ReplayOptions
    from snowmelt.storage.store_factory import open_store

    wanted = ReplayOptions(
        table=parse_table_name(options.table),
        zone=None if options.time_zone is None else _parse_timezone(options.time_zone),
        since=_parse_timestamp(options.since),
        former_names=frozenset(str(parse_table_name(name)) for name in options.former_name),
        transform_row=_make_row_transform(options),
        parse_text=_make_line_parser(options),
    )
    settings = load_settings(options)
    with opening_catalog(settings) as database:
        keyring = KeyRing(load_master_key(settings.keys_dir))
        lake = ErrorTableReadContext(
            database, keyring, open_store(settings.stage_url), SystemClock()
        )
        replay = ErrorReplay(wanted, lake)
        if options.dry_run:
            done = replay.dry_run()
        else:
            with create_client(options) as client:
                done = replay.run(client, _print_progress if sys.stderr.isatty() else None)
    _print_result(done, dry_run=options.dry_run)
    return 2 if done.rejected else 0


def _print_result(result: ReplayResult, *, dry_run: bool) -> None:
    verb = "would be inserted" if dry_run else "inserted"
    said = f"{format_count(result.inserted, 'row')} {verb}"
    if result.already_inserted:
        said += f", {result.already_inserted:,} inserted before"
    print(said + (f", {result.rejected:,} rejected again:" if result.rejected else "."))
    for reason, count in result.reject_reasons.most_common(_MAX_SHOWN_REASONS):
        print(f"  {count:,} × {reason}")
    more = len(result.reject_reasons) - _MAX_SHOWN_REASONS
    if more > 0:
        print(f"  and {format_count(more, 'other reason')}")


def _print_progress(result: ReplayResult) -> None:
    line = f"{format_count(result.inserted, 'row')} inserted, {result.rejected:,} rejected again"
    print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def _parse_timestamp(text: str | None) -> dt.datetime | None:
    if text is None:
        return None
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise UserError(
            f"Invalid --since {text!r}. Expected a time such as 2026-11-21T10:00:00Z."
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)


def _parse_timezone(name: str) -> ZoneInfo:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        raise UserError(
            f"Unknown --time-zone {name!r}. Expected a time zone such as Europe/Berlin."
        ) from None


def _make_line_parser(
    options: argparse.Namespace,
) -> Callable[[str], Mapping[str, object] | str] | None:
    if options.csv is None:
        return None
    from snowmelt.client.line_source import CsvLineParser

    columns = [name.strip() for name in options.csv.split(",")]
    rows = CsvLineParser(columns, delimiter=options.delimiter)
    # Line 1 is the first line after the header.
    return lambda text: rows(text.rstrip("\r\n").encode(), 1) or "it is a blank line"


def _make_row_transform(options: argparse.Namespace) -> Change | None:
    renamed = dict(_parse_pair(text, "--rename", "OLD=NEW") for text in options.rename)
    pairs = [_parse_pair(text, "--set", "COLUMN=VALUE") for text in options.set]
    given = {name: _parse_value(text) for name, text in pairs}
    if not (renamed or given or options.without):
        return None
    folded = {to_internal_name(old): new for old, new in renamed.items()}
    gone = {to_internal_name(name) for name in (*options.without, *given)}

    def change(row: dict[str, object]) -> dict[str, object]:
        kept = {
            folded.get(internal, name): value
            for name, value in row.items()
            if (internal := to_internal_name(name)) not in gone
        }
        return kept | given

    return change


def _parse_pair(text: str, option: str, syntax: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise UserError(f"Invalid {option} {text!r}. Expected {syntax}.")
    return name, value


def _parse_value(text: str) -> object:
    """Parse a value as JSON. Return the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text
