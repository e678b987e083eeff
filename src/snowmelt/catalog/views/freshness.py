"""Freshness of tables and channels: the actual and the expected time since the last commit.

The states are `late` (the expected time is exceeded), `never` (no commit), `quiet` (no expected
time, and no commit for the time of `compute_quiet_limit`) and `fresh`. A channel has the expected
time of its table. `quiet` is a hint and raises no alert. `channel_states` adds the states that only
channels have.

Kafka connectors store metadata in the offset tokens of bookkeeping channels, which have no rows.
Commits of these channels do not count.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.objects.tables import join_namespaces
from snowmelt.catalog.views.visibility import Visibility
from snowmelt.schema.types import TableName

FRESH, LATE, QUIET, NEVER = "fresh", "late", "quiet", "never"
_QUIET_FACTOR = 12
# Minimum of the usual gap between commits, in seconds. Shorter pauses occur at every client.
_MIN_GAP_S = 5.0
MIN_COMMITS = 5
_RECENT_COMMITS = 60
# Quiet limit of tables and channels with fewer than `MIN_COMMITS` commits, in seconds.
_QUIET_S = 3600.0
_TABLES, _CHANNELS, _CHUNKS, _LOADS = model.tables, model.channels, model.chunks, model.loads
_SCHEMAS, _DATABASES = model.schemas, model.databases
# `TOPIC:P0:end` has the end offset of a partition, `TOPIC:source` the cluster and topic.
_BOOKKEEPING = re.compile(r".+(:P\d+:end|:source|:connector)", re.DOTALL)
_BOOKKEEPING_PATTERNS = ("%:P%:end", "%:source", "%:connector")


def is_bookkeeping_name(channel: str) -> bool:
    """Return True if the name is one of a connector's bookkeeping channels."""
    return _BOOKKEEPING.fullmatch(channel) is not None


def is_bookkeeping_channel() -> sa.ColumnElement[bool]:
    """Return the SQL condition that a channel is a connector's bookkeeping channel."""
    name = _CHANNELS.c.name
    found = []
    for pattern in _BOOKKEEPING_PATTERNS:
        suffix = pattern.rpartition("%")[2]
        # LIKE is case-insensitive on SQLite, so compare the suffix exactly.
        tail = sa.func.substr(name, sa.func.length(name) - len(suffix) + 1)
        found.append(sa.and_(name.like(pattern), tail == suffix))
    return sa.or_(*found)


@dataclass(frozen=True, slots=True)
class ExpectedTable:
    """A table with an expected time, and its last commit by a channel or load."""

    table_id: int
    name: TableName
    freshness_s: int
    created_at: dt.datetime
    last_commit_at: dt.datetime | None

    @property
    def late_at(self) -> dt.datetime:
        """Time at which the table becomes late if no commit follows."""
        return (self.last_commit_at or self.created_at) + dt.timedelta(seconds=self.freshness_s)


def compute_freshness_state(
    *,
    last_commit_at: dt.datetime | None,
    created_at: dt.datetime,
    freshness_s: int | None,
    usual_gap_s: float | None,
    now: dt.datetime,
) -> str:
    """Return the state of a table or channel.

    `usual_gap_s` is the mean time between commits, or None for fewer than five commits.
    """
    silent_s = (now - (last_commit_at or created_at)).total_seconds()
    if freshness_s is not None and silent_s > freshness_s:
        return LATE
    if last_commit_at is None:
        return NEVER
    if freshness_s is not None:
        return FRESH
    return QUIET if silent_s > compute_quiet_limit(usual_gap_s) else FRESH


def compute_quiet_limit(usual_gap_s: float | None) -> float:
    """Return the seconds without a commit after which a table or channel is quiet."""
    return _QUIET_S if usual_gap_s is None else max(usual_gap_s, _MIN_GAP_S) * _QUIET_FACTOR


def compute_usual_gap(began_at: dt.datetime, last_at: dt.datetime, commits: int) -> float | None:
    """Return the mean time in seconds between commits; None for fewer than five."""
    if commits < MIN_COMMITS:
        return None
    return max((last_at - began_at).total_seconds(), 0.0) / commits


@dataclass(frozen=True, slots=True)
class RecentCommits:
    """The newest commits of a table: chunks that are still on the stage, and the last load.

    `usual_gap_s` is the mean time between the chunks; None for fewer than five.
    """

    last_chunk_at: dt.datetime | None = None
    last_load_at: dt.datetime | None = None
    usual_gap_s: float | None = None


