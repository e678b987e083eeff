"""Parser for USER, ROLE, GRANT, REVOKE and SHOW GRANTS statements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.model.privilege_kinds import PRIVILEGES
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
from snowmelt.catalog.sql.function_parser import parse_overload
from snowmelt.catalog.sql.lexer import TokenKind
from snowmelt.catalog.sql.object_name_types import NameLevel, ObjectName
from snowmelt.catalog.sql.object_parser import parse_bucket_name

if TYPE_CHECKING:
    from snowmelt.catalog.model.privilege_kinds import ObjectKind
    from snowmelt.catalog.sql.ast import Statement
    from snowmelt.catalog.sql.cursor import TokenCursor
    from snowmelt.catalog.sql.lexer import SqlToken
    from snowmelt.catalog.sql.object_name_types import CreateMode

# ALL leaves OWNERSHIP out, as Snowflake does.
_EXCLUDED_FROM_ALL = frozenset({"OWNERSHIP"})
_PUBLIC_KEY_PROPERTIES = ("RSA_PUBLIC_KEY", "RSA_PUBLIC_KEY_2")
_USER_PROPERTIES = (*_PUBLIC_KEY_PROPERTIES, "DEFAULT_ROLE")
_OBJECT_WORDS = ("DATABASE", "SCHEMA", "TABLE")
_ACCOUNT_PRIVILEGES = ("CREATE BUCKET", "CREATE INTEGRATION")


def parse_create_user(cursor: TokenCursor, name: str, create_mode: CreateMode) -> CreateUser:
    """Go past the properties of a CREATE USER whose name has been read.

    Raises:
        StatementError: If there is an unknown property.
    """
    properties: dict[str, str] = {}
    while cursor.current.text in _USER_PROPERTIES:
        properties |= [_parse_user_property(cursor, properties)]
        cursor.accept(",")
    _reject_password_properties(cursor)
    cursor.expect_end("the properties of a user")
    return CreateUser(
        name=name,
        create_mode=create_mode,
        public_key=properties.get("RSA_PUBLIC_KEY"),
        second_public_key=properties.get("RSA_PUBLIC_KEY_2"),
        default_role=properties.get("DEFAULT_ROLE"),
    )


def parse_alter_user(cursor: TokenCursor) -> AlterUser | DropAccessKey:
    """Go past what follows ALTER USER.

    Raises:
        StatementError: If it is anything but SET or UNSET of known properties, or DROP of a key.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.parse_identifier("a user")
    if cursor.is_next("ADD", "ACCESS", "KEY"):
        raise cursor.make_error(
            "The secret of an access key is shown once and kept nowhere else, so it is not made by "
            "a statement: snowmelt user access-key NAME"
        )
    if cursor.accept("DROP", "ACCESS", "KEY"):
        what = "the id of an access key"
        key = (
            cursor.parse_identifier(what)
            if cursor.current.kind is TokenKind.WORD
            else cursor.parse_string(what)
        )
        cursor.expect_end("the id of an access key")
        return DropAccessKey(name, key)
    properties: dict[str, str | None] = {}
    if cursor.expect_one_of("SET", "UNSET") == "SET":
        while cursor.current.text in _USER_PROPERTIES:
            properties |= [_parse_user_property(cursor, properties)]
            cursor.accept(",")
    else:
        while cursor.current.text in _USER_PROPERTIES:
            properties[cursor.advance().text] = None
            cursor.accept(",")
    if not properties:
        _reject_password_properties(cursor)
        cursor.expect_one_of(*_USER_PROPERTIES)
    _reject_password_properties(cursor)
    cursor.expect_end("the properties of a user")
    return AlterUser(name, tuple(properties.items()), if_exists)


def _parse_user_property(
    cursor: TokenCursor, seen_properties: dict[str, str] | dict[str, str | None]
) -> tuple[str, str]:
    token = cursor.advance()
    if token.text in seen_properties:
        raise cursor.make_error(f"{token.text} is given twice", token)
    cursor.expect("=")
    if token.text in _PUBLIC_KEY_PROPERTIES:
        return token.text, cursor.parse_string("a public key")
    return token.text, cursor.parse_identifier("a role")


def _reject_password_properties(cursor: TokenCursor) -> None:
    if cursor.current.text in {"PASSWORD", "MUST_CHANGE_PASSWORD"}:
        raise cursor.make_error(
            "Passwords are not supported: users sign with a key, see RSA_PUBLIC_KEY"
        )


