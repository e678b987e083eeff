"""USER, ROLE, GRANT and REVOKE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.model.privileges import PRIVILEGES
from snowmelt.catalog.sql.ast import (
    AlterUser,
    CreateUser,
    DropAccessKey,
    GrantOnAccount,
    GrantOnBucket,
    GrantOnFunction,
    GrantOnIntegration,
    GrantOnMany,
    GrantPrivileges,
    GrantRole,
    ShowFutureGrants,
    ShowGrants,
)
from snowmelt.catalog.sql.function_parser import read_overload
from snowmelt.catalog.sql.identifiers import Level, Name
from snowmelt.catalog.sql.lexer import TokenKind
from snowmelt.catalog.sql.object_parser import read_bucket

if TYPE_CHECKING:
    from snowmelt.catalog.model.privileges import Kind
    from snowmelt.catalog.sql.ast import Statement
    from snowmelt.catalog.sql.cursor import Cursor
    from snowmelt.catalog.sql.identifiers import Existing
    from snowmelt.catalog.sql.lexer import Token

# ALL leaves OWNERSHIP out, as Snowflake does.
_NOT_IN_ALL = frozenset({"OWNERSHIP"})
_KEYS = ("RSA_PUBLIC_KEY", "RSA_PUBLIC_KEY_2")
_USER_PROPERTIES = (*_KEYS, "DEFAULT_ROLE")
_OBJECTS = ("DATABASE", "SCHEMA", "TABLE")
_ON_ACCOUNT = ("CREATE BUCKET", "CREATE INTEGRATION")


def read_create_user(cursor: Cursor, name: str, existing: Existing) -> CreateUser:
    """Go past the properties of a CREATE USER whose name has been read.

    Raises:
        StatementError: If there is an unknown property.
    """
    properties: dict[str, str] = {}
    while cursor.token.text in _USER_PROPERTIES:
        properties |= [_assignment(cursor, properties)]
        cursor.accept(",")
    _refuse_property(cursor)
    cursor.end("the properties of a user")
    return CreateUser(
        name=name,
        existing=existing,
        public_key=properties.get("RSA_PUBLIC_KEY"),
        second_public_key=properties.get("RSA_PUBLIC_KEY_2"),
        default_role=properties.get("DEFAULT_ROLE"),
    )


def read_alter_user(cursor: Cursor) -> AlterUser | DropAccessKey:
    """Go past what follows ALTER USER.

    Raises:
        StatementError: If it is anything but SET or UNSET of known properties, or DROP of a key.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.identifier("a user")
    if cursor.ahead("ADD", "ACCESS", "KEY"):
        raise cursor.error(
            "The secret of an access key is shown once and kept nowhere else, so it is not made by "
            "a statement: snowmelt user access-key NAME"
        )
    if cursor.accept("DROP", "ACCESS", "KEY"):
        what = "the id of an access key"
        key = (
            cursor.identifier(what) if cursor.token.kind is TokenKind.WORD else cursor.string(what)
        )
        cursor.end("the id of an access key")
        return DropAccessKey(name, key)
    properties: dict[str, str | None] = {}
    if cursor.expect_one_of("SET", "UNSET") == "SET":
        while cursor.token.text in _USER_PROPERTIES:
            properties |= [_assignment(cursor, properties)]
            cursor.accept(",")
    else:
        while cursor.token.text in _USER_PROPERTIES:
            properties[cursor.take().text] = None
            cursor.accept(",")
    if not properties:
        _refuse_property(cursor)
        cursor.expect_one_of(*_USER_PROPERTIES)
    _refuse_property(cursor)
    cursor.end("the properties of a user")
    return AlterUser(name, tuple(properties.items()), if_exists)


def _assignment(cursor: Cursor, seen: dict[str, str] | dict[str, str | None]) -> tuple[str, str]:
    token = cursor.take()
    if token.text in seen:
        raise cursor.error(f"{token.text} is given twice", token)
    cursor.expect("=")
    if token.text in _KEYS:
        return token.text, cursor.string("a public key")
    return token.text, cursor.identifier("a role")


def _refuse_property(cursor: Cursor) -> None:
    if cursor.token.text in {"PASSWORD", "MUST_CHANGE_PASSWORD"}:
        raise cursor.error("Passwords are not supported: users sign with a key, see RSA_PUBLIC_KEY")


