"""Counts of rows that classic clients reject before sending, as reported by the clients.

A client reports the total of its opening of a channel, so repeated reports count once. A channel
whose client does not report has no row here, or a row of an earlier opening.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import make_insert, replace_nul
from snowmelt.catalog.streaming.channels import OpenChannelResult

_REJECTIONS, _CHANNELS = model.client_rejections, model.channels


@dataclass(frozen=True, slots=True)
class ReportedRejections:
    """Rejected rows of one opening of a channel, and the last error."""

    table_id: int
    channel: str
    client_sequencer: int
    rows: int
    last_error: str | None


def begin_reports(
    connection: sa.Connection, table_id: int, opened: Sequence[OpenChannelResult]
) -> None:
    """Count from 0 for new openings whose client reports its rejections."""
    names = [each.record.name for each in opened if not each.is_replayed]
    if not names:
        return
    insert = make_insert(connection, _REJECTIONS)
    columns = ("channel_id", "client_sequencer", "earlier_rows", "rows")
    chosen = sa.select(
        _CHANNELS.c.channel_id, _CHANNELS.c.client_sequencer, sa.literal(0), sa.literal(0)
    ).where(_CHANNELS.c.table_id == table_id, _CHANNELS.c.name.in_(names))
    connection.execute(
        insert.from_select(columns, chosen).on_conflict_do_update(
            index_elements=["channel_id"],
            set_={
                "client_sequencer": insert.excluded.client_sequencer,
                "earlier_rows": _REJECTIONS.c.earlier_rows + _REJECTIONS.c.rows,
                "rows": 0,
            },
        )
    )


def record_reports(
    connection: sa.Connection, reports: Sequence[ReportedRejections], now: dt.datetime
) -> None:
    """Store the totals of the current openings. Totals never decrease."""
    for each in reports:
        channel = sa.select(_CHANNELS.c.channel_id).where(
            _CHANNELS.c.table_id == each.table_id, _CHANNELS.c.name == each.channel
        )
        connection.execute(
            sa.update(_REJECTIONS)
            .where(
                _REJECTIONS.c.channel_id == channel.scalar_subquery(),
                _REJECTIONS.c.client_sequencer == each.client_sequencer,
                _REJECTIONS.c.rows < each.rows,
            )
            .values(rows=each.rows, last_error=replace_nul(each.last_error), last_error_at=now)
        )
