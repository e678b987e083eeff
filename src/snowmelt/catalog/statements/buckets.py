"""Statements on buckets: CREATE, ALTER, DROP and SHOW."""

from __future__ import annotations

from collections.abc import Iterator

from snowmelt.catalog.model.records import PUBLIC
from snowmelt.catalog.objects import s3_buckets
from snowmelt.catalog.objects.s3_buckets import BucketRecord
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
    skip_if_exists,
    skipping_missing,
)

SELECT_DIALECTS = ("aws", "ceph", "ceph-2020")
_QUOTING_HINT = (
    "quote a bucket name that begins with a digit, or contains a hyphen or a period: 'my-data'"
)


class CreateBucket(Statement):
    """CREATE BUCKET."""

    name: str
    create_mode: CreateMode

    def execute(self, session: StatementSession) -> StatementResult:
        session.require_account_privilege(s3_buckets.CREATE_BUCKET_PRIVILEGE)
        skip_if_exists(f"Bucket {self.name}", self.create_mode, exists=_exists(self.name, session))
        s3_buckets.create_bucket(session.connection, self.name, owner=session.role, now=session.now)
        return StatementResult(message=f"Bucket {self.name} created.")


class AlterBucket(Statement):
    """ALTER BUCKET … SET or UNSET SELECT_DIALECT; the dialect is None for UNSET."""

    name: str
    select_dialect: str | None
    if_exists: bool

    def execute(self, session: StatementSession) -> StatementResult:
        with skipping_missing(self.if_exists):
            bucket = find_owned_bucket(self.name, session)
        s3_buckets.update_bucket(session.connection, bucket, select_dialect=self.select_dialect)
        return StatementResult(message=f"Bucket {bucket.name} altered.")


class DropBucket(Statement):
    """DROP BUCKET. The bucket must be empty."""

    name: str
    if_exists: bool

    def execute(self, session: StatementSession) -> StatementResult:
        with skipping_missing(self.if_exists):
            bucket = find_owned_bucket(self.name, session)
        s3_buckets.drop_bucket(session.connection, bucket, session.now)
        return StatementResult(message=f"Bucket {bucket.name} dropped.")


def find_owned_bucket(name: str, session: StatementSession) -> BucketRecord:
    """Return a bucket that the role owns.

    Raises:
        NotFound: If the bucket does not exist, or the role has no privilege on it.
        PrivilegeMissing: If another role owns it.
    """
    bucket = session.find_bucket(name)
    session.require_ownership("BUCKET", bucket.bucket_id, bucket.name)
    return bucket


def _exists(name: str, session: StatementSession) -> bool:
    return name in {bucket.name for bucket in s3_buckets.list_buckets(session.connection)}


def _list_bucket_rows(_statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    holders = {session.role, PUBLIC}
    for each in s3_buckets.list_buckets(session.connection):
        if not s3_buckets.bucket_privileges(session.connection, holders, each).is_empty:
            yield each.created_at, each.name, each.owner, each.backend, each.select_dialect


def parse_bucket_name(cursor: TokenCursor) -> str:
    """Parse the name of a bucket: a plain word in any case, or a name in single or double quotes."""
    token = cursor.current
    if token.kind is TokenKind.STRING:
        return cursor.parse_string("a bucket")
    if token.kind is TokenKind.QUOTED:
        return cursor.parse_identifier("a bucket")
    if token.kind is not TokenKind.WORD:
        raise cursor.make_error(f"Expected the name of a bucket here; {_QUOTING_HINT}")
    cursor.advance()
    if cursor.current.kind is TokenKind.SYMBOL and cursor.current.text in {"-", "."}:
        raise cursor.make_error(_QUOTING_HINT.capitalize())
    return token.source_text.lower()


def _parse_create(cursor: TokenCursor, create_mode: CreateMode) -> CreateBucket:
    name = parse_bucket_name(cursor)
    cursor.expect_end("the name of a bucket")
    return CreateBucket(name, create_mode)


def _parse_alter(cursor: TokenCursor, if_exists: bool) -> AlterBucket:
    name = parse_bucket_name(cursor)
    dialect = None
    word = cursor.expect_one_of("SET", "UNSET")
    cursor.expect("SELECT_DIALECT")
    if word == "SET":
        cursor.expect("=")
        at = cursor.current
        dialect = cursor.parse_string("a dialect")
        if dialect not in SELECT_DIALECTS:
            raise cursor.make_error(f"Valid dialects: {', '.join(SELECT_DIALECTS)}", at)
    cursor.expect_end("ALTER BUCKET")
    return AlterBucket(name, dialect, if_exists)


def _parse_drop(cursor: TokenCursor, if_exists: bool) -> DropBucket:
    name = parse_bucket_name(cursor)
    if cursor.is_next("CASCADE"):
        raise cursor.make_error("CASCADE is not supported: delete the bucket's objects first")
    cursor.accept("RESTRICT")
    cursor.expect_end("DROP")
    return DropBucket(name, if_exists)


KINDS = (StatementKind("BUCKET", _parse_create, _parse_alter, _parse_drop, is_replaceable=False),)
BUCKETS = Listing(
    "BUCKETS", NameLevel.ACCOUNT, "created_on name owner backend select_dialect", _list_bucket_rows
)
