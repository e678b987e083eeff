"""Statements on users, their keys, and roles: CREATE, ALTER, DROP, DESCRIBE and SHOW."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Literal

from snowmelt.catalog.model.records import PUBLIC
from snowmelt.catalog.security import access_control, encryption_keys
from snowmelt.catalog.sql.cursor import CreateMode, NameLevel, TokenCursor
from snowmelt.catalog.sql.lexer import TokenKind
from snowmelt.catalog.statements.statement_context import (
    Listing,
    ShowObjects,
    ShowRow,
    Statement,
    StatementKind,
    StatementResult,
    StatementSession,
    creation_result,
    skip_if_exists,
    skip_if_missing,
)
from snowmelt.errors import Unsupported
from snowmelt.schema.types import to_display_name

_PUBLIC_KEY_SLOTS: dict[str, Literal[1, 2]] = {"RSA_PUBLIC_KEY": 1, "RSA_PUBLIC_KEY_2": 2}
_USER_PROPERTIES = (*_PUBLIC_KEY_SLOTS, "DEFAULT_ROLE")


class CreateUser(Statement):
    """CREATE USER. Keys are public keys in base64, with or without PEM lines."""

    name: str
    create_mode: CreateMode
    public_key: str | None
    second_public_key: str | None
    default_role: str | None

    def execute(self, session: StatementSession) -> StatementResult:
        session.require_administrator("CREATE USER")
        label = f"User {to_display_name(self.name)}"
        skip_if_exists(label, self.create_mode, exists=_exists("USER", self.name, session))
        access_control.create_user(
            session.connection,
            self.name,
            public_key=self.public_key,
            default_role=self.default_role,
            now=session.now,
        )
        if self.second_public_key is not None:
            access_control.set_public_key(
                session.connection, self.name, self.second_public_key, slot=2
            )
        return creation_result(label, replaced=False)


class CreateRole(Statement):
    """CREATE ROLE."""

    name: str
    create_mode: CreateMode

    def execute(self, session: StatementSession) -> StatementResult:
        session.require_administrator("CREATE ROLE")
        label = f"Role {to_display_name(self.name)}"
        skip_if_exists(label, self.create_mode, exists=_exists("ROLE", self.name, session))
        access_control.create_role(session.connection, self.name, now=session.now)
        return creation_result(label, replaced=False)


class AlterUser(Statement):
    """ALTER USER … SET or UNSET: new values of properties, None for UNSET."""

    name: str
    properties: tuple[tuple[str, str | None], ...]
    if_exists: bool

    def execute(self, session: StatementSession) -> StatementResult:
        session.require_administrator("ALTER USER")
        label = f"User {to_display_name(self.name)}"
        skip_if_missing(label, self.if_exists, exists=_exists("USER", self.name, session))
        for word, value in self.properties:
            if word == "DEFAULT_ROLE":
                access_control.set_default_role(session.connection, self.name, value)
            else:
                slot = _PUBLIC_KEY_SLOTS[word]
                access_control.set_public_key(session.connection, self.name, value, slot=slot)
        return StatementResult(message=f"{label} altered.")


class AddAccessKey(Statement):
    """ALTER USER … ADD ACCESS KEY. Only the result of the statement contains the secret."""

    needs_keyring = True

    user: str

    def execute(self, session: StatementSession) -> StatementResult:
        # An access key has all roles of its user, which the token of the request may not have.
        if session.user != self.user or session.is_role_fixed:
            session.require_administrator("ALTER USER")
        if session.keyring is None:
            raise Unsupported(
                what="ADD ACCESS KEY here", instead="use snowmelt user access-key NAME"
            )
        key = encryption_keys.create_access_key(
            session.connection, session.keyring, self.user, now=session.now
        )
        return StatementResult(("access_key_id", "secret"), ((key.access_key_id, key.secret),))


class DropAccessKey(Statement):
    """ALTER USER … DROP ACCESS KEY."""

    user: str
    access_key_id: str

    def execute(self, session: StatementSession) -> StatementResult:
        if session.user != self.user:
            session.require_administrator("ALTER USER")
        encryption_keys.drop_access_key(session.connection, self.user, self.access_key_id)
        shown = to_display_name(self.user)
        return StatementResult(message=f"Access key {self.access_key_id} of user {shown} dropped.")


class DescribeUser(Statement):
    """DESCRIBE USER. Only ACCOUNTADMIN and the user itself may run it."""

    reads_only = True

    name: str

    def execute(self, session: StatementSession) -> StatementResult:
        if session.user != self.name:
            session.require_administrator("DESCRIBE USER")
        user = access_control.find_user(session.connection, self.name)
        keys = access_control.read_public_keys(session.connection, user)
        rows: list[tuple[str, object]] = [("NAME", user.name), ("DEFAULT_ROLE", user.default_role)]
        for word, slot in _PUBLIC_KEY_SLOTS.items():
            key, fingerprint = keys.get(slot, (None, None))
            rows += [(word, key), (f"{word}_FP", fingerprint)]
        return StatementResult(("property", "value"), tuple(rows))


class DropPrincipal(Statement):
    """DROP USER or DROP ROLE. `kind` is that keyword."""

    kind: str
    name: str
    if_exists: bool

    def execute(self, session: StatementSession) -> StatementResult:
        session.require_administrator(f"DROP {self.kind}")
        label = f"{self.kind.capitalize()} {to_display_name(self.name)}"
        skip_if_missing(label, self.if_exists, exists=_exists(self.kind, self.name, session))
        drop = access_control.drop_user if self.kind == "USER" else access_control.drop_role
        drop(session.connection, self.name)
        return StatementResult(message=f"{label} dropped.")


def _exists(kind: str, name: str, session: StatementSession) -> bool:
    if kind == "USER":
        return name in {user.name for user in access_control.list_users(session.connection)}
    return name in access_control.list_roles(session.connection)


def _list_user_rows(_statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    for each in access_control.list_users(session.connection):
        if session.is_administrator or each.name == session.user:
            yield each.created_at, each.name, each.default_role, ", ".join(each.fingerprints)


def _list_role_rows(_statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    known = {session.role, PUBLIC}
    if session.user is not None:
        known |= set(access_control.list_user_roles(session.connection, session.user))
    for each in access_control.list_roles(session.connection):
        if session.is_administrator or each in known:
            yield (each,)


def _list_access_key_rows(_statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    mine = None if session.is_administrator else session.user or ""
    for each in encryption_keys.list_access_keys(session.connection, mine):
        yield each.created_at, each.access_key_id, each.user


def _parse_create_user(cursor: TokenCursor, create_mode: CreateMode) -> CreateUser:
    name = cursor.parse_identifier("a user")
    properties = _parse_properties(cursor, unset=False)
    _expect_end_of_properties(cursor)
    return CreateUser(name, create_mode, *(properties.get(each) for each in _USER_PROPERTIES))


def _parse_create_role(cursor: TokenCursor, create_mode: CreateMode) -> CreateRole:
    name = cursor.parse_identifier("a role")
    cursor.expect_end("the name of a role")
    return CreateRole(name, create_mode)


def _parse_alter_user(cursor: TokenCursor, if_exists: bool) -> Statement:
    name = cursor.parse_identifier("a user")
    if cursor.accept("ADD", "ACCESS", "KEY"):
        cursor.expect_end("ADD ACCESS KEY")
        return AddAccessKey(name)
    if cursor.accept("DROP", "ACCESS", "KEY"):
        label = "the id of an access key"
        is_word = cursor.current.kind is TokenKind.WORD
        key = cursor.parse_identifier(label) if is_word else cursor.parse_string(label)
        cursor.expect_end(label)
        return DropAccessKey(name, key)
    properties = _parse_properties(cursor, unset=cursor.expect_one_of("SET", "UNSET") == "UNSET")
    if not properties:
        _reject_password_properties(cursor)
        cursor.expect_one_of(*_USER_PROPERTIES)
    _expect_end_of_properties(cursor)
    return AlterUser(name, tuple(properties.items()), if_exists)


def _parse_properties(cursor: TokenCursor, *, unset: bool) -> Mapping[str, str | None]:
    properties: dict[str, str | None] = {}
    while cursor.current.text in _USER_PROPERTIES:
        token = cursor.advance()
        if unset:
            properties[token.text] = None
        else:
            if token.text in properties:
                raise cursor.make_error(f"{token.text} is given twice", token)
            cursor.expect("=")
            is_key = token.text in _PUBLIC_KEY_SLOTS
            properties[token.text] = (
                cursor.parse_string("a public key") if is_key else cursor.parse_identifier("a role")
            )
        cursor.accept(",")
    return properties


def _expect_end_of_properties(cursor: TokenCursor) -> None:
    _reject_password_properties(cursor)
    cursor.expect_end("the properties of a user")


def _reject_password_properties(cursor: TokenCursor) -> None:
    if cursor.current.text in {"PASSWORD", "MUST_CHANGE_PASSWORD"}:
        raise cursor.make_error("Passwords are not supported: set RSA_PUBLIC_KEY")


def _parse_describe_user(cursor: TokenCursor) -> DescribeUser:
    name = cursor.parse_identifier("a user")
    cursor.expect_end("the name of a user")
    return DescribeUser(name)


def _parse_drop(kind: str, cursor: TokenCursor, if_exists: bool) -> DropPrincipal:
    name = cursor.parse_identifier(f"a {kind.lower()}")
    cursor.expect_end(f"the name of a {kind.lower()}")
    return DropPrincipal(kind, name, if_exists)


KINDS = (
    StatementKind(
        "USER",
        _parse_create_user,
        _parse_alter_user,
        partial(_parse_drop, "USER"),
        _parse_describe_user,
        is_replaceable=False,
    ),
    StatementKind(
        "ROLE", _parse_create_role, drop=partial(_parse_drop, "ROLE"), is_replaceable=False
    ),
)
USERS = Listing(
    "USERS", NameLevel.ACCOUNT, "created_on name default_role fingerprints", _list_user_rows
)
ROLES = Listing("ROLES", NameLevel.ACCOUNT, "name", _list_role_rows)
ACCESS_KEYS = Listing(
    "ACCESS KEYS", NameLevel.ACCOUNT, "created_on name user_name", _list_access_key_rows
)
