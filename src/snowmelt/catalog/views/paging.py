"""Keyset pagination: a page starts after the key of the last row of the previous page.

Every page costs the same. Inserted and deleted rows do not shift later pages.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import sqlalchemy as sa

from snowmelt.errors import RequestMalformed

_RowT = TypeVar("_RowT")

PAGE_ROWS = 50
MAX_PAGE_ROWS = 1_000
# Larger numbers are not displayed, so counting stops here to save time.
MAX_COUNT = 10_000


@dataclass(frozen=True, slots=True)
class Page(Generic[_RowT]):
    """Rows of one page, and the cursor of the next page, which is None on the last page."""

    rows: list[_RowT]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """Sort order of rows: a value that is never NULL, and a unique number or text to break ties."""

    value: sa.ColumnElement[Any]
    tie: sa.ColumnElement[Any]
    is_descending: bool = False


def fetch_page(
    connection: sa.Connection,
    query: sa.Select[Any],
    order: Order,
    make_row: Callable[[sa.Row[Any]], _RowT],
    *,
    after: str | None = None,
    limit: int = PAGE_ROWS,
) -> Page[_RowT]:
    """Return the rows of a query after a cursor.

    Raises:
        RequestMalformed: If the cursor cannot be decoded.
    """
    limit = max(1, min(limit, MAX_PAGE_ROWS))
    if after is not None:
        value, tie = _decode_cursor(after)
        further = order.value < value if order.is_descending else order.value > value
        query = query.where(sa.or_(further, sa.and_(order.value == value, order.tie > tie)))
    direction = order.value.desc() if order.is_descending else order.value.asc()
    query = query.add_columns(order.value.label("page_value"), order.tie.label("page_tie"))
    found = connection.execute(query.order_by(direction, order.tie).limit(limit + 1)).all()
    cursor = None
    if len(found) > limit:
        last = found[limit - 1]
        cursor = _encode_cursor(last.page_value, last.page_tie)
    return Page([make_row(row) for row in found[:limit]], cursor)


def count_rows(connection: sa.Connection, query: sa.Select[Any]) -> int:
    """Return the number of rows of a query, `MAX_COUNT` + 1 if there are more than `MAX_COUNT`."""
    some = query.with_only_columns(sa.literal(1)).order_by(None).limit(MAX_COUNT + 1).subquery()
    return int(connection.execute(sa.select(sa.func.count()).select_from(some)).scalar_one())


def contains_text(columns: Sequence[sa.ColumnElement[Any]], text: str) -> sa.ColumnElement[bool]:
    """Return the SQL condition that one of these columns contains a text, ignoring case."""
    escaped = text.lower().replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return sa.or_(*(sa.func.lower(column).like(f"%{escaped}%", escape="\\") for column in columns))


def _encode_cursor(value: Any, tie: Any) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode([value, tie])).decode().rstrip("=")


def _decode_cursor(text: str) -> tuple[int | str, int | str]:
    try:
        packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return msgspec.json.decode(packed, type=tuple[int | str, int | str])
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise RequestMalformed(
            reason=f"{text[:80]!r} is no cursor of this list. Start from its first page"
        ) from None
