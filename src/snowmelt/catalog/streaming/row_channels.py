"""Channels as the row API sees them: the last request, counts of rows, the last refused row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db import dialect as sets
from snowmelt.catalog.db.dialect import insert_for, storable
from snowmelt.catalog.model import row_channels, row_clients, row_requests

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Sequence

_C = model.channels
_R = row_channels
_Q = row_requests
_AT_ONCE = 500

# Built once: it is asked for every request.
_FIND = (
    sa.select(
        _C.c.channel_id,
        _C.c.name,
        _C.c.client_sequencer,
        _C.c.row_sequencer,
        _C.c.offset_token,
        _C.c.owner_user,
        _C.c.opened_at,
        _R.c.request_id,
        *(
            sa.func.coalesce(column, 0)
            for column in (_R.c.rows_parsed, _R.c.rows_inserted, _R.c.rows_error)
        ),
        _R.c.last_error,
        _R.c.last_error_at,
        _R.c.last_error_offset,
    )
    .select_from(_C.outerjoin(_R, _C.c.channel_id == _R.c.channel_id))
    .where(
        _C.c.table_id == sa.bindparam("table_id"),
        sets.is_among(_C.c.name, sa.bindparam("names", type_=sa.Text)),
    )
)


# Likewise, for many channels at a time and without what only a status tells.
_STAND = (
    sa.select(
        _C.c.name,
        _C.c.client_sequencer,
        _C.c.row_sequencer,
        _C.c.owner_user,
        _R.c.request_id,
    )
    .select_from(_C.outerjoin(_R, _C.c.channel_id == _R.c.channel_id))
    .where(
        _C.c.table_id == sa.bindparam("table_id"),
        sets.is_among(_C.c.name, sa.bindparam("names", type_=sa.Text)),
    )
)
_NUMBERS = sa.select(_C.c.name, _C.c.channel_id).where(
    _C.c.table_id == sa.bindparam("table_id"),
    sets.is_among(_C.c.name, sa.bindparam("names", type_=sa.Text)),
)

_KNOWN = sa.select(_Q.c.request_id).where(
    _Q.c.table_id == sa.bindparam("table_id"),
    sets.is_among(_Q.c.request_id, sa.bindparam("request_ids", type_=sa.Text)),
)
_FORGET = sa.delete(_Q).where(
    _Q.c.table_id == sa.bindparam("of_table"),
    sets.is_among(_Q.c.request_id, sa.bindparam("request_ids", type_=sa.Text)),
)


class Standing(NamedTuple):
    """Where a channel stands: its owner's sequencer, and its last request."""

    name: str
    client_sequencer: int
    row_sequencer: int
    owner_user: str
    request_id: str | None


@dataclass(frozen=True, slots=True)
class RowChannel:
    """A channel with what requests of rows have left; counts are since it was created.

    `last_error_offset` is the end offset token of the request that held the last refused row.
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
class Settled:
    """What one request did to its channel: rows parsed and refused, and the last refusal."""

    table_id: int
    channel: str
    request_id: str
    rows_parsed: int
    rows_error: int
    last_error: str | None
    offset: str | None

    def followed_by(self, later: Settled) -> Settled:
        """Return both as one."""
        failed = later if later.last_error is not None else self
        return Settled(
            self.table_id,
            self.channel,
            later.request_id,
            self.rows_parsed + later.rows_parsed,
            self.rows_error + later.rows_error,
            failed.last_error,
            failed.offset,
        )


@dataclass(frozen=True, slots=True)
class Advance:
    """A request without a row to store: it moves its channel all the same."""

    table_id: int
    channel: str
    user: str
    client_sequencer: int
    row_sequencer: int
    end_offset_token: str | None


def find_row_channels(
    connection: sa.Connection, table_id: int, names: Collection[str]
) -> dict[str, RowChannel]:
    """Return those of a table's channels that exist, by name."""
    found: dict[str, RowChannel] = {}
    ordered = sorted(set(names))
    for start in range(0, len(ordered), _AT_ONCE):
        some = {"table_id": table_id, "names": sets.packed(ordered[start : start + _AT_ONCE])}
        for row in connection.execute(_FIND, some):
            found[row.name] = RowChannel(*row)
    return found


def find_standing(
    connection: sa.Connection, table_id: int, names: Collection[str]
) -> dict[str, Standing]:
    """Return where those of a table's channels stand that exist, by name."""
    if not names:
        return {}
    some = {"table_id": table_id, "names": sets.packed(sorted(names))}
    return {row[0]: Standing(*row) for row in connection.execute(_STAND, some)}


def settle(connection: sa.Connection, settled: Sequence[Settled], now: dt.datetime) -> None:
    """Write down requests whose channels this transaction has moved on."""
    numbers = _numbers(connection, settled)
    rows = [
        {
            "channel_id": numbers[each.table_id, each.channel],
            "request_id": each.request_id,
            "rows_parsed": each.rows_parsed,
            "rows_inserted": each.rows_parsed - each.rows_error,
            "rows_error": each.rows_error,
            "last_error": storable(each.last_error),
            "last_error_at": now if each.last_error is not None else None,
            "last_error_offset": each.offset if each.last_error is not None else None,
        }
        for each in settled
        if (each.table_id, each.channel) in numbers
    ]
    if not rows:
        return
    insert = insert_for(connection, _R)
    new = insert.excluded
    failed = new.last_error.is_not(None)
    counts = ("rows_parsed", "rows_inserted", "rows_error")
    errors = ("last_error", "last_error_at", "last_error_offset")
    statement = insert.on_conflict_do_update(
        index_elements=["channel_id"],
        set_={
            "request_id": new.request_id,
            **{name: _R.c[name] + new[name] for name in counts},
            **{name: sa.case((failed, new[name]), else_=_R.c[name]) for name in errors},
        },
    )
    connection.execute(statement, rows)


