"""How far streams have read tables, so that clean-up keeps what they will want next.

A mark counts for a day after it was set: a stream that stays away for longer is not waited for.
Functions take a connection and commit nothing.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import sqlalchemy as sa

from snowmelt.catalog.db.dialect import insert_for
from snowmelt.catalog.model import stream_offsets

if TYPE_CHECKING:
    from sqlalchemy import Connection

KEPT = dt.timedelta(days=1)

_O = stream_offsets
# Rows of loads have a table's topic here, and a load.
_TOPIC = "commit sequence"


def set_mark(
    connection: Connection, incarnation: str, stream: str, seq: int, now: dt.datetime
) -> None:
    """Note that a stream has read a table's chunks up to a commit number."""
    values = {"next_offset": seq, "updated_at": now}
    connection.execute(
        insert_for(connection, _O)
        .values(stream=_name(incarnation, stream), topic=_TOPIC, partition=0, load_id="", **values)
        .on_conflict_do_update(index_elements=["stream", "topic", "partition"], set_=values)
    )


def lowest_mark(connection: Connection, incarnation: str, now: dt.datetime) -> int | None:
    """Return the commit number after which chunks of a table are still wanted, None for none."""
    query = sa.select(sa.func.min(_O.c.next_offset)).where(
        _O.c.stream.startswith(_name(incarnation, ""), autoescape=True),
        _O.c.topic == _TOPIC,
        _O.c.updated_at > now - KEPT,
    )
    return connection.execute(query).scalar()


def has_old_marks(connection: Connection, incarnation: str, now: dt.datetime) -> bool:
    """Tell whether a table has marks that count no more."""
    query = sa.select(sa.literal(1)).where(*_old(incarnation, now)).limit(1)
    return connection.execute(query).first() is not None


def forget_marks(connection: Connection, incarnation: str, now: dt.datetime) -> int:
    """Remove the marks of a table that count no more; return how many."""
    return connection.execute(sa.delete(_O).where(*_old(incarnation, now))).rowcount


def _old(incarnation: str, now: dt.datetime) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        _O.c.stream.startswith(_name(incarnation, ""), autoescape=True),
        _O.c.topic == _TOPIC,
        _O.c.updated_at <= now - KEPT,
    )


def _name(incarnation: str, stream: str) -> str:
    return f"{incarnation}/read:{stream}"
