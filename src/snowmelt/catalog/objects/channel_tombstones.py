"""What stays of channels that are gone: their last client sequencer, so that it never falls.

Tombstones go by names, not by table ids: a table that is created again goes on counting, and no
writer of the old one can match a channel of the new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import insert_for
from snowmelt.catalog.model import row_channels

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Sequence

    from snowmelt.schema.types import TableName

_C = model.channels
_H = model.channel_history
_T = model.tables
_S = model.schemas
_D = model.databases
_X = model.channel_tombstones
_R = row_channels
_AT_ONCE = 500
# What a channel does not take along to another table.
_OF_ONE_CHANNEL = frozenset({"channel_id", "table_id", "client_sequencer"})


def bury_channels_of(connection: sa.Connection, table_ids: Sequence[int], now: dt.datetime) -> None:
    """Leave what the channels of these tables, which are being dropped, have counted to.

    The channels stay with their tables, to come back with them.
    """
    which = _C.c.table_id.in_(table_ids)
    _leave(connection, which, now)
    _note(connection, which, "table dropped", now, user=None)


def restore_channels_of(
    connection: sa.Connection, table_ids: Sequence[int], now: dt.datetime
) -> None:
    """Bring back the channels of these tables, which are being restored, with their tokens.

    Each is a sequencer ahead of all that it, or another of its name, has had: whoever had it open
    before the drop must open it again. It is kept from now on as if it had just been opened, or the
    time it was away would count as idle.
    """
    which = _C.c.table_id.in_(table_ids)
    _raise(connection, which, _stone_of_channel())
    connection.execute(
        sa.update(_C).where(which).values(client_sequencer=_C.c.client_sequencer + 1, opened_at=now)
    )
    _note(connection, which, "table undropped", now, user=None)


def hand_on_channels(
    connection: sa.Connection, table_id: int, heir_id: int, now: dt.datetime
) -> None:
    """Give a table's channels, with their tokens, to the one that takes its place.

    Each is a sequencer ahead: whoever has it open must open it again.
    """
    carried = [column.name for column in _C.c if column.name not in _OF_ONE_CHANNEL]
    connection.execute(
        sa.insert(_C).from_select(
            [*carried, "table_id", "client_sequencer"],
            sa.select(
                *(_C.c[name] for name in carried),
                sa.literal(heir_id, sa.BigInteger),
                _C.c.client_sequencer + 1,
            ).where(_C.c.table_id == table_id),
        )
    )
    _note(connection, _C.c.table_id == heir_id, "table truncated", now, user=None)


def bury_channel(
    connection: sa.Connection, channel_id: int, now: dt.datetime, *, user: str | None
) -> None:
    """Remove one channel, which `user` drops."""
    _bury(connection, _C.c.channel_id == channel_id, "dropped", now, user=user)


def expire_channels(
    connection: sa.Connection, channel_ids: Sequence[int], now: dt.datetime
) -> None:
    """Remove channels that nobody has used for long."""
    _bury(connection, _C.c.channel_id.in_(channel_ids), "expired", now, user=None)


def carry_over(connection: sa.Connection, table_id: int, now: dt.datetime) -> None:
    """Before a table gets another name: leave what its channels count to under the old one.

    The channels stay who they are: a writer that has one open goes on under the new name.
    """
    _leave(connection, _C.c.table_id == table_id, now)


def last_sequencer(connection: sa.Connection, table: TableName, channel: str) -> int | None:
    """Return the last client sequencer of a channel that is gone; None when there was none."""
    return connection.execute(
        sa.select(_X.c.client_sequencer).where(
            _X.c.database_name == table.database,
            _X.c.schema_name == table.schema,
            _X.c.table_name == table.table,
            _X.c.channel == channel,
        )
    ).scalar()


def left_at(
    connection: sa.Connection, table: TableName, channels: Collection[str]
) -> dict[str, dt.datetime]:
    """Return of these channels when one of that name, under that table's name, went away last.

    A channel that was opened before has come by the name since, with its table: who asks for it by
    the name may mean the one that went.
    """
    found: dict[str, dt.datetime] = {}
    ordered = sorted(channels)
    for start in range(0, len(ordered), _AT_ONCE):
        query = sa.select(_X.c.channel, _X.c.dropped_at).where(
            _X.c.database_name == table.database,
            _X.c.schema_name == table.schema,
            _X.c.table_name == table.table,
            _X.c.channel.in_(ordered[start : start + _AT_ONCE]),
        )
        found.update({row.channel: row.dropped_at for row in connection.execute(query)})
    return found


def _bury(
    connection: sa.Connection,
    which: sa.ColumnElement[bool],
    event: str,
    now: dt.datetime,
    *,
    user: str | None,
) -> None:
    _leave(connection, which, now)
    _note(connection, which, event, now, user=user)
    ids = sa.select(_C.c.channel_id).where(which)
    connection.execute(sa.delete(_R).where(_R.c.channel_id.in_(ids)))
    connection.execute(sa.delete(_C).where(which))


def _note(
    connection: sa.Connection,
    which: sa.ColumnElement[bool],
    event: str,
    now: dt.datetime,
    *,
    user: str | None,
) -> None:
    """Write a line of history for each of these channels as it is now."""
    carried = ["table_id", "client_sequencer", "row_sequencer", "offset_token", "client_prefix"]
    connection.execute(
        sa.insert(_H).from_select(
            [*carried, "channel", "event", "at", "user"],
            sa.select(
                *(_C.c[column] for column in carried),
                _C.c.name,
                sa.literal(event),
                sa.literal(now, model.Instant),
                sa.literal(user, sa.Text),
            ).where(which),
        )
    )


def _raise(
    connection: sa.Connection, which: sa.ColumnElement[bool], place: sa.ColumnElement[bool]
) -> None:
    """Let channels go on from where others of their name, in this place, have counted further."""
    further = (
        sa.select(_X.c.client_sequencer)
        .where(place, _X.c.channel == _C.c.name, _X.c.client_sequencer > _C.c.client_sequencer)
        .scalar_subquery()
    )
    connection.execute(
        sa.update(_C).where(which, further.is_not(None)).values(client_sequencer=further)
    )


def _stone_of_channel() -> sa.ColumnElement[bool]:
    """Tell which tombstones stand where a channel's table is."""
    named = (
        sa.select(sa.literal(1))
        .select_from(
            _T.join(_S, _T.c.schema_id == _S.c.schema_id).join(
                _D, _S.c.database_id == _D.c.database_id
            )
        )
        .where(
            _T.c.table_id == _C.c.table_id,
            _D.c.name == _X.c.database_name,
            _S.c.name == _X.c.schema_name,
            _T.c.name == _X.c.table_name,
        )
    )
    return named.correlate(_C, _X).exists()


def _leave(connection: sa.Connection, which: sa.ColumnElement[bool], now: dt.datetime) -> None:
    """Write down what channels have counted to, under the names that their tables have now."""
    at = sa.literal(now, model.Instant)
    named = (
        _C.join(_T, _C.c.table_id == _T.c.table_id)
        .join(_S, _T.c.schema_id == _S.c.schema_id)
        .join(_D, _S.c.database_id == _D.c.database_id)
    )
    stones = insert_for(connection, _X).from_select(
        ["database_name", "schema_name", "table_name", "channel", "client_sequencer", "dropped_at"],
        sa.select(_D.c.name, _S.c.name, _T.c.name, _C.c.name, _C.c.client_sequencer, at)
        .select_from(named)
        .where(which),
    )
    left = stones.excluded.client_sequencer
    connection.execute(
        stones.on_conflict_do_update(
            index_elements=["database_name", "schema_name", "table_name", "channel"],
            set_={
                # A table that came by its name later may have counted less far.
                "client_sequencer": sa.case(
                    (left > _X.c.client_sequencer, left), else_=_X.c.client_sequencer
                ),
                "dropped_at": stones.excluded.dropped_at,
            },
        )
    )
