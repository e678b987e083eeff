"""The tables that a role may see, and whose contents it may see.

MONITOR on a table, schema, database or the account shows names, counts and history, but no rows and no
offset tokens. Contents need SELECT or OWNERSHIP; tokens also INSERT.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.model.records import ACCOUNTADMIN, MONITOR, PUBLIC
from snowmelt.catalog.security.access_control import has_account_privilege, list_grants

_TRAVERSAL = frozenset({"USAGE", "OWNERSHIP"})
_CONTENT = frozenset({"SELECT", "OWNERSHIP"})
_TOKENS = _CONTENT | {"INSERT"}


@dataclass(frozen=True, slots=True)
class Visibility:
    """Tables that one role may see, by ID. None instead of a set means all tables."""

    role: str
    is_account_visible: bool
    tables: frozenset[int] | None
    readable: frozenset[int] | None
    with_tokens: frozenset[int] | None

    def includes(self, table_id: int) -> bool:
        """Return True if the role may see that a table exists."""
        return self.tables is None or table_id in self.tables

    def can_read(self, table_id: int) -> bool:
        """Return True if the role may see rows of a table."""
        return self.readable is None or table_id in self.readable

    def can_see_tokens(self, table_id: int) -> bool:
        """Return True if the role may see offset tokens of a table."""
        return self.with_tokens is None or table_id in self.with_tokens

    def restrict(self, query: sa.Select[Any], table_id: sa.ColumnElement[Any]) -> sa.Select[Any]:
        """Restrict a query to the visible tables."""
        if self.tables is None:
            return query
        return query.where(table_id.in_(sorted(self.tables)))


def read_visibility(connection: sa.Connection, role: str) -> Visibility:
    """Return what a role, with the privileges of PUBLIC, may see."""
    if role == ACCOUNTADMIN:
        return Visibility(role, True, None, None, None)
    held: dict[tuple[str, int], set[str]] = {}
    for holder in {role, PUBLIC}:
        for grant in list_grants(connection, role=holder):
            held.setdefault((grant.kind, grant.object_id), set()).add(grant.privilege)
    sees_account = has_account_privilege(connection, (role, PUBLIC), MONITOR)
    visible, readable, with_tokens = set(), set(), set()
    for row in connection.execute(_SELECT_PLACES):
        on_database = held.get(("DATABASE", row.database_id), set())
        on_schema = held.get(("SCHEMA", row.schema_id), set())
        on_table = held.get(("TABLE", row.table_id), set())
        if sees_account or MONITOR in on_database or MONITOR in on_schema:
            visible.add(row.table_id)
        if on_table and on_database & _TRAVERSAL and on_schema & _TRAVERSAL:
            visible.add(row.table_id)
            if on_table & _CONTENT:
                readable.add(row.table_id)
            if on_table & _TOKENS:
                with_tokens.add(row.table_id)
    # A role that monitors everything is not restricted, so that its pages need no list of tables.
    tables = None if sees_account else frozenset(visible)
    return Visibility(role, sees_account, tables, frozenset(readable), frozenset(with_tokens))


_TABLES, _SCHEMAS = model.tables, model.schemas
_SELECT_PLACES = (
    sa.select(_TABLES.c.table_id, _TABLES.c.schema_id, _SCHEMAS.c.database_id)
    .join(_SCHEMAS, _TABLES.c.schema_id == _SCHEMAS.c.schema_id)
    .where(_TABLES.c.dropped_at.is_(None))
)
