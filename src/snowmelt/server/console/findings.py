"""Find problems of the installation in the catalog, on the stage and on the disk.

Each problem is a sentence with a remedy. The list begins with the most severe ones.
`ConsoleParts.finding_sources` adds further problems.
"""

from __future__ import annotations

import datetime as dt
import logging
import shutil
from collections.abc import Iterable, Iterator

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.database import MAX_CLOCK_SKEW_S
from snowmelt.catalog.jobs.leases import list_services
from snowmelt.catalog.statements.tables import format_duration
from snowmelt.catalog.streaming.chunks import list_quarantined_chunks
from snowmelt.catalog.views.channels import (
    ChannelFilter,
    ChannelView,
    count_channels,
    fetch_channels,
)
from snowmelt.catalog.views.freshness import is_late_channel, list_late_tables
from snowmelt.catalog.views.history import WITH_REJECTS, fetch_loads
from snowmelt.catalog.views.kafka import KafkaPartitionView, list_stalled_partitions
from snowmelt.catalog.views.pipes import list_stalled_pipes
from snowmelt.catalog.views.tables import list_table_names
from snowmelt.config import Settings
from snowmelt.errors import SnowmeltError
from snowmelt.schema.types import TableName
from snowmelt.server.console.layout import (
    channel_path,
    end_sentence,
    format_bytes,
    format_quantity,
    format_seconds,
    href,
    pipe_path,
    table_path,
)
from snowmelt.server.console.request import ConsoleProblem, PageRequest
from snowmelt.storage.store import Store

_log = logging.getLogger("snowmelt.server")

WRONG, NOTE = "wrong", "note"
_MIN_FREE_SHARE = 0.05
_MAX_LISTED = 20
_MAX_REJECTING_TABLES = 5
# More would take longer than a page may.
_MAX_LATE_TABLES_WITH_CHANNEL = 5
_MIN_WAIT = dt.timedelta(minutes=5)
_DAY = dt.timedelta(days=1)
_TABLES, _CHUNKS, _CHANNELS = model.tables, model.chunks, model.channels
_MIGRATIONS = model.migrations


def list_findings(page: PageRequest) -> list[ConsoleProblem]:
    """Return the findings that a role may see, the most severe first."""
    found: list[ConsoleProblem] = []
    if page.visibility.is_account_visible:
        found += check_services(page)
        found += check_disk(page.parts.settings)
        for source in page.parts.finding_sources:
            found += _run_source(source(page))
    found += find_quarantined(page)
    found += find_late_tables(page)
    found += find_late_channels(page)
    found += find_waiting(page)
    found += find_failed_runs(page)
    found += find_rejecting_loads(page)
    found += find_stalled_pipes(page)
    found += find_stalled_topics(page)
    found += find_rejecting_channels(page)
    return sorted(found, key=lambda each: (each.severity != WRONG,))


def check_stage(stage: Store) -> Iterator[ConsoleProblem]:
    """Check that the stage responds. May take seconds."""
    try:
        stage.head("healthz/probe")
    except (SnowmeltError, OSError) as error:
        yield ConsoleProblem(
            WRONG,
            f"The stage does not respond: {error}",
            "No client can upload rows. Check the location and its credentials with"
            " `snowmelt doctor`.",
        )


def check_services(page: PageRequest) -> Iterator[ConsoleProblem]:
    """Find crashed services, and services whose clocks differ from the catalog's clock."""
    services = list_services(page.connection)
    running = {each.url for each in services if each.is_running(page.now)}
    for service in services:
        if not service.is_running(page.now) and service.url not in running:
            yield ConsoleProblem(
                WRONG,
                f"The service at {service.url} on host {service.host} stopped without a shutdown.",
                "Start it again, and read the end of its log.",
                since=service.seen_at,
            )
        if service.is_running(page.now) and abs(service.ahead_ms) > MAX_CLOCK_SKEW_S * 1000:
            yield ConsoleProblem(
                NOTE,
                f"The clock of {service.host} differs from that of the catalog by"
                f" {format_seconds(abs(service.ahead_ms) / 1000)}.",
                "Synchronize the clocks of both machines (NTP).",
            )


