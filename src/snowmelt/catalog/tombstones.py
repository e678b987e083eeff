"""What stays of channels that are gone: their last client sequencer, so that it never falls.

Tombstones go by names, not by table ids: a table that is created again goes on counting, and no
writer of the old one can match a channel of the new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.dialects import insert_for

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from snowmelt.schema.types import TableName

_C = model.channels
_H = model.channel_history
_T = model.tables
_S = model.schemas
_D = model.databases
_X = model.channel_tombstones


def bury_channels_of(connection: sa.Connection, table_ids: Sequence[int], now: dt.datetime) -> None:
    """Remove all channels of these tables, which are being dropped."""
    _bury(connection, _C.c.table_id.in_(table_ids), "table dropped", now, user=None)


def bury_channel(
    connection: sa.Connection, channel_id: int, now: dt.datetime, *, user: str | None
) -> None:
    """Remove one channel, which `user` drops."""
    _bury(connection, _C.c.channel_id == channel_id, "dropped", now, user=user)


def carry_over(connection: sa.Connection, table_id: int, new: TableName, now: dt.datetime) -> None:
    """Before a table gets the name `new`: leave what its channels count to under the old name.

    Channels that others of the new name have counted further than go on from there.
    """
    _leave(connection, _C.c.table_id == table_id, now)
    further = (
        sa.select(_X.c.client_sequencer)
        .where(
            _X.c.database_name == new.database,
            _X.c.schema_name == new.schema,
            _X.c.table_name == new.table,
            _X.c.channel == _C.c.name,
            _X.c.client_sequencer > _C.c.client_sequencer,
        )
        .scalar_subquery()
    )
    connection.execute(
        sa.update(_C)
        .where(_C.c.table_id == table_id, further.is_not(None))
        .values(client_sequencer=further)
    )


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


def _bury(
    connection: sa.Connection,
    which: sa.ColumnElement[bool],
    event: str,
    now: dt.datetime,
    *,
    user: str | None,
) -> None:
    _leave(connection, which, now)
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
    connection.execute(sa.delete(_C).where(which))


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
    connection.execute(
        stones.on_conflict_do_update(
            index_elements=["database_name", "schema_name", "table_name", "channel"],
            set_={
                "client_sequencer": stones.excluded.client_sequencer,
                "dropped_at": stones.excluded.dropped_at,
            },
        )
    )
