"""Grants on tables and schemas that are yet to come; what is created gets them at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import sqlalchemy as sa

from snowmelt.catalog.db.dialect import insert_for
from snowmelt.catalog.model import future_grants
from snowmelt.catalog.security.access_control import grant, require_role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.catalog.model.privileges import Kind
    from snowmelt.catalog.model.records import TableRecord

Scope: TypeAlias = Literal["DATABASE", "SCHEMA"]

_F = future_grants


@dataclass(frozen=True, slots=True)
class FutureGrant:
    """A privilege that a role gets on each new object of a kind in a schema or database."""

    role: str
    scope_kind: Scope
    scope_id: int
    kind: Kind
    privilege: str


def promise(connection: sa.Connection, given: FutureGrant, *, revoke: bool = False) -> None:
    """Promise a privilege, or take the promise back; what was created keeps what it got.

    Raises:
        NotFound: There is no such role.
    """
    require_role(connection, given.role)
    row = {
        "role": given.role,
        "scope_kind": given.scope_kind,
        "scope_id": given.scope_id,
        "kind": given.kind,
        "privilege": given.privilege,
    }
    if revoke:
        connection.execute(sa.delete(_F).filter_by(**row))
    else:
        connection.execute(insert_for(connection, _F).values(row).on_conflict_do_nothing())


def promised(
    connection: sa.Connection,
    *,
    role: str | None = None,
    scope: tuple[Scope, int] | None = None,
) -> list[FutureGrant]:
    """Return what is promised to a role, or in a schema or database."""
    query = sa.select(*_F.c).order_by(*_F.c)
    if role is not None:
        query = query.where(_F.c.role == role)
    if scope is not None:
        query = query.where(_F.c.scope_kind == scope[0], _F.c.scope_id == scope[1])
    return [FutureGrant(*row) for row in connection.execute(query)]


def give_table(connection: sa.Connection, table: TableRecord) -> None:
    """Grant on a new table what was promised."""
    scopes: list[tuple[Scope, int]] = [
        ("SCHEMA", table.schema_id),
        ("DATABASE", table.database_id),
    ]
    give(connection, "TABLE", table.table_id, scopes)


def give(
    connection: sa.Connection, kind: Kind, object_id: int, scopes: Sequence[tuple[Scope, int]]
) -> None:
    """Grant on a new object what was promised in the first of these places that promises any.

    As in Snowflake, what a schema promises stands in the place of what its database does.
    """
    for scope in scopes:
        given = [each for each in promised(connection, scope=scope) if each.kind == kind]
        for each in given:
            grant(connection, each.privilege, each.kind, object_id, each.role)
        if given:
            return