def check_disk(settings: Settings) -> Iterator[ConsoleProblem]:
    """Find a data folder whose disk has less than 5 % free space."""
    usage = shutil.disk_usage(settings.data_dir)
    if usage.free < usage.total * _MIN_FREE_SHARE:
        yield ConsoleProblem(
            WRONG,
            f"The disk of {settings.data_dir} has {format_bytes(usage.free)} of"
            f" {format_bytes(usage.total)} left.",
            "Free space, or lower retention_s. A full disk stops all commits.",
        )


def find_quarantined(page: PageRequest) -> Iterator[ConsoleProblem]:
    """Find chunks that cannot be decoded."""
    chunks = [
        each
        for each in list_quarantined_chunks(page.connection)
        if page.visibility.includes(each.table_id)
    ]
    names = list_table_names(page.connection, sorted({each.table_id for each in chunks}))
    for chunk in chunks[:_MAX_LISTED]:
        name = names[chunk.table_id]
        yield ConsoleProblem(
            WRONG,
            f"Chunk {chunk.seq} of {name} with {format_quantity(chunk.rows, 'row')} cannot be decoded:"
            f" {chunk.reason}",
            f"Queries of {name} fail. Restore {chunk.path} on the stage, or discard its rows:"
            f" snowmelt chunks give-up {chunk.seq} --table {name}",
            path=href(table_path(name)),
        )


def find_late_tables(page: PageRequest) -> Iterator[ConsoleProblem]:
    """Find tables without a commit for longer than their FRESHNESS."""
    for table in list_late_tables(page.connection, page.now, page.visibility)[:_MAX_LISTED]:
        expected = format_duration(table.freshness_s)
        if table.last_commit_at is None:
            what = "had no commit since it was created"
        else:
            silent_s = (page.now - table.last_commit_at).total_seconds()
            what = f"had no commit for {format_seconds(silent_s)}"
        chosen = ChannelFilter(table_id=table.table_id, late_at=page.now)
        count = count_channels(page.connection, page.visibility, chosen)
        silent = fetch_channels(
            page.connection, page.visibility, chosen=chosen, now=page.now, order="lag", limit=1
        ).rows
        remedy = "The table has no channel. Start the client or the load that sends its rows."
        if silent:
            longest = silent[0]
            remedy = (
                f"Check the clients of {format_quantity(count, 'late channel')}. Channel {longest.name}"
                f" of user {longest.owner} has been silent the longest."
            )
        yield ConsoleProblem(
            WRONG,
            f"Table {table.name} is late: it {what}, and at least one is expected every {expected}.",
            f"{remedy} To expect no more rows: ALTER TABLE {table.name} UNSET FRESHNESS",
            since=table.late_at,
            has_duration=True,
            path=href("/channels", find=str(table.name), only="late", sort="lag"),
        )


def find_late_channels(page: PageRequest) -> Iterator[ConsoleProblem]:
    """Find fresh tables with late channels."""
    late = {each.table_id for each in list_late_tables(page.connection, page.now)}
    query = (
        sa.select(_TABLES.c.table_id, sa.func.count())
        .select_from(_TABLES.join(_CHANNELS, _CHANNELS.c.table_id == _TABLES.c.table_id))
        .where(_TABLES.c.dropped_at.is_(None), is_late_channel(page.now))
        .group_by(_TABLES.c.table_id)
        .order_by(_TABLES.c.table_id)
    )
    rows = page.connection.execute(page.visibility.restrict(query, _TABLES.c.table_id)).all()
    counts = {row[0]: row[1] for row in rows if row[0] not in late}
    names = list_table_names(page.connection, list(counts)[:_MAX_LISTED])
    for place, (table_id, name) in enumerate(names.items()):
        count = counts[table_id]
        silent: list[ChannelView] = []
        if place < _MAX_LATE_TABLES_WITH_CHANNEL:
            chosen = ChannelFilter(table_id=table_id, late_at=page.now)
            silent = fetch_channels(
                page.connection, page.visibility, chosen=chosen, now=page.now, order="lag", limit=1
            ).rows
        longest, path = "", href("/channels", find=str(name), only="late", sort="lag")
        if silent:
            [first] = silent
            longest = f" Channel {first.name} of user {first.owner} has been silent the longest."
            if count == 1:
                longest = f" It is channel {first.name} of user {first.owner}."
                path = href(channel_path(name, first.name))
        yield ConsoleProblem(
            NOTE,
            f"Table {name} is fresh, but {format_quantity(count, 'channel')} of it"
            f" {'is' if count == 1 else 'are'} late.{longest}",
            "The page of each channel shows why, and how to drop a channel that has ended.",
            since=_find_late_time(silent[0]) if silent else None,
            path=path,
        )


