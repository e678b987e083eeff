"""State of the row API: last request, row counts and last error of channels, and byte encodings.

The byte encoding is base64 or hexadecimal digits, by pipe path and client token. The encoding is
stored only for paths on which a response instructed a client to use base64. On all other paths, no
client uses base64.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db import dialect
from snowmelt.catalog.db.dialect import make_insert, replace_nul
from snowmelt.catalog.jobs.lineage import add_rowless_commits

_CHANNELS = model.channels
_ROW_CHANNELS = model.row_channels
_ROW_REQUESTS = model.row_requests


def _select_channels(*columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    return (
        sa.select(*columns)
        .select_from(
            _CHANNELS.outerjoin(_ROW_CHANNELS, _CHANNELS.c.channel_id == _ROW_CHANNELS.c.channel_id)
        )
        .where(
            _CHANNELS.c.table_id == sa.bindparam("table_id"),
            dialect.in_array(_CHANNELS.c.name, sa.bindparam("names", type_=sa.Text)),
        )
    )


# Built once, because they run for every request. The second statement reads many channels, without
# the columns that only a channel status needs.
_SELECT_ROW_CHANNELS = _select_channels(
    *(_CHANNELS.c[name] for name in ("channel_id", "name", "client_sequencer", "row_sequencer")),
    *(_CHANNELS.c[name] for name in ("offset_token", "owner_user", "opened_at")),
    _ROW_CHANNELS.c.request_id,
    *(
        sa.func.coalesce(_ROW_CHANNELS.c[name], 0)
        for name in ("rows_parsed", "rows_inserted", "rows_error")
    ),
    *(_ROW_CHANNELS.c[name] for name in ("last_error", "last_error_at", "last_error_offset")),
)
_SELECT_POSITIONS = _select_channels(
    *(_CHANNELS.c[name] for name in ("name", "client_sequencer", "row_sequencer", "owner_user")),
    _ROW_CHANNELS.c.request_id,
)
_SELECT_CHANNEL_IDS = sa.select(_CHANNELS.c.name, _CHANNELS.c.channel_id).where(
    _CHANNELS.c.table_id == sa.bindparam("table_id"),
    dialect.in_array(_CHANNELS.c.name, sa.bindparam("names", type_=sa.Text)),
)
_SELECT_REQUEST_IDS = sa.select(_ROW_REQUESTS.c.request_id).where(
    _ROW_REQUESTS.c.table_id == sa.bindparam("table_id"),
    dialect.in_array(_ROW_REQUESTS.c.request_id, sa.bindparam("request_ids", type_=sa.Text)),
)
_DELETE_REQUEST_IDS = sa.delete(_ROW_REQUESTS).where(
    _ROW_REQUESTS.c.table_id == sa.bindparam("of_table"),
    dialect.in_array(_ROW_REQUESTS.c.request_id, sa.bindparam("request_ids", type_=sa.Text)),
)


class ChannelSequencers(NamedTuple):
    """Sequencers, owner, and ID of the last request of a channel."""

    name: str
    client_sequencer: int
    row_sequencer: int
    owner_user: str
    request_id: str | None


@dataclass(frozen=True, slots=True)
class RowChannel:
    """A channel with its state in the row API. Counters are cumulative since its creation.

    `last_error_offset` is the end offset token of the request with the last rejected row.
    """

    channel_id: int
    name: str
    client_sequencer: int
    row_sequencer: int
    offset_token: str | None
    owner_user: str
    opened_at: dt.datetime
    request_id: str | None = None
    rows_parsed: int = 0
    rows_inserted: int = 0
    rows_error: int = 0
    last_error: str | None = None
    last_error_at: dt.datetime | None = None
    last_error_offset: str | None = None


@dataclass(frozen=True, slots=True)
class AppendTotals:
    """Result of one request for a channel: parsed and rejected rows, and the last error."""

    table_id: int
    channel: str
    request_id: str
    rows_parsed: int
    rows_error: int
    last_error: str | None
    end_offset_token: str | None

    def combine_with(self, later: AppendTotals) -> AppendTotals:
        """Return the combined totals of this request and a later one."""
        failed = later if later.last_error is not None else self
        return AppendTotals(
            self.table_id,
            self.channel,
            later.request_id,
            self.rows_parsed + later.rows_parsed,
            self.rows_error + later.rows_error,
            failed.last_error,
            failed.end_offset_token,
        )


@dataclass(frozen=True, slots=True)
class EmptyAppend:
    """A request without rows to store. It still advances its channel."""

    table_id: int
    channel: str
    user: str
    client_sequencer: int
    row_sequencer: int
    end_offset_token: str | None


def find_row_channels(
    connection: sa.Connection, table_id: int, names: Collection[str]
) -> dict[str, RowChannel]:
    """Return the existing channels of a table among these names."""
    some = {"table_id": table_id, "names": dialect.encode_array(sorted(set(names)))}
    return {row.name: RowChannel(*row) for row in connection.execute(_SELECT_ROW_CHANNELS, some)}


def find_channel_sequencers(
    connection: sa.Connection, table_id: int, names: Collection[str]
) -> dict[str, ChannelSequencers]:
    """Return the sequencers of existing channels of a table among these names."""
    if not names:
        return {}
    some = {"table_id": table_id, "names": dialect.encode_array(sorted(names))}
    return {row[0]: ChannelSequencers(*row) for row in connection.execute(_SELECT_POSITIONS, some)}


def apply_appends(
    connection: sa.Connection, appends: Sequence[AppendTotals], now: dt.datetime
) -> None:
    """Add the totals of requests whose channels this transaction has advanced."""
    numbers = _find_channel_ids(connection, appends)
    rows = [
        {
            "channel_id": numbers[each.table_id, each.channel],
            "request_id": each.request_id,
            "rows_parsed": each.rows_parsed,
            "rows_inserted": each.rows_parsed - each.rows_error,
            "rows_error": each.rows_error,
            "last_error": replace_nul(each.last_error),
            "last_error_at": now if each.last_error is not None else None,
            "last_error_offset": each.end_offset_token if each.last_error is not None else None,
        }
        for each in appends
        if (each.table_id, each.channel) in numbers
    ]
    if not rows:
        return
    connection.execute(_add_to_row_channels(connection.dialect.name), rows)


@cache
def _add_to_row_channels(dialect_name: str) -> sa.Insert:
    insert = dialect.make_insert(dialect_name, _ROW_CHANNELS)
    new = insert.excluded
    failed = new.last_error.is_not(None)
    counts = ("rows_parsed", "rows_inserted", "rows_error")
    errors = ("last_error", "last_error_at", "last_error_offset")
    return insert.on_conflict_do_update(
        index_elements=["channel_id"],
        set_={
            "request_id": new.request_id,
            **{name: _ROW_CHANNELS.c[name] + new[name] for name in counts},
            **{name: sa.case((failed, new[name]), else_=_ROW_CHANNELS.c[name]) for name in errors},
        },
    )


def apply_empty_append(
    connection: sa.Connection, empty_append: EmptyAppend, now: dt.datetime
) -> bool:
    """Advance a channel without a chunk. Return False if the sequencers do not match the request."""
    changed: dict[str, Any] = {"row_sequencer": empty_append.row_sequencer, "last_commit_at": now}
    if empty_append.end_offset_token is not None:
        changed["offset_token"] = empty_append.end_offset_token
    done = connection.execute(
        sa.update(_CHANNELS)
        .where(
            _CHANNELS.c.table_id == empty_append.table_id,
            _CHANNELS.c.name == empty_append.channel,
            _CHANNELS.c.owner_user == empty_append.user,
            _CHANNELS.c.client_sequencer == empty_append.client_sequencer,
            _CHANNELS.c.row_sequencer == empty_append.row_sequencer - 1,
        )
        .values(changed)
    )
    if done.rowcount != 1:
        return False
    commit = (
        *(empty_append.table_id, empty_append.channel, empty_append.client_sequencer),
        *(empty_append.row_sequencer, empty_append.end_offset_token, model.to_microseconds(now)),
    )
    add_rowless_commits(connection, [commit])
    return True


def find_saved_request_ids(
    connection: sa.Connection, table_id: int, request_ids: Sequence[str]
) -> set[str]:
    """Return the IDs that are already saved, among these IDs of requests without a channel."""
    wanted = {"table_id": table_id, "request_ids": dialect.encode_array(request_ids)}
    return set(connection.execute(_SELECT_REQUEST_IDS, wanted).scalars())


def save_request_ids(
    connection: sa.Connection, table_id: int, request_ids: Sequence[str], now: dt.datetime
) -> None:
    """Save the new IDs of committed requests without a channel."""
    rows = [{"table_id": table_id, "request_id": each, "at": now} for each in request_ids]
    connection.execute(sa.insert(_ROW_REQUESTS), rows)


def delete_request_ids(
    connection: sa.Connection, before: dt.datetime, *, limit: int = 10_000
) -> int:
    """Delete up to `limit` request IDs that were saved before a time. Return the deleted number."""
    old = (
        sa.select(_ROW_REQUESTS.c.table_id, _ROW_REQUESTS.c.request_id)
        .where(_ROW_REQUESTS.c.at < before)
        .order_by(_ROW_REQUESTS.c.at)
        .limit(limit)
    )
    ids: dict[int, list[str]] = {}
    for table_id, request_id in connection.execute(old):
        ids.setdefault(table_id, []).append(request_id)
    for table_id, theirs in ids.items():
        asked = {"of_table": table_id, "request_ids": dialect.encode_array(theirs)}
        connection.execute(_DELETE_REQUEST_IDS, asked)
    return sum(map(len, ids.values()))


def _find_channel_ids(
    connection: sa.Connection, appends: Sequence[AppendTotals]
) -> dict[tuple[int, str], int]:
    numbers: dict[tuple[int, str], int] = {}
    names: dict[int, set[str]] = {}
    for each in appends:
        names.setdefault(each.table_id, set()).add(each.channel)
    for table_id, wanted in names.items():
        some = {"table_id": table_id, "names": dialect.encode_array(sorted(wanted))}
        for name, channel_id in connection.execute(_SELECT_CHANNEL_IDS, some):
            numbers[table_id, name] = channel_id
    return numbers


# Encodings of BINARY values that row API clients use: base64 or hexadecimal digits.

_ROW_CLIENTS = model.row_clients
_ANY_CLIENT_TOKEN = ""


def last_base64_client_at(connection: sa.Connection, path: str) -> dt.datetime | None:
    """Return the last time a response instructed a client of a pipe to use base64, or None."""
    return _find_client_timestamp(connection, path, _ANY_CLIENT_TOKEN)


def record_hex_client(
    connection: sa.Connection,
    path: str,
    token: str,
    since: dt.datetime,
    *,
    expired_before: dt.datetime,
) -> None:
    """Record the time since which a client uses hexadecimal digits. An existing record stays unchanged.

    Args:
        connection: Connection in a write transaction.
        path: Pipe path that the client requested.
        token: ID of the client's token.
        since: Time from which all requests of the client contain hexadecimal digits. It may be in
            the future.
        expired_before: Delete the path's records older than this. Their tokens have expired.
    """
    old = (
        (_ROW_CLIENTS.c.path == path)
        & (_ROW_CLIENTS.c.token != _ANY_CLIENT_TOKEN)
        & (_ROW_CLIENTS.c.at < expired_before)
    )
    connection.execute(sa.delete(_ROW_CLIENTS).where(old))
    row = {"path": path, "token": token, "at": since}
    connection.execute(make_insert(connection, _ROW_CLIENTS).values(row).on_conflict_do_nothing())


def hex_client_since(connection: sa.Connection, path: str, token: str) -> dt.datetime | None:
    """Return the time since which a client uses hexadecimal digits, or None if it is unknown."""
    return _find_client_timestamp(connection, path, token)


def _find_client_timestamp(connection: sa.Connection, path: str, token: str) -> dt.datetime | None:
    found = sa.select(_ROW_CLIENTS.c.at).where(
        _ROW_CLIENTS.c.path == path, _ROW_CLIENTS.c.token == token
    )
    at: dt.datetime | None = connection.execute(found).scalar()
    return at
