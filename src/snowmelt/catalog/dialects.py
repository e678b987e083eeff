"""The one statement that SQLite and PostgreSQL spell alike but SQLAlchemy keeps apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy.dialects import postgresql, sqlite

if TYPE_CHECKING:
    import sqlalchemy as sa


def insert_for(connection: sa.Connection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """Return an INSERT that knows ON CONFLICT, for this connection's database."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)
