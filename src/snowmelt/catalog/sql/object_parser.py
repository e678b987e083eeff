"""What is said of whole databases, schemas and tables: ALTER, COMMENT ON, TRUNCATE, UNDROP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.sql.ast import (
    AlterBucket,
    AlterNamespace,
    CommentOn,
    CreateBucket,
    CreateFunction,
    CreateLibrary,
    DropBucket,
    DropLoadObject,
    RenameNamespace,
    SkippedFunction,
    TruncateTable,
    Undrop,
)
from snowmelt.catalog.sql.clauses import (
    MAX_RETENTION_DAYS,
    Clause,
    Settings,
    boolean,
    integer,
    text,
)
from snowmelt.catalog.sql.identifiers import Level
from snowmelt.catalog.sql.lexer import TokenKind

if TYPE_CHECKING:
    from snowmelt.catalog.sql.cursor import Cursor
    from snowmelt.catalog.sql.identifiers import Existing, Name

_OBJECTS = ("DATABASE", "SCHEMA", "TABLE")
_NAMESPACE = {
    "DATA_RETENTION_TIME_IN_DAYS": Clause(
        "retention_days", integer("the retention in days", 0, MAX_RETENTION_DAYS)
    ),
    "COMMENT": Clause("comment", text("a comment")),
}
_TABLE = {
    **_NAMESPACE,
    "ENABLE_SCHEMA_EVOLUTION": Clause("schema_evolution", boolean, default=False),
    "ERROR_TABLE": Clause("error_table", lambda cursor: cursor.name("a table", 3)),
}


def properties_of(level: Level) -> Settings:
    """Return the properties of a kind of object, none of them read yet."""
    return Settings(_TABLE if level is Level.TABLE else _NAMESPACE, f"a {level.lower()}")


def read_properties(cursor: Cursor, level: Level) -> dict[str, object]:
    """Go past properties, if there are any, and return them.

    Raises:
        StatementError: If a value is not as it must be.
    """
    found = properties_of(level)
    while found.read_one(cursor):
        cursor.accept(",")
    return found.fields()


def read_set_or_unset(cursor: Cursor, level: Level, word: str) -> dict[str, object]:
    """Go past what follows SET or UNSET, which `word` is.

    Raises:
        StatementError: If it is no property, or a value is not as it must be.
    """
    found = properties_of(level)
    read = found.read_one if word == "SET" else found.unset_one
    while read(cursor):
        cursor.accept(",")
    if not found.found:
        found.refuse(cursor)
    cursor.end(f"the properties of a {level.lower()}")
    return found.fields()


def read_undrop(cursor: Cursor) -> Undrop:
    """Go past what follows UNDROP.

    Raises:
        StatementError: If it is anything but a database, schema or table.
    """
    level, name = _target(cursor)
    cursor.end("UNDROP")
    return Undrop(level, name)


def read_truncate(cursor: Cursor) -> TruncateTable:
    """Go past what follows TRUNCATE.

    Raises:
        StatementError: If it is anything but a table.
    """
    cursor.accept("TABLE")
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.name("a table", 3)
    cursor.end("TRUNCATE TABLE")
    return TruncateTable(name, if_exists)


def read_comment_on(cursor: Cursor) -> CommentOn:
    """Go past what follows COMMENT.

    Raises:
        StatementError: If it is about anything but a database, schema or table.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    cursor.expect("ON")
    if cursor.ahead("COLUMN"):
        raise cursor.error("Comments on columns are not kept: write them into the table's comment")
    level, name = _target(cursor)
    cursor.expect("IS")
    comment = cursor.string("the comment")
    cursor.end("COMMENT")
    return CommentOn(level, name, comment, if_exists)


