"""`snowmelt restore`: restore a point of a backup into an empty installation."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from snowmelt.cli.command_context import load_settings
from snowmelt.cli.commands.backups.backup import make_progress, open_destination
from snowmelt.cli.output import add_format_option, format_count, print_rows

NAME = "restore"
SUMMARY = "restore a backup into an empty installation"
EXAMPLES = """examples:
  snowmelt restore /mnt/backups --to latest --private-key backup.key --data-dir restored
  snowmelt restore s3://elsewhere/backups --to 2026-11-22T09:00:00Z --private-key backup.key

The settings determine catalog, stage, warehouse, keys and objects. All must be empty. Their kinds may
differ from the original: SQLite or PostgreSQL, folders or buckets. The output is the committed offset
token of each channel. Clients must reopen their channels and resume after this token.
"""
_CHANNEL_COLUMNS = ("table", "channel", "offset token")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SRC", help="folder or bucket of the backup")
    parser.add_argument(
        "--to",
        required=True,
        metavar="POINT",
        help="ID of a point, time with zone (selects the last point up to this time), or latest",
    )
    parser.add_argument(
        "--private-key",
        required=True,
        type=Path,
        metavar="FILE",
        help="private key of the backup, as written by `snowmelt backup new-key`",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show the channels of the point, and change nothing"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    add_format_option(parser)


def run(options: argparse.Namespace) -> int:
    """Restore a point. Print the committed offset token of each channel."""
    from snowmelt.backup.backup_keys import load_private_key
    from snowmelt.backup.restoration import RestoreTarget, choose_point, restore_point
    from snowmelt.clock import SystemClock
    from snowmelt.storage.local_store import LocalStore
    from snowmelt.storage.store_factory import open_store
    from snowmelt.table.warehouse_paths import open_warehouse

    settings = load_settings(options)
    destination = open_destination(options.source)
    point = choose_point(destination.list_points(), options.to)
    private_key = load_private_key(options.private_key)
    channels = [(each.table, each.channel, each.offset_token) for each in point.channels]
    if options.dry_run:
        print_rows(_CHANNEL_COLUMNS, channels, options.format)
        return 0
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    target = RestoreTarget(
        settings.catalog_url,
        open_store(settings.stage_url),
        open_warehouse(settings.warehouse_url),
        LocalStore(settings.objects_dir),
        settings.keys_dir,
        SystemClock(),
    )
    deployment_id = restore_point(
        destination,
        point,
        private_key,
        target,
        progress=make_progress("restored", quiet=options.quiet),
    )
    rows = sum(table.native_rows + table.fresh_rows for table in point.live_tables)
    print_rows(_CHANNEL_COLUMNS, channels, options.format)
    # JSON and CSV on standard output contain the rows only.
    print(
        f"restored point {point.point_id} of {point.at.isoformat(timespec='seconds')} as deployment "
        f"{deployment_id}: {format_count(len(point.live_tables), 'table')}, "
        f"{format_count(rows, 'row')}",
        file=sys.stdout if options.format == "table" else sys.stderr,
    )
    return 0
