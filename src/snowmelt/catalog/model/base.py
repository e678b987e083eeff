"""Base for table definitions: metadata, timestamp and ID types, shared columns and indexes."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    MetaData,
    Text,
    TypeDecorator,
    false,
    text,
)

if TYPE_CHECKING:
    from sqlalchemy import Dialect

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


def to_microseconds(timestamp: dt.datetime) -> int:
    """Return an aware instant as it is stored; a naive one raises TypeError."""
    return (timestamp - _EPOCH) // _MICROSECOND


class UtcTimestamp(TypeDecorator[dt.datetime]):
    """An aware instant, stored as microseconds since 1970."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: dt.datetime | None, dialect: Dialect) -> int | None:
        """Return microseconds; a naive value raises TypeError rather than shift by a zone."""
        del dialect
        return None if value is None else to_microseconds(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> dt.datetime | None:
        """Return an aware instant in UTC."""
        del dialect
        return None if value is None else _EPOCH + value * _MICROSECOND


# SQLite numbers rows by itself only where the type says INTEGER, and never gives a number again
# only with AUTOINCREMENT; key ids and table ids must never be used twice.
AutoincrementId = BigInteger().with_variant(Integer, "sqlite")

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def retention_columns() -> list[Column[Any]]:
    """What dropping and restoring needs: days that hold for it alone, and until when it is kept."""
    return [
        Column("retention_days", Integer),
        Column("kept_until", UtcTimestamp),
        Column("comment", Text),
    ]


def dropped_with_parent_column() -> Column[bool]:
    """Whether it was dropped with what it lies in, and is restored with that."""
    return Column("dropped_with_parent", Boolean, nullable=False, server_default=false())


def partial_index(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    """Index only the rows for which a condition of SQL holds."""
    condition = text(where)
    return Index(name, *columns, unique=unique, sqlite_where=condition, postgresql_where=condition)


def unique_live_index(name: str, *columns: str) -> Index:
    """Forbid two rows of the same columns among those that are not dropped."""
    return partial_index(name, *columns, where="dropped_at IS NULL", unique=True)
