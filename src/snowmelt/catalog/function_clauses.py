"""The clauses of external functions: Snowflake's own, and ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog import clauses
from snowmelt.catalog.clauses import Clause
from snowmelt.catalog.lexing import TokenKind
from snowmelt.functions.definition import (
    DEFAULT_COMMENT,
    BatchFailure,
    Compression,
    RowErrors,
)
from snowmelt.functions.refusals import DeclarationInvalid
from snowmelt.functions.wire.headers import check_custom

if TYPE_CHECKING:
    from snowmelt.catalog.cursor import Cursor

# Specification of the format, §1.1; the last is used in the wild.
# fmt: off
CONTEXT_FUNCTIONS = frozenset({
    "CURRENT_ACCOUNT", "CURRENT_CLIENT", "CURRENT_DATABASE", "CURRENT_DATE", "CURRENT_IP_ADDRESS",
    "CURRENT_REGION", "CURRENT_ROLE", "CURRENT_SCHEMA", "CURRENT_SCHEMAS", "CURRENT_SESSION",
    "CURRENT_STATEMENT", "CURRENT_TIME", "CURRENT_TIMESTAMP", "CURRENT_TRANSACTION",
    "CURRENT_USER", "CURRENT_VERSION", "CURRENT_WAREHOUSE", "LAST_QUERY_ID", "LAST_TRANSACTION",
    "LOCALTIME", "LOCALTIMESTAMP", "CURRENT_ACCOUNT_NAME",
})
# fmt: on

_MAX_ROWS = 1_000_000
_MAX_BYTES = 100_000_000
_MAX_CACHE_BYTES = 1 << 40
_MAX_IN_FLIGHT = 1_024
_MAX_PER_SECOND = 1_000_000
_MAX_RETRIES = 100
_MAX_SECONDS = 86_400


def _headers(cursor: Cursor) -> tuple[tuple[str, str], ...]:
    at = cursor.token
    found: tuple[tuple[str, str], ...] = clauses.listed(cursor, _header)
    names = [name.lower() for name, _ in found]
    for name in names:
        if names.count(name) > 1:
            raise cursor.error(f"HEADERS has {name!r} twice: case does not count in headers", at)
    try:
        check_custom(dict(found))
    except DeclarationInvalid as error:
        raise cursor.error(f"HEADERS: {error.fields['reason']}", at) from None
    return found


def _header(cursor: Cursor) -> tuple[str, str]:
    name = cursor.string("the name of a header")
    cursor.expect("=")
    return name, cursor.string("the value of a header")


def _context_headers(cursor: Cursor) -> tuple[str, ...]:
    at = cursor.token
    found: tuple[str, ...] = clauses.listed(cursor, _context_header)
    for name in found:
        if found.count(name) > 1:
            raise cursor.error(f"CONTEXT_HEADERS has {name} twice", at)
    return found


def _context_header(cursor: Cursor) -> str:
    token = cursor.token
    if token.kind in {TokenKind.STRING, TokenKind.QUOTED}:
        raise cursor.error(
            f"CONTEXT_HEADERS names functions, without quotes: {token.text}; HEADERS takes constants"
        )
    if token.kind is not TokenKind.WORD or token.text not in CONTEXT_FUNCTIONS:
        there = ", ".join(sorted(CONTEXT_FUNCTIONS))
        raise cursor.error(f"{cursor.seen} is no context function; there are {there}")
    cursor.take()
    if cursor.accept("("):
        cursor.expect(")")
    return token.text


def _cache(cursor: Cursor) -> int:
    if cursor.accept("OFF"):
        return 0
    if cursor.token.kind is not TokenKind.NUMBER:
        raise cursor.error(f"CACHE is a number of bytes or OFF, not {cursor.seen}")
    return cursor.integer("a number of bytes", 0, _MAX_CACHE_BYTES)


def _translator(cursor: Cursor) -> object:
    return cursor.name("a translator", 3)


FUNCTION_CLAUSES = {
    "COMMENT": Clause("comment", clauses.text("a comment"), DEFAULT_COMMENT),
    "API_INTEGRATION": Clause(
        "integration", clauses.identifier("an API integration"), is_required=True
    ),
    "HEADERS": Clause("headers", _headers, ()),
    "CONTEXT_HEADERS": Clause("context_headers", _context_headers, ()),
    "MAX_BATCH_ROWS": Clause("max_batch_rows", clauses.integer("a number of rows", 1, _MAX_ROWS)),
    "COMPRESSION": Clause(
        "compression", clauses.choice(Compression, "COMPRESSION"), Compression.AUTO
    ),
    "REQUEST_TRANSLATOR": Clause("request_translator", _translator),
    "RESPONSE_TRANSLATOR": Clause("response_translator", _translator),
    "MAX_IN_FLIGHT": Clause(
        "max_in_flight", clauses.integer("a number of batches", 1, _MAX_IN_FLIGHT)
    ),
    "RATE_LIMIT": Clause(
        "rate_limit", clauses.number("a number of calls per second", _MAX_PER_SECOND)
    ),
    "ROW_ERRORS": Clause("row_errors", clauses.choice(RowErrors, "ROW_ERRORS"), RowErrors.ABORT),
    "CACHE": Clause("cache_bytes", _cache),
    "MAX_BATCH_SIZE": Clause(
        "max_batch_bytes", clauses.integer("a number of bytes", 1, _MAX_BYTES)
    ),
    "ON_BATCH_FAILURE": Clause(
        "on_batch_failure",
        clauses.choice(BatchFailure, "ON_BATCH_FAILURE"),
        BatchFailure.ABORT,
    ),
    "MAX_BATCH_RETRIES": Clause(
        "max_batch_retries", clauses.integer("a number of retries", 0, _MAX_RETRIES)
    ),
    "BATCH_TIMEOUT_SECS": Clause(
        "batch_timeout_s", clauses.number("a number of seconds", _MAX_SECONDS)
    ),
}
