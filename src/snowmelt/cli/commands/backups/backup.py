"""`snowmelt backup`: create, list, verify and expire backup points; create a key pair."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from snowmelt.cli.command_context import load_settings, opening_catalog, parse_age
from snowmelt.cli.output import add_format_option, format_count, print_rows
from snowmelt.config import Settings
from snowmelt.errors import UserError

if TYPE_CHECKING:
    from snowmelt.backup.destination import BackupDestination, Progress

NAME = "backup"
SUMMARY = "back up an installation; list, verify and expire backups"
EXAMPLES = """examples:
  snowmelt backup new-key backup.key
  snowmelt backup /mnt/backups
  snowmelt backup s3://elsewhere/backups
  snowmelt backup list s3://elsewhere/backups
  snowmelt backup verify s3://elsewhere/backups --private-key backup.key
  snowmelt backup expire s3://elsewhere/backups --keep 30d

The first run copies everything, later runs only new objects. The service keeps running. Keep the private
key in another place than the backups: `snowmelt restore` needs it.
"""
_POINT_COLUMNS = ("point", "time", "tables", "rows", "channels", "objects", "bytes", "copied bytes")
# Options that only some actions use, and these actions.
_ACTIONS_BY_OPTION = {
    "public_key": ("backup DEST", "backup new-key"),
    "private_key": ("backup verify",),
    "point": ("backup verify",),
    "scratch": ("backup verify",),
    "keep": ("backup expire",),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        metavar="DEST | list | verify | expire | new-key",
        help="folder or bucket to back up to, or an action on an existing backup",
    )
    parser.add_argument(
        "place",
        nargs="?",
        metavar="DEST",
        help="backup that the action uses; for new-key, the file to write",
    )
    parser.add_argument(
        "--public-key",
        type=Path,
        metavar="FILE",
        help="public key that seals the keys (default: backup.pub in the keys folder)",
    )
    parser.add_argument(
        "--private-key", type=Path, metavar="FILE", help="verify: private key of the backup"
    )
    parser.add_argument("--point", help="verify: ID or time of the point (default: latest)")
    parser.add_argument(
        "--scratch",
        type=Path,
        metavar="FOLDER",
        help="verify: parent of the temporary folder of the restoration (default: the system's)",
    )
    parser.add_argument(
        "--keep",
        metavar="AGE",
        help="expire: age of the oldest point to keep, for example 30d or 12h",
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    add_format_option(parser)


def run(options: argparse.Namespace) -> int:
    """Run an action. The default action creates a point."""
    from snowmelt.catalog.sql.cursor import format_suggestion

    action = _ACTIONS.get(options.action)
    if action is None:
        if options.place is not None:
            raise UserError(
                f"Unknown action {options.action!r}. Valid actions: {', '.join(_ACTIONS)}."
            )
        suggestion = format_suggestion(options.action, _ACTIONS)
        if suggestion and not Path(options.action).exists():
            raise UserError(
                f"Unknown action {options.action!r}.{suggestion} To back up into a new folder of this "
                f"name, write ./{options.action}"
            )
        _reject_unused_options(options, "backup DEST")
        return _create_point(options)
    if options.place is None:
        raise UserError(f"`backup {options.action}` requires the backup: a folder or URL.")
    _reject_unused_options(options, f"backup {options.action}")
    return action(options)


def _reject_unused_options(options: argparse.Namespace, action: str) -> None:
    for name, actions in _ACTIONS_BY_OPTION.items():
        if getattr(options, name) is not None and action not in actions:
            valid = " and ".join(f"`{each}`" for each in actions)
            raise UserError(
                f"`{action}` does not accept --{name.replace('_', '-')}, an option of {valid}. Omit it."
            )


def _check_outside_installation(option: str, location: str, settings: Settings) -> None:
    from snowmelt.storage.overwrite_protection import check_output_outside_deployment

    check_output_outside_deployment(option, location, reserved=settings.list_reserved_paths())


def open_destination(location: str, *, create: bool = False) -> BackupDestination:
    """Open a backup.

    Raises:
        UserError: If the folder does not exist and `create` is false.
    """
    from snowmelt.backup.destination import BackupDestination
    from snowmelt.storage.store_factory import open_store

    if not create and "://" not in location and not Path(location).is_dir():
        raise UserError(f"Backup not found: {location} is not a folder.")
    return BackupDestination(open_store(location))


def find_public_key_path(settings: Settings) -> Path:
    """Return the path of the public key, which is beside the master key."""
    from snowmelt.backup.backup_keys import PUBLIC_KEY_FILE

    folder = settings.keys_dir
    return (folder.parent if folder.is_file() else folder) / PUBLIC_KEY_FILE


def make_progress(verb: str, *, quiet: bool) -> Progress:
    """Return a function that shows progress if standard error is a terminal."""
    from snowmelt.backup.destination import report_nothing

    if quiet or not sys.stderr.isatty():
        return report_nothing

    def report(objects: int, size: int) -> None:
        text = f"\r{verb} {format_count(objects, 'object')}, {size:,} bytes"
        print(text, end="", file=sys.stderr, flush=True)

    return report


def _create_point(options: argparse.Namespace) -> int:
    from snowmelt.backup.backup_keys import load_public_key
    from snowmelt.backup.creation import BackupSource, create_point

    settings = load_settings(options)
    _check_outside_installation("the backup", options.action, settings)
    public_key = load_public_key(options.public_key or find_public_key_path(settings))
    with opening_catalog(settings) as database:
        point = create_point(
            BackupSource.open(database, settings),
            open_destination(options.action, create=True),
            public_key,
            progress=make_progress("copied", quiet=options.quiet),
        )
    print(
        f"point {point.point_id}: {format_count(len(point.live_tables), 'table')}, "
        f"{format_count(point.objects, 'object')} of {point.bytes:,} bytes; copied "
        f"{format_count(point.copied_objects, 'object')} of {point.copied_bytes:,} bytes"
    )
    return 0


def _list_points(options: argparse.Namespace) -> int:
    rows = [
        (
            point.point_id,
            point.at.isoformat(timespec="seconds"),
            len(point.live_tables),
            sum(table.native_rows + table.fresh_rows for table in point.live_tables),
            len(point.channels),
            point.objects,
            point.bytes,
            point.copied_bytes,
        )
        for point in open_destination(options.place).list_points()
    ]
    print_rows(_POINT_COLUMNS, rows, options.format)
    return 0


def _verify_point(options: argparse.Namespace) -> int:
    from snowmelt.backup.backup_keys import load_private_key
    from snowmelt.backup.restoration import choose_point
    from snowmelt.backup.verification import verify_point
    from snowmelt.clock import SystemClock

    if options.private_key is None:
        raise UserError("`backup verify` requires --private-key, the key that decrypts the chunks.")
    destination = open_destination(options.place)
    point = choose_point(destination.list_points(), options.point or "latest")
    result = verify_point(
        destination,
        point,
        load_private_key(options.private_key),
        SystemClock(),
        scratch=options.scratch,
        progress=make_progress("restored", quiet=options.quiet),
    )
    for problem in result.problems:
        print(problem)
    print(
        f"point {point.point_id}: read {format_count(result.rows, 'row')} of "
        f"{format_count(result.tables, 'table')} and {format_count(result.channels, 'channel')}; "
        f"{format_count(len(result.problems), 'problem')}"
    )
    return int(bool(result.problems))


def _expire_points(options: argparse.Namespace) -> int:
    from snowmelt.backup.expiration import expire_points
    from snowmelt.clock import SystemClock

    if options.keep is None:
        raise UserError("`backup expire` requires --keep, the age of the oldest point to keep.")
    before = SystemClock().now() - parse_age(options.keep)
    result = expire_points(open_destination(options.place), before)
    print(
        f"deleted {format_count(len(result.points), 'point')} and "
        f"{format_count(result.objects, 'object')} of {result.bytes:,} bytes"
    )
    return 0


def _create_keys(options: argparse.Namespace) -> int:
    from snowmelt.backup.backup_keys import create_key_pair
    from snowmelt.storage.local_store import make_durable_folder

    settings = load_settings(options)
    _check_outside_installation("the private key", options.place, settings)
    public_path = options.public_key or find_public_key_path(settings)
    make_durable_folder(public_path.parent, mode=0o700)
    fingerprint = create_key_pair(Path(options.place), public_path)
    print(
        f"key {fingerprint}: private key in {options.place}, public key in {public_path}. Move the "
        "private key to another place: without it no backup can be restored."
    )
    return 0


_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "list": _list_points,
    "verify": _verify_point,
    "expire": _expire_points,
    "new-key": _create_keys,
}
