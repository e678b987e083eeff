"""Partitions of Kafka topics that connectors stream into tables, with their lag.

A connector writes partition 1 of topic T through channel `T:P1`, and stores the end offset as the offset token
of channel `T:P1:end`.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.objects.tables import join_namespaces
from snowmelt.catalog.views.visibility import Visibility
from snowmelt.schema.types import TableName

# Maximum number of partitions that a query reads. Lags are computed from offset tokens, which are
# text, so no index can sort partitions by lag.
MAX_PARTITIONS = 10_000
_STALLED_AFTER = dt.timedelta(minutes=5)
_END_SUFFIX = ":end"
STALLED = "stalled"
_END_CHANNEL = re.compile(r"(?P<topic>.+):P(?P<partition>\d+):end")
_PARTITION_CHANNEL = re.compile(r".+:P\d+", re.DOTALL)
_TABLES, _SCHEMAS, _DATABASES = model.tables, model.schemas, model.databases
_ENDS, _CHANNELS = model.channels.alias("ends"), model.channels


@dataclass(frozen=True, slots=True)
class KafkaPartitionView:
    """A partition. `lag` is the number of messages that are not committed.

    `committed_offset` and `end_offset` are None if the role may not see offset tokens; `committed_offset` also if
    nothing is committed.
    """

    table_id: int
    table: TableName
    topic: str
    partition: int
    owner: str
    lag: int
    committed_offset: int | None
    end_offset: int | None
    last_commit_at: dt.datetime | None
    end_offset_at: dt.datetime | None
    opened_at: dt.datetime

    @property
    def channel(self) -> str:
        """Name of the channel that contains the partition's rows."""
        return f"{self.topic}:P{self.partition}"

    def find_state(self, now: dt.datetime) -> str:
        """Return `current`, `catching up`, or `stalled` (lag, and no commit for 5 minutes)."""
        if self.lag == 0:
            return "current"
        is_recent = now - (self.last_commit_at or self.opened_at) < _STALLED_AFTER
        return "catching up" if is_recent else STALLED


def list_stalled_partitions(
    connection: sa.Connection,
    visibility: Visibility,
    now: dt.datetime,
    *,
    channels: Collection[tuple[int, str]] | None = None,
) -> list[KafkaPartitionView]:
    """Return the stalled partitions, the largest lag first.

    With `channels`, only those whose rows are written by one of these pairs of table ID and name.
    """
    if channels is not None:
        channels = {each for each in channels if _PARTITION_CHANNEL.fullmatch(each[1])}
        if not channels:
            return []
    found = list_kafka_partitions(connection, visibility, idle_at=now, channels=channels)
    return [each for each in found if each.find_state(now) == STALLED]


def list_kafka_partitions(
    connection: sa.Connection,
    visibility: Visibility,
    *,
    idle_at: dt.datetime | None = None,
    channels: Collection[tuple[int, str]] | None = None,
) -> list[KafkaPartitionView]:
    """Return the partitions whose connector stores end offsets, the largest lag first.

    With `idle_at`, only those that had no commit for 5 minutes at this time. With `channels`, only those whose
    rows are written by one of these pairs of table ID and name.
    """
    length = sa.func.length(_ENDS.c.name) - len(_END_SUFFIX)
    is_partition = sa.and_(
        _CHANNELS.c.table_id == _ENDS.c.table_id,
        _CHANNELS.c.name == sa.func.substr(_ENDS.c.name, 1, length),
    )
    query: sa.Select[Any] = (
        sa.select(
            _ENDS.c.table_id,
            _ENDS.c.name,
            _ENDS.c.owner_user,
            _ENDS.c.opened_at,
            _ENDS.c.offset_token.label("end_token"),
            _ENDS.c.last_commit_at.label("end_offset_at"),
            _CHANNELS.c.offset_token,
            _CHANNELS.c.last_commit_at,
            _TABLES.c.name.label("table_name"),
            _SCHEMAS.c.name.label("schema_name"),
            _DATABASES.c.name.label("database_name"),
        )
        .select_from(
            join_namespaces(_TABLES)
            .join(_ENDS, _ENDS.c.table_id == _TABLES.c.table_id)
            .outerjoin(_CHANNELS, is_partition)
        )
        .where(_TABLES.c.dropped_at.is_(None), _ENDS.c.name.like(f"%:P%{_END_SUFFIX}"))
    )
    if idle_at is not None:
        last = sa.func.coalesce(
            sa.type_coerce(_CHANNELS.c.last_commit_at, sa.BigInteger),
            sa.type_coerce(_ENDS.c.opened_at, sa.BigInteger),
        )
        query = query.where(last < model.to_microseconds(idle_at - _STALLED_AFTER))
    if channels is not None:
        by_table: dict[int, list[str]] = {}
        for table_id, name in channels:
            by_table.setdefault(table_id, []).append(name + _END_SUFFIX)
        query = query.where(
            sa.or_(
                *(
                    sa.and_(_ENDS.c.table_id == table_id, _ENDS.c.name.in_(names))
                    for table_id, names in by_table.items()
                )
            )
        )
    query = visibility.restrict(query, _ENDS.c.table_id).limit(MAX_PARTITIONS)
    views = (_to_view(row, visibility) for row in connection.execute(query))
    return sorted(
        (each for each in views if each is not None),
        key=lambda each: (-each.lag, each.topic, each.partition),
    )


def _to_view(row: sa.Row[Any], visibility: Visibility) -> KafkaPartitionView | None:
    found = _END_CHANNEL.fullmatch(row.name)
    if found is None or not (row.end_token or "").isdecimal():
        return None
    end_offset = int(row.end_token)
    token = row.offset_token
    committed = int(token) if token and token.isdecimal() else None
    shows_offsets = visibility.can_see_tokens(row.table_id)
    return KafkaPartitionView(
        table_id=row.table_id,
        table=TableName(row.database_name, row.schema_name, row.table_name),
        topic=found["topic"],
        partition=int(found["partition"]),
        owner=row.owner_user,
        lag=max(end_offset - (-1 if committed is None else committed) - 1, 0),
        committed_offset=committed if shows_offsets else None,
        end_offset=end_offset if shows_offsets else None,
        last_commit_at=row.last_commit_at,
        end_offset_at=row.end_offset_at,
        opened_at=row.opened_at,
    )
