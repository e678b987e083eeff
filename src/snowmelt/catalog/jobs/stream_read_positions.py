"""Read positions of streams, so that garbage collection keeps the chunks they read next.

A position is valid for `POSITION_TTL` after it was saved. A stream that is inactive for longer no
longer holds back garbage collection. Functions take a connection and do not commit.
"""

from __future__ import annotations

import datetime as dt

import sqlalchemy as sa
from sqlalchemy import Connection

from snowmelt.catalog.db.dialect import make_insert
from snowmelt.catalog.model import stream_offsets

POSITION_TTL = dt.timedelta(days=1)

_STREAM_OFFSETS = stream_offsets
# Rows of loads have a table's topic here, and a load.
_POSITION_TOPIC = "commit sequence"


def save_position(
    connection: Connection, incarnation: str, stream: str, seq: int, now: dt.datetime
) -> None:
    """Note that a stream has read a table's chunks up to a commit number."""
    values = {"next_offset": seq, "updated_at": now}
    connection.execute(
        make_insert(connection, _STREAM_OFFSETS)
        .values(
            stream=_stream_key(incarnation, stream),
            topic=_POSITION_TOPIC,
            partition=0,
            load_id="",
            **values,
        )
        .on_conflict_do_update(index_elements=["stream", "topic", "partition"], set_=values)
    )


def find_lowest_position(connection: Connection, incarnation: str, now: dt.datetime) -> int | None:
    """Return the commit number after which chunks of a table are still wanted, None for none."""
    query = sa.select(sa.func.min(_STREAM_OFFSETS.c.next_offset)).where(
        _STREAM_OFFSETS.c.stream.startswith(_stream_key(incarnation, ""), autoescape=True),
        _STREAM_OFFSETS.c.topic == _POSITION_TOPIC,
        _STREAM_OFFSETS.c.updated_at > now - POSITION_TTL,
    )
    return connection.execute(query).scalar()


def has_expired_positions(connection: Connection, incarnation: str, now: dt.datetime) -> bool:
    """Tell whether a table has marks that count no more."""
    query = sa.select(sa.literal(1)).where(*_expired_conditions(incarnation, now)).limit(1)
    return connection.execute(query).first() is not None


def delete_expired_positions(connection: Connection, incarnation: str, now: dt.datetime) -> int:
    """Remove the marks of a table that count no more; return how many."""
    return connection.execute(
        sa.delete(_STREAM_OFFSETS).where(*_expired_conditions(incarnation, now))
    ).rowcount


def _expired_conditions(incarnation: str, now: dt.datetime) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        _STREAM_OFFSETS.c.stream.startswith(_stream_key(incarnation, ""), autoescape=True),
        _STREAM_OFFSETS.c.topic == _POSITION_TOPIC,
        _STREAM_OFFSETS.c.updated_at <= now - POSITION_TTL,
    )


def _stream_key(incarnation: str, stream: str) -> str:
    return f"{incarnation}/read:{stream}"
