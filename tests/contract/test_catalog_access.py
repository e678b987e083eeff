from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from fixtures.catalog import NAME, World
from snowmelt.catalog.model.records import ACCOUNTADMIN
from snowmelt.catalog.objects import namespaces, tables
from snowmelt.catalog.security import access_control
from snowmelt.errors import (
    AlreadyExists,
    DatabaseNotFound,
    InvalidPublicKey,
    NotFound,
    RoleNotGranted,
    SchemaNotFound,
    TableNotFound,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from snowmelt.catalog.model.records import ObjectKind


_RSA = rsa.generate_private_key(65537, 2048)


@pytest.fixture
def writing(world: World) -> Iterator[Connection]:
    with world.database.writing() as connection:
        yield connection


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> str:
    return (
        key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )


def test_a_key_is_the_same_as_pem_and_as_base64(world: World, writing: Connection) -> None:
    body = "".join(_pem(_RSA).splitlines()[1:-1])
    one = access_control.create_user(writing, "ONE", public_key=_pem(_RSA), now=world.now)
    two = access_control.create_user(writing, "TWO", public_key=body, now=world.now)
    assert one.fingerprints == two.fingerprints
    assert one.public_keys == two.public_keys == (body,)
    assert one.fingerprints[0].startswith("SHA256:")
    assert len(base64.b64decode(one.fingerprints[0][7:])) == 32


def test_a_user_has_two_keys_to_change_over(world: World, writing: Connection) -> None:
    other = rsa.generate_private_key(65537, 2048)
    access_control.create_user(writing, "U", public_key=_pem(_RSA), now=world.now)
    access_control.set_public_key(writing, "U", _pem(other), slot=2)
    assert len(set(access_control.find_user(writing, "U").fingerprints)) == 2
    access_control.set_public_key(writing, "U", None)
    assert len(access_control.find_user(writing, "U").fingerprints) == 1


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("nonsense", "neither PEM"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "neither PEM"),
        (_pem(ec.generate_private_key(ec.SECP256R1())), "not an RSA key"),
        (_pem(rsa.generate_private_key(65537, 1024)), "too few"),
    ],
    ids=["text", "pem", "curve", "short"],
)
def test_a_key_that_is_no_good_is_refused(
    world: World, writing: Connection, key: str, reason: str
) -> None:
    with pytest.raises(InvalidPublicKey, match=reason):
        access_control.create_user(writing, "U", public_key=key, now=world.now)


def test_users_and_roles_exist_once(world: World, writing: Connection) -> None:
    with pytest.raises(AlreadyExists):
        access_control.create_user(writing, "LOADER", now=world.now)
    with pytest.raises(AlreadyExists):
        access_control.create_role(writing, "WRITER", now=world.now)
    with pytest.raises(NotFound):
        access_control.create_user(writing, "U", default_role="NONE", now=world.now)
    with pytest.raises(NotFound):
        access_control.find_user(writing, "NOBODY")
    assert [user.name for user in access_control.list_users(writing)] == ["LOADER", "OTHER"]
    assert access_control.list_roles(writing) == ["ACCOUNTADMIN", "PUBLIC", "WRITER"]


def test_the_effective_role_is_one_that_was_granted(world: World, writing: Connection) -> None:
    assert access_control.resolve_effective_role(writing, "LOADER", "WRITER") == "WRITER"
    assert access_control.resolve_effective_role(writing, "LOADER", None) == "PUBLIC"
    access_control.set_default_role(writing, "LOADER", "WRITER")
    assert access_control.resolve_effective_role(writing, "LOADER", None) == "WRITER"
    with pytest.raises(RoleNotGranted):
        access_control.resolve_effective_role(writing, "LOADER", "ACCOUNTADMIN")
    access_control.grant_role(writing, "WRITER", "LOADER", revoke=True)
    with pytest.raises(RoleNotGranted):
        access_control.resolve_effective_role(writing, "LOADER", None)


def test_each_privilege_opens_one_more_door(world: World, writing: Connection) -> None:
    table = tables.find_table(writing, NAME)
    access_control.create_role(writing, "R", now=world.now)

    def require() -> None:
        access_control.require_table_privilege(writing, "R", table, "INSERT")

    doors: tuple[tuple[type[Exception], str, ObjectKind, int], ...] = (
        (DatabaseNotFound, "USAGE", "DATABASE", table.database_id),
        (SchemaNotFound, "USAGE", "SCHEMA", table.schema_id),
        (TableNotFound, "INSERT", "TABLE", table.table_id),
    )
    for error, privilege, kind, object_id in doors:
        with pytest.raises(error):
            require()
        access_control.grant_privilege(writing, privilege, kind, object_id, "R")
        access_control.grant_privilege(writing, privilege, kind, object_id, "R")
    require()
    with pytest.raises(TableNotFound):
        access_control.require_table_privilege(writing, "R", table, "SELECT")
    access_control.require_table_privilege(writing, "R", table, "SELECT", "INSERT")
    access_control.grant_privilege(writing, "INSERT", "TABLE", table.table_id, "R", revoke=True)
    with pytest.raises(TableNotFound):
        require()


