"""Channels with state, lag, owner and rejections, a page at a time."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import make_record
from snowmelt.catalog.objects.tables import join_namespaces
from snowmelt.catalog.views.channel_states import ChannelCondition, find_channel_conditions
from snowmelt.catalog.views.freshness import is_bookkeeping_channel, is_late_channel
from snowmelt.catalog.views.kafka import list_stalled_partitions
from snowmelt.catalog.views.paging import Order, Page, contains_text, count_rows, fetch_page
from snowmelt.catalog.views.visibility import Visibility
from snowmelt.errors import PrivilegeMissing, RequestMalformed
from snowmelt.schema.types import TableName

_CHANNELS, _ROW_CHANNELS, _TABLES = model.channels, model.row_channels, model.tables
_SCHEMAS, _DATABASES = model.schemas, model.databases
_REPORTS = model.client_rejections
# Rejected rows, counted by the row API or reported by a classic client. NULL: not reported.
_KNOWN_REJECTED = sa.func.coalesce(
    _ROW_CHANNELS.c.rows_error, _REPORTS.c.earlier_rows + _REPORTS.c.rows
)
_REJECTED = sa.func.coalesce(_KNOWN_REJECTED, 0)
# Microseconds of the last commit; 0 sorts channels without a commit before all others.
_LAST_COMMIT = sa.func.coalesce(sa.type_coerce(_CHANNELS.c.last_commit_at, sa.BigInteger), 0)
_ORDERS = {
    "name": Order(_CHANNELS.c.name, _CHANNELS.c.channel_id),
    "lag": Order(_LAST_COMMIT, _CHANNELS.c.channel_id),
    "recent": Order(_LAST_COMMIT, _CHANNELS.c.channel_id, is_descending=True),
    "rejected": Order(_REJECTED, _CHANNELS.c.channel_id, is_descending=True),
    "owner": Order(_CHANNELS.c.owner_user, _CHANNELS.c.channel_id),
    "token": Order(sa.func.coalesce(_CHANNELS.c.offset_token, ""), _CHANNELS.c.channel_id),
}
CHANNEL_ORDERS = tuple(_ORDERS)


@dataclass(frozen=True, slots=True)
class ChannelView:
    """A channel. `rows` is None if the rows of shared chunks are not known.

    `offset_token` is None, and `is_token_hidden` True, if the role may not see it.
    """

    table_id: int
    table: TableName
    name: str
    owner: str
    offset_token: str | None
    is_token_hidden: bool
    client_sequencer: int
    row_sequencer: int
    opened_at: dt.datetime
    last_commit_at: dt.datetime | None
    rows: int | None
    bytes: int | None
    # None: the client rejects rows itself, and reports no count.
    rejected_rows: int | None
    last_error: str | None
    last_error_at: dt.datetime | None
    last_error_offset: str | None
    freshness_s: int | None
    # `fresh`, `late`, `quiet`, `never`, `stalled` or `bookkeeping`.
    state: str = ""


@dataclass(frozen=True, slots=True)
class ChannelFilter:
    """Filter of channels. Each field that is set restricts the result.

    * `table_id`: channels of one table.
    * `text`: channels whose name, table, owner or token contains this text.
    * `only_rejected`: channels with rejected rows.
    * `late_at`: channels that are late or stalled at this time.
    * `is_bookkeeping`: bookkeeping channels of connectors; False: all other channels.
    """

    table_id: int | None = None
    text: str = ""
    only_rejected: bool = False
    late_at: dt.datetime | None = None
    is_bookkeeping: bool = False


def fetch_channels(
    connection: sa.Connection,
    visibility: Visibility,
    *,
    chosen: ChannelFilter,
    now: dt.datetime,
    order: str = "name",
    after: str | None = None,
    limit: int = 50,
) -> Page[ChannelView]:
    """Return a page of channels.

    Raises:
        PrivilegeMissing: If the order sorts by tokens that the role may not see.
        RequestMalformed: If the order is unknown, or the cursor is invalid.
    """
    if order not in _ORDERS:
        raise RequestMalformed(
            reason=f"Unknown order of channels {order[:80]!r}. Valid orders: {', '.join(_ORDERS)}"
        )
    if order == "token" and visibility.with_tokens is not None:
        # The order, and the cursor, would reveal tokens that the role must not see.
        raise PrivilegeMissing(
            role=visibility.role, privilege="SELECT", object="all tables, to sort by offset token"
        )
    query = _filter(connection, _select_channels(), visibility, chosen)
    page = fetch_page(
        connection,
        query,
        _ORDERS[order],
        lambda row: _to_view(row, visibility),
        after=after,
        limit=limit,
    )
    conditions = find_channel_conditions(connection, page.rows, now)
    rows = [
        replace(each, state=condition.state)
        for each, condition in zip(page.rows, conditions, strict=True)
    ]
    return Page(rows, page.next_cursor)


def count_channels(connection: sa.Connection, visibility: Visibility, chosen: ChannelFilter) -> int:
    """Return the number of matching channels, at most `MAX_COUNT` + 1."""
    return count_rows(connection, _filter(connection, _select_channels(), visibility, chosen))


def find_channel_view(
    connection: sa.Connection, visibility: Visibility, table_id: int, name: str, now: dt.datetime
) -> tuple[ChannelView, ChannelCondition] | None:
    """Return one channel and its condition, or None if the role does not see the channel."""
    query = visibility.restrict(_select_channels(), _CHANNELS.c.table_id).where(
        _CHANNELS.c.table_id == table_id, _CHANNELS.c.name == name
    )
    row = connection.execute(query).first()
    if row is None:
        return None
    view = _to_view(row, visibility)
    [condition] = find_channel_conditions(connection, [view], now)
    return replace(view, state=condition.state), condition


def find_other_channel_of_client(
    connection: sa.Connection, visibility: Visibility, channel: ChannelView
) -> ChannelView | None:
    """Return the channel of the same client that committed last, after the last commit of `channel`.

    None if no other channel of the client has committed since then.
    """
    mine = (
        sa.select(_CHANNELS.c.client_prefix)
        .where(_CHANNELS.c.table_id == channel.table_id, _CHANNELS.c.name == channel.name)
        .scalar_subquery()
    )
    query = visibility.restrict(_select_channels(), _CHANNELS.c.table_id).where(
        _CHANNELS.c.client_prefix == mine,
        _CHANNELS.c.last_commit_at > (channel.last_commit_at or channel.opened_at),
        sa.or_(_CHANNELS.c.table_id != channel.table_id, _CHANNELS.c.name != channel.name),
    )
    row = connection.execute(query.order_by(_CHANNELS.c.last_commit_at.desc()).limit(1)).first()
    return None if row is None else _to_view(row, visibility)


def _select_channels() -> sa.Select[Any]:
    places = join_namespaces(_TABLES).join(_CHANNELS, _CHANNELS.c.table_id == _TABLES.c.table_id)
    return (
        sa.select(
            _CHANNELS,
            _TABLES.c.name.label("table_name"),
            _TABLES.c.freshness_s,
            _SCHEMAS.c.name.label("schema_name"),
            _DATABASES.c.name.label("database_name"),
            _KNOWN_REJECTED.label("rejected_rows"),
            sa.func.coalesce(_ROW_CHANNELS.c.last_error, _REPORTS.c.last_error).label("last_error"),
            _ROW_CHANNELS.c.last_error_at.label("row_error_at"),
            _REPORTS.c.last_error_at.label("reported_error_at"),
            _ROW_CHANNELS.c.last_error_offset,
        )
        .select_from(
            places.outerjoin(
                _ROW_CHANNELS, _ROW_CHANNELS.c.channel_id == _CHANNELS.c.channel_id
            ).outerjoin(
                _REPORTS,
                sa.and_(
                    _REPORTS.c.channel_id == _CHANNELS.c.channel_id,
                    _REPORTS.c.client_sequencer == _CHANNELS.c.client_sequencer,
                ),
            )
        )
        .where(_TABLES.c.dropped_at.is_(None))
    )


def _filter(
    connection: sa.Connection, query: sa.Select[Any], visibility: Visibility, chosen: ChannelFilter
) -> sa.Select[Any]:
    query = visibility.restrict(query, _CHANNELS.c.table_id)
    is_bookkeeping = is_bookkeeping_channel()
    query = query.where(is_bookkeeping if chosen.is_bookkeeping else sa.not_(is_bookkeeping))
    if chosen.table_id is not None:
        query = query.where(_CHANNELS.c.table_id == chosen.table_id)
    if chosen.only_rejected:
        query = query.where(_REJECTED > 0)
    if chosen.late_at is not None:
        late = [is_late_channel(chosen.late_at)]
        stalled: dict[int, list[str]] = {}
        for each in list_stalled_partitions(connection, visibility, chosen.late_at):
            stalled.setdefault(each.table_id, []).append(each.channel)
        for table_id, names in stalled.items():
            late.append(sa.and_(_CHANNELS.c.table_id == table_id, _CHANNELS.c.name.in_(names)))
        query = query.where(sa.or_(*late))
    if chosen.text:
        table = _DATABASES.c.name + "." + _SCHEMAS.c.name + "." + _TABLES.c.name
        columns: list[sa.ColumnElement[Any]] = [_CHANNELS.c.name, _CHANNELS.c.owner_user, table]
        if visibility.with_tokens is None:
            # A search by tokens would reveal tokens that the role must not see.
            columns.append(_CHANNELS.c.offset_token)
        query = query.where(contains_text(columns, chosen.text))
    return query


def _to_view(row: sa.Row[Any], visibility: Visibility) -> ChannelView:
    shows_token = visibility.can_see_tokens(row.table_id)
    return make_record(
        ChannelView,
        row,
        table=TableName(row.database_name, row.schema_name, row.table_name),
        owner=row.owner_user,
        offset_token=row.offset_token if shows_token else None,
        is_token_hidden=not shows_token,
        last_error=row.last_error if visibility.can_read(row.table_id) else None,
        last_error_at=row.row_error_at or row.reported_error_at,
        last_error_offset=row.last_error_offset if shows_token else None,
    )
