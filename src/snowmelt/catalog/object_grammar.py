"""What is said of whole databases, schemas and tables: ALTER, COMMENT ON, TRUNCATE, UNDROP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.clauses import Clause, Settings, boolean, integer, text
from snowmelt.catalog.keeping import MAX_RETENTION_DAYS
from snowmelt.catalog.naming import Level
from snowmelt.catalog.object_changes import (
    AlterNamespace,
    CommentOn,
    RenameNamespace,
    TruncateTable,
    Undrop,
)

if TYPE_CHECKING:
    from snowmelt.catalog.cursor import Cursor
    from snowmelt.catalog.naming import Name

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
