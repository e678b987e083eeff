"""Users, roles, privileges on objects, future objects and the account, and visible objects.

A role owns objects and holds privileges; a user holds roles. ACCOUNTADMIN may do everything. Every
user has PUBLIC, and every role has the privileges of PUBLIC. An object that a role may not use is
reported as missing.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import add_or_delete_row, make_record
from snowmelt.catalog.model.records import (
    ACCOUNTADMIN,
    BUILT_IN_ROLES,
    PRIVILEGES,
    PUBLIC,
    DatabaseRecord,
    ObjectKind,
    SchemaRecord,
    TableRecord,
    public_key_to_der,
)
from snowmelt.errors import (
    AlreadyExists,
    DatabaseNotFound,
    NotFound,
    RoleNotGranted,
    SchemaNotFound,
    TableNotFound,
)
from snowmelt.schema.types import to_display_name

_TABLES_BY_KIND = {
    "DATABASE": model.databases,
    "SCHEMA": model.schemas,
    "TABLE": model.tables,
    "BUCKET": model.buckets,
    "FUNCTION": model.external_functions,
    "TRANSLATOR": model.translators,
    "INTEGRATION": model.api_integrations,
}
_TABLES_AND_KEYS_BY_KIND: dict[str, tuple[sa.Table, sa.ColumnElement[int]]] = {
    kind: (table, next(iter(table.primary_key))) for kind, table in _TABLES_BY_KIND.items()
}
# Pipes have an owner, but no grants.
_OWNED_TABLES = (*_TABLES_BY_KIND.values(), model.pipes)
_USERS = model.users
_PUBLIC_KEYS = model.public_keys
_ROLES = model.roles
_ROLE_MEMBERS = model.role_members
_GRANTS = model.grants

_SELECT_USER_ROLES = (
    sa.select(_ROLE_MEMBERS.c.role)
    .join(_USERS, _ROLE_MEMBERS.c.user_id == _USERS.c.user_id)
    .where(_USERS.c.name == sa.bindparam("user"))
)


@dataclass(frozen=True, slots=True)
class UserRecord:
    """A user. Keys (base64 of DER) and fingerprints (`SHA256:…`) are in slot order."""

    user_id: int
    name: str
    default_role: str | None
    fingerprints: tuple[str, ...]
    public_keys: tuple[str, ...]
    created_at: dt.datetime


@dataclass(frozen=True, slots=True)
class GrantRecord:
    """A privilege, or the ownership, of a role on an object."""

    role: str
    privilege: str
    kind: ObjectKind
    object_id: int


def create_user(
    connection: sa.Connection,
    name: str,
    *,
    public_key: str | None = None,
    default_role: str | None = None,
    now: dt.datetime,
) -> UserRecord:
    """Create a user. `public_key` is an RSA key as PEM or base64 of DER.

    Raises:
        AlreadyExists: If the user exists.
        InvalidPublicKey: If the key is unreadable, not RSA or too short.
        NotFound: If the default role does not exist.
    """
    if connection.execute(sa.select(_USERS.c.user_id).where(_USERS.c.name == name)).first():
        raise AlreadyExists(kind="User", name=to_display_name(name))
    if default_role is not None:
        require_role(connection, default_role)
    connection.execute(
        sa.insert(_USERS).values(name=name, default_role=default_role, created_at=now)
    )
    if public_key is not None:
        set_public_key(connection, name, public_key)
    return find_user(connection, name)


def set_public_key(
    connection: sa.Connection, user: str, public_key: str | None, *, slot: Literal[1, 2] = 1
) -> None:
    """Set one of a user's two public keys; None removes it.

    Raises:
        InvalidPublicKey: If the key is unreadable, not RSA or too short.
        NotFound: If the user does not exist.
    """
    user_id = find_user(connection, user).user_id
    connection.execute(
        sa.delete(_PUBLIC_KEYS).where(
            _PUBLIC_KEYS.c.user_id == user_id, _PUBLIC_KEYS.c.slot == slot
        )
    )
    if public_key is None:
        return
    der = public_key_to_der(public_key)
    connection.execute(
        sa.insert(_PUBLIC_KEYS).values(
            user_id=user_id,
            slot=slot,
            public_key=base64.b64encode(der).decode(),
            fingerprint="SHA256:" + base64.b64encode(hashlib.sha256(der).digest()).decode(),
        )
    )


def set_default_role(connection: sa.Connection, user: str, role: str | None) -> None:
    """Set the role of the user's requests that do not specify one.

    Raises:
        NotFound: If the user or the role does not exist.
    """
    user_id = find_user(connection, user).user_id
    if role is not None:
        require_role(connection, role)
    connection.execute(
        sa.update(_USERS).where(_USERS.c.user_id == user_id).values(default_role=role)
    )


def find_user(connection: sa.Connection, name: str) -> UserRecord:
    """Return a user by internal name.

    Raises:
        NotFound: If the user does not exist.
    """
    found = _fetch_users(connection, _USERS.c.name == name)
    if not found:
        raise NotFound(kind="User", name=to_display_name(name))
    return found[0]


def read_public_keys(connection: sa.Connection, user: UserRecord) -> dict[int, tuple[str, str]]:
    """Return the public keys of a user by slot (1 or 2), each with its fingerprint."""
    query = sa.select(
        _PUBLIC_KEYS.c.slot, _PUBLIC_KEYS.c.public_key, _PUBLIC_KEYS.c.fingerprint
    ).where(_PUBLIC_KEYS.c.user_id == user.user_id)
    return {slot: (key, fingerprint) for slot, key, fingerprint in connection.execute(query)}


def list_users(connection: sa.Connection) -> list[UserRecord]:
    """Return all users, ordered by name."""
    return _fetch_users(connection, sa.true())


def drop_user(connection: sa.Connection, name: str) -> None:
    """Drop a user with all keys and role grants. Committed rows stay.

    Raises:
        NotFound: If the user does not exist.
    """
    user_id = find_user(connection, name).user_id
    for table in (_PUBLIC_KEYS, model.access_keys, _ROLE_MEMBERS, _USERS):
        connection.execute(sa.delete(table).where(table.c.user_id == user_id))


def create_role(connection: sa.Connection, name: str, *, now: dt.datetime) -> None:
    """Create a role without privileges.

    Raises:
        AlreadyExists: If the role exists.
    """
    if name in list_roles(connection):
        raise AlreadyExists(kind="Role", name=to_display_name(name))
    connection.execute(sa.insert(_ROLES).values(name=name, created_at=now))


def drop_role(connection: sa.Connection, name: str) -> None:
    """Drop a role with its grants. ACCOUNTADMIN becomes the owner of its objects.

    Raises:
        NotFound: If the role does not exist or is built in.
    """
    if name in BUILT_IN_ROLES:
        raise NotFound(f"Role {name} is built in and cannot be dropped.", kind="Role", name=name)
    # Wait for transactions that give objects to the role: its objects must all be found here.
    locked = sa.select(_ROLES.c.name).where(_ROLES.c.name == name).with_for_update()
    if connection.execute(locked).first() is None:
        raise NotFound(kind="Role", name=to_display_name(name))
    for owned in _OWNED_TABLES:
        connection.execute(sa.update(owned).where(owned.c.owner == name).values(owner=ACCOUNTADMIN))
    connection.execute(
        sa.update(_USERS).where(_USERS.c.default_role == name).values(default_role=None)
    )
    for table in (_GRANTS, model.prefix_grants, model.future_grants, _ROLE_MEMBERS):
        connection.execute(sa.delete(table).where(table.c.role == name))
    connection.execute(sa.delete(_ROLES).where(_ROLES.c.name == name))


def list_roles(connection: sa.Connection) -> list[str]:
    """Return all roles, ordered by name."""
    return list(connection.execute(sa.select(_ROLES.c.name).order_by(_ROLES.c.name)).scalars())


def grant_role(connection: sa.Connection, role: str, user: str, *, revoke: bool = False) -> None:
    """Grant a role to a user, or revoke it. Idempotent.

    Raises:
        NotFound: If the role or the user does not exist.
    """
    require_role(connection, role)
    row = {"role": role, "user_id": find_user(connection, user).user_id}
    add_or_delete_row(connection, _ROLE_MEMBERS, row, delete=revoke)


def list_user_roles(connection: sa.Connection, user: str) -> tuple[str, ...]:
    """Return the roles of a user, ordered by name, including PUBLIC."""
    return tuple(
        sorted({PUBLIC, *connection.execute(_SELECT_USER_ROLES, {"user": user}).scalars()})
    )


def resolve_effective_role(connection: sa.Connection, user: str, requested: str | None) -> str:
    """Return the role of a request: the requested role, or the user's default role, or PUBLIC.

    Raises:
        NotFound: If the user does not exist.
        RoleNotGranted: If the role is not granted to the user.
    """
    role = requested or find_user(connection, user).default_role or PUBLIC
    if role not in list_user_roles(connection, user):
        raise RoleNotGranted(role=to_display_name(role), user=to_display_name(user))
    return role


def grant_privilege(
    connection: sa.Connection,
    privilege: str,
    kind: ObjectKind,
    object_id: int,
    role: str,
    *,
    revoke: bool = False,
) -> None:
    """Grant a privilege on an object, or revoke it. Idempotent.

    Granting OWNERSHIP makes the role the owner; revoking it makes ACCOUNTADMIN the owner.

    Raises:
        NotFound: If the role does not exist, or objects of this kind do not have the privilege.
    """
    require_role(connection, role)
    if privilege not in PRIVILEGES[kind]:
        raise NotFound(kind=f"{kind.capitalize()} privilege", name=privilege)
    if privilege == "OWNERSHIP":
        owned, key = _TABLES_AND_KEYS_BY_KIND[kind]
        passes = sa.update(owned).where(key == object_id)
        connection.execute(
            passes.where(owned.c.owner == role).values(owner=ACCOUNTADMIN)
            if revoke
            else passes.values(owner=role)
        )
        return
    row = {"role": role, "kind": kind, "object_id": object_id, "privilege": privilege}
    add_or_delete_row(connection, _GRANTS, row, delete=revoke)


def copy_grants(
    connection: sa.Connection, kind: ObjectKind, source_id: int, target_id: int
) -> None:
    """Copy the grants on an object to another object, except ownership."""
    given = sa.select(_GRANTS.c.role, _GRANTS.c.privilege).where(
        _GRANTS.c.kind == kind, _GRANTS.c.object_id == source_id
    )
    for row in connection.execute(given).mappings().all():
        copied = {**row, "kind": kind, "object_id": target_id}
        add_or_delete_row(connection, _GRANTS, copied, delete=False)


def list_grants(
    connection: sa.Connection,
    *,
    role: str | None = None,
    kind: ObjectKind | None = None,
    object_id: int | None = None,
    with_dropped: bool = False,
) -> list[GrantRecord]:
    """Return the privileges of a role, or on an object, including ownership.

    `with_dropped` includes those on dropped objects.
    """
    found = []
    for each, (owned, key) in _TABLES_AND_KEYS_BY_KIND.items():
        if kind is not None and kind != each:
            continue
        live = sa.select(key.label("object_id"), owned.c.owner)
        if not with_dropped:
            live = live.where(owned.c.dropped_at.is_(None))
        if object_id is not None:
            live = live.where(key == object_id)
        objects = live.subquery()
        owns = sa.select(objects.c.owner, sa.literal("OWNERSHIP"), sa.literal(each), objects.c[0])
        has = sa.select(
            _GRANTS.c.role, _GRANTS.c.privilege, _GRANTS.c.kind, _GRANTS.c.object_id
        ).join(objects, sa.and_(_GRANTS.c.kind == each, _GRANTS.c.object_id == objects.c.object_id))
        if role is not None:
            owns, has = owns.where(objects.c.owner == role), has.where(_GRANTS.c.role == role)
        rows = connection.execute(sa.union_all(owns, has))
        found += [GrantRecord(*row) for row in rows]
    return sorted(found, key=lambda g: (g.kind, g.object_id, g.role, g.privilege))


def require_table_privilege(
    connection: sa.Connection, role: str, table: TableRecord, *privileges: str
) -> None:
    """Check that a role can reach a table, and owns it or has one of `privileges` on it.

    Raises:
        DatabaseNotFound: If the role lacks USAGE on the database.
        SchemaNotFound: If the role lacks USAGE on the schema.
        TableNotFound: If the role has none of the privileges on the table.
    """
    if role == ACCOUNTADMIN:
        return
    name = table.name
    if not has_privilege(connection, role, "DATABASE", table.database_id, "USAGE"):
        raise DatabaseNotFound(database=to_display_name(name.database))
    if not has_privilege(connection, role, "SCHEMA", table.schema_id, "USAGE"):
        raise SchemaNotFound(
            schema=f"{to_display_name(name.database)}.{to_display_name(name.schema)}"
        )
    if not has_privilege(connection, role, "TABLE", table.table_id, *privileges):
        raise TableNotFound(table=name)


def require_namespace_privilege(
    connection: sa.Connection,
    role: str,
    *privileges: str,
    database_id: int,
    schema_id: int | None = None,
    name: str,
) -> None:
    """Check that a role owns a schema, or a database if `schema` is None, or has a privilege on it.

    A schema also requires USAGE on its database. `name` is used in error messages.

    Raises:
        DatabaseNotFound: If the role cannot use the database, or lacks the privileges on it.
        SchemaNotFound: If the role lacks the privileges on the schema.
    """
    if role == ACCOUNTADMIN:
        return
    wanted = privileges if schema_id is None else ("USAGE",)
    if not has_privilege(connection, role, "DATABASE", database_id, *wanted):
        raise DatabaseNotFound(database=name)
    if schema_id is not None and not has_privilege(
        connection, role, "SCHEMA", schema_id, *privileges
    ):
        raise SchemaNotFound(schema=name)


def has_privilege(
    connection: sa.Connection, role: str, kind: ObjectKind, object_id: int, *privileges: str
) -> bool:
    """Return True if a role owns an object, or the role or PUBLIC has one of `privileges` on it."""
    if role == ACCOUNTADMIN:
        return True
    owned, key = _TABLES_AND_KEYS_BY_KIND[kind]
    holders = (role, PUBLIC)
    owns = sa.select(sa.literal(1)).where(key == object_id, owned.c.owner.in_(holders))
    granted = sa.select(sa.literal(1)).where(
        _GRANTS.c.role.in_(holders),
        _GRANTS.c.kind == kind,
        _GRANTS.c.object_id == object_id,
        _GRANTS.c.privilege.in_(privileges),
    )
    return connection.execute(sa.union_all(owns, granted)).first() is not None


def require_role(connection: sa.Connection, role: str) -> None:
    """Check that a role exists, and prevent its drop until this write transaction ends.

    Raises:
        NotFound: If it does not exist.
    """
    query = sa.select(_ROLES.c.name).where(_ROLES.c.name == role)
    if not connection.execute(query.with_for_update(read=True, key_share=True)).first():
        raise NotFound(kind="Role", name=to_display_name(role))


def _fetch_users(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> list[UserRecord]:
    query = (
        sa.select(_USERS, _PUBLIC_KEYS.c.public_key, _PUBLIC_KEYS.c.fingerprint)
        .select_from(_USERS.outerjoin(_PUBLIC_KEYS, _USERS.c.user_id == _PUBLIC_KEYS.c.user_id))
        .where(condition)
        .order_by(_USERS.c.name, _PUBLIC_KEYS.c.slot)
    )
    found: dict[int, UserRecord] = {}
    for row in connection.execute(query):
        user = found.get(row.user_id) or make_record(
            UserRecord, row, fingerprints=(), public_keys=()
        )
        if row.public_key is not None:
            user = replace(
                user,
                fingerprints=(*user.fingerprints, row.fingerprint),
                public_keys=(*user.public_keys, row.public_key),
            )
        found[row.user_id] = user
    return list(found.values())


# Privileges on the account cover objects outside of schemas. They are grants on the only object of
# kind ACCOUNT.

_ACCOUNT_OBJECT = {"kind": "ACCOUNT", "object_id": 0}


def has_account_privilege(
    connection: sa.Connection, roles: Collection[str], privilege: str
) -> bool:
    """Return True if one of these roles has a privilege on the account."""
    if ACCOUNTADMIN in roles:
        return True
    query = sa.select(_GRANTS.c.role).filter_by(**_ACCOUNT_OBJECT, privilege=privilege)
    return connection.execute(query.where(_GRANTS.c.role.in_(roles))).first() is not None


def grant_account_privilege(
    connection: sa.Connection, role: str, privilege: str, *, revoke: bool
) -> None:
    """Grant a privilege on the account to a role, or revoke it.

    Raises:
        NotFound: If the role does not exist.
    """
    require_role(connection, role)
    row = {**_ACCOUNT_OBJECT, "role": role, "privilege": privilege}
    add_or_delete_row(connection, _GRANTS, row, delete=revoke)


def list_account_grants(connection: sa.Connection, role: str) -> list[str]:
    """Return a role's privileges on the account, ordered by name."""
    query = sa.select(_GRANTS.c.privilege).filter_by(**_ACCOUNT_OBJECT, role=role)
    return sorted(connection.execute(query).scalars())