def parse_grant(cursor: TokenCursor, *, revoke: bool) -> Statement:
    """Go past what follows GRANT or REVOKE.

    Raises:
        StatementError: If it grants what does not exist, or to what cannot have it.
    """
    if revoke and cursor.is_next("GRANT", "OPTION"):
        raise cursor.make_error(
            "GRANT OPTION is not supported: the owner of an object grants on it"
        )
    direction = "FROM" if revoke else "TO"
    if cursor.accept("ROLE"):
        return _parse_role_grant(cursor, direction, revoke=revoke)
    words = _parse_privilege_list(cursor)
    cursor.expect("ON")
    if len(words) == 1 and words.keys() <= set(_ACCOUNT_PRIVILEGES) and cursor.accept("ACCOUNT"):
        return GrantOnAccount(next(iter(words)), _parse_grantee(cursor, direction), revoke)
    if cursor.accept("EXTERNAL", "FUNCTION") or cursor.accept("FUNCTION"):
        function = parse_overload(cursor)
        privileges = _expand_privileges(cursor, words, "FUNCTION")
        return GrantOnFunction(privileges, function, _parse_grantee(cursor, direction), revoke)
    if cursor.accept("API", "INTEGRATION") or cursor.accept("INTEGRATION"):
        integration = cursor.parse_identifier("an API integration")
        privileges = _expand_privileges(cursor, words, "INTEGRATION")
        return GrantOnIntegration(
            privileges, integration, _parse_grantee(cursor, direction), revoke
        )
    if cursor.accept("BUCKET"):
        bucket = parse_bucket_name(cursor)
        prefix = cursor.parse_string("a prefix of keys") if cursor.accept("PREFIX") else None
        privileges = _expand_privileges(cursor, words, "BUCKET")
        if prefix is not None and "OWNERSHIP" in privileges:
            raise cursor.make_error("OWNERSHIP is of a whole bucket: leave PREFIX out")
        return GrantOnBucket(privileges, bucket, prefix, _parse_grantee(cursor, direction), revoke)
    return _parse_grant_on_object(cursor, words, direction)


def _parse_grant_on_object(
    cursor: TokenCursor, words: dict[str, SqlToken], direction: str
) -> GrantPrivileges | GrantOnMany:
    """Go past what follows ON where it is a database, schema or table, or many of them."""
    if (word := cursor.accept_one_of("ALL", "FUTURE")) is not None:
        return _parse_grant_on_all_or_future(
            cursor, words, direction, is_future=word.text == "FUTURE"
        )
    level, name = _parse_grant_target(cursor)
    privileges = _expand_privileges(cursor, words, level.object_kind)
    role = _parse_grantee(cursor, direction)
    return GrantPrivileges(privileges, level, name, role, direction == "FROM")


def _parse_grant_on_all_or_future(
    cursor: TokenCursor, words: dict[str, SqlToken], direction: str, *, is_future: bool
) -> GrantOnMany:
    """Go past what follows ALL or FUTURE: TABLES or SCHEMAS of a schema or database."""
    level = NameLevel(cursor.expect_one_of("TABLES", "SCHEMAS").removesuffix("S"))
    cursor.expect("IN")
    scopes = ("DATABASE", "SCHEMA") if level is NameLevel.TABLE else ("DATABASE",)
    scope = NameLevel(cursor.expect_one_of(*scopes))
    name = cursor.parse_name(f"a {scope.lower()}", scope.part_count)
    at = cursor.current
    privileges = _expand_privileges(cursor, words, level.object_kind)
    if "OWNERSHIP" in privileges:
        raise cursor.make_error("OWNERSHIP is granted on one object at a time: name it", at)
    role = _parse_grantee(cursor, direction)
    return GrantOnMany(privileges, level, scope, name, role, direction == "FROM", is_future)


def parse_show_future_grants(cursor: TokenCursor) -> ShowFutureGrants:
    """Go past what follows SHOW FUTURE GRANTS.

    Raises:
        StatementError: If it is anything but IN a schema or database, or TO ROLE.
    """
    if cursor.expect_one_of("IN", "TO") == "TO":
        cursor.expect("ROLE")
        shown = ShowFutureGrants(None, cursor.parse_name("a role", 1))
    else:
        scope = NameLevel(cursor.expect_one_of("SCHEMA", "DATABASE"))
        shown = ShowFutureGrants(scope, cursor.parse_name(f"a {scope.lower()}", scope.part_count))
    cursor.expect_end("SHOW FUTURE GRANTS")
    return shown


