"""Parser entry point: statement text into a statement object.

The grammar is a subset of Snowflake's. Statements that begin with a query's first word belong to
Spark; see `is_query`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.sql import lexer
from snowmelt.catalog.sql.access_parser import (
    parse_alter_user,
    parse_create_user,
    parse_grant,
    parse_show_future_grants,
    parse_show_grants,
)
from snowmelt.catalog.sql.ast import (
    CreateDatabase,
    CreateRole,
    CreateSchema,
    DescribeObject,
    DropObject,
    DropPrincipal,
    ShowGrants,
    ShowObjects,
    Statement,
)
from snowmelt.catalog.sql.cursor import TokenCursor
from snowmelt.catalog.sql.function_parser import (
    parse_alter_function,
    parse_create_function,
    parse_create_translator,
    parse_describe_function,
    parse_drop_function,
    parse_function_name,
)
from snowmelt.catalog.sql.integration_parser import (
    parse_alter_any_integration,
    parse_alter_integration,
    parse_alter_security_integration,
    parse_create_integration,
    parse_create_security_integration,
    parse_describe_any_integration,
    parse_describe_integration,
    parse_describe_security_integration,
    parse_drop_any_integration,
    parse_drop_integration,
    parse_drop_security_integration,
)
from snowmelt.catalog.sql.lexer import TokenKind, tokenize
from snowmelt.catalog.sql.object_name_types import CreateMode, NameLevel
from snowmelt.catalog.sql.object_parser import (
    LOAD_OBJECT_KINDS,
    parse_alter_bucket,
    parse_alter_namespace,
    parse_comment_on,
    parse_create_bucket,
    parse_create_load_object,
    parse_drop_bucket,
    parse_drop_load_object,
    parse_properties,
    parse_skipped_function,
    parse_truncate,
    parse_undrop,
)
from snowmelt.catalog.sql.pipe_parser import parse_create_pipe, parse_describe_pipe, parse_drop_pipe
from snowmelt.catalog.sql.table_parser import parse_alter_table, parse_create_table
from snowmelt.schema.types import TableName

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.catalog.sql.ast import DropBucket, ShowFutureGrants
    from snowmelt.catalog.sql.object_name_types import ObjectName
    from snowmelt.catalog.sql.pipe_ast import DropPipe

_QUERY_WORDS = frozenset({"SELECT", "WITH", "VALUES", "FROM", "EXPLAIN", "("})
_OBJECT_WORDS = ("DATABASE", "SCHEMA", "TABLE")
_CREATABLE_KINDS = (*_OBJECT_WORDS, "USER", "ROLE", "BUCKET", "PIPE", *LOAD_OBJECT_KINDS)
_DROP_PARSERS: dict[str, Callable[[TokenCursor], DropBucket | DropPipe]] = {
    "BUCKET": parse_drop_bucket,
    "PIPE": parse_drop_pipe,
}
_FUNCTION_KINDS = ("EXTERNAL FUNCTION", "FUNCTION")
# The deepest level that each SHOW can be narrowed to.
_SHOW_LEVELS = {
    "DATABASES": NameLevel.ACCOUNT,
    "SCHEMAS": NameLevel.DATABASE,
    "TABLES": NameLevel.SCHEMA,
    "CHANNELS": NameLevel.TABLE,
    "USERS": NameLevel.ACCOUNT,
    "ROLES": NameLevel.ACCOUNT,
    "BUCKETS": NameLevel.ACCOUNT,
    "ACCESS KEYS": NameLevel.ACCOUNT,
    "LIBRARIES": NameLevel.ACCOUNT,
    "FILTERS": NameLevel.ACCOUNT,
    "PARSERS": NameLevel.ACCOUNT,
    "SOURCES": NameLevel.ACCOUNT,
    "EXTERNAL FUNCTIONS": NameLevel.SCHEMA,
    "FUNCTIONS": NameLevel.SCHEMA,
    "API INTEGRATIONS": NameLevel.ACCOUNT,
    "SECURITY INTEGRATIONS": NameLevel.ACCOUNT,
    "INTEGRATIONS": NameLevel.ACCOUNT,
    "PIPES": NameLevel.SCHEMA,
}
# What is kept for a while once it is dropped.
_KINDS_WITH_HISTORY = frozenset({"DATABASES", "SCHEMAS", "TABLES"})
_UNSUPPORTED_TABLE_KINDS = frozenset(
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
_ROW_INGESTION_HINT = (
    "rows come in through channels (snowmelt.Client), and are never changed in place"
)
_UNSUPPORTED_STATEMENTS = {
    "USE": "USE is not supported, a statement stands alone: write names with three parts, and give "
    "the role with the connection",
    "INSERT": f"INSERT is not supported: {_ROW_INGESTION_HINT}",
    "UPDATE": f"UPDATE is not supported: {_ROW_INGESTION_HINT}",
    "DELETE": f"DELETE is not supported: {_ROW_INGESTION_HINT}",
    "MERGE": f"MERGE is not supported: {_ROW_INGESTION_HINT}",
    "COPY": "COPY is not run here: `lake.sql`, `snowmelt sql` and `snowmelt copy` run it",
}
_UNSUPPORTED_ALTER_MESSAGE = (
    "ALTER {} is not supported: there are ALTER DATABASE, SCHEMA, TABLE, USER, BUCKET, FUNCTION and "
    "INTEGRATION alone"
)


def is_query(text: str) -> bool:
    """Tell whether a statement is Spark's: SELECT, WITH, VALUES, FROM, EXPLAIN, or parenthesised.

    Raises:
        StatementError: If a string, quoted name or comment is not closed.
    """
    # COPY's strings are not those of the other statements, so that it may be no whole text to them.
    if lexer.is_copy_statement(text):
        return False
    first = tokenize(text)[0]
    return first.kind in {TokenKind.WORD, TokenKind.SYMBOL} and first.text in _QUERY_WORDS


def parse_statement(text: str) -> Statement:
    """Return what one statement says; a semicolon at its end is allowed.

    Raises:
        StatementError: If it cannot be understood or is not supported; says where and what
            would be right.
    """
    cursor = TokenCursor(text)
    word = cursor.current.text
    if cursor.current.kind is TokenKind.WORD and word in _UNSUPPORTED_STATEMENTS:
        raise cursor.make_error(_UNSUPPORTED_STATEMENTS[word])
    if cursor.current.kind is TokenKind.WORD and word in _STATEMENT_PARSERS:
        cursor.advance()
        return _STATEMENT_PARSERS[word](cursor)
    if cursor.current.kind is TokenKind.END:
        raise cursor.make_error("There is no statement here")
    raise cursor.make_error(
        f"{cursor.current.source_text} begins no statement; there are {', '.join(_STATEMENT_PARSERS)}, and "
        "queries beginning with SELECT, WITH, VALUES, FROM or EXPLAIN"
    )


def _parse_create(cursor: TokenCursor) -> Statement:
    replace = cursor.accept("OR", "REPLACE")
    if (statement := _parse_create_function_or_integration(cursor, replace=replace)) is not None:
        return statement
    if cursor.current.text in _UNSUPPORTED_TABLE_KINDS and cursor.current.kind is TokenKind.WORD:
        raise cursor.make_error(
            f"{cursor.current.text} is not supported: rows can be streamed into permanent objects "
            "alone; leave the word out"
        )
    at = cursor.current
    kind = cursor.expect_one_of(*_CREATABLE_KINDS, *_FUNCTION_KINDS, "API INTEGRATION")
    if replace and kind in {"USER", "ROLE", "BUCKET"}:
        raise cursor.make_error(
            f"OR REPLACE is not supported for a {kind.lower()}: DROP it first", at
        )
    return _parse_create_object(cursor, kind, _parse_create_mode(cursor, replace=replace))


def _parse_create_mode(cursor: TokenCursor, *, replace: bool) -> CreateMode:
    # IF alone is a name: it is no reserved word, and is shown without quotes.
    if not (cursor.is_next("IF", "NOT") or cursor.is_next("IF", "EXISTS")):
        return CreateMode.OR_REPLACE if replace else CreateMode.FAIL_IF_EXISTS
    if replace:
        raise cursor.make_error(
            "OR REPLACE and IF NOT EXISTS exclude each other; write one of them"
        )
    cursor.expect("IF", "NOT", "EXISTS")
    return CreateMode.IF_NOT_EXISTS


def _parse_create_function_or_integration(
    cursor: TokenCursor, *, replace: bool
) -> Statement | None:
    """Go past CREATE of what calls of services need, if it is that."""
    at = cursor.current
    alter = not replace and cursor.accept("OR", "ALTER")
    secure = cursor.accept("SECURE")
    if cursor.accept("EXTERNAL", "FUNCTION"):
        existing = CreateMode.OR_ALTER if alter else _parse_create_mode(cursor, replace=replace)
        return parse_create_function(cursor, existing, secure=secure)
    if alter or secure:
        words = "OR ALTER" if alter else "SECURE"
        raise cursor.make_error(f"{words} is supported for an EXTERNAL FUNCTION alone", at)
    for each in ("TRANSFORM", "ANALYTIC", "AGGREGATE"):
        if cursor.accept(each, "FUNCTION"):
            _parse_create_mode(cursor, replace=replace)
            name = parse_function_name(cursor)[1]
            return parse_skipped_function(cursor, f"{each.capitalize()} function", name)
    if cursor.accept("FUNCTION"):
        return parse_create_translator(cursor, _parse_create_mode(cursor, replace=replace))
    if cursor.accept("SECURITY", "INTEGRATION"):
        return parse_create_security_integration(
            cursor, _parse_create_mode(cursor, replace=replace)
        )
    if cursor.accept("API", "INTEGRATION"):
        return parse_create_integration(cursor, _parse_create_mode(cursor, replace=replace))
    return None


def _parse_create_object(cursor: TokenCursor, kind: str, create_mode: CreateMode) -> Statement:
    if kind == "TABLE":
        return parse_create_table(cursor, cursor.parse_name("a table", 3), create_mode)
    if kind == "SCHEMA":
        name = cursor.parse_name("a schema", 2)
        properties = parse_properties(cursor, NameLevel.SCHEMA)
        cursor.expect_end("the properties of a schema")
        return CreateSchema(name, create_mode, properties)
    if kind == "BUCKET":
        return parse_create_bucket(cursor, create_mode)
    if kind == "PIPE":
        return parse_create_pipe(cursor, create_mode)
    if kind in LOAD_OBJECT_KINDS:
        return parse_create_load_object(cursor, kind, create_mode)
    return _parse_create_unqualified(cursor, kind, create_mode)


def _parse_create_unqualified(cursor: TokenCursor, kind: str, create_mode: CreateMode) -> Statement:
    """Go past CREATE of what has a name of one part."""
    word = cursor.parse_identifier(f"a {kind.lower()}")
    if kind == "USER":
        return parse_create_user(cursor, word, create_mode)
    if kind == "DATABASE":
        properties = parse_properties(cursor, NameLevel.DATABASE)
        cursor.expect_end("the properties of a database")
        return CreateDatabase(word, create_mode, properties)
    cursor.expect_end("the name of a role")
    return CreateRole(word, create_mode)


def _parse_drop(cursor: TokenCursor) -> Statement:
    external = cursor.accept("EXTERNAL", "FUNCTION")
    if external or cursor.accept("FUNCTION"):
        return parse_drop_function(cursor, external=external)
    if (statement := _parse_integration_statement(cursor, "DROP")) is not None:
        return statement
    kind = cursor.expect_one_of(*_CREATABLE_KINDS, *_FUNCTION_KINDS, "INTEGRATION")
    if kind in _DROP_PARSERS:
        return _DROP_PARSERS[kind](cursor)
    if kind in LOAD_OBJECT_KINDS:
        return parse_drop_load_object(cursor, kind)
    if_exists = cursor.accept("IF", "EXISTS")
    if kind in {"USER", "ROLE"}:
        word = cursor.parse_identifier(f"a {kind.lower()}")
        cursor.expect_end(f"the name of a {kind.lower()}")
        return DropPrincipal(kind, word, if_exists)
    level = NameLevel(kind)
    name = cursor.parse_name(f"a {kind.lower()}", level.part_count)
    behaviour = cursor.accept_one_of("CASCADE", "RESTRICT")
    cursor.expect_end("DROP")
    restrict = behaviour is not None and behaviour.text == "RESTRICT"
    return DropObject(level, name, if_exists, restrict)


# What is done to an integration of each kind, and to one whose kind is not said.
_INTEGRATION_PARSERS: dict[str, dict[str, Callable[[TokenCursor], Statement]]] = {
    "ALTER": {
        "API": parse_alter_integration,
        "SECURITY": parse_alter_security_integration,
        "": parse_alter_any_integration,
    },
    "DESCRIBE": {
        "API": parse_describe_integration,
        "SECURITY": parse_describe_security_integration,
        "": parse_describe_any_integration,
    },
    "DROP": {
        "API": parse_drop_integration,
        "SECURITY": parse_drop_security_integration,
        "": parse_drop_any_integration,
    },
}


def _parse_integration_statement(cursor: TokenCursor, verb: str) -> Statement | None:
    """Go past the rest of ALTER, DESCRIBE or DROP if it is about an integration."""
    for kind, read in _INTEGRATION_PARSERS[verb].items():
        if cursor.accept(*kind.split(), "INTEGRATION"):
            return read(cursor)
    return None


def _parse_describe(cursor: TokenCursor) -> Statement:
    if cursor.accept("PIPE"):
        return parse_describe_pipe(cursor)
    if cursor.accept("EXTERNAL", "FUNCTION") or cursor.accept("FUNCTION"):
        return parse_describe_function(cursor)
    if (statement := _parse_integration_statement(cursor, "DESCRIBE")) is not None:
        return statement
    word = cursor.accept_one_of(*_OBJECT_WORDS)
    level = NameLevel(word.text) if word is not None else NameLevel.TABLE
    name = cursor.parse_name(f"a {level.lower()}", level.part_count)
    cursor.expect_end("DESCRIBE")
    return DescribeObject(level, name)


def _parse_show(cursor: TokenCursor) -> ShowObjects | ShowGrants | ShowFutureGrants:
    if cursor.accept("FUTURE", "GRANTS"):
        return parse_show_future_grants(cursor)
    terse = cursor.accept("TERSE")
    kind = _parse_show_kind(cursor, terse=terse)
    if kind == "GRANTS":
        return parse_show_grants(cursor)
    with_history = kind in _KINDS_WITH_HISTORY and cursor.accept("HISTORY")
    like = cursor.parse_string("a pattern") if cursor.accept("LIKE") else None
    level, scope = (
        _parse_scope(cursor, _SHOW_LEVELS[kind])
        if cursor.accept("IN")
        else (NameLevel.ACCOUNT, None)
    )
    prefix = cursor.parse_string("a prefix") if cursor.accept("STARTS", "WITH") else None
    limit = cursor.parse_integer("the limit", 1, 10_000) if cursor.accept("LIMIT") else None
    cursor.expect_end(f"SHOW {kind}")
    return ShowObjects(kind, like, level, scope, prefix, limit, with_history, terse)


def _parse_show_kind(cursor: TokenCursor, *, terse: bool) -> str:
    for words in _SHOW_LEVELS:
        if " " in words and cursor.accept(*words.split()):
            return words
    others = () if terse else ("GRANTS",)
    return cursor.expect_one_of(*(each for each in _SHOW_LEVELS if " " not in each), *others)


def _parse_scope(
    cursor: TokenCursor, max_level: NameLevel
) -> tuple[NameLevel | None, ObjectName | None]:
    levels = [level for level in NameLevel if level.part_count <= max_level.part_count]
    word = cursor.accept_one_of(*levels)
    if word is None:
        if max_level is NameLevel.ACCOUNT:
            cursor.expect("ACCOUNT")
        return None, cursor.parse_name("a place to look in", max_level.part_count)
    level = NameLevel(word.text)
    if level is NameLevel.ACCOUNT:
        return level, None
    return level, cursor.parse_name(f"a {level.lower()}", level.part_count)


def _parse_alter(cursor: TokenCursor) -> Statement:
    if cursor.accept("TABLE"):
        return parse_alter_table(cursor)
    if (word := cursor.accept_one_of("DATABASE", "SCHEMA")) is not None:
        return parse_alter_namespace(cursor, NameLevel(word.text))
    if cursor.accept("EXTERNAL", "FUNCTION") or cursor.accept("FUNCTION"):
        return parse_alter_function(cursor)
    if (statement := _parse_integration_statement(cursor, "ALTER")) is not None:
        return statement
    if cursor.accept("BUCKET"):
        return parse_alter_bucket(cursor)
    if not cursor.accept("USER"):
        raise cursor.make_error(
            _UNSUPPORTED_ALTER_MESSAGE.format(cursor.current.source_text or "alone")
        )
    return parse_alter_user(cursor)


_STATEMENT_PARSERS: dict[str, Callable[[TokenCursor], Statement]] = {
    "CREATE": _parse_create,
    "DROP": _parse_drop,
    "DESCRIBE": _parse_describe,
    "DESC": _parse_describe,
    "SHOW": _parse_show,
    "ALTER": _parse_alter,
    "TRUNCATE": parse_truncate,
    "UNDROP": parse_undrop,
    "COMMENT": parse_comment_on,
    "GRANT": lambda cursor: parse_grant(cursor, revoke=False),
    "REVOKE": lambda cursor: parse_grant(cursor, revoke=True),
}


def parse_table_name(text: str) -> TableName:
    """Return the table that a name of three parts, written as in SQL, means.

    Raises:
        StatementError: If it is no such name.
    """
    cursor = TokenCursor(text)
    name = cursor.parse_name("a table", 3)
    if len(name.parts) < 3:
        raise cursor.make_error(
            "Write the table with database and schema, such as demo.public.flights"
        )
    cursor.expect_end("the name of a table")
    return TableName(*name.parts)