def advance(connection: sa.Connection, moved: Advance, now: dt.datetime) -> bool:
    """Move a channel on without a chunk; False when it is not where the request begins."""
    changed: dict[str, Any] = {"row_sequencer": moved.row_sequencer, "last_commit_at": now}
    if moved.end_offset_token is not None:
        changed["offset_token"] = moved.end_offset_token
    done = connection.execute(
        sa.update(_C)
        .where(
            _C.c.table_id == moved.table_id,
            _C.c.name == moved.channel,
            _C.c.owner_user == moved.user,
            _C.c.client_sequencer == moved.client_sequencer,
            _C.c.row_sequencer == moved.row_sequencer - 1,
        )
        .values(changed)
    )
    return done.rowcount == 1


def known_requests(
    connection: sa.Connection, table_id: int, request_ids: Sequence[str]
) -> set[str]:
    """Return those of these requests, which name no channel, that were noted before."""
    found: set[str] = set()
    for start in range(0, len(request_ids), _AT_ONCE):
        some = request_ids[start : start + _AT_ONCE]
        asked = {"table_id": table_id, "request_ids": sets.packed(some)}
        found.update(connection.execute(_KNOWN, asked).scalars())
    return found


def note_requests(
    connection: sa.Connection, table_id: int, request_ids: Sequence[str], now: dt.datetime
) -> None:
    """Note requests that are committed and were not noted before."""
    rows = [{"table_id": table_id, "request_id": each, "at": now} for each in request_ids]
    connection.execute(sa.insert(_Q), rows)


def forget_requests(connection: sa.Connection, before: dt.datetime, *, limit: int = 10_000) -> int:
    """Remove requests that were noted before an instant; return how many."""
    old = (
        sa.select(_Q.c.table_id, _Q.c.request_id)
        .where(_Q.c.at < before)
        .order_by(_Q.c.at)
        .limit(limit)
    )
    ids: dict[int, list[str]] = {}
    for table_id, request_id in connection.execute(old):
        ids.setdefault(table_id, []).append(request_id)
    for table_id, theirs in ids.items():
        asked = {"of_table": table_id, "request_ids": sets.packed(theirs)}
        connection.execute(_FORGET, asked)
    return sum(map(len, ids.values()))


def _numbers(connection: sa.Connection, settled: Sequence[Settled]) -> dict[tuple[int, str], int]:
    numbers: dict[tuple[int, str], int] = {}
    names: dict[int, set[str]] = {}
    for each in settled:
        names.setdefault(each.table_id, set()).add(each.channel)
    for table_id, wanted in names.items():
        some = {"table_id": table_id, "names": sets.packed(sorted(wanted))}
        for name, channel_id in connection.execute(_NUMBERS, some):
            numbers[table_id, name] = channel_id
    return numbers


# --- What clients of the row API were told about bytes: base64, or digits.
#
# Only paths matter that somebody was told base64 by: elsewhere nobody writes it.

_C_ROW_CLIENTS = row_clients
_ANYBODY = ""


def tell_base64(connection: sa.Connection, path: str, now: dt.datetime) -> None:
    """Note that a client which asks about this path is told to write base64."""
    insert = insert_for(connection, _C_ROW_CLIENTS).values(path=path, token=_ANYBODY, at=now)
    # Services' clocks differ a little.
    later = insert.excluded.at > _C_ROW_CLIENTS.c.at
    connection.execute(
        insert.on_conflict_do_update(
            index_elements=["path", "token"], set_={"at": insert.excluded.at}, where=later
        )
    )


def told_base64(connection: sa.Connection, path: str) -> dt.datetime | None:
    """Return when a client was last told so, None when none ever was."""
    return _at(connection, path, _ANYBODY)


def tell_digits(
    connection: sa.Connection, path: str, token: str, since: dt.datetime, *, before: dt.datetime
) -> None:
    """Note that the client with this token writes digits since then; the first note stays.

    Args:
        connection: A writing transaction.
        path: What it asked about.
        token: The token's id.
        since: When it surely knows.
        before: What is older is of tokens that have expired, and forgotten.
    """
    old = (
        (_C_ROW_CLIENTS.c.path == path)
        & (_C_ROW_CLIENTS.c.token != _ANYBODY)
        & (_C_ROW_CLIENTS.c.at < before)
    )
    connection.execute(sa.delete(_C_ROW_CLIENTS).where(old))
    row = {"path": path, "token": token, "at": since}
    connection.execute(insert_for(connection, _C_ROW_CLIENTS).values(row).on_conflict_do_nothing())


def knows_digits(connection: sa.Connection, path: str, token: str) -> dt.datetime | None:
    """Return since when the client with this token writes digits, None when that is not known."""
    return _at(connection, path, token)


def _at(connection: sa.Connection, path: str, token: str) -> dt.datetime | None:
    found = sa.select(_C_ROW_CLIENTS.c.at).where(
        _C_ROW_CLIENTS.c.path == path, _C_ROW_CLIENTS.c.token == token
    )
    at: dt.datetime | None = connection.execute(found).scalar()
    return at
