"""Parser for statements on whole objects: databases, schemas, tables, buckets and libraries.

Covers ALTER, COMMENT ON, TRUNCATE and UNDROP; buckets, whose names are always lower-case; and
libraries, filters, parsers and sources in Vertica's grammar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.sql.ast import (
    AlterBucket,
    AlterNamespace,
    CommentOn,
    CreateBucket,
    CreateLibrary,
    CreateLoadFunction,
    DropBucket,
    DropLoadObject,
    RenameNamespace,
    SkippedFunction,
    TruncateTable,
    Undrop,
)
from snowmelt.catalog.sql.lexer import TokenKind
from snowmelt.catalog.sql.object_name_types import NameLevel
from snowmelt.catalog.sql.property_clauses import (
    MAX_RETENTION_DAYS,
    ClauseDefinition,
    ClauseReader,
    integer_parser,
    parse_boolean,
    text_parser,
)

if TYPE_CHECKING:
    from snowmelt.catalog.sql.cursor import TokenCursor
    from snowmelt.catalog.sql.object_name_types import CreateMode, ObjectName

_OBJECT_WORDS = ("DATABASE", "SCHEMA", "TABLE")
_NAMESPACE_CLAUSES = {
    "DATA_RETENTION_TIME_IN_DAYS": ClauseDefinition(
        "retention_days", integer_parser("the retention in days", 0, MAX_RETENTION_DAYS)
    ),
    "COMMENT": ClauseDefinition("comment", text_parser("a comment")),
}
_TABLE_CLAUSES = {
    **_NAMESPACE_CLAUSES,
    "ENABLE_SCHEMA_EVOLUTION": ClauseDefinition("schema_evolution", parse_boolean, default=False),
    "ERROR_TABLE": ClauseDefinition("error_table", lambda cursor: cursor.parse_name("a table", 3)),
}


def make_property_reader(level: NameLevel) -> ClauseReader:
    """Return the properties of a kind of object, none of them read yet."""
    return ClauseReader(
        _TABLE_CLAUSES if level is NameLevel.TABLE else _NAMESPACE_CLAUSES, f"a {level.lower()}"
    )


def parse_properties(cursor: TokenCursor, level: NameLevel) -> dict[str, object]:
    """Go past properties, if there are any, and return them.

    Raises:
        StatementError: If a value is not as it must be.
    """
    found = make_property_reader(level)
    while found.parse_next(cursor):
        cursor.accept(",")
    return found.field_values()


def parse_set_or_unset(cursor: TokenCursor, level: NameLevel, word: str) -> dict[str, object]:
    """Go past what follows SET or UNSET, which `word` is.

    Raises:
        StatementError: If it is no property, or a value is not as it must be.
    """
    found = make_property_reader(level)
    read = found.parse_next if word == "SET" else found.parse_next_unset
    while read(cursor):
        cursor.accept(",")
    if not found.values:
        found.raise_unknown_clause(cursor)
    cursor.expect_end(f"the properties of a {level.lower()}")
    return found.field_values()


def parse_undrop(cursor: TokenCursor) -> Undrop:
    """Go past what follows UNDROP.

    Raises:
        StatementError: If it is anything but a database, schema or table.
    """
    level, name = _parse_target_object(cursor)
    cursor.expect_end("UNDROP")
    return Undrop(level, name)


def parse_truncate(cursor: TokenCursor) -> TruncateTable:
    """Go past what follows TRUNCATE.

    Raises:
        StatementError: If it is anything but a table.
    """
    cursor.accept("TABLE")
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.parse_name("a table", 3)
    cursor.expect_end("TRUNCATE TABLE")
    return TruncateTable(name, if_exists)


def parse_comment_on(cursor: TokenCursor) -> CommentOn:
    """Go past what follows COMMENT.

    Raises:
        StatementError: If it is about anything but a database, schema or table.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    cursor.expect("ON")
    if cursor.is_next("COLUMN"):
        raise cursor.make_error(
            "Comments on columns are not kept: write them into the table's comment"
        )
    level, name = _parse_target_object(cursor)
    cursor.expect("IS")
    comment = cursor.parse_string("the comment")
    cursor.expect_end("COMMENT")
    return CommentOn(level, name, comment, if_exists)


def parse_alter_namespace(
    cursor: TokenCursor, level: NameLevel
) -> AlterNamespace | RenameNamespace:
    """Go past what follows ALTER DATABASE or ALTER SCHEMA.

    Raises:
        StatementError: If something is wrong, or not supported.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.parse_name(f"a {level.lower()}", level.part_count)
    if cursor.is_next("SWAP"):
        raise cursor.make_error("SWAP WITH is not supported: RENAME both")
    word = cursor.expect_one_of("RENAME", "SET", "UNSET")
    if word == "RENAME":
        cursor.expect("TO")
        new_name = cursor.parse_name(f"a {level.lower()}", level.part_count)
        cursor.expect_end("RENAME TO")
        return RenameNamespace(level, name, new_name, if_exists)
    return AlterNamespace(level, name, parse_set_or_unset(cursor, level, word), if_exists)


def _parse_target_object(cursor: TokenCursor) -> tuple[NameLevel, ObjectName]:
    level = NameLevel(cursor.expect_one_of(*_OBJECT_WORDS))
    return level, cursor.parse_name(f"a {level.lower()}", level.part_count)


# --- Statements about buckets. Bucket names are lower-case always, and usually have hyphens.

SELECT_DIALECTS = ("aws", "ceph", "ceph-2020")
_QUOTING_HINT = "the name of a bucket with other signs than letters is written in quotes: 'my-data'"


def parse_bucket_name(cursor: TokenCursor) -> str:
    """Go past the name of a bucket: a plain word in any case, or quoted either way.

    Raises:
        StatementError: If there is none.
    """
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


def parse_create_bucket(cursor: TokenCursor, create_mode: CreateMode) -> CreateBucket:
    """Go past what follows CREATE BUCKET.

    Raises:
        StatementError: If it is more than a name.
    """
    name = parse_bucket_name(cursor)
    cursor.expect_end("the name of a bucket")
    return CreateBucket(name, create_mode)


def parse_drop_bucket(cursor: TokenCursor) -> DropBucket:
    """Go past what follows DROP BUCKET.

    Raises:
        StatementError: If it is more than a name.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    name = parse_bucket_name(cursor)
    if cursor.is_next("CASCADE"):
        raise cursor.make_error("CASCADE is not supported: delete the bucket's objects first")
    cursor.accept("RESTRICT")
    cursor.expect_end("DROP")
    return DropBucket(name, if_exists)


