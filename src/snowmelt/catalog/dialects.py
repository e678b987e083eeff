"""Where SQLite and PostgreSQL differ, or SQLAlchemy keeps apart what they spell alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy.dialects import postgresql, sqlite

if TYPE_CHECKING:
    import sqlalchemy as sa


def storable(text: str | None) -> str | None:
    """Return a text that is only told as every database keeps it: PostgreSQL takes no NUL."""
    return None if text is None else text.replace("\0", "\N{SYMBOL FOR NULL}")


def insert_for(connection: sa.Connection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """Return an INSERT that knows ON CONFLICT, for this connection's database."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)