def _find_late_time(channel: ChannelView) -> dt.datetime:
    last_at = channel.last_commit_at or channel.opened_at
    return last_at + dt.timedelta(seconds=channel.freshness_s or 0)


def find_waiting(page: PageRequest) -> Iterator[ConsoleProblem]:
    """Find tables whose oldest chunk has waited too long for migration.

    The limit is 5 × `migrate_max_age_s`, and at least 5 minutes.
    """
    settings = page.parts.settings
    limit = max(dt.timedelta(seconds=5 * settings.migrate_max_age_s), _MIN_WAIT)
    oldest = sa.and_(
        _CHUNKS.c.table_id == _TABLES.c.table_id, _CHUNKS.c.seq == _TABLES.c.migrated_seq + 1
    )
    query = (
        sa.select(
            _TABLES.c.table_id, _CHUNKS.c.registered_at, _TABLES.c.last_seq - _TABLES.c.migrated_seq
        )
        .select_from(_TABLES.join(_CHUNKS, oldest))
        .where(_TABLES.c.dropped_at.is_(None), _TABLES.c.last_seq > _TABLES.c.migrated_seq)
        .where(_CHUNKS.c.registered_at < page.now - limit)
        .order_by(_CHUNKS.c.registered_at)
        .limit(_MAX_LISTED)
    )
    rows = page.connection.execute(page.visibility.restrict(query, _TABLES.c.table_id)).all()
    names = list_table_names(page.connection, [row[0] for row in rows])
    remedy = (
        "The setting migrate is off at this service. Run `snowmelt migrate`."
        if not settings.migrate
        else "Check the failed migrations below, and the log of the service."
    )
    for table_id, since, chunks in rows:
        yield ConsoleProblem(
            WRONG,
            f"The migration of {names[table_id]} is {format_quantity(chunks, 'chunk')} behind. The"
            f" oldest chunk has waited for {format_seconds((page.now - since).total_seconds())}."
            " Queries read the rows.",
            remedy,
            since=since,
            has_duration=True,
            path=href(table_path(names[table_id])),
        )


def find_failed_runs(page: PageRequest) -> Iterator[ConsoleProblem]:
    """Find tables whose last migration failed, and loads that failed within a day."""
    later = _MIGRATIONS.alias()
    has_later_run = sa.exists().where(
        later.c.table_id == _MIGRATIONS.c.table_id,
        later.c.started_at > _MIGRATIONS.c.started_at,
        later.c.state.in_(("committed", "failed")),
    )
    query = (
        sa.select(_MIGRATIONS.c.table_id, _MIGRATIONS.c.started_at, _MIGRATIONS.c.message)
        .where(_MIGRATIONS.c.state == "failed", _MIGRATIONS.c.started_at > page.now - _DAY)
        .where(~has_later_run)
        .limit(_MAX_LISTED)
    )
    rows = page.connection.execute(page.visibility.restrict(query, _MIGRATIONS.c.table_id)).all()
    names = list_table_names(page.connection, [row.table_id for row in rows])
    for row in rows:
        if row.table_id in names:
            yield ConsoleProblem(
                WRONG,
                f"The last migration of {names[row.table_id]} failed: {row.message}",
                "The rows stay queryable. Remove the cause, then run: snowmelt migrate --table"
                f" {names[row.table_id]}",
                since=row.started_at,
                path=href("/migrations"),
            )
    for state in ("failed", "lost"):
        for load in fetch_loads(page.connection, page.visibility, state=state, limit=5).rows:
            if load.started_at > page.now - _DAY:
                reason = load.message or load.first_error or "no message was recorded"
                yield ConsoleProblem(
                    WRONG,
                    f"Load {load.load_id} {state}: {reason}",
                    "No row of the load was committed. Remove the cause, then run the statement"
                    " again.",
                    since=load.started_at,
                    path=href(f"/loads/{load.load_id}"),
                )