def read_alter_namespace(cursor: Cursor, level: Level) -> AlterNamespace | RenameNamespace:
    """Go past what follows ALTER DATABASE or ALTER SCHEMA.

    Raises:
        StatementError: If something is wrong, or not supported.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.name(f"a {level.lower()}", level.parts)
    if cursor.ahead("SWAP"):
        raise cursor.error("SWAP WITH is not supported: RENAME both")
    word = cursor.expect_one_of("RENAME", "SET", "UNSET")
    if word == "RENAME":
        cursor.expect("TO")
        new_name = cursor.name(f"a {level.lower()}", level.parts)
        cursor.end("RENAME TO")
        return RenameNamespace(level, name, new_name, if_exists)
    return AlterNamespace(level, name, read_set_or_unset(cursor, level, word), if_exists)


def _target(cursor: Cursor) -> tuple[Level, Name]:
    level = Level(cursor.expect_one_of(*_OBJECTS))
    return level, cursor.name(f"a {level.lower()}", level.parts)


# --- Statements about buckets. Bucket names are lower-case always, and usually have hyphens.

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


# --- Statements about libraries of user code, and what is made of them; the grammar is Vertica's.

LOAD_OBJECTS = ("LIBRARY", "FILTER", "PARSER", "SOURCE")


def read_create_load_object(
    cursor: Cursor, kind: str, existing: Existing
) -> CreateLibrary | CreateFunction:
    """Go past what follows CREATE LIBRARY, FILTER, PARSER or SOURCE.

    Raises:
        StatementError: It is not as it must be.
    """
    name = _name(cursor, kind)
    cursor.expect("AS")
    if kind == "LIBRARY":
        return _library(cursor, name, existing)
    _language(cursor)
    cursor.expect("NAME")
    at = cursor.token
    factory = cursor.string("the name of a factory class")
    if not factory.isidentifier():
        raise cursor.error("The name of a factory class is one word", at)
    cursor.expect("LIBRARY")
    library = _name(cursor, "LIBRARY")
    # Where user code runs is the same either way.
    cursor.accept("NOT")
    cursor.accept("FENCED")
    cursor.end(f"CREATE {kind}")
    return CreateFunction(kind.lower(), name, factory, library, existing)


def read_skipped_function(cursor: Cursor, kind: str, name: str) -> SkippedFunction:
    """Go past AS LANGUAGE … NAME … LIBRARY … behind CREATE FUNCTION with a name.

    Raises:
        StatementError: It is not as it must be.
    """
    cursor.expect("AS")
    if cursor.accept("LANGUAGE"):
        cursor.string("a language")
    cursor.expect("NAME")
    cursor.string("the name of a factory class")
    cursor.expect("LIBRARY")
    _name(cursor, "LIBRARY")
    cursor.accept("NOT")
    cursor.accept("FENCED")
    cursor.end("CREATE FUNCTION")
    return SkippedFunction(kind, name)


def read_drop_load_object(cursor: Cursor, kind: str) -> DropLoadObject:
    """Go past what follows DROP LIBRARY, FILTER, PARSER or SOURCE.

    Raises:
        StatementError: It is more than a name.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    name = _name(cursor, kind)
    if kind != "LIBRARY" and cursor.accept("("):
        cursor.expect(")")
    cascade = kind == "LIBRARY" and cursor.accept("CASCADE")
    cursor.end("DROP")
    return DropLoadObject(kind.lower(), name, if_exists, cascade)


def _library(cursor: Cursor, name: str, existing: Existing) -> CreateLibrary:
    path = cursor.string("the path of a file")
    depends: str | None = None
    if cursor.accept("DEPENDS"):
        depends = cursor.string("the path of files that it needs")
    _language(cursor)
    if depends is None and cursor.accept("DEPENDS"):
        depends = cursor.string("the path of files that it needs")
    cursor.end("CREATE LIBRARY")
    return CreateLibrary(name, path, depends, existing)


def _language(cursor: Cursor) -> None:
    if not cursor.accept("LANGUAGE"):
        return
    at = cursor.token
    language = cursor.string("a language")
    if language.lower() != "python":
        raise cursor.error(f"There is LANGUAGE 'Python' alone, not {language!r}", at)


def _name(cursor: Cursor, kind: str) -> str:
    name = cursor.name(f"a {kind.lower()}", 3)
    if len(name.parts) > 1 and name.parts[:-1] != ("PUBLIC",):
        raise cursor.error(
            f"A {kind.lower()} is in no schema: write its name alone, {name.parts[-1]}"
        )
    return name.parts[-1]
