"""Channels. Opening one fences its previous owner; dropping one keeps its client sequencer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.objects.channel_tombstones import (
    find_tombstone_client_sequencer,
    tombstone_channel,
    tombstone_expired_channels,
)
from snowmelt.catalog.objects.tables import lock_tables
from snowmelt.errors import ChannelFenced, ChannelNotFound, TableNotFound, TooManyChannels
from snowmelt.schema.types import to_display_name

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection

    from snowmelt.catalog.model.records import TableRecord

# The limit that Snowpipe Streaming documents for one table.
MAX_CHANNELS_PER_TABLE = 10_000

_CHANNELS = model.channels
_CHANNEL_HISTORY = model.channel_history
_TABLES = model.tables
_MAX_EXPIRED_PER_CALL = 1_000


@dataclass(frozen=True, slots=True)
class ChannelRecord:
    """A channel as it is persisted.

    `client_sequencer` is the epoch, one more at each open; `row_sequencer` counts the channel's
    committed chunks. `last_…` describe the last of these, `rows` and `bytes` what all of them
    held: None once a chunk came that was shared with other channels and did not say whose rows
    were whose.
    """

    table_id: int
    name: str
    client_sequencer: int
    row_sequencer: int
    offset_token: str | None
    owner_user: str
    client_prefix: str | None
    last_path: str | None
    last_chunk_offset: int | None
    last_chunk_md5: str | None
    opened_at: dt.datetime
    last_commit_at: dt.datetime | None
    rows: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class OpenChannelResult:
    """The answer to an open.

    `previous_owner` is the client prefix of who had the channel before (None when nobody had);
    `is_replayed` says that this request was answered before and nothing was changed now.
    """

    record: ChannelRecord
    previous_owner: str | None
    is_replayed: bool


@dataclass(frozen=True, slots=True)
class ChannelEvent:
    """A line of a channel's history.

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
class _OpenRequest:
    user: str
    client_prefix: str | None
    request_id: str | None