def read_grant(cursor: Cursor, *, revoke: bool) -> Statement:
    """Go past what follows GRANT or REVOKE.

    Raises:
        StatementError: If it grants what does not exist, or to what cannot have it.
    """
    if revoke and cursor.ahead("GRANT", "OPTION"):
        raise cursor.error("GRANT OPTION is not supported: the owner of an object grants on it")
    direction = "FROM" if revoke else "TO"
    if cursor.accept("ROLE"):
        return _role_grant(cursor, direction, revoke=revoke)
    words = _privilege_words(cursor)
    cursor.expect("ON")
    if len(words) == 1 and words.keys() <= set(_ON_ACCOUNT) and cursor.accept("ACCOUNT"):
        return GrantOnAccount(next(iter(words)), _grantee(cursor, direction), revoke)
    if cursor.accept("EXTERNAL", "FUNCTION") or cursor.accept("FUNCTION"):
        function = read_overload(cursor)
        privileges = _privileges(cursor, words, "FUNCTION")
        return GrantOnFunction(privileges, function, _grantee(cursor, direction), revoke)
    if cursor.accept("API", "INTEGRATION") or cursor.accept("INTEGRATION"):
        integration = cursor.identifier("an API integration")
        privileges = _privileges(cursor, words, "INTEGRATION")
        return GrantOnIntegration(privileges, integration, _grantee(cursor, direction), revoke)
    if cursor.accept("BUCKET"):
        bucket = read_bucket(cursor)
        prefix = cursor.string("a prefix of keys") if cursor.accept("PREFIX") else None
        privileges = _privileges(cursor, words, "BUCKET")
        if prefix is not None and "OWNERSHIP" in privileges:
            raise cursor.error("OWNERSHIP is of a whole bucket: leave PREFIX out")
        return GrantOnBucket(privileges, bucket, prefix, _grantee(cursor, direction), revoke)
    return _grant_on_levels(cursor, words, direction)


def _grant_on_levels(
    cursor: Cursor, words: dict[str, Token], direction: str
) -> GrantPrivileges | GrantOnMany:
    """Go past what follows ON where it is a database, schema or table, or many of them."""
    if (word := cursor.accept_one_of("ALL", "FUTURE")) is not None:
        return _grant_on_many(cursor, words, direction, is_future=word.text == "FUTURE")
    level, name = _target(cursor)
    privileges = _privileges(cursor, words, level.kind)
    role = _grantee(cursor, direction)
    return GrantPrivileges(privileges, level, name, role, direction == "FROM")


def _grant_on_many(
    cursor: Cursor, words: dict[str, Token], direction: str, *, is_future: bool
) -> GrantOnMany:
    """Go past what follows ALL or FUTURE: TABLES or SCHEMAS of a schema or database."""
    level = Level(cursor.expect_one_of("TABLES", "SCHEMAS").removesuffix("S"))
    cursor.expect("IN")
    scopes = ("DATABASE", "SCHEMA") if level is Level.TABLE else ("DATABASE",)
    scope = Level(cursor.expect_one_of(*scopes))
    name = cursor.name(f"a {scope.lower()}", scope.parts)
    at = cursor.token
    privileges = _privileges(cursor, words, level.kind)
    if "OWNERSHIP" in privileges:
        raise cursor.error("OWNERSHIP is granted on one object at a time: name it", at)
    role = _grantee(cursor, direction)
    return GrantOnMany(privileges, level, scope, name, role, direction == "FROM", is_future)


def read_show_future_grants(cursor: Cursor) -> ShowFutureGrants:
    """Go past what follows SHOW FUTURE GRANTS.

    Raises:
        StatementError: If it is anything but IN a schema or database, or TO ROLE.
    """
    if cursor.expect_one_of("IN", "TO") == "TO":
        cursor.expect("ROLE")
        shown = ShowFutureGrants(None, cursor.name("a role", 1))
    else:
        scope = Level(cursor.expect_one_of("SCHEMA", "DATABASE"))
        shown = ShowFutureGrants(scope, cursor.name(f"a {scope.lower()}", scope.parts))
    cursor.end("SHOW FUTURE GRANTS")
    return shown


