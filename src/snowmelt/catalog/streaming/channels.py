"""Channels. Opening a channel fences its previous owner; dropping one keeps its client sequencer."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db import dialect as sets
from snowmelt.catalog.db.replication_triggers import require_writable
from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.objects.channel_tombstones import (
    find_tombstones,
    tombstone_channel,
    tombstone_expired_channels,
)
from snowmelt.catalog.objects.tables import lock_tables, raise_changed_table
from snowmelt.errors import ChannelFenced, ChannelNotFound, TooManyChannels
from snowmelt.schema.types import to_display_name

# Maximum number of channels per table, as documented for Snowpipe Streaming.
MAX_CHANNELS_PER_TABLE = 10_000

_CHANNELS = model.channels
_CHANNEL_HISTORY = model.channel_history
_TABLES = model.tables
_MAX_EXPIRED_PER_CALL = 1_000

# Identity of an open request: client prefix, request ID, channel and user.
_OpenKey: TypeAlias = tuple[str, str, str, str]

_STORED_OPEN_KEY = ("client_prefix", "request_id", "table_id", "channel")

# Built once, because clients open hundreds of channels.
_SELECT_NAMED_CHANNELS = sa.select(_CHANNELS).where(
    _CHANNELS.c.table_id == sa.bindparam("table_id"),
    sets.in_array(_CHANNELS.c.name, sa.bindparam("names", type_=sa.Text)),
)
_SELECT_SEQUENCER_FLOOR = sa.select(model.deployment.c.sequencer_floor)
_COUNT_CHANNELS = sa.select(sa.func.count()).where(_CHANNELS.c.table_id == sa.bindparam("table_id"))


@cache
def _select_stored_opens(dialect: str) -> sa.Select[Any]:
    columns = _CHANNEL_HISTORY.c
    # Each row contains the table ID: with the ID as a separate parameter, SQLite would scan the
    # table's whole history.
    given = sets.make_rows_source(
        dialect, *(sa.column(name, columns[name].type) for name in _STORED_OPEN_KEY)
    )
    return sa.select(
        *(columns[name] for name in ("client_prefix", "request_id", "channel", "user")),
        *(columns[name] for name in _StoredOpen.__dataclass_fields__),
    ).select_from(
        given.join(
            _CHANNEL_HISTORY,
            sa.and_(*(columns[name] == given.c[name] for name in _STORED_OPEN_KEY)),
        )
    )


@dataclass(frozen=True, slots=True)
class ChannelRecord:
    """A channel as stored.

    `client_sequencer` counts the openings, `row_sequencer` the committed chunks. `last_…` describe
    the last committed chunk. `rows` and `bytes` are totals. They become None if a chunk contains
    rows of several channels without the count of each.
    """

    table_id: int
    name: str
    client_sequencer: int
    row_sequencer: int
    offset_token: str | None
    owner_user: str
    client_prefix: str | None
    opened_at: dt.datetime
    last_path: str | None = None
    last_chunk_offset: int | None = None
    last_chunk_md5: str | None = None
    last_commit_at: dt.datetime | None = None
    rows: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class OpenChannelResult:
    """Result of an open request.

    `previous_owner` is the client prefix of the previous owner, or None if there was none.
    `is_replayed` is True if the request is a repetition. Repetitions change nothing.
    """

    record: ChannelRecord
    previous_owner: str | None
    is_replayed: bool


@dataclass(frozen=True, slots=True)
class ChannelEvent:
    """A record of a channel's history.

    Events are `opened`, `dropped`, `expired`, `table dropped`, `table undropped`, `table truncated`.
    """

    table_id: int
    channel: str
    event: str
    at: dt.datetime
    client_sequencer: int
    row_sequencer: int
    offset_token: str | None
    user: str | None
    client_prefix: str | None
    previous_user: str | None
    previous_owner: str | None


@dataclass(frozen=True, slots=True)
class ChannelOpen:
    """A request to open a channel of a table.

    `client_prefix` and `request_id` identify the request; without both, each request is a new one.
    `offset_token`, if given, becomes the committed token of the channel. `reports_rejections`: the client
    reports the rows that it rejects itself.
    """

    channel: str
    user: str
    client_prefix: str | None = None
    request_id: str | None = None
    offset_token: str | None = None
    reports_rejections: bool = False

    @property
    def key(self) -> _OpenKey | None:
        """Identity of the request; None if it has none."""
        if self.client_prefix is None or self.request_id is None:
            return None
        return self.client_prefix, self.request_id, self.channel, self.user


@dataclass(frozen=True, slots=True)
class _StoredOpen:
    """The result of an earlier opening, from the history."""

    client_sequencer: int
    row_sequencer: int
    offset_token: str | None
    at: dt.datetime
    previous_owner: str | None


def open_channel(
    connection: sa.Connection,
    table: TableRecord,
    channel: str,
    *,
    user: str,
    client_prefix: str | None,
    request_id: str | None,
    offset_token: str | None = None,
    now: dt.datetime,
) -> OpenChannelResult:
    """Open one channel as `open_channels` does.

    Raises:
        TableNotFound: If the table was dropped meanwhile.
        TooManyChannels: If the channel is new and the table already has 10,000 channels.
    """
    request = ChannelOpen(channel, user, client_prefix, request_id, offset_token)
    [opened] = open_channels(connection, table, [request], now=now)
    if isinstance(opened, TooManyChannels):
        raise opened
    return opened


def open_channels(
    connection: sa.Connection,
    table: TableRecord,
    requests: Sequence[ChannelOpen],
    *,
    now: dt.datetime,
) -> list[OpenChannelResult | TooManyChannels]:
    """Open channels of a table, creating missing ones and fencing previous owners.

    Requests are applied in order, with a constant number of statements. A repeated request of the
    same client returns the same sequencer and does not fence other clients, so clients may retry
    after a lost response. If the table has 10,000 channels, the result of a new channel is
    TooManyChannels.

    The caller must have read the table record in the same write transaction.

    Raises:
        TableNotFound: If the table was dropped meanwhile.
        TransactionConflict: If the table was replaced meanwhile.
        SiteReadOnly: If another site is the primary.
    """
    require_writable(connection)
    if not lock_tables(connection, [table.table_id]):
        raise_changed_table(connection, table)
    stored_opens = _find_stored_opens(connection, table.table_id, requests)
    names = {request.channel for request in requests}
    ids: dict[str, int] = {}
    records: dict[str, ChannelRecord] = {}
    wanted = {"table_id": table.table_id, "names": sets.encode_array(sorted(names))}
    for row in connection.execute(_SELECT_NAMED_CHANNELS, wanted):
        ids[row.name], records[row.name] = row.channel_id, _to_channel_record(row)
    # Dropped channels under the current name of the table may have higher sequencers.
    tombstones = find_tombstones(connection, table.name, names)
    # If this installation was restored from a backup, writers of the original may have higher
    # sequencers, too.
    floor = connection.execute(_SELECT_SEQUENCER_FLOOR).scalar()
    lowest = -1 if floor is None else floor
    free = MAX_CHANNELS_PER_TABLE
    if names - ids.keys():
        free -= connection.execute(_COUNT_CHANNELS, {"table_id": table.table_id}).scalar_one()
    results: list[OpenChannelResult | TooManyChannels] = []
    history: list[tuple[Any, ...]] = []
    for request in requests:
        previous = records.get(request.channel)
        stored = stored_opens.get(request.key)
        if stored is not None:
            record = _to_replayed_record(table.table_id, request, stored, previous)
            results.append(OpenChannelResult(record, stored.previous_owner, is_replayed=True))
            continue
        if previous is None and free <= 0:
            limit = f"{MAX_CHANNELS_PER_TABLE:,}"
            results.append(TooManyChannels(table=table.name, limit=limit))
            continue
        free -= previous is None
        tombstone = tombstones.get(request.channel)
        counted = lowest if tombstone is None else max(tombstone.client_sequencer, lowest)
        record = _to_opened_record(table.table_id, request, previous, counted, now)
        records[request.channel] = record
        owner = previous.client_prefix if previous else None
        if request.key is not None:
            stored_opens[request.key] = _StoredOpen(
                record.client_sequencer, record.row_sequencer, record.offset_token, now, owner
            )
        history.append(
            (
                record.table_id,
                record.name,
                "opened",
                model.to_microseconds(record.opened_at),
                record.client_sequencer,
                record.row_sequencer,
                record.offset_token,
                request.user,
                request.client_prefix,
                request.request_id,
                previous.owner_user if previous else None,
                previous.client_prefix if previous else None,
            )
        )
        results.append(OpenChannelResult(record, owner, is_replayed=False))
    if history:
        opened = {row[1] for row in history}
        _write_opened_channels(connection, [records[name] for name in sorted(opened)], ids)
        sets.insert_rows(connection, _CHANNEL_HISTORY, _HISTORY_COLUMNS, history)
    return results


def find_channel(
    connection: sa.Connection, table: TableRecord, channel: str
) -> ChannelRecord | None:
    """Return a channel of a table, or None if it does not exist."""
    row = _find_channel_row(connection, table.table_id, channel)
    return None if row is None else _to_channel_record(row)


def find_channels(
    connection: sa.Connection, names: Collection[tuple[int, str]]
) -> dict[tuple[int, str], ChannelRecord]:
    """Return the existing channels among these pairs of table ID and name."""
    found = {}
    for table_id in sorted({table_id for table_id, _ in names}):
        wanted = [name for each, name in names if each == table_id]
        query = sa.select(_CHANNELS).where(
            _CHANNELS.c.table_id == table_id, _CHANNELS.c.name.in_(wanted)
        )
        found.update(
            {(row.table_id, row.name): _to_channel_record(row) for row in connection.execute(query)}
        )
    return found


def list_channels(
    connection: sa.Connection, table_ids: Collection[int] | None = None
) -> list[ChannelRecord]:
    """Return the channels of these tables, or of all live tables, ordered by table ID and name."""
    query = sa.select(_CHANNELS).order_by(_CHANNELS.c.table_id, _CHANNELS.c.name)
    if table_ids is not None:
        query = query.where(_CHANNELS.c.table_id.in_(table_ids))
    else:
        live = sa.select(_TABLES.c.table_id).where(_TABLES.c.dropped_at.is_(None))
        query = query.where(_CHANNELS.c.table_id.in_(live))
    return [_to_channel_record(row) for row in connection.execute(query)]


def drop_channel(
    connection: sa.Connection,
    table: TableRecord,
    channel: str,
    *,
    client_sequencer: int | None = None,
    user: str | None = None,
    now: dt.datetime,
) -> ChannelRecord:
    """Drop a channel with its offset token. Committed rows stay.

    The caller must have read the table record in the same write transaction. If `client_sequencer`
    is given, the channel is dropped only if no other client has opened it since. `user` is recorded
    in the history.

    Raises:
        ChannelFenced: If another client has opened the channel since.
        ChannelNotFound: If it does not exist.
        TableNotFound: If the table was dropped meanwhile.
        TransactionConflict: If the table was replaced meanwhile.
        SiteReadOnly: If another site is the primary.
    """
    require_writable(connection)
    if not lock_tables(connection, [table.table_id]):
        raise_changed_table(connection, table)
    row = _find_channel_row(connection, table.table_id, channel)
    if row is None:
        raise ChannelNotFound(channel=to_display_name(channel), table=table.name)
    if client_sequencer is not None and client_sequencer != row.client_sequencer:
        raise ChannelFenced(channel=to_display_name(channel))
    tombstone_channel(connection, row.channel_id, now, user=user)
    return _to_channel_record(row)


def expire_idle_channels(
    connection: sa.Connection, idle_since: dt.datetime, now: dt.datetime
) -> int:
    """Remove up to 1,000 channels without writes since a time. Return the number of removed channels.

    Opening a channel counts as a write. Offset tokens are removed, too. Requests for an expired
    channel fail with ChannelNotFound. A client may open the channel again as a new one.
    """
    idle = sa.and_(
        _CHANNELS.c.opened_at < idle_since,
        sa.or_(_CHANNELS.c.last_commit_at.is_(None), _CHANNELS.c.last_commit_at < idle_since),
    )
    live = sa.select(_TABLES.c.table_id).where(_TABLES.c.dropped_at.is_(None))
    query = sa.select(_CHANNELS.c.channel_id, _CHANNELS.c.table_id).where(
        idle, _CHANNELS.c.table_id.in_(live)
    )
    found = connection.execute(
        query.order_by(_CHANNELS.c.channel_id).limit(_MAX_EXPIRED_PER_CALL)
    ).all()
    if not found:
        return 0
    # Registrations also lock the table, so all earlier registrations are visible after this lock.
    lock_tables(connection, {row.table_id for row in found})
    ids = [row.channel_id for row in found]
    still = connection.execute(
        sa.select(_CHANNELS.c.channel_id).where(
            _CHANNELS.c.channel_id.in_(ids), idle, _CHANNELS.c.table_id.in_(live)
        )
    )
    expired = list(still.scalars())
    if expired:
        tombstone_expired_channels(connection, expired, now)
    return len(expired)


def prune_channel_history(
    connection: sa.Connection, before: dt.datetime, *, limit: int = 1_000
) -> int:
    """Delete up to `limit` of the oldest history records before a time. Return the deleted number.

    This also deletes stored results of open requests. A repeated request then opens the channel
    again.
    """
    oldest = (
        sa.select(_CHANNEL_HISTORY.c.history_id, _CHANNEL_HISTORY.c.at)
        .order_by(_CHANNEL_HISTORY.c.history_id)
        .limit(limit)
        .subquery()
    )
    expired = sa.select(oldest.c.history_id).where(oldest.c.at < before)
    return connection.execute(
        sa.delete(_CHANNEL_HISTORY).where(_CHANNEL_HISTORY.c.history_id.in_(expired))
    ).rowcount


def list_channel_history(
    connection: sa.Connection, table_id: int, channel: str | None = None, *, limit: int = 10_000
) -> list[ChannelEvent]:
    """Return the history of a table's channels, or of one channel, newest first."""
    query = sa.select(_CHANNEL_HISTORY).where(_CHANNEL_HISTORY.c.table_id == table_id)
    if channel is not None:
        query = query.where(_CHANNEL_HISTORY.c.channel == channel)
    newest_first = query.order_by(_CHANNEL_HISTORY.c.history_id.desc()).limit(limit)
    return [sets.make_record(ChannelEvent, row) for row in connection.execute(newest_first)]


