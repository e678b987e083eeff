"""Statement text into data. The grammar is Snowflake's, cut down to what Snowmelt does.

Statements whose first word is a query's are left to Spark; see `is_query`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.sql import lexer
from snowmelt.catalog.sql.access_parser import (
    read_alter_user,
    read_create_user,
    read_grant,
    read_show_future_grants,
    read_show_grants,
)
from snowmelt.catalog.sql.ast import (
    CreateDatabase,
    CreateRole,
    CreateSchema,
    Describe,
    Drop,
    DropPrincipal,
    Show,
    ShowGrants,
    Statement,
)
from snowmelt.catalog.sql.cursor import Cursor
from snowmelt.catalog.sql.function_parser import (
    read_alter_function,
    read_create_function,
    read_create_translator,
    read_describe_function,
    read_drop_function,
    read_function_name,
)
from snowmelt.catalog.sql.identifiers import Existing, Level
from snowmelt.catalog.sql.integration_parser import (
    read_alter_any,
    read_alter_integration,
    read_alter_security_integration,
    read_create_integration,
    read_create_security_integration,
    read_describe_any,
    read_describe_integration,
    read_describe_security_integration,
    read_drop_any,
    read_drop_integration,
    read_drop_security_integration,
)
from snowmelt.catalog.sql.lexer import TokenKind, tokens_of
from snowmelt.catalog.sql.object_parser import (
    LOAD_OBJECTS,
    read_alter_bucket,
    read_alter_namespace,
    read_comment_on,
    read_create_bucket,
    read_create_load_object,
    read_drop_bucket,
    read_drop_load_object,
    read_properties,
    read_skipped_function,
    read_truncate,
    read_undrop,
)
from snowmelt.catalog.sql.pipe_parser import read_create_pipe, read_describe_pipe, read_drop_pipe
from snowmelt.catalog.sql.table_parser import read_alter_table, read_table
from snowmelt.schema.types import TableName

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.catalog.sql.ast import DropBucket, ShowFutureGrants
    from snowmelt.catalog.sql.identifiers import Name
    from snowmelt.catalog.sql.pipe_ast import DropPipe

_QUERY_WORDS = frozenset({"SELECT", "WITH", "VALUES", "FROM", "EXPLAIN", "("})
_OBJECTS = ("DATABASE", "SCHEMA", "TABLE")
_CREATABLE = (*_OBJECTS, "USER", "ROLE", "BUCKET", "PIPE", *LOAD_OBJECTS)
_DROPS: dict[str, Callable[[Cursor], DropBucket | DropPipe]] = {
    "BUCKET": read_drop_bucket,
    "PIPE": read_drop_pipe,
}
_CALLABLE = ("EXTERNAL FUNCTION", "FUNCTION")
# The deepest level that each SHOW can be narrowed to.
_SHOWN = {
    "DATABASES": Level.ACCOUNT,
    "SCHEMAS": Level.DATABASE,
    "TABLES": Level.SCHEMA,
    "CHANNELS": Level.TABLE,
    "USERS": Level.ACCOUNT,
    "ROLES": Level.ACCOUNT,
    "BUCKETS": Level.ACCOUNT,
    "ACCESS KEYS": Level.ACCOUNT,
    "LIBRARIES": Level.ACCOUNT,
    "FILTERS": Level.ACCOUNT,
    "PARSERS": Level.ACCOUNT,
    "SOURCES": Level.ACCOUNT,
    "EXTERNAL FUNCTIONS": Level.SCHEMA,
    "FUNCTIONS": Level.SCHEMA,
    "API INTEGRATIONS": Level.ACCOUNT,
    "SECURITY INTEGRATIONS": Level.ACCOUNT,
    "INTEGRATIONS": Level.ACCOUNT,
    "PIPES": Level.SCHEMA,
}
# What is kept for a while once it is dropped.
_WITH_HISTORY = frozenset({"DATABASES", "SCHEMAS", "TABLES"})
_KINDS_OF_TABLE = frozenset(
    {
        "TRANSIENT",
        "TEMPORARY",
        "TEMP",
        "VOLATILE",
        "LOCAL",
        "GLOBAL",
        "EXTERNAL",
        "DYNAMIC",
        "HYBRID",
        "ICEBERG",
        "EVENT",
    }
)
_ROWS_COME = "rows come in through channels (snowmelt.Client), and are never changed in place"
_REFUSED = {
    "USE": "USE is not supported, a statement stands alone: write names with three parts, and give "
    "the role with the connection",
    "INSERT": f"INSERT is not supported: {_ROWS_COME}",
    "UPDATE": f"UPDATE is not supported: {_ROWS_COME}",
    "DELETE": f"DELETE is not supported: {_ROWS_COME}",
    "MERGE": f"MERGE is not supported: {_ROWS_COME}",
    "COPY": "COPY is not run here: `lake.sql`, `snowmelt sql` and `snowmelt copy` run it",
}
_NO_ALTER = (
    "ALTER {} is not supported: there are ALTER DATABASE, SCHEMA, TABLE, USER, BUCKET, FUNCTION and "
    "INTEGRATION alone"
)


def is_query(text: str) -> bool:
    """Tell whether a statement is Spark's: SELECT, WITH, VALUES, FROM, EXPLAIN, or parenthesised.

    Raises:
        StatementError: If a string, quoted name or comment is not closed.
    """
    # COPY's strings are not those of the other statements, so that it may be no whole text to them.
    if lexer.is_copy(text):
        return False
    first = tokens_of(text)[0]
    return first.kind in {TokenKind.WORD, TokenKind.SYMBOL} and first.text in _QUERY_WORDS


def parse(text: str) -> Statement:
    """Return what one statement says; a semicolon at its end is allowed.

    Raises:
        StatementError: If it cannot be understood or is not supported; says where and what
            would be right.
    """
    cursor = Cursor(text)
    word = cursor.token.text
    if cursor.token.kind is TokenKind.WORD and word in _REFUSED:
        raise cursor.error(_REFUSED[word])
    if cursor.token.kind is TokenKind.WORD and word in _STATEMENTS:
        cursor.take()
        return _STATEMENTS[word](cursor)
    if cursor.token.kind is TokenKind.END:
        raise cursor.error("There is no statement here")
    raise cursor.error(
        f"{cursor.token.written} begins no statement; there are {', '.join(_STATEMENTS)}, and "
        "queries beginning with SELECT, WITH, VALUES, FROM or EXPLAIN"
    )


def _create(cursor: Cursor) -> Statement:
    replace = cursor.accept("OR", "REPLACE")
    if (statement := _created_to_call(cursor, replace=replace)) is not None:
        return statement
    if cursor.token.text in _KINDS_OF_TABLE and cursor.token.kind is TokenKind.WORD:
        raise cursor.error(
            f"{cursor.token.text} is not supported: rows can be streamed into permanent objects "
            "alone; leave the word out"
        )
    at = cursor.token
    kind = cursor.expect_one_of(*_CREATABLE, *_CALLABLE, "API INTEGRATION")
    if replace and kind in {"USER", "ROLE", "BUCKET"}:
        raise cursor.error(f"OR REPLACE is not supported for a {kind.lower()}: DROP it first", at)
    return _created(cursor, kind, _existing(cursor, replace=replace))


def _existing(cursor: Cursor, *, replace: bool) -> Existing:
    if not cursor.ahead("IF"):
        return Existing.REPLACE if replace else Existing.REFUSE
    if replace:
        raise cursor.error("OR REPLACE and IF NOT EXISTS exclude each other; write one of them")
    cursor.expect("IF", "NOT", "EXISTS")
    return Existing.KEEP


def _created_to_call(cursor: Cursor, *, replace: bool) -> Statement | None:
    """Go past CREATE of what calls of services need, if it is that."""
    at = cursor.token
    alter = not replace and cursor.accept("OR", "ALTER")
    secure = cursor.accept("SECURE")
    if cursor.accept("EXTERNAL", "FUNCTION"):
        existing = Existing.ALTER if alter else _existing(cursor, replace=replace)
        return read_create_function(cursor, existing, secure=secure)
    if alter or secure:
        words = "OR ALTER" if alter else "SECURE"
        raise cursor.error(f"{words} is supported for an EXTERNAL FUNCTION alone", at)
    for each in ("TRANSFORM", "ANALYTIC", "AGGREGATE"):
        if cursor.accept(each, "FUNCTION"):
            _existing(cursor, replace=replace)
            name = read_function_name(cursor)[1]
            return read_skipped_function(cursor, f"{each.capitalize()} function", name)
    if cursor.accept("FUNCTION"):
        return read_create_translator(cursor, _existing(cursor, replace=replace))
    if cursor.accept("SECURITY", "INTEGRATION"):
        return read_create_security_integration(cursor, _existing(cursor, replace=replace))
    if cursor.accept("API", "INTEGRATION"):
        return read_create_integration(cursor, _existing(cursor, replace=replace))
    return None


def _created(cursor: Cursor, kind: str, existing: Existing) -> Statement:
    if kind == "TABLE":
        return read_table(cursor, cursor.name("a table", 3), existing)
    if kind == "SCHEMA":
        name = cursor.name("a schema", 2)
        properties = read_properties(cursor, Level.SCHEMA)
        cursor.end("the properties of a schema")
        return CreateSchema(name, existing, properties)
    if kind == "BUCKET":
        return read_create_bucket(cursor, existing)
    if kind == "PIPE":
        return read_create_pipe(cursor, existing)
    if kind in LOAD_OBJECTS:
        return read_create_load_object(cursor, kind, existing)
    return _created_with_name(cursor, kind, existing)


def _created_with_name(cursor: Cursor, kind: str, existing: Existing) -> Statement:
    """Go past CREATE of what has a name of one part."""
    word = cursor.identifier(f"a {kind.lower()}")
    if kind == "USER":
        return read_create_user(cursor, word, existing)
    if kind == "DATABASE":
        properties = read_properties(cursor, Level.DATABASE)
        cursor.end("the properties of a database")
        return CreateDatabase(word, existing, properties)
    cursor.end("the name of a role")
    return CreateRole(word, existing)


def _drop(cursor: Cursor) -> Statement:
    external = cursor.accept("EXTERNAL", "FUNCTION")
    if external or cursor.accept("FUNCTION"):
        return read_drop_function(cursor, external=external)
    if (statement := _integration(cursor, "DROP")) is not None:
        return statement
    kind = cursor.expect_one_of(*_CREATABLE, *_CALLABLE, "INTEGRATION")
    if kind in _DROPS:
        return _DROPS[kind](cursor)
    if kind in LOAD_OBJECTS:
        return read_drop_load_object(cursor, kind)
    if_exists = cursor.accept("IF", "EXISTS")
    if kind in {"USER", "ROLE"}:
        word = cursor.identifier(f"a {kind.lower()}")
        cursor.end(f"the name of a {kind.lower()}")
        return DropPrincipal(kind, word, if_exists)
    level = Level(kind)
    name = cursor.name(f"a {kind.lower()}", level.parts)
    behaviour = cursor.accept_one_of("CASCADE", "RESTRICT")
    cursor.end("DROP")
    restrict = behaviour is not None and behaviour.text == "RESTRICT"
    return Drop(level, name, if_exists, restrict)


# What is done to an integration of each kind, and to one whose kind is not said.
_INTEGRATIONS: dict[str, dict[str, Callable[[Cursor], Statement]]] = {
    "ALTER": {
        "API": read_alter_integration,
        "SECURITY": read_alter_security_integration,
        "": read_alter_any,
    },
    "DESCRIBE": {
        "API": read_describe_integration,
        "SECURITY": read_describe_security_integration,
        "": read_describe_any,
    },
    "DROP": {
        "API": read_drop_integration,
        "SECURITY": read_drop_security_integration,
        "": read_drop_any,
    },
}


def _integration(cursor: Cursor, done: str) -> Statement | None:
    """Go past the rest of ALTER, DESCRIBE or DROP if it is about an integration."""
    for kind, read in _INTEGRATIONS[done].items():
        if cursor.accept(*kind.split(), "INTEGRATION"):
            return read(cursor)
    return None


def _describe(cursor: Cursor) -> Statement:
    if cursor.accept("PIPE"):
        return read_describe_pipe(cursor)
    if cursor.accept("EXTERNAL", "FUNCTION") or cursor.accept("FUNCTION"):
        return read_describe_function(cursor)
    if (statement := _integration(cursor, "DESCRIBE")) is not None:
        return statement
    word = cursor.accept_one_of(*_OBJECTS)
    level = Level(word.text) if word is not None else Level.TABLE
    name = cursor.name(f"a {level.lower()}", level.parts)
    cursor.end("DESCRIBE")
    return Describe(level, name)


def _show(cursor: Cursor) -> Show | ShowGrants | ShowFutureGrants:
    if cursor.accept("FUTURE", "GRANTS"):
        return read_show_future_grants(cursor)
    terse = cursor.accept("TERSE")
    kind = _shown_kind(cursor, terse=terse)
    if kind == "GRANTS":
        return read_show_grants(cursor)
    with_history = kind in _WITH_HISTORY and cursor.accept("HISTORY")
    like = cursor.string("a pattern") if cursor.accept("LIKE") else None
    level, scope = _scope(cursor, _SHOWN[kind]) if cursor.accept("IN") else (Level.ACCOUNT, None)
    prefix = cursor.string("a prefix") if cursor.accept("STARTS", "WITH") else None
    limit = cursor.integer("the limit", 1, 10_000) if cursor.accept("LIMIT") else None
    cursor.end(f"SHOW {kind}")
    return Show(kind, like, level, scope, prefix, limit, with_history, terse)


def _shown_kind(cursor: Cursor, *, terse: bool) -> str:
    for words in _SHOWN:
        if " " in words and cursor.accept(*words.split()):
            return words
    others = () if terse else ("GRANTS",)
    return cursor.expect_one_of(*(each for each in _SHOWN if " " not in each), *others)


def _scope(cursor: Cursor, deepest: Level) -> tuple[Level | None, Name | None]:
    levels = [level for level in Level if level.parts <= deepest.parts]
    word = cursor.accept_one_of(*levels)
    if word is None:
        if deepest is Level.ACCOUNT:
            cursor.expect("ACCOUNT")
        return None, cursor.name("a place to look in", deepest.parts)
    level = Level(word.text)
    if level is Level.ACCOUNT:
        return level, None
    return level, cursor.name(f"a {level.lower()}", level.parts)


def _alter(cursor: Cursor) -> Statement:
    if cursor.accept("TABLE"):
        return read_alter_table(cursor)
    if (word := cursor.accept_one_of("DATABASE", "SCHEMA")) is not None:
        return read_alter_namespace(cursor, Level(word.text))
    if cursor.accept("EXTERNAL", "FUNCTION") or cursor.accept("FUNCTION"):
        return read_alter_function(cursor)
    if (statement := _integration(cursor, "ALTER")) is not None:
        return statement
    if cursor.accept("BUCKET"):
        return read_alter_bucket(cursor)
    if not cursor.accept("USER"):
        raise cursor.error(_NO_ALTER.format(cursor.token.written or "alone"))
    return read_alter_user(cursor)


_STATEMENTS: dict[str, Callable[[Cursor], Statement]] = {
    "CREATE": _create,
    "DROP": _drop,
    "DESCRIBE": _describe,
    "DESC": _describe,
    "SHOW": _show,
    "ALTER": _alter,
    "TRUNCATE": read_truncate,
    "UNDROP": read_undrop,
    "COMMENT": read_comment_on,
    "GRANT": lambda cursor: read_grant(cursor, revoke=False),
    "REVOKE": lambda cursor: read_grant(cursor, revoke=True),
}


def parse_table_name(text: str) -> TableName:
    """Return the table that a name of three parts, written as in SQL, means.

    Raises:
        StatementError: If it is no such name.
    """
    cursor = Cursor(text)
    name = cursor.name("a table", 3)
    if len(name.parts) < 3:
        raise cursor.error("Write the table with database and schema, such as demo.public.flights")
    cursor.end("the name of a table")
    return TableName(*name.parts)
