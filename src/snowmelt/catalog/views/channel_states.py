"""States of channels: one function for the pages, the JSON lists and SHOW CHANNELS.

A channel has the states of `freshness`, and two more: `stalled` (messages wait in Kafka, and its
connector commits none) and `bookkeeping` (a connector stores an offset in it; it has no rows).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeVar

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.model.records import ACCOUNTADMIN
from snowmelt.catalog.views.freshness import (
    FRESH,
    QUIET,
    compute_freshness_state,
    compute_quiet_limit,
    compute_usual_gap,
    is_bookkeeping_name,
)
from snowmelt.catalog.views.kafka import STALLED, KafkaPartitionView, list_stalled_partitions
from snowmelt.catalog.views.tables import TableView, list_table_views
from snowmelt.catalog.views.visibility import Visibility

BOOKKEEPING = "bookkeeping"
# Databases limit the number of parameters of a query.
_MAX_NAMED = 500
_HISTORY = model.channel_history
# Computing states requires offset tokens. The result does not contain them.
_EVERYTHING = Visibility(ACCOUNTADMIN, True, None, None, None)
_Item = TypeVar("_Item")


class StoredChannel(Protocol):
    """Fields of a channel that determine its state."""

    @property
    def table_id(self) -> int:
        """ID of the channel's table."""

    @property
    def name(self) -> str:
        """Name of the channel."""

    @property
    def client_sequencer(self) -> int:
        """Number of openings of the channel, counted from 0."""

    @property
    def row_sequencer(self) -> int:
        """Number of commits of the channel."""

    @property
    def opened_at(self) -> dt.datetime:
        """Time of the last opening."""

    @property
    def last_commit_at(self) -> dt.datetime | None:
        """Time of the last commit, or None if there is none."""


@dataclass(frozen=True, slots=True)
class ChannelCondition:
    """State of a channel, and the data that determined it.

    `usual_gap_s` is the mean time between the channel's commits since it was opened; None for fewer
    than five. `partition` is the partition of a stalled channel.
    """

    state: str
    table: TableView
    usual_gap_s: float | None = None
    partition: KafkaPartitionView | None = None


def find_channel_conditions(
    connection: sa.Connection, channels: Sequence[StoredChannel], now: dt.datetime
) -> list[ChannelCondition]:
    """Return the conditions of channels of live tables, in the order of `channels`."""
    tables = {
        each.table_id: each
        for ids in _split({each.table_id for each in channels})
        for each in list_table_views(connection, ids)
    }
    keys = {(each.table_id, each.name) for each in channels}
    stalled = {
        (each.table_id, each.channel): each
        for each in list_stalled_partitions(
            connection, _EVERYTHING, now, channels=keys if len(keys) <= _MAX_NAMED else None
        )
    }
    earlier = _read_earlier_commits(connection, channels)
    found = []
    for channel in channels:
        key = channel.table_id, channel.name
        table, partition = tables[channel.table_id], stalled.get(key)
        gap_s = None
        if channel.last_commit_at is not None and key in earlier:
            commits = channel.row_sequencer - earlier[key]
            gap_s = compute_usual_gap(channel.opened_at, channel.last_commit_at, commits)
        if is_bookkeeping_name(channel.name):
            state = BOOKKEEPING
        elif partition is not None:
            state = STALLED
        else:
            state = _compute_state(channel, table, gap_s, now)
        found.append(ChannelCondition(state, table, gap_s, partition))
    return found


def _compute_state(
    channel: StoredChannel, table: TableView, gap_s: float | None, now: dt.datetime
) -> str:
    if gap_s is not None:
        # A channel does not become quiet before its table: use the larger of the two gaps.
        usual_s = compute_quiet_limit(table.usual_gap_s)
        gap_s = gap_s if compute_quiet_limit(gap_s) > usual_s else table.usual_gap_s
    state = compute_freshness_state(
        last_commit_at=channel.last_commit_at,
        created_at=channel.opened_at,
        freshness_s=table.freshness_s,
        usual_gap_s=gap_s,
        now=now,
    )
    # A table's last commit is the last commit of all its channels, so a quiet table has no fresh
    # channel.
    return QUIET if state == FRESH and table.find_freshness_state(now) == QUIET else state


def _read_earlier_commits(
    connection: sa.Connection, channels: Collection[StoredChannel]
) -> dict[tuple[int, str], int]:
    """Return the row sequencer of each channel at its last opening."""
    wanted = {(each.table_id, each.name): each.client_sequencer for each in channels}
    columns = _HISTORY.c
    query = sa.select(
        columns.table_id, columns.channel, columns.client_sequencer, columns.row_sequencer
    ).where(columns.event == "opened")
    by_table: dict[int, list[str]] = {}
    for table_id, name in wanted:
        by_table.setdefault(table_id, []).append(name)
    found = {}
    for table_id, names in by_table.items():
        for some in _split(names):
            chosen = query.where(columns.table_id == table_id, columns.channel.in_(some))
            for row in connection.execute(chosen):
                key = row.table_id, row.channel
                if row.client_sequencer == wanted[key]:
                    found[key] = row.row_sequencer
    return found


def _split(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    remaining = iter(items)
    while some := list(islice(remaining, _MAX_NAMED)):
        yield some