def _find_stored_opens(
    connection: sa.Connection, table_id: int, requests: Sequence[ChannelOpen]
) -> dict[_OpenKey | None, _StoredOpen]:
    """Return the stored results of these requests by their keys."""
    repeatable = {
        (request.client_prefix, request.request_id, table_id, request.channel)
        for request in requests
        if request.key is not None
    }
    if not repeatable:
        return {}
    found = connection.execute(
        _select_stored_opens(connection.dialect.name),
        sets.encode_rows(_STORED_OPEN_KEY, repeatable),
    )
    return {tuple(row[:4]): _StoredOpen(*row[4:]) for row in found}


def _to_replayed_record(
    table_id: int, request: ChannelOpen, stored: _StoredOpen, current: ChannelRecord | None
) -> ChannelRecord:
    """Return the channel with the sequencer that the first response to the request had."""
    if current is not None and current.client_sequencer == stored.client_sequencer:
        return current
    # Another client has opened the channel, or it was dropped. Return the old result, which is
    # already fenced.
    return ChannelRecord(
        table_id,
        request.channel,
        stored.client_sequencer,
        stored.row_sequencer,
        stored.offset_token,
        request.user,
        request.client_prefix,
        stored.at,
    )


def _to_opened_record(
    table_id: int,
    request: ChannelOpen,
    previous: ChannelRecord | None,
    last_client_sequencer: int,
    now: dt.datetime,
) -> ChannelRecord:
    """Return a channel after it was opened. `last_client_sequencer` is from its tombstone, or -1."""
    token, user, prefix = request.offset_token, request.user, request.client_prefix
    if previous is None:
        client = last_client_sequencer + 1
        return ChannelRecord(
            table_id, request.channel, client, 0, token, user, prefix, now, rows=0, bytes=0
        )
    return replace(
        previous,
        client_sequencer=max(previous.client_sequencer, last_client_sequencer) + 1,
        offset_token=previous.offset_token if token is None else token,
        owner_user=user,
        client_prefix=prefix,
        opened_at=now,
    )


