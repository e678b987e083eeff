"""Statements about buckets. Bucket names are lower-case always, and usually have hyphens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.lexing import TokenKind
from snowmelt.catalog.statements import AlterBucket, CreateBucket, DropBucket

if TYPE_CHECKING:
    from snowmelt.catalog.cursor import Cursor
    from snowmelt.catalog.naming import Existing

DIALECTS = ("aws", "ceph", "ceph-2020")
_HOW_TO_QUOTE = "the name of a bucket with other signs than letters is written in quotes: 'my-data'"


def read_bucket(cursor: Cursor) -> str:
    """Go past the name of a bucket: a plain word in any case, or quoted either way.

    Raises:
        StatementError: If there is none.
    """
    token = cursor.token
    if token.kind is TokenKind.STRING:
        return cursor.string("a bucket")
    if token.kind is TokenKind.QUOTED:
        return cursor.identifier("a bucket")
    if token.kind is not TokenKind.WORD:
        raise cursor.error(f"Expected the name of a bucket here; {_HOW_TO_QUOTE}")
    cursor.take()
    if cursor.token.kind is TokenKind.SYMBOL and cursor.token.text in {"-", "."}:
        raise cursor.error(_HOW_TO_QUOTE.capitalize())
    return token.written.lower()


def read_create_bucket(cursor: Cursor, existing: Existing) -> CreateBucket:
    """Go past what follows CREATE BUCKET.

    Raises:
        StatementError: If it is more than a name.
    """
    name = read_bucket(cursor)
    cursor.end("the name of a bucket")
    return CreateBucket(name, existing)


def read_drop_bucket(cursor: Cursor) -> DropBucket:
    """Go past what follows DROP BUCKET.

    Raises:
        StatementError: If it is more than a name.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    name = read_bucket(cursor)
    if cursor.ahead("CASCADE"):
        raise cursor.error("CASCADE is not supported: delete the bucket's objects first")
    cursor.accept("RESTRICT")
    cursor.end("DROP")
    return DropBucket(name, if_exists)


def read_alter_bucket(cursor: Cursor) -> AlterBucket:
    """Go past what follows ALTER BUCKET.

    Raises:
        StatementError: If it is anything but SET or UNSET SELECT_DIALECT.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    name = read_bucket(cursor)
    dialect = None
    if cursor.expect_one_of("SET", "UNSET") == "SET":
        cursor.expect("SELECT_DIALECT")
        cursor.expect("=")
        at = cursor.token
        dialect = cursor.string("a dialect")
        if dialect not in DIALECTS:
            raise cursor.error(f"There are the dialects {', '.join(DIALECTS)}", at)
    else:
        cursor.expect("SELECT_DIALECT")
    cursor.end("ALTER BUCKET")
    return AlterBucket(name, dialect, if_exists)
