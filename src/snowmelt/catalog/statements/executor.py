"""Parse and execute one catalog statement of any verb and kind of object.

Does not run queries; `is_query` recognizes them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.db.replication_triggers import require_writable
from snowmelt.catalog.model.records import ACCOUNTADMIN
from snowmelt.catalog.security.access_control import (
    list_roles,
    require_role,
    resolve_effective_role,
)
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.catalog.sql.cursor import CreateMode, NameLevel, TokenCursor, format_suggestion
from snowmelt.catalog.sql.lexer import PIPE_STATUS_FUNCTION, TokenKind, is_query
from snowmelt.catalog.statements import (
    buckets,
    external_functions,
    failover_groups,
    grants,
    integrations,
    libraries,
    namespaces,
    pipes,
    tables,
    users_and_roles,
)
from snowmelt.catalog.statements.histories import HISTORIES, parse_show_history
from snowmelt.catalog.statements.statement_context import (
    FileCopyCheck,
    NothingDone,
    Statement,
    StatementKind,
    StatementResult,
    StatementSession,
    parse_show_objects,
)
from snowmelt.clock import Clock, SystemClock
from snowmelt.errors import NotFound, TransactionConflict
from snowmelt.schema.types import to_display_name, to_internal_name

__all__ = ["StatementResult", "execute_statement", "is_query"]

_MAX_ATTEMPTS = 3


def execute_statement(  # noqa: PLR0913  what a statement may need of its interface
    database: Database,
    text: str,
    *,
    user: str | None = None,
    role: str | None = None,
    default_database: str | None = None,
    default_schema: str | None = None,
    clock: Clock | None = None,
    open_keyring: Callable[[], KeyRing] | None = None,
    check_file_copy: FileCopyCheck | None = None,
    is_role_fixed: bool = False,
) -> StatementResult:
    """Execute one statement that is not a query; a semicolon at its end is allowed.

    Args:
        database: The catalog.
        text: The statement.
        user: Internal name of the user, or None if the catalog was opened directly.
        role: Internal name of the role. None: the user's default role or PUBLIC, or ACCOUNTADMIN if
            there is no user.
        default_database: Database for names of one or two parts, in SQL notation.
        default_schema: Schema for names of one part, in SQL notation. None: PUBLIC.
        clock: The clock that dates new objects.
        open_keyring: Returns the keyring, for statements that create a secret.
        check_file_copy: Validates the COPY of a pipe that loads files. None: such pipes are
            rejected.
        is_role_fixed: True if the token of the request does not allow all roles of its user.

    Raises:
        StatementError: If the statement cannot be parsed or is not supported.
        RoleNotGranted: If the role is not granted to the user.
        PrivilegeMissing: If the role lacks a privilege.
        SiteReadOnly: If the statement could change replicated objects, and this site follows another one.
        UserError: If an object is missing, or exists already.
    """
    statement = parse_statement(text)
    now = (clock or SystemClock()).now()
    # Open the keyring first, because that may need a separate transaction.
    keyring = open_keyring() if open_keyring is not None and statement.needs_keyring else None

    def run(connection: sa.Connection) -> StatementResult:
        effective_role = _resolve_role(connection, user, role)
        if not statement.reads_only:
            if not statement.is_site_local:
                # A statement without effect on this state may have one at the primary.
                require_writable(connection)
            # The role becomes the owner of new objects.
            require_role(connection, effective_role)
        session = StatementSession(
            connection=connection,
            user=user,
            role=effective_role,
            database=None if default_database is None else to_internal_name(default_database),
            schema=None if default_schema is None else to_internal_name(default_schema),
            now=now,
            keyring=keyring,
            check_file_copy=check_file_copy,
            is_role_fixed=is_role_fixed,
        )
        try:
            return statement.execute(session)
        except NothingDone as done:
            return StatementResult(message=str(done))

    if statement.reads_only:
        with database.reading() as connection:
            return run(connection)
    # Retry after a conflict with another transaction, which may have created the same name.
    attempt = 0
    while True:
        attempt += 1
        try:
            with database.writing() as connection:
                return run(connection)
        except (TransactionConflict, IntegrityError):
            if attempt == _MAX_ATTEMPTS:
                raise


def _resolve_role(connection: sa.Connection, user: str | None, role: str | None) -> str:
    if user is not None:
        return resolve_effective_role(connection, user, role)
    if role is not None and role not in list_roles(connection):
        raise NotFound(kind="Role", name=to_display_name(role))
    return role or ACCOUNTADMIN


# The grammar is a subset of Snowflake's. To add a kind of object, add a module to this package and
# an entry to `_KINDS` and `LISTINGS`.

_KINDS = {
    kind.words: kind
    for kind in (
        *namespaces.KINDS,
        *users_and_roles.KINDS,
        *buckets.KINDS,
        *pipes.KINDS,
        *libraries.KINDS,
        *external_functions.KINDS,
        *integrations.KINDS,
        *failover_groups.KINDS,
        *libraries.SKIPPED_KINDS,
    )
}
LISTINGS = {
    listing.words: listing
    for listing in (
        namespaces.DATABASES,
        namespaces.SCHEMAS,
        tables.TABLES,
        tables.CHANNELS,
        users_and_roles.USERS,
        users_and_roles.ROLES,
        buckets.BUCKETS,
        users_and_roles.ACCESS_KEYS,
        libraries.LIBRARIES,
        *libraries.LOAD_FUNCTIONS,
        external_functions.EXTERNAL_FUNCTIONS,
        external_functions.FUNCTIONS,
        *integrations.LISTINGS,
        pipes.PIPES,
        *failover_groups.LISTINGS,
    )
}
_UNSUPPORTED_TABLE_KINDS = (
    *("TRANSIENT", "TEMPORARY", "TEMP", "VOLATILE", "LOCAL", "GLOBAL"),
    *("EXTERNAL", "DYNAMIC", "HYBRID", "ICEBERG", "EVENT"),
)
_ROW_INGESTION_HINT = (
    "insert rows through channels (snowmelt.Client), and change them with `lake.sql` on Spark"
)
_QUERY_KEYWORDS = ("SELECT", "WITH", "VALUES", "FROM", "EXPLAIN")
_UNSUPPORTED_STATEMENTS = {
    "USE": "USE is not supported, because statements share no session: write names with three parts, "
    "and set the role of the connection",
    **{
        word: f"{word} is not supported: {_ROW_INGESTION_HINT}"
        for word in ("INSERT", "UPDATE", "DELETE", "MERGE")
    },
    "COPY": "COPY is not supported here. Run it with `lake.sql`, `snowmelt sql` or `snowmelt copy`",
}


def parse_statement(text: str) -> Statement:
    """Parse one statement; a semicolon at its end is allowed.

    Raises:
        StatementError: If the statement cannot be parsed or is not supported.
    """
    cursor = TokenCursor(text)
    word = cursor.current.text
    if cursor.current.kind is TokenKind.WORD and word in _UNSUPPORTED_STATEMENTS:
        raise cursor.make_error(_UNSUPPORTED_STATEMENTS[word])
    if cursor.accept("SELECT", PIPE_STATUS_FUNCTION):
        return pipes.parse_pipe_status(cursor)
    if cursor.current.kind is TokenKind.WORD and word in _STATEMENT_PARSERS:
        cursor.advance()
        return _STATEMENT_PARSERS[word](cursor)
    if cursor.current.kind is TokenKind.END:
        raise cursor.make_error("Expected a statement here")
    hint = format_suggestion(word, [*_STATEMENT_PARSERS, *_QUERY_KEYWORDS])
    raise cursor.make_error(
        f"{cursor.current.source_text} does not start a statement.{hint} Statements start with "
        f"{', '.join(_STATEMENT_PARSERS)}; queries start with {', '.join(_QUERY_KEYWORDS)}"
    )


def _accept_kind(cursor: TokenCursor) -> StatementKind | None:
    """Consume the words of a kind of object and return the kind, or None if no kind follows."""
    for words, kind in _KINDS.items():
        if cursor.accept(*words.split()):
            return kind
    return None


def _parse_create(cursor: TokenCursor) -> Statement:
    replace = cursor.accept("OR", "REPLACE")
    first = cursor.current
    alter = not replace and cursor.accept("OR", "ALTER")
    secure = cursor.accept("SECURE")
    at = cursor.current
    kind = _accept_kind(cursor)
    if (alter or secure) and (kind is None or kind.words != "EXTERNAL FUNCTION"):
        words = "OR ALTER" if alter else "SECURE"
        raise cursor.make_error(f"{words} is only supported for an EXTERNAL FUNCTION", first)
    if kind is None or kind.create is None:
        if at.text in _UNSUPPORTED_TABLE_KINDS and at.kind is TokenKind.WORD:
            raise cursor.make_error(
                f"{at.text} is not supported: rows can only be streamed into "
                "permanent objects. Omit the word"
            )
        raise cursor.make_alternatives_error(_CREATABLE_WORDS, at)
    if replace and not kind.is_replaceable:
        raise cursor.make_error(
            f"OR REPLACE is not supported for a {kind.words.lower()}: DROP it first", at
        )
    mode = CreateMode.OR_ALTER if alter else _parse_create_mode(cursor, replace=replace)
    if secure:
        return external_functions.parse_create_function(cursor, mode, secure=True)
    return kind.create(cursor, mode)


def _parse_create_mode(cursor: TokenCursor, *, replace: bool) -> CreateMode:
    # IF is not a reserved word: without NOT or EXISTS it is a name.
    if not (cursor.is_next("IF", "NOT") or cursor.is_next("IF", "EXISTS")):
        return CreateMode.OR_REPLACE if replace else CreateMode.FAIL_IF_EXISTS
    if replace:
        raise cursor.make_error("OR REPLACE and IF NOT EXISTS exclude each other. Use one of them")
    cursor.expect("IF", "NOT", "EXISTS")
    return CreateMode.IF_NOT_EXISTS


def _parse_alter(cursor: TokenCursor) -> Statement:
    at = cursor.current
    kind = _accept_kind(cursor)
    if kind is None or kind.alter is None:
        raise cursor.make_error(
            f"ALTER {at.source_text or 'alone'} is not supported. Expected ALTER DATABASE, SCHEMA, "
            "TABLE, USER, BUCKET, FUNCTION, PIPE, INTEGRATION or FAILOVER GROUP",
            at,
        )
    return kind.alter(cursor, cursor.accept("IF", "EXISTS"))


def _parse_drop(cursor: TokenCursor) -> Statement:
    at = cursor.current
    kind = _accept_kind(cursor)
    if kind is None or kind.drop is None:
        raise cursor.make_alternatives_error(_DROPPABLE_WORDS, at)
    return kind.drop(cursor, cursor.accept("IF", "EXISTS"))


def _parse_describe(cursor: TokenCursor) -> Statement:
    before = cursor.fork()
    kind = _accept_kind(cursor)
    if kind is None or kind.describe is None:
        # Without a keyword the object is a table.
        return namespaces.parse_describe_object(NameLevel.TABLE, before)
    return kind.describe(cursor)


def _parse_show(cursor: TokenCursor) -> Statement:
    if cursor.accept("FUTURE", "GRANTS"):
        return grants.parse_show_future_grants(cursor)
    terse = cursor.accept("TERSE")
    for words, listing in LISTINGS.items():
        if cursor.accept(*words.split()):
            return parse_show_objects(cursor, listing, terse=terse)
    if not terse and cursor.accept("GRANTS"):
        return grants.parse_show_grants(cursor)
    if not terse and cursor.current.text in HISTORIES:
        return parse_show_history(cursor, HISTORIES[cursor.advance().text])
    if cursor.current.text == "COPIES":
        raise cursor.make_error("SHOW COPIES is not supported: query the view COPY_HISTORY")
    listed = tuple(words for words in LISTINGS if " " not in words)
    raise cursor.make_alternatives_error(listed if terse else (*listed, *HISTORIES, "GRANTS"))


_STATEMENT_PARSERS: dict[str, Callable[[TokenCursor], Statement]] = {
    "CREATE": _parse_create,
    "DROP": _parse_drop,
    "DESCRIBE": _parse_describe,
    "DESC": _parse_describe,
    "SHOW": _parse_show,
    "ALTER": _parse_alter,
    "TRUNCATE": tables.parse_truncate,
    "UNDROP": namespaces.parse_undrop,
    "COMMENT": namespaces.parse_comment_on,
    "GRANT": partial(grants.parse_grant_or_revoke, False),
    "REVOKE": partial(grants.parse_grant_or_revoke, True),
}
# Kinds that error messages list. Statements on existing integrations may omit API or SECURITY.
_CREATABLE_WORDS = tuple(
    words
    for words, kind in _KINDS.items()
    if kind.create is not None
    and kind not in libraries.SKIPPED_KINDS
    and words != "SECURITY INTEGRATION"
)
_DROPPABLE_WORDS = tuple(
    words
    for words, kind in _KINDS.items()
    if kind.drop is not None and words not in {"API INTEGRATION", "SECURITY INTEGRATION"}
)