# Future grants: privileges that apply to tables and schemas when they are created.

_FUTURE_GRANTS = model.future_grants


@dataclass(frozen=True, slots=True)
class FutureGrant:
    """A privilege of a role on each new object of a kind in a schema or database."""

    role: str
    scope_kind: ObjectKind
    scope_id: int
    kind: ObjectKind
    privilege: str


def add_or_revoke_future_grant(
    connection: sa.Connection, future_grant: FutureGrant, *, revoke: bool
) -> None:
    """Add or revoke a future grant. Existing objects keep their grants.

    Raises:
        NotFound: If the role does not exist.
    """
    require_role(connection, future_grant.role)
    add_or_delete_row(connection, _FUTURE_GRANTS, asdict(future_grant), delete=revoke)


def list_future_grants(
    connection: sa.Connection,
    *,
    role: str | None = None,
    scope: tuple[ObjectKind, int] | None = None,
) -> list[FutureGrant]:
    """Return the future grants of a role, or in a schema or database."""
    query = sa.select(*_FUTURE_GRANTS.c).order_by(*_FUTURE_GRANTS.c)
    if role is not None:
        query = query.where(_FUTURE_GRANTS.c.role == role)
    if scope is not None:
        query = query.where(
            _FUTURE_GRANTS.c.scope_kind == scope[0], _FUTURE_GRANTS.c.scope_id == scope[1]
        )
    return [FutureGrant(*row) for row in connection.execute(query)]