def test_the_owner_may_do_everything_with_its_object(world: World, writing: Connection) -> None:
    table = tables.find_table(writing, NAME)
    access_control.create_role(writing, "R", now=world.now)
    objects: tuple[tuple[ObjectKind, int], ...] = (
        ("DATABASE", table.database_id),
        ("SCHEMA", table.schema_id),
        ("TABLE", table.table_id),
    )
    for kind, object_id in objects:
        access_control.grant_privilege(writing, "OWNERSHIP", kind, object_id, "R")
    access_control.require_table_privilege(writing, "R", table, "SELECT")
    owned = access_control.list_grants(writing, role="R")
    assert {grant.privilege for grant in owned} == {"OWNERSHIP"}
    assert len(owned) == 3
    access_control.drop_role(writing, "R")
    assert tables.find_table(writing, NAME).owner == ACCOUNTADMIN


def test_what_public_may_everyone_may(world: World, writing: Connection) -> None:
    table = tables.find_table(writing, NAME)
    access_control.create_role(writing, "R", now=world.now)
    access_control.grant_privilege(writing, "USAGE", "DATABASE", table.database_id, "PUBLIC")
    access_control.grant_privilege(writing, "USAGE", "SCHEMA", table.schema_id, "PUBLIC")
    access_control.grant_privilege(writing, "SELECT", "TABLE", table.table_id, "PUBLIC")
    access_control.require_table_privilege(writing, "R", table, "SELECT")


def test_a_role_of_an_old_name_starts_without_privileges(world: World, writing: Connection) -> None:
    table = tables.find_table(writing, NAME)
    access_control.drop_role(writing, "WRITER")
    access_control.create_role(writing, "WRITER", now=world.now)
    assert access_control.list_grants(writing, role="WRITER") == []
    assert access_control.list_user_roles(writing, "LOADER") == ("PUBLIC",)
    assert not access_control.has_privilege(writing, "WRITER", "TABLE", table.table_id, "INSERT")
    with pytest.raises(NotFound, match="built in"):
        access_control.drop_role(writing, "ACCOUNTADMIN")


def test_a_privilege_that_does_not_exist_is_refused(writing: Connection) -> None:
    with pytest.raises(NotFound, match="Table privilege FLY"):
        access_control.grant_privilege(writing, "FLY", "TABLE", 1, "WRITER")
    with pytest.raises(NotFound, match="Role NONE"):
        access_control.grant_privilege(writing, "INSERT", "TABLE", 1, "NONE")


def test_a_dropped_table_is_in_no_list_of_grants(world: World, writing: Connection) -> None:
    tables.drop_table(writing, NAME, world.now)
    kinds = {grant.kind for grant in access_control.list_grants(writing, role="WRITER")}
    assert kinds == {"DATABASE", "SCHEMA"}


def test_a_dropped_user_is_gone_with_keys_and_roles(world: World, writing: Connection) -> None:
    access_control.set_public_key(writing, "LOADER", _pem(_RSA))
    access_control.drop_user(writing, "LOADER")
    again = access_control.create_user(writing, "LOADER", now=world.now)
    assert (again.fingerprints, access_control.list_user_roles(writing, "LOADER")) == (
        (),
        ("PUBLIC",),
    )


def test_namespaces_are_guarded_alike(world: World, writing: Connection) -> None:
    schema = namespaces.find_schema(writing, "DB", "PUBLIC")
    ids = {"database_id": schema.database_id, "schema_id": schema.schema_id}
    access_control.create_role(writing, "R", now=world.now)
    with pytest.raises(DatabaseNotFound):
        access_control.require_namespace_privilege(
            writing, "R", "USAGE", database_id=schema.database_id, name="DB"
        )
    with pytest.raises(DatabaseNotFound):
        access_control.require_namespace_privilege(
            writing, "R", "CREATE TABLE", **ids, name="DB.PUBLIC"
        )
    access_control.grant_privilege(writing, "USAGE", "DATABASE", schema.database_id, "R")
    with pytest.raises(SchemaNotFound):
        access_control.require_namespace_privilege(
            writing, "R", "CREATE TABLE", **ids, name="DB.PUBLIC"
        )
    access_control.grant_privilege(writing, "CREATE TABLE", "SCHEMA", schema.schema_id, "R")
    access_control.require_namespace_privilege(
        writing, "R", "CREATE TABLE", **ids, name="DB.PUBLIC"
    )
    access_control.require_namespace_privilege(
        writing, "ACCOUNTADMIN", "OWNERSHIP", **ids, name="DB.PUBLIC"
    )
