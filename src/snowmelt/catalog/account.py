"""Privileges on the account as a whole: who may create what lies in no schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.access import ACCOUNTADMIN
from snowmelt.catalog.dialects import insert_for
from snowmelt.errors import NotFound
from snowmelt.schema.types import display_name

if TYPE_CHECKING:
    from collections.abc import Collection

_G = model.grants
_R = model.roles
# They are grants on kind ACCOUNT, which is one object.
_ACCOUNT = {"kind": "ACCOUNT", "object_id": 0}


def may(connection: sa.Connection, roles: Collection[str], privilege: str) -> bool:
    """Tell whether the holder of these roles has a privilege on the account."""
    if ACCOUNTADMIN in roles:
        return True
    query = (
        sa.select(_G.c.role).filter_by(**_ACCOUNT, privilege=privilege).where(_G.c.role.in_(roles))
    )
    return connection.execute(query).first() is not None


def allow(connection: sa.Connection, role: str, privilege: str, *, revoke: bool = False) -> None:
    """Give a role a privilege on the account, or take it.

    Raises:
        NotFound: There is no such role.
    """
    if not connection.execute(sa.select(_R.c.name).where(_R.c.name == role)).first():
        raise NotFound(kind="Role", name=display_name(role))
    row = {**_ACCOUNT, "role": role, "privilege": privilege}
    if revoke:
        connection.execute(sa.delete(_G).filter_by(**row))
    else:
        connection.execute(insert_for(connection, _G).values(row).on_conflict_do_nothing())


def allowed(connection: sa.Connection, role: str) -> list[str]:
    """Return a role's privileges on the account, ordered by name."""
    query = sa.select(_G.c.privilege).filter_by(**_ACCOUNT, role=role)
    return sorted(connection.execute(query).scalars())