def open_channel(  # noqa: PLR0913 - what an open request carries
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
    """Open a channel for a new owner, created when it is missing, and fence the one before.

    The same request of the same client again gets the same sequencer, and fences nobody: an
    answer that was lost must not cost the channel, a request that was late not its next owner.

    Args:
        connection: A writing transaction.
        table: The table, as found in this transaction.
        channel: The channel's internal name.
        user: Who opens it.
        client_prefix: The opening client; without it or `request_id` each open is a new one.
        request_id: The client's name for this open.
        offset_token: Becomes the channel's committed token at once, when given.
        now: The time of the opening.

    Raises:
        TableNotFound: The table was dropped meanwhile.
        TooManyChannels: The table has 10,000 channels and this would be one more.
    """
    if not lock_tables(connection, [table.table_id]):
        raise TableNotFound(table=table.name)
    request = _OpenRequest(user, client_prefix, request_id)
    earlier = _find_replayed_open(connection, table, channel, request)
    if earlier is not None:
        return earlier
    previous = _find_channel_row(connection, table.table_id, channel)
    changed: dict[str, Any] = {
        "owner_user": user,
        "client_prefix": client_prefix,
        "opened_at": now,
    }
    if offset_token is not None:
        changed["offset_token"] = offset_token
    if previous is None:
        changed |= _new_channel_values(connection, table, channel)
        write: sa.Insert | sa.Update = sa.insert(_CHANNELS)
    else:
        # Others may have counted further under the name that its table has now.
        last = find_tombstone_client_sequencer(connection, table.name, channel) or 0
        changed["client_sequencer"] = max(previous.client_sequencer, last) + 1
        write = sa.update(_CHANNELS).where(_CHANNELS.c.channel_id == previous.channel_id)
    record = _to_channel_record(
        connection.execute(write.values(changed).returning(*_CHANNELS.c)).one()
    )
    connection.execute(
        sa.insert(_CHANNEL_HISTORY).values(
            table_id=table.table_id,
            channel=channel,
            event="opened",
            at=now,
            client_sequencer=record.client_sequencer,
            row_sequencer=record.row_sequencer,
            offset_token=record.offset_token,
            user=user,
            client_prefix=client_prefix,
            request_id=request_id,
            previous_user=previous.owner_user if previous else None,
            previous_owner=previous.client_prefix if previous else None,
        )
    )
    return OpenChannelResult(
        record, previous.client_prefix if previous else None, is_replayed=False
    )


def find_channel(
    connection: sa.Connection, table: TableRecord, channel: str
) -> ChannelRecord | None:
    """Return a channel of a table, None when there is none of that name."""
    row = _find_channel_row(connection, table.table_id, channel)
    return None if row is None else _to_channel_record(row)


def find_channels(
    connection: sa.Connection, names: Collection[tuple[int, str]]
) -> dict[tuple[int, str], ChannelRecord]:
    """Return those of many channels, given as (table id, name), that exist."""
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
    """Return the channels of these tables, or of all live ones, ordered by table id and name."""
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
    """Drop a channel with its offset token; committed rows stay.

    Args:
        connection: A writing transaction.
        table: The table, as found in this transaction.
        channel: The channel's internal name.
        client_sequencer: Drop only this epoch; whatever there is when not given.
        user: Who drops it, for the history.
        now: The time of the drop.

    Raises:
        ChannelFenced: Another client has opened it since.
        ChannelNotFound: There is no such channel.
    """
    lock_tables(connection, [table.table_id])
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
    """Remove channels, with their tokens, that nobody has written to since; return how many.

    At most a thousand at once. A channel that is opened counts as written to. Whoever still holds
    one of them is told that it does not exist, and may open it again, as a new one.
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
    # Registrations lock tables, too: what moved on before this did is seen now.
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
    """Remove the oldest lines of the history that were written before an instant; return how many.

    With the line of an `open` its stored answer goes: repeated after that, it opens anew.
    """
    oldest = (
        sa.select(_CHANNEL_HISTORY.c.history_id, _CHANNEL_HISTORY.c.at)
        .order_by(_CHANNEL_HISTORY.c.history_id)
        .limit(limit)
        .subquery()
    )
    removed = connection.execute(
        sa.delete(_CHANNEL_HISTORY).where(
            _CHANNEL_HISTORY.c.history_id.in_(
                sa.select(oldest.c.history_id).where(oldest.c.at < before)
            )
        )
    )
    return removed.rowcount


def list_channel_history(
    connection: sa.Connection, table_id: int, channel: str | None = None, *, limit: int = 10_000
) -> list[ChannelEvent]:
    """Return the history of a table's channels, or of one, the newest line first."""
    query = sa.select(_CHANNEL_HISTORY).where(_CHANNEL_HISTORY.c.table_id == table_id)
    if channel is not None:
        query = query.where(_CHANNEL_HISTORY.c.channel == channel)
    fields = ChannelEvent.__dataclass_fields__
    return [
        ChannelEvent(**{name: row[name] for name in fields})
        for row in connection.execute(
            query.order_by(_CHANNEL_HISTORY.c.history_id.desc()).limit(limit)
        ).mappings()
    ]


def _find_replayed_open(
    connection: sa.Connection, table: TableRecord, channel: str, open_request: _OpenRequest
) -> OpenChannelResult | None:
    """Return the stored answer to this open request, with the sequencer it was given then."""
    if open_request.client_prefix is None or open_request.request_id is None:
        return None
    line = connection.execute(
        sa.select(_CHANNEL_HISTORY).where(
            _CHANNEL_HISTORY.c.client_prefix == open_request.client_prefix,
            _CHANNEL_HISTORY.c.request_id == open_request.request_id,
            _CHANNEL_HISTORY.c.table_id == table.table_id,
            _CHANNEL_HISTORY.c.channel == channel,
            _CHANNEL_HISTORY.c.user == open_request.user,
        )
    ).first()
    if line is None:
        return None
    row = _find_channel_row(connection, table.table_id, channel)
    if row is not None and row.client_sequencer == line.client_sequencer:
        return OpenChannelResult(_to_channel_record(row), line.previous_owner, is_replayed=True)
    # Opened by somebody else or dropped since: the old answer, whose holder is fenced already.
    stale = ChannelRecord(
        table_id=table.table_id,
        name=channel,
        client_sequencer=line.client_sequencer,
        row_sequencer=line.row_sequencer,
        offset_token=line.offset_token,
        owner_user=open_request.user,
        client_prefix=open_request.client_prefix,
        last_path=None,
        last_chunk_offset=None,
        last_chunk_md5=None,
        opened_at=line.at,
        last_commit_at=None,
        rows=None,
        bytes=None,
    )
    return OpenChannelResult(stale, line.previous_owner, is_replayed=True)


def _new_channel_values(
    connection: sa.Connection, table: TableRecord, channel: str
) -> dict[str, Any]:
    count = sa.select(sa.func.count()).where(_CHANNELS.c.table_id == table.table_id)
    if connection.execute(count).scalar_one() >= MAX_CHANNELS_PER_TABLE:
        raise TooManyChannels(table=table.name, limit=f"{MAX_CHANNELS_PER_TABLE:,}")
    last = find_tombstone_client_sequencer(connection, table.name, channel)
    return {
        "table_id": table.table_id,
        "name": channel,
        "client_sequencer": 0 if last is None else last + 1,
        "row_sequencer": 0,
        "rows": 0,
        "bytes": 0,
    }


def _find_channel_row(connection: sa.Connection, table_id: int, channel: str) -> sa.Row[Any] | None:
    query = sa.select(_CHANNELS).where(
        _CHANNELS.c.table_id == table_id, _CHANNELS.c.name == channel
    )
    return connection.execute(query).first()


def _to_channel_record(row: sa.Row[Any]) -> ChannelRecord:
    return ChannelRecord(
        table_id=row.table_id,
        name=row.name,
        client_sequencer=row.client_sequencer,
        row_sequencer=row.row_sequencer,
        offset_token=row.offset_token,
        owner_user=row.owner_user,
        client_prefix=row.client_prefix,
        last_path=row.last_path,
        last_chunk_offset=row.last_chunk_offset,
        last_chunk_md5=row.last_chunk_md5,
        opened_at=row.opened_at,
        last_commit_at=row.last_commit_at,
        rows=row.rows,
        bytes=row.bytes,
    )