def find_rejecting_loads(page: PageRequest) -> Iterator[ConsoleProblem]:
    """Find committed loads that rejected records within a day."""
    for load in fetch_loads(page.connection, page.visibility, state=WITH_REJECTS, limit=20).rows:
        if load.started_at < page.now - _DAY or load.state in {"failed", "lost", "running"}:
            continue
        path = f"/loads/{load.load_id}"
        remedy = (
            "The rejected records were not stored. To store them, add REJECTED DATA AS TABLE to the"
            " statement."
        )
        if load.reject_table is not None:
            path += "/rejects"
            remedy = "Correct the records, and load them again."
        reason = f" The first: {load.first_error}" if load.first_error else ""
        yield ConsoleProblem(
            NOTE,
            f"Load {load.load_id} into table {load.table} rejected"
            f" {format_quantity(load.rejects, 'record')}."
            f"{end_sentence(reason) if reason else ''}",
            remedy,
            since=load.started_at,
            path=href(path),
        )


def find_stalled_pipes(page: PageRequest) -> Iterator[ConsoleProblem]:
    """Find pipes that were stopped by an error, and pipes with files that could not be loaded."""
    for pipe in list_stalled_pipes(page.connection, page.visibility)[:_MAX_LISTED]:
        path = href(pipe_path(pipe.name))
        if pipe.last_error is not None:
            yield ConsoleProblem(
                WRONG,
                f"Pipe {pipe.name} is stopped by an error: {pipe.last_error}",
                "Remove the cause. The service retries automatically.",
                since=pipe.last_error_at,
                path=path,
            )
        if pipe.failed_files:
            yield ConsoleProblem(
                NOTE,
                f"Pipe {pipe.name} could not load {format_quantity(pipe.failed_files, 'file')}.",
                f"Correct the files, then run: ALTER PIPE {pipe.name} REFRESH",
                path=path,
            )


def find_stalled_topics(page: PageRequest) -> Iterator[ConsoleProblem]:
    """Find Kafka topics with waiting messages whose partitions had no commit for 5 minutes."""
    stalled: dict[tuple[str, TableName], list[KafkaPartitionView]] = {}
    for each in list_stalled_partitions(page.connection, page.visibility, page.now):
        stalled.setdefault((each.topic, each.table), []).append(each)
    for (topic, table), partitions in list(stalled.items())[:_MAX_LISTED]:
        lag = sum(each.lag for each in partitions)
        yield ConsoleProblem(
            WRONG,
            f"Kafka topic {topic}: {format_quantity(lag, 'message')} not yet in table {table};"
            f" {format_quantity(len(partitions), 'partition')} without a commit for 5 minutes.",
            "Check that the process `snowmelt kafka run` is running, and read its log. The process"
            " resumes after the committed offset.",
            since=min(each.last_commit_at or each.opened_at for each in partitions),
            path=href("/kafka", find=topic),
        )


def find_rejecting_channels(page: PageRequest) -> Iterator[ConsoleProblem]:
    """Find tables whose channels rejected rows within a day."""
    found = fetch_channels(
        page.connection,
        page.visibility,
        chosen=ChannelFilter(only_rejected=True),
        now=page.now,
        order="rejected",
        limit=_MAX_LISTED,
    )
    by_table: dict[TableName, list[ChannelView]] = {}
    for channel in found.rows:
        if channel.last_error_at is not None and channel.last_error_at > page.now - _DAY:
            by_table.setdefault(channel.table, []).append(channel)
    for table, channels in list(by_table.items())[:_MAX_REJECTING_TABLES]:
        last = max(channels, key=lambda each: each.last_error_at or page.now)
        rejected = sum(each.rejected_rows or 0 for each in channels)
        reason = f" The last reason, in channel {last.name} of user {last.owner}: {last.last_error}"
        yield ConsoleProblem(
            NOTE,
            f"{format_quantity(len(channels), 'channel')} of table {table} rejected"
            f" {format_quantity(rejected, 'row')}.{end_sentence(reason) if last.last_error else ''}",
            "Correct the sender. If the table has an error table, its page of rejected rows shows the"
            " rows and can insert them again.",
            since=last.last_error_at,
            path=href("/channels", find=str(table), only="rejected", sort="rejected"),
        )


def _run_source(found: Iterable[ConsoleProblem]) -> list[ConsoleProblem]:
    try:
        return list(found)
    except SnowmeltError as error:
        _log.warning("a check failed", exc_info=error)
        return [ConsoleProblem(NOTE, f"A check failed: {error}", "Run `snowmelt doctor`.")]
