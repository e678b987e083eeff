"""ALTER TABLE: what can be changed of a table whose rows stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.column_types import read_type
from snowmelt.catalog.lexing import TokenKind
from snowmelt.catalog.naming import Level
from snowmelt.catalog.object_grammar import read_set_or_unset
from snowmelt.catalog.statements import AlterTable
from snowmelt.catalog.table_changes import (
    AddColumns,
    AlterColumns,
    ClusterBy,
    ColumnChange,
    ColumnName,
    DropColumns,
    RenameColumn,
    RenameTable,
    SetProperties,
)
from snowmelt.catalog.table_grammar import read_column
from snowmelt.schema.types import Column

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.catalog.cursor import Cursor
    from snowmelt.catalog.table_changes import TableChange

_REFUSED = {
    "SWAP": "SWAP WITH is not supported: RENAME both tables",
    "SUSPEND": "Clustering is not suspended: DROP CLUSTERING KEY",
    "RESUME": "Clustering is not resumed: write CLUSTER BY (…)",
}
_NOT_DROPPED = {
    "CONSTRAINT": "There are no constraints but NOT NULL: ALTER COLUMN … DROP NOT NULL",
    "PRIMARY": "There are no constraints but NOT NULL: ALTER COLUMN … DROP NOT NULL",
    "UNIQUE": "There are no constraints but NOT NULL: ALTER COLUMN … DROP NOT NULL",
    "FOREIGN": "There are no constraints but NOT NULL: ALTER COLUMN … DROP NOT NULL",
}


def read_alter_table(cursor: Cursor) -> AlterTable:
    """Go past ALTER TABLE after these two words.

    Raises:
        StatementError: If something is wrong, or not supported.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.name("a table", 3)
    token = cursor.token
    if token.kind is TokenKind.WORD and token.text in _REFUSED:
        raise cursor.error(_REFUSED[token.text])
    change = _CHANGES[cursor.expect_one_of(*_CHANGES)](cursor)
    cursor.end("this change of a table")
    return AlterTable(name, change, if_exists)


def _add(cursor: Cursor) -> AddColumns:
    columns: list[Column] = []
    places = []
    keeping = set[str]()
    while True:
        cursor.accept("COLUMN")
        keeps = cursor.accept("IF", "NOT", "EXISTS")
        places.append(cursor.token.place)
        seen = frozenset(column.name for column in columns)
        columns.append(read_column(cursor, 0, seen, in_parentheses=False))
        if keeps:
            keeping.add(columns[-1].name)
        if not cursor.accept(","):
            return AddColumns(tuple(columns), tuple(places), frozenset(keeping))


def _drop(cursor: Cursor) -> DropColumns | ClusterBy:
    if cursor.accept("CLUSTERING", "KEY"):
        return ClusterBy(())
    token = cursor.token
    if token.kind is TokenKind.WORD and token.text in _NOT_DROPPED:
        raise cursor.error(_NOT_DROPPED[token.text])
    cursor.accept("COLUMN")
    if_exists = cursor.accept("IF", "EXISTS")
    return DropColumns(_column_names(cursor, "DROP COLUMN"), if_exists)


def _rename(cursor: Cursor) -> RenameTable | RenameColumn:
    if cursor.accept("COLUMN"):
        column = _column_name(cursor)
        cursor.expect("TO")
        return RenameColumn(column, _column_name(cursor))
    if not cursor.accept("TO"):
        cursor.expect_one_of("COLUMN", "TO")
    return RenameTable(cursor.name("a table", 3).parts)


def _alter(cursor: Cursor) -> AlterColumns:
    changes: list[ColumnChange] = []
    while True:
        cursor.accept("COLUMN")
        at = cursor.token
        change = _column_change(cursor)
        if change.column.name in {other.column.name for other in changes}:
            raise cursor.error(f"Column {at.written} is changed twice; write it once", at)
        changes.append(change)
        if not cursor.accept(","):
            return AlterColumns(tuple(changes))


def _column_change(cursor: Cursor) -> ColumnChange:
    column = _column_name(cursor)
    if cursor.accept("DROP", "NOT", "NULL"):
        return ColumnChange(column, None)
    if cursor.ahead("SET", "NOT", "NULL"):
        raise cursor.error(
            "SET NOT NULL is not supported: rows that are there may hold NULL; write the condition "
            "into the query, or make a table anew"
        )
    if cursor.ahead("SET", "DEFAULT") or cursor.ahead("DROP", "DEFAULT"):
        raise cursor.error("Defaults do not exist here: send the value with the row")
    if not (cursor.accept("SET", "DATA", "TYPE") or cursor.accept("TYPE")):
        raise cursor.error(f"Expected DROP NOT NULL or SET DATA TYPE … here, not {cursor.seen}")
    found = read_type(cursor)
    return ColumnChange(
        column,
        Column(
            name=column.name,
            kind=found.kind,
            ordinal=0,
            precision=found.precision,
            scale=found.scale,
            length=found.length,
            byte_length=found.byte_length,
        ),
    )


def _cluster(cursor: Cursor) -> ClusterBy:
    cursor.expect("BY")
    cursor.expect("(")
    columns = _column_names(cursor, "CLUSTER BY")
    if not cursor.ahead(")"):
        raise cursor.error(
            f"CLUSTER BY takes columns, not expressions: expected a comma or ) here, not "
            f"{cursor.seen}"
        )
    cursor.expect(")")
    return ClusterBy(columns)


def _set(cursor: Cursor) -> SetProperties:
    return SetProperties(read_set_or_unset(cursor, Level.TABLE, "SET"))


def _unset(cursor: Cursor) -> SetProperties:
    return SetProperties(read_set_or_unset(cursor, Level.TABLE, "UNSET"))


def _column_names(cursor: Cursor, where: str) -> tuple[ColumnName, ...]:
    found: list[ColumnName] = []
    while True:
        at = cursor.token
        column = _column_name(cursor)
        if column.name in {other.name for other in found}:
            raise cursor.error(f"{where} names {at.written} twice", at)
        found.append(column)
        if not cursor.accept(","):
            return tuple(found)


def _column_name(cursor: Cursor) -> ColumnName:
    place = cursor.token.place
    return ColumnName(cursor.identifier("a column"), place)


_CHANGES: dict[str, Callable[[Cursor], TableChange]] = {
    "ADD": _add,
    "DROP": _drop,
    "ALTER": _alter,
    "MODIFY": _alter,
    "RENAME": _rename,
    "CLUSTER": _cluster,
    "SET": _set,
    "UNSET": _unset,
}