def parse_alter_bucket(cursor: TokenCursor) -> AlterBucket:
    """Go past what follows ALTER BUCKET.

    Raises:
        StatementError: If it is anything but SET or UNSET SELECT_DIALECT.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    name = parse_bucket_name(cursor)
    dialect = None
    if cursor.expect_one_of("SET", "UNSET") == "SET":
        cursor.expect("SELECT_DIALECT")
        cursor.expect("=")
        at = cursor.current
        dialect = cursor.parse_string("a dialect")
        if dialect not in SELECT_DIALECTS:
            raise cursor.make_error(f"There are the dialects {', '.join(SELECT_DIALECTS)}", at)
    else:
        cursor.expect("SELECT_DIALECT")
    cursor.expect_end("ALTER BUCKET")
    return AlterBucket(name, dialect, if_exists)


# --- Statements about libraries of user code, and what is made of them; the grammar is Vertica's.

LOAD_OBJECT_KINDS = ("LIBRARY", "FILTER", "PARSER", "SOURCE")


def parse_create_load_object(
    cursor: TokenCursor, kind: str, create_mode: CreateMode
) -> CreateLibrary | CreateLoadFunction:
    """Go past what follows CREATE LIBRARY, FILTER, PARSER or SOURCE.

    Raises:
        StatementError: It is not as it must be.
    """
    name = _parse_load_object_name(cursor, kind)
    cursor.expect("AS")
    if kind == "LIBRARY":
        return _parse_create_library(cursor, name, create_mode)
    _parse_language(cursor)
    cursor.expect("NAME")
    at = cursor.current
    factory = cursor.parse_string("the name of a factory class")
    if not factory.isidentifier():
        raise cursor.make_error("The name of a factory class is one word", at)
    cursor.expect("LIBRARY")
    library = _parse_load_object_name(cursor, "LIBRARY")
    # Where user code runs is the same either way.
    cursor.accept("NOT")
    cursor.accept("FENCED")
    cursor.expect_end(f"CREATE {kind}")
    return CreateLoadFunction(kind.lower(), name, factory, library, create_mode)


def parse_skipped_function(cursor: TokenCursor, kind: str, name: str) -> SkippedFunction:
    """Go past AS LANGUAGE … NAME … LIBRARY … behind CREATE FUNCTION with a name.

    Raises:
        StatementError: It is not as it must be.
    """
    cursor.expect("AS")
    if cursor.accept("LANGUAGE"):
        cursor.parse_string("a language")
    cursor.expect("NAME")
    cursor.parse_string("the name of a factory class")
    cursor.expect("LIBRARY")
    _parse_load_object_name(cursor, "LIBRARY")
    cursor.accept("NOT")
    cursor.accept("FENCED")
    cursor.expect_end("CREATE FUNCTION")
    return SkippedFunction(kind, name)


def parse_drop_load_object(cursor: TokenCursor, kind: str) -> DropLoadObject:
    """Go past what follows DROP LIBRARY, FILTER, PARSER or SOURCE.

    Raises:
        StatementError: It is more than a name.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    name = _parse_load_object_name(cursor, kind)
    if kind != "LIBRARY" and cursor.accept("("):
        cursor.expect(")")
    cascade = kind == "LIBRARY" and cursor.accept("CASCADE")
    cursor.expect_end("DROP")
    return DropLoadObject(kind.lower(), name, if_exists, cascade)


def _parse_create_library(cursor: TokenCursor, name: str, create_mode: CreateMode) -> CreateLibrary:
    path = cursor.parse_string("the path of a file")
    depends: str | None = None
    if cursor.accept("DEPENDS"):
        depends = cursor.parse_string("the path of files that it needs")
    _parse_language(cursor)
    if depends is None and cursor.accept("DEPENDS"):
        depends = cursor.parse_string("the path of files that it needs")
    cursor.expect_end("CREATE LIBRARY")
    return CreateLibrary(name, path, depends, create_mode)


def _parse_language(cursor: TokenCursor) -> None:
    if not cursor.accept("LANGUAGE"):
        return
    at = cursor.current
    language = cursor.parse_string("a language")
    if language.lower() != "python":
        raise cursor.make_error(f"There is LANGUAGE 'Python' alone, not {language!r}", at)


def _parse_load_object_name(cursor: TokenCursor, kind: str) -> str:
    name = cursor.parse_name(f"a {kind.lower()}", 3)
    if len(name.parts) > 1 and name.parts[:-1] != ("PUBLIC",):
        raise cursor.make_error(
            f"A {kind.lower()} is in no schema: write its name alone, {name.parts[-1]}"
        )
    return name.parts[-1]
