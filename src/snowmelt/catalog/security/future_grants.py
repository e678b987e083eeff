"""Future grants: privileges that apply to tables and schemas when they are created."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import add_or_delete_row
from snowmelt.catalog.security.access_control import grant_privilege, require_role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.catalog.model.privilege_kinds import ObjectKind
    from snowmelt.catalog.model.records import TableRecord

FutureGrantScope: TypeAlias = Literal["DATABASE", "SCHEMA"]

_FUTURE_GRANTS = model.future_grants


@dataclass(frozen=True, slots=True)
class FutureGrant:
    """A privilege that a role gets on each new object of a kind in a schema or database."""

    role: str
    scope_kind: FutureGrantScope
    scope_id: int
    kind: ObjectKind
    privilege: str


def add_or_revoke_future_grant(
    connection: sa.Connection, future_grant: FutureGrant, *, revoke: bool
) -> None:
    """Promise a privilege, or take the promise back; what was created keeps what it got.

    Raises:
        NotFound: There is no such role.
    """
    require_role(connection, future_grant.role)
    add_or_delete_row(connection, _FUTURE_GRANTS, asdict(future_grant), delete=revoke)


def list_future_grants(
    connection: sa.Connection,
    *,
    role: str | None = None,
    scope: tuple[FutureGrantScope, int] | None = None,
) -> list[FutureGrant]:
    """Return what is promised to a role, or in a schema or database."""
    query = sa.select(*_FUTURE_GRANTS.c).order_by(*_FUTURE_GRANTS.c)
    if role is not None:
        query = query.where(_FUTURE_GRANTS.c.role == role)
    if scope is not None:
        query = query.where(
            _FUTURE_GRANTS.c.scope_kind == scope[0], _FUTURE_GRANTS.c.scope_id == scope[1]
        )
    return [FutureGrant(*row) for row in connection.execute(query)]


def apply_future_table_grants(connection: sa.Connection, table: TableRecord) -> None:
    """Grant on a new table what was promised."""
    apply_future_grants(
        connection,
        "TABLE",
        table.table_id,
        [("SCHEMA", table.schema_id), ("DATABASE", table.database_id)],
    )


def apply_future_grants(
    connection: sa.Connection,
    kind: ObjectKind,
    object_id: int,
    scopes: Sequence[tuple[FutureGrantScope, int]],
) -> None:
    """Grant on a new object what was promised in the first of these places that promises any.

    As in Snowflake, what a schema promises stands in the place of what its database does.
    """
    for scope in scopes:
        given = [each for each in list_future_grants(connection, scope=scope) if each.kind == kind]
        for each in given:
            grant_privilege(connection, each.privilege, each.kind, object_id, each.role)
        if given:
            return