def apply_future_table_grants(connection: sa.Connection, table: TableRecord) -> None:
    """Apply future grants to a new table."""
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
    scopes: Sequence[tuple[ObjectKind, int]],
) -> None:
    """Apply future grants to a new object, from the innermost scope that defines any.

    As in Snowflake, the future grants of a schema override the future grants of its database.
    """
    for scope in scopes:
        given = [each for each in list_future_grants(connection, scope=scope) if each.kind == kind]
        for each in given:
            grant_privilege(connection, each.privilege, each.kind, object_id, each.role)
        if given:
            return


# Objects that are visible to a role: it has a privilege on them, and USAGE on their schema and
# database.

_TRAVERSAL_PRIVILEGES = frozenset({"USAGE", "OWNERSHIP"})


class VisibleObjects:
    """All privileges of a role, read once, for listings. `StatementSession` queries single objects."""

    def __init__(self, connection: sa.Connection, role: str, *, with_dropped: bool = False) -> None:
        """Read the privileges. `with_dropped` includes privileges on dropped objects."""
        self._is_administrator = role == ACCOUNTADMIN
        grants = []
        if not self._is_administrator:
            for holder in {role, PUBLIC}:
                grants += list_grants(connection, role=holder, with_dropped=with_dropped)
        self._granted = {(grant.kind, grant.object_id) for grant in grants}
        self._selectable = {
            grant.object_id
            for grant in grants
            if grant.kind == "TABLE" and grant.privilege in {"OWNERSHIP", "SELECT"}
        }
        self._traversable = {
            (grant.kind, grant.object_id)
            for grant in grants
            if grant.privilege in _TRAVERSAL_PRIVILEGES
        }

    def includes_database(self, database: DatabaseRecord) -> bool:
        """Return True if the role has a privilege on this database."""
        return self._is_administrator or ("DATABASE", database.database_id) in self._granted

    def includes_schema(self, schema: SchemaRecord) -> bool:
        """Return True if the role has a privilege on this schema and USAGE on its database."""
        return self._is_administrator or (
            ("DATABASE", schema.database_id) in self._traversable
            and ("SCHEMA", schema.schema_id) in self._granted
        )

    def includes_table(self, table: TableRecord) -> bool:
        """Return True if the role has a privilege on this table and can reach it."""
        return self.includes_schema_object(
            "TABLE", table.table_id, table.schema_id, table.database_id
        )

    def can_select_from(self, table: TableRecord) -> bool:
        """Return True if the role may select from this table and can reach it."""
        return self.includes_table(table) and (
            self._is_administrator or table.table_id in self._selectable
        )

    def includes_account_object(self, kind: ObjectKind, object_id: int) -> bool:
        """Return True if the role has a privilege on an object outside of schemas."""
        return self._is_administrator or (kind, object_id) in self._granted

    def includes_schema_object(
        self, kind: ObjectKind, object_id: int, schema_id: int, database_id: int
    ) -> bool:
        """Return True if the role has a privilege on an object of a schema and can reach it."""
        return self._is_administrator or (
            ("DATABASE", database_id) in self._traversable
            and ("SCHEMA", schema_id) in self._traversable
            and (kind, object_id) in self._granted
        )