def _grantee(cursor: Cursor, direction: str) -> str:
    cursor.expect(direction)
    if cursor.ahead("USER"):
        raise cursor.error("Privileges go to roles: grant them to a role, and the role to the user")
    cursor.accept("ROLE")
    role = cursor.identifier("a role")
    if cursor.ahead("WITH", "GRANT", "OPTION"):
        raise cursor.error("GRANT OPTION is not supported: the owner of an object grants on it")
    for word in ("COPY", "REVOKE"):
        if cursor.accept(word):
            cursor.expect("CURRENT", "GRANTS")
    cursor.end(f"the role of {'GRANT' if direction == 'TO' else 'REVOKE'}")
    return role


def read_show_grants(cursor: Cursor) -> ShowGrants:
    """Go past what follows SHOW GRANTS.

    Raises:
        StatementError: If it is anything but TO, OF or ON something.
    """
    if cursor.accept("ON", "BUCKET"):
        place = cursor.token.place
        shown = ShowGrants("ON", "BUCKET", Name((read_bucket(cursor),), place))
    elif cursor.accept("ON", "FUNCTION"):
        function = read_overload(cursor)
        shown = ShowGrants("ON", "FUNCTION", function.name, function.types)
    elif cursor.accept("ON", "INTEGRATION"):
        shown = ShowGrants("ON", "INTEGRATION", cursor.name("an API integration", 1))
    elif cursor.accept("ON"):
        level, name = _target(cursor)
        shown = ShowGrants("ON", level.value, name)
    elif cursor.accept("TO"):
        kind = cursor.expect_one_of("ROLE", "USER")
        shown = ShowGrants("TO", kind, cursor.name(f"a {kind.lower()}", 1))
    elif cursor.accept("OF"):
        cursor.expect("ROLE")
        shown = ShowGrants("OF", "ROLE", cursor.name("a role", 1))
    else:
        shown = ShowGrants()
    cursor.end("SHOW GRANTS")
    return shown


def _role_grant(cursor: Cursor, direction: str, *, revoke: bool) -> GrantRole:
    role = cursor.identifier("a role")
    cursor.expect(direction)
    if cursor.ahead("ROLE"):
        raise cursor.error("Roles within roles are not supported: grant the role to each user")
    cursor.expect("USER")
    user = cursor.identifier("a user")
    cursor.end("the user's name")
    return GrantRole(role, user, revoke)


def _privilege_words(cursor: Cursor) -> dict[str, Token]:
    words: dict[str, Token] = {}
    while True:
        at = cursor.token
        word = _one_privilege(cursor)
        if word in words:
            raise cursor.error(f"{word} is there twice", at)
        words[word] = at
        if not cursor.accept(","):
            return words


def _one_privilege(cursor: Cursor) -> str:
    known = sorted({*_ON_ACCOUNT, *(each for line in PRIVILEGES.values() for each in line)})
    for privilege in known:
        if cursor.accept(*privilege.split()):
            return privilege
    if cursor.accept("ALL"):
        cursor.accept("PRIVILEGES")
        return "ALL"
    raise cursor.error(
        f"{cursor.token.written} is no privilege; there are {', '.join(known)} and ALL"
    )


def _target(cursor: Cursor) -> tuple[Level, Name]:
    """Go past `TABLE a.b.c` and the like; without a word it is a table."""
    if cursor.ahead("ACCOUNT"):
        raise cursor.error(
            f"Nothing can be granted on the account but {' and '.join(_ON_ACCOUNT)}, one at a time: "
            "databases, users and roles are created by ACCOUNTADMIN alone"
        )
    word = cursor.accept_one_of(*_OBJECTS)
    level = Level(word.text) if word is not None else Level.TABLE
    return level, cursor.name(f"a {level.lower()}", level.parts)


def _privileges(cursor: Cursor, words: dict[str, Token], kind: Kind) -> tuple[str, ...]:
    there = PRIVILEGES[kind]
    if list(words) == ["ALL"]:
        return tuple(each for each in there if each not in _NOT_IN_ALL)
    for word, at in words.items():
        if word == "ALL":
            raise cursor.error("ALL stands alone: leave the other privileges out", at)
        if word not in there:
            raise cursor.error(
                f"{word} cannot be granted on a {kind.lower()}; {', '.join(there)} can", at
            )
    return tuple(words)
