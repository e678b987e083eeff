"""`snowmelt status`: print a summary of service, catalog, backlog and last commit."""

from __future__ import annotations

import argparse
import datetime as dt
import json

from snowmelt.cli.command_context import load_settings, opening_catalog
from snowmelt.cli.commands import doctor
from snowmelt.cli.output import format_age, format_count

NAME = "status"
SUMMARY = "show service, catalog, backlog, last commit and late tables in six lines"
EXAMPLES = """examples:
  snowmelt status
  snowmelt status --format json

Exit code 1 if the service does not respond, a table is late, or a chunk is quarantined. `snowmelt doctor` checks more.
"""
_MAX_LATE = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="json: one object"
    )


def run(options: argparse.Namespace) -> int:
    """Print the status. Return 1 if the installation needs attention."""
    from snowmelt.catalog.db.database import open_catalog_clock, read_catalog_version
    from snowmelt.catalog.jobs.leases import list_services
    from snowmelt.catalog.objects.tables import list_tables
    from snowmelt.catalog.streaming.channels import list_channels
    from snowmelt.catalog.streaming.chunks import (
        list_backlogged_table_ids,
        list_quarantined_chunks,
        measure_backlog,
    )
    from snowmelt.catalog.views.freshness import list_expected_tables

    settings = load_settings(options)
    with opening_catalog(settings) as database:
        now = open_catalog_clock(database).now()
        with database.reading() as connection:
            tables = {table.table_id: table for table in list_tables(connection)}
            channels = list_channels(connection)
            backlogs = [
                measure_backlog(connection, table_id)
                for table_id in list_backlogged_table_ids(connection)
            ]
            expected = list_expected_tables(connection)
            running = [each for each in list_services(connection) if each.is_running(now)]
            quarantined = [
                chunk for chunk in list_quarantined_chunks(connection) if chunk.table_id in tables
            ]
        dialect = database.dialect
    service = doctor.check_registered_service(running)
    commits = [(each.last_commit_at, each) for each in channels if each.last_commit_at is not None]
    last = max(commits, key=lambda commit: commit[0], default=None)
    oldest = min(
        (each.oldest_registered_at for each in backlogs if each.oldest_registered_at is not None),
        default=None,
    )
    late = [each for each in expected if each.late_at < now]
    answers = service.finding is doctor.CheckStatus.FINE
    version = read_catalog_version(settings.catalog_url).current
    chunks, rows, size = (
        sum(getattr(each, name) for each in backlogs) for name in ("chunks", "rows", "bytes")
    )
    if options.format == "json":
        found = {
            "service": {"answers": answers, "detail": service.detail},
            "catalog": {
                "database": dialect,
                "version": version,
                "tables": len(tables),
                "channels": len(channels),
            },
            "backlog": {
                "tables": len(backlogs),
                "chunks": chunks,
                "rows": rows,
                "bytes": size,
                "oldest": _to_text(oldest),
            },
            "last_commit": None
            if last is None
            else {
                "at": _to_text(last[0]),
                "channel": last[1].name,
                "offset_token": last[1].offset_token,
            },
            "freshness": {
                "expected_tables": len(expected),
                "late_tables": [str(each.name) for each in late],
            },
            "quarantined_chunks": len(quarantined),
        }
        print(json.dumps(found, ensure_ascii=False))
    else:
        age = "" if oldest is None else f", oldest {format_age(oldest, now)}"
        commit = "none" if last is None else f"{format_age(last[0], now)}, channel {last[1].name}"
        hint = " (see `snowmelt chunks list`)" if quarantined else ""
        print(f"service      {service.detail}")
        print(
            f"catalog      {dialect}, version {version}, {format_count(len(tables), 'table')}, "
            f"{format_count(len(channels), 'channel')}"
        )
        print(
            f"backlog      {format_count(chunks, 'chunk')}, {format_count(rows, 'row')}, "
            f"{size:,} bytes in {format_count(len(backlogs), 'table')}{age}"
        )
        print(f"last commit  {commit}")
        names = "".join(f", {each.name}" for each in late[:_MAX_LATE])
        more = ", …" if len(late) > _MAX_LATE else ""
        print(
            f"freshness    {len(late):,} of {format_count(len(expected), 'expected table')} late"
            f"{names}{more}"
        )
        print(f"quarantine   {format_count(len(quarantined), 'chunk')}{hint}")
    return int(bool(quarantined) or bool(late) or not answers)


def _to_text(at: dt.datetime | None) -> str | None:
    return None if at is None else at.isoformat()