def read_recent_commits(
    connection: sa.Connection, table_ids: Collection[int]
) -> dict[int, RecentCommits]:
    """Return the newest commits of these tables. Tables without commits are omitted."""
    at = _CHUNKS.c.registered_at
    chunks = (
        sa.select(
            _TABLES.c.table_id,
            sa.func.count(),
            sa.func.min(at, type_=model.UtcTimestamp),
            sa.func.max(at, type_=model.UtcTimestamp),
        )
        .select_from(
            _TABLES.join(
                _CHUNKS,
                sa.and_(
                    _CHUNKS.c.table_id == _TABLES.c.table_id,
                    _CHUNKS.c.seq > _TABLES.c.last_seq - _RECENT_COMMITS,
                ),
            )
        )
        .where(_TABLES.c.table_id.in_(table_ids))
        .group_by(_TABLES.c.table_id)
    )
    found = {}
    for table_id, count, oldest, newest in connection.execute(chunks):
        gap_s = None
        if count >= MIN_COMMITS:
            gap_s = (newest - oldest).total_seconds() / (count - 1)
        found[table_id] = RecentCommits(newest, None, gap_s)
    for table_id, ended_at in _read_last_loads(connection, table_ids).items():
        found[table_id] = replace(found.get(table_id, RecentCommits()), last_load_at=ended_at)
    return found


def _read_last_loads(
    connection: sa.Connection, table_ids: Collection[int]
) -> dict[int, dt.datetime | None]:
    """Return when the last load with rows, or with rejects for a table of rejects, committed."""
    newest = sa.func.max(_LOADS.c.ended_at, type_=model.UtcTimestamp)
    found: dict[int, dt.datetime | None] = {}
    for table_id, count in (
        (_LOADS.c.table_id, _LOADS.c.rows),
        (_LOADS.c.reject_table_id, _LOADS.c.rejects),
    ):
        query = (
            sa.select(table_id, newest)
            .where(table_id.in_(table_ids), _LOADS.c.state == "committed", count > 0)
            .group_by(table_id)
        )
        for each in connection.execute(query):
            found[each[0]] = find_latest(found.get(each[0]), each[1])
    return found


def list_expected_tables(
    connection: sa.Connection, visibility: Visibility | None = None
) -> list[ExpectedTable]:
    """Return the tables that have an expected time, by name."""
    newest = sa.func.max(_CHANNELS.c.last_commit_at, type_=model.UtcTimestamp)
    query = (
        sa.select(
            *(_TABLES.c[name] for name in ("table_id", "freshness_s", "created_at")),
            _DATABASES.c.name,
            _SCHEMAS.c.name.label("schema_name"),
            _TABLES.c.name.label("table_name"),
            newest.label("last_commit_at"),
        )
        .select_from(
            join_namespaces(_TABLES).outerjoin(
                _CHANNELS,
                sa.and_(
                    _CHANNELS.c.table_id == _TABLES.c.table_id, sa.not_(is_bookkeeping_channel())
                ),
            )
        )
        .where(_TABLES.c.dropped_at.is_(None), _TABLES.c.freshness_s.is_not(None))
        .group_by(_TABLES.c.table_id, _DATABASES.c.name, _SCHEMAS.c.name)
    )
    if visibility is not None:
        query = visibility.restrict(query, _TABLES.c.table_id)
    rows = connection.execute(query).all()
    recent = read_recent_commits(connection, [row.table_id for row in rows])
    found = [
        ExpectedTable(
            row.table_id,
            TableName(row[3], row.schema_name, row.table_name),
            row.freshness_s,
            row.created_at,
            find_last_commit(row.last_commit_at, recent.get(row.table_id)),
        )
        for row in rows
    ]
    return sorted(found, key=lambda each: str(each.name))


def list_late_tables(
    connection: sa.Connection, now: dt.datetime, visibility: Visibility | None = None
) -> list[ExpectedTable]:
    """Return the tables that are late, the longest first."""
    expected = list_expected_tables(connection, visibility)
    return sorted((each for each in expected if each.late_at < now), key=lambda each: each.late_at)


def find_last_commit(
    last_commit_at: dt.datetime | None, recent: RecentCommits | None
) -> dt.datetime | None:
    """Return the last commit of a table by a channel, chunk or load."""
    if recent is None:
        return last_commit_at
    return find_latest(last_commit_at, recent.last_chunk_at, recent.last_load_at)


def find_latest(*times: dt.datetime | None) -> dt.datetime | None:
    """Return the latest of these times, or None if all are None."""
    return max((each for each in times if each is not None), default=None)


def is_late_channel(now: dt.datetime) -> sa.ColumnElement[bool]:
    """Return the SQL condition that a channel, joined with its table, is late."""
    at = sa.func.coalesce(
        sa.type_coerce(_CHANNELS.c.last_commit_at, sa.BigInteger),
        sa.type_coerce(_CHANNELS.c.opened_at, sa.BigInteger),
    )
    limit: sa.ColumnElement[Any] = sa.literal(model.to_microseconds(now), sa.BigInteger)
    return sa.and_(
        _TABLES.c.freshness_s.is_not(None),
        at < limit - _TABLES.c.freshness_s * 1_000_000,
        sa.not_(is_bookkeeping_channel()),
    )