def _parse_grantee(cursor: TokenCursor, direction: str) -> str:
    cursor.expect(direction)
    if cursor.is_next("USER"):
        raise cursor.make_error(
            "Privileges go to roles: grant them to a role, and the role to the user"
        )
    cursor.accept("ROLE")
    role = cursor.parse_identifier("a role")
    if cursor.is_next("WITH", "GRANT", "OPTION"):
        raise cursor.make_error(
            "GRANT OPTION is not supported: the owner of an object grants on it"
        )
    for word in ("COPY", "REVOKE"):
        if cursor.accept(word):
            cursor.expect("CURRENT", "GRANTS")
    cursor.expect_end(f"the role of {'GRANT' if direction == 'TO' else 'REVOKE'}")
    return role


def parse_show_grants(cursor: TokenCursor) -> ShowGrants:
    """Go past what follows SHOW GRANTS.

    Raises:
        StatementError: If it is anything but TO, OF or ON something.
    """
    if cursor.accept("ON", "BUCKET"):
        place = cursor.current.position
        shown = ShowGrants("ON", "BUCKET", ObjectName((parse_bucket_name(cursor),), place))
    elif cursor.accept("ON", "FUNCTION"):
        function = parse_overload(cursor)
        shown = ShowGrants("ON", "FUNCTION", function.name, function.types)
    elif cursor.accept("ON", "INTEGRATION"):
        shown = ShowGrants("ON", "INTEGRATION", cursor.parse_name("an API integration", 1))
    elif cursor.accept("ON"):
        level, name = _parse_grant_target(cursor)
        shown = ShowGrants("ON", level.value, name)
    elif cursor.accept("TO"):
        kind = cursor.expect_one_of("ROLE", "USER")
        shown = ShowGrants("TO", kind, cursor.parse_name(f"a {kind.lower()}", 1))
    elif cursor.accept("OF"):
        cursor.expect("ROLE")
        shown = ShowGrants("OF", "ROLE", cursor.parse_name("a role", 1))
    else:
        shown = ShowGrants()
    cursor.expect_end("SHOW GRANTS")
    return shown


def _parse_role_grant(cursor: TokenCursor, direction: str, *, revoke: bool) -> GrantRole:
    role = cursor.parse_identifier("a role")
    cursor.expect(direction)
    if cursor.is_next("ROLE"):
        raise cursor.make_error("Roles within roles are not supported: grant the role to each user")
    cursor.expect("USER")
    user = cursor.parse_identifier("a user")
    cursor.expect_end("the user's name")
    return GrantRole(role, user, revoke)


def _parse_privilege_list(cursor: TokenCursor) -> dict[str, SqlToken]:
    words: dict[str, SqlToken] = {}
    while True:
        at = cursor.current
        word = _parse_privilege(cursor)
        if word in words:
            raise cursor.make_error(f"{word} is there twice", at)
        words[word] = at
        if not cursor.accept(","):
            return words


def _parse_privilege(cursor: TokenCursor) -> str:
    known = sorted({*_ACCOUNT_PRIVILEGES, *(each for line in PRIVILEGES.values() for each in line)})
    for privilege in known:
        if cursor.accept(*privilege.split()):
            return privilege
    if cursor.accept("ALL"):
        cursor.accept("PRIVILEGES")
        return "ALL"
    raise cursor.make_error(
        f"{cursor.current.source_text} is no privilege; there are {', '.join(known)} and ALL"
    )


def _parse_grant_target(cursor: TokenCursor) -> tuple[NameLevel, ObjectName]:
    """Go past `TABLE a.b.c` and the like; without a word it is a table."""
    if cursor.is_next("ACCOUNT"):
        raise cursor.make_error(
            f"Nothing can be granted on the account but {' and '.join(_ACCOUNT_PRIVILEGES)}, one at a time: "
            "databases, users and roles are created by ACCOUNTADMIN alone"
        )
    word = cursor.accept_one_of(*_OBJECT_WORDS)
    level = NameLevel(word.text) if word is not None else NameLevel.TABLE
    return level, cursor.parse_name(f"a {level.lower()}", level.part_count)


def _expand_privileges(
    cursor: TokenCursor, words: dict[str, SqlToken], kind: ObjectKind
) -> tuple[str, ...]:
    there = PRIVILEGES[kind]
    if list(words) == ["ALL"]:
        return tuple(each for each in there if each not in _EXCLUDED_FROM_ALL)
    for word, at in words.items():
        if word == "ALL":
            raise cursor.make_error("ALL stands alone: leave the other privileges out", at)
        if word not in there:
            raise cursor.make_error(
                f"{word} cannot be granted on a {kind.lower()}; {', '.join(there)} can", at
            )
    return tuple(words)
