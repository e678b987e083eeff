"""Tombstones of removed channels. They keep the last client sequencer, which must never decrease.

Tombstones are keyed by name, not by table ID. Channels of a new table with the same name continue
from the last sequencer, so a writer of the old table is always fenced. A table that is renamed takes
the tombstones of its former name along, because its dropped channels had their names there.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import encode_array, in_array, make_insert
from snowmelt.schema.types import TableName

_CHANNELS = model.channels
_CHANNEL_HISTORY = model.channel_history
_TABLES = model.tables
_SCHEMAS = model.schemas
_DATABASES = model.databases
_CHANNEL_TOMBSTONES = model.channel_tombstones
_ROW_CHANNELS = model.row_channels
_SELECT_TOMBSTONES = sa.select(
    _CHANNEL_TOMBSTONES.c.channel,
    _CHANNEL_TOMBSTONES.c.client_sequencer,
    _CHANNEL_TOMBSTONES.c.dropped_at,
).where(
    _CHANNEL_TOMBSTONES.c.database_name == sa.bindparam("database"),
    _CHANNEL_TOMBSTONES.c.schema_name == sa.bindparam("schema"),
    _CHANNEL_TOMBSTONES.c.table_name == sa.bindparam("table"),
    in_array(_CHANNEL_TOMBSTONES.c.channel, sa.bindparam("channels", type_=sa.Text)),
)
# Columns that `transfer_channels` does not copy.
_UNTRANSFERRED_COLUMNS = frozenset({"channel_id", "table_id", "client_sequencer"})


def write_table_drop_tombstones(
    connection: sa.Connection, table_ids: Sequence[int], now: dt.datetime
) -> None:
    """Write tombstones for the channels of tables that are being dropped.

    The channels themselves stay with their tables, and UNDROP restores them.
    """
    which = _CHANNELS.c.table_id.in_(table_ids)
    _write_tombstones(connection, which, now)
    _append_history(connection, which, "table dropped", now, user=None)


def restore_channels(connection: sa.Connection, table_ids: Sequence[int], now: dt.datetime) -> None:
    """Restore the channels of these tables with their tokens.

    Each channel gets a sequencer above all earlier ones of its name, so its former clients must
    reopen it. It counts as just opened, so the time while it was dropped does not count as idle.
    """
    which = _CHANNELS.c.table_id.in_(table_ids)
    # Sequencers continue above the sequencers of earlier channels of this name.
    named = (
        sa.select(sa.literal(1))
        .select_from(
            _TABLES.join(_SCHEMAS, _TABLES.c.schema_id == _SCHEMAS.c.schema_id).join(
                _DATABASES, _SCHEMAS.c.database_id == _DATABASES.c.database_id
            )
        )
        .where(
            _TABLES.c.table_id == _CHANNELS.c.table_id,
            _DATABASES.c.name == _CHANNEL_TOMBSTONES.c.database_name,
            _SCHEMAS.c.name == _CHANNEL_TOMBSTONES.c.schema_name,
            _TABLES.c.name == _CHANNEL_TOMBSTONES.c.table_name,
        )
    )
    further = (
        sa.select(_CHANNEL_TOMBSTONES.c.client_sequencer)
        .where(
            named.correlate(_CHANNELS, _CHANNEL_TOMBSTONES).exists(),
            _CHANNEL_TOMBSTONES.c.channel == _CHANNELS.c.name,
            _CHANNEL_TOMBSTONES.c.client_sequencer > _CHANNELS.c.client_sequencer,
        )
        .scalar_subquery()
    )
    connection.execute(
        sa.update(_CHANNELS).where(which, further.is_not(None)).values(client_sequencer=further)
    )
    connection.execute(
        sa.update(_CHANNELS)
        .where(which)
        .values(client_sequencer=_CHANNELS.c.client_sequencer + 1, opened_at=now)
    )
    _append_history(connection, which, "table undropped", now, user=None)


def transfer_channels(
    connection: sa.Connection, table_id: int, new_table_id: int, now: dt.datetime
) -> None:
    """Move the channels of a table, with their tokens, to the table that replaces it.

    Each channel gets the next sequencer, so clients that have it open must reopen it.
    """
    carried = [column.name for column in _CHANNELS.c if column.name not in _UNTRANSFERRED_COLUMNS]
    connection.execute(
        sa.insert(_CHANNELS).from_select(
            [*carried, "table_id", "client_sequencer"],
            sa.select(
                *(_CHANNELS.c[name] for name in carried),
                sa.literal(new_table_id, sa.BigInteger),
                _CHANNELS.c.client_sequencer + 1,
            ).where(_CHANNELS.c.table_id == table_id),
        )
    )
    _append_history(
        connection, _CHANNELS.c.table_id == new_table_id, "table truncated", now, user=None
    )


def tombstone_channel(
    connection: sa.Connection, channel_id: int, now: dt.datetime, *, user: str | None
) -> None:
    """Remove a channel that `user` drops, and write its tombstone."""
    _remove_channels(connection, _CHANNELS.c.channel_id == channel_id, "dropped", now, user=user)


def tombstone_expired_channels(
    connection: sa.Connection, channel_ids: Sequence[int], now: dt.datetime
) -> None:
    """Remove channels that exceeded the maximum idle time, and write their tombstones."""
    _remove_channels(connection, _CHANNELS.c.channel_id.in_(channel_ids), "expired", now, user=None)


def write_rename_tombstones(connection: sa.Connection, table_id: int, now: dt.datetime) -> None:
    """Write tombstones under the old name of a table that is being renamed.

    The channels themselves stay: open channels continue under the new name.
    """
    _write_tombstones(connection, _CHANNELS.c.table_id == table_id, now)


def carry_tombstones(
    connection: sa.Connection, former: Sequence[str], current: Sequence[str]
) -> None:
    """Copy tombstones to a new name of a table, schema or database, before it is renamed.

    Otherwise a channel that was dropped before the rename could be opened again with the sequencers of
    its former owner, who identifies the table by its key or number and would not be fenced.
    Channels that exist are left out: their sequencers stay with them. `former` is a database, or a
    database and schema, or a database, schema and table. `current` has the same parts of the new name.
    """
    stones = _CHANNEL_TOMBSTONES.c
    names = (stones.database_name, stones.schema_name, stones.table_name)
    is_live = (
        sa.select(sa.literal(1))
        .select_from(
            _CHANNELS.join(_TABLES, _CHANNELS.c.table_id == _TABLES.c.table_id)
            .join(_SCHEMAS, _TABLES.c.schema_id == _SCHEMAS.c.schema_id)
            .join(_DATABASES, _SCHEMAS.c.database_id == _DATABASES.c.database_id)
        )
        .where(
            _CHANNELS.c.name == stones.channel,
            _TABLES.c.name == stones.table_name,
            _TABLES.c.dropped_at.is_(None),
            _SCHEMAS.c.name == stones.schema_name,
            _DATABASES.c.name == stones.database_name,
        )
        .correlate(_CHANNEL_TOMBSTONES)
        .exists()
    )
    renamed = [sa.literal(part, sa.Text) for part in current]
    carried = sa.select(
        *renamed, *names[len(current) :], stones.channel, stones.client_sequencer, stones.dropped_at
    ).where(*(name == part for name, part in zip(names, former, strict=False)), sa.not_(is_live))
    _merge_tombstones(connection, carried, replaces_time=False)


@dataclass(frozen=True, slots=True)
class ChannelTombstone:
    """The last client sequencer of a removed channel, and the time of its removal."""

    client_sequencer: int
    dropped_at: dt.datetime


def find_tombstones(
    connection: sa.Connection, table: TableName, channels: Collection[str]
) -> dict[str, ChannelTombstone]:
    """Return the tombstones of channels by name, under the name of a table.

    A current channel that was opened before `dropped_at` got its name later, when its table was
    renamed. A request by name may then refer to the removed channel.
    """
    found = connection.execute(
        _SELECT_TOMBSTONES,
        {
            "database": table.database,
            "schema": table.schema,
            "table": table.table,
            "channels": encode_array(sorted(channels)),
        },
    )
    return {row[0]: ChannelTombstone(row[1], row[2]) for row in found}


def _remove_channels(
    connection: sa.Connection,
    condition: sa.ColumnElement[bool],
    event: str,
    now: dt.datetime,
    *,
    user: str | None,
) -> None:
    _write_tombstones(connection, condition, now)
    _append_history(connection, condition, event, now, user=user)
    ids = sa.select(_CHANNELS.c.channel_id).where(condition)
    for counts in (_ROW_CHANNELS, model.client_rejections):
        connection.execute(sa.delete(counts).where(counts.c.channel_id.in_(ids)))
    connection.execute(sa.delete(_CHANNELS).where(condition))


def _append_history(
    connection: sa.Connection,
    condition: sa.ColumnElement[bool],
    event: str,
    now: dt.datetime,
    *,
    user: str | None,
) -> None:
    """Append a history record for each of these channels."""
    carried = ["table_id", "client_sequencer", "row_sequencer", "offset_token", "client_prefix"]
    connection.execute(
        sa.insert(_CHANNEL_HISTORY).from_select(
            [*carried, "channel", "event", "at", "user"],
            sa.select(
                *(_CHANNELS.c[column] for column in carried),
                _CHANNELS.c.name,
                sa.literal(event),
                sa.literal(now, model.UtcTimestamp),
                sa.literal(user, sa.Text),
            ).where(condition),
        )
    )


def _write_tombstones(
    connection: sa.Connection, condition: sa.ColumnElement[bool], now: dt.datetime
) -> None:
    """Write the sequencers of channels under the current names of their tables."""
    at = sa.literal(now, model.UtcTimestamp)
    named = (
        _CHANNELS.join(_TABLES, _CHANNELS.c.table_id == _TABLES.c.table_id)
        .join(_SCHEMAS, _TABLES.c.schema_id == _SCHEMAS.c.schema_id)
        .join(_DATABASES, _SCHEMAS.c.database_id == _DATABASES.c.database_id)
    )
    found = sa.select(
        _DATABASES.c.name,
        _SCHEMAS.c.name,
        _TABLES.c.name,
        _CHANNELS.c.name,
        _CHANNELS.c.client_sequencer,
        at,
    )
    _merge_tombstones(connection, found.select_from(named).where(condition), replaces_time=True)


def _merge_tombstones(
    connection: sa.Connection, found: sa.SelectBase, *, replaces_time: bool
) -> None:
    """Write tombstones. The higher sequencer of two tombstones of a name stays."""
    stones = make_insert(connection, _CHANNEL_TOMBSTONES).from_select(
        ["database_name", "schema_name", "table_name", "channel", "client_sequencer", "dropped_at"],
        found,
    )
    added, kept = stones.excluded, _CHANNEL_TOMBSTONES.c
    connection.execute(
        stones.on_conflict_do_update(
            index_elements=["database_name", "schema_name", "table_name", "channel"],
            set_={
                # A table that was renamed to this name may have lower sequencers.
                "client_sequencer": sa.case(
                    (added.client_sequencer > kept.client_sequencer, added.client_sequencer),
                    else_=kept.client_sequencer,
                ),
                "dropped_at": added.dropped_at if replaces_time else kept.dropped_at,
            },
        )
    )