_HISTORY_COLUMNS = (
    *("table_id", "channel", "event", "at", "client_sequencer", "row_sequencer", "offset_token"),
    *("user", "client_prefix", "request_id", "previous_user", "previous_owner"),
)


_OPENED_COLUMNS = (
    *("client_sequencer", "offset_token", "owner_user", "client_prefix", "opened_at"),
    *("row_sequencer", "rows", "bytes"),
)


def _write_opened_channels(
    connection: sa.Connection, records: Sequence[ChannelRecord], ids: Mapping[str, int]
) -> None:
    created: list[tuple[Any, ...]] = []
    updated: list[tuple[Any, ...]] = []
    for record in records:
        values = (
            record.client_sequencer,
            record.offset_token,
            record.owner_user,
            record.client_prefix,
            model.to_microseconds(record.opened_at),
            record.row_sequencer,
            record.rows,
            record.bytes,
        )
        if record.name in ids:
            updated.append((ids[record.name], *values))
        else:
            created.append((record.table_id, record.name, *values))
    if created:
        columns = ("table_id", "name", *_OPENED_COLUMNS)
        sets.insert_rows(connection, _CHANNELS, columns, created)
    if updated:
        sets.update_rows(connection, _CHANNELS, ("channel_id", *_OPENED_COLUMNS), updated)


def _find_channel_row(connection: sa.Connection, table_id: int, channel: str) -> sa.Row[Any] | None:
    query = sa.select(_CHANNELS).where(
        _CHANNELS.c.table_id == table_id, _CHANNELS.c.name == channel
    )
    return connection.execute(query).first()


def _to_channel_record(row: sa.Row[Any]) -> ChannelRecord:
    return sets.make_record(ChannelRecord, row)
