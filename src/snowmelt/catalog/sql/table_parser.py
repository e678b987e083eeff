"""CREATE TABLE: its columns, and a sentence for each thing that streamed tables cannot have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.sql.ast import (
    AddColumns,
    AlterColumns,
    AlterTable,
    ClusterBy,
    ColumnChange,
    ColumnName,
    CreateTable,
    CreateTableLike,
    DropColumns,
    RenameColumn,
    RenameTable,
    SetProperties,
)
from snowmelt.catalog.sql.clauses import is_at_end
from snowmelt.catalog.sql.column_types import read_type
from snowmelt.catalog.sql.identifiers import Level
from snowmelt.catalog.sql.lexer import TokenKind
from snowmelt.catalog.sql.object_parser import properties_of, read_set_or_unset
from snowmelt.schema.types import Column

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.catalog.sql.ast import TableChange
    from snowmelt.catalog.sql.cursor import Cursor
    from snowmelt.catalog.sql.identifiers import Existing, Name

_NO_KEYS = (
    "keys are not checked while rows stream in; leave it out, and write NOT NULL where nulls are "
    "to be refused"
)
_NO_COMMENTS = "comments on columns are not kept; write them into the table's comment"
_NO_NUMBERS = "rows are numbered by nobody; send the number with the row"
_NO_COMPUTING = "columns are not computed; send the value with the row, or compute it in the query"

_COLUMN_REFUSALS = {
    "COLLATE": "text is compared by its code points; leave it out",
    "AUTOINCREMENT": _NO_NUMBERS,
    "IDENTITY": _NO_NUMBERS,
    "AS": _NO_COMPUTING,
    "GENERATED": _NO_COMPUTING,
    "PRIMARY": _NO_KEYS,
    "UNIQUE": _NO_KEYS,
    "FOREIGN": _NO_KEYS,
    "REFERENCES": _NO_KEYS,
    "CONSTRAINT": _NO_KEYS,
    "CHECK": "rows are checked by type and NOT NULL alone; leave it out",
    "COMMENT": _NO_COMMENTS,
    "WITH": "policies and tags do not exist here; leave it out",
    "MASKING": "policies and tags do not exist here; leave it out",
    "TAG": "policies and tags do not exist here; leave it out",
}
_SHOWN = {"PRIMARY": "PRIMARY KEY", "FOREIGN": "FOREIGN KEY", "AS": "A computed column"}
_TABLE_REFUSALS = {
    "AS": "create the table with its columns, then INSERT INTO it SELECT …",
    "CLONE": "CREATE TABLE … LIKE it, then INSERT INTO the new one SELECT * FROM it",
}
_TABLE_SHOWN = {"AS": "CREATE TABLE … AS SELECT", "CLONE": "CREATE TABLE … CLONE"}


def read_table(cursor: Cursor, name: Name, existing: Existing) -> CreateTable | CreateTableLike:
    """Go past columns and options of a CREATE TABLE whose name has been read.

    Raises:
        StatementError: If something is wrong, or not supported.
    """
    if cursor.accept("LIKE"):
        source = cursor.name("a table", 3)
        cursor.end("CREATE TABLE … LIKE")
        return CreateTableLike(name, source, existing)
    _refuse(cursor, _TABLE_REFUSALS, _TABLE_SHOWN)
    cursor.expect("(")
    columns = [read_column(cursor, 1, frozenset())]
    while cursor.accept(","):
        if cursor.ahead(")"):
            raise cursor.error("Expected another column after the comma, or no comma")
        seen = frozenset(column.name for column in columns)
        columns.append(read_column(cursor, len(columns) + 1, seen))
    if not cursor.ahead(")"):
        cursor.expect_one_of(",", ")")
    cursor.expect(")")
    cluster_by: tuple[str, ...] = ()
    properties = properties_of(Level.TABLE)
    copies_grants = False
    names = frozenset(column.name for column in columns)
    while True:
        if not cluster_by and cursor.ahead("CLUSTER", "BY"):
            cluster_by = _cluster_by(cursor, names)
        elif cursor.accept("COPY", "GRANTS"):
            copies_grants = True
        elif not properties.read_one(cursor):
            break
    _refuse(cursor, _TABLE_REFUSALS, _TABLE_SHOWN)
    cursor.end("the columns of a table but CLUSTER BY and its properties")
    return CreateTable(
        name, tuple(columns), cluster_by, existing, properties.fields(), copies_grants
    )


def read_column(
    cursor: Cursor, ordinal: int, seen: frozenset[str], *, in_parentheses: bool = True
) -> Column:
    """Go past a column: name, type, and whether it may be NULL.

    Args:
        cursor: Stands before the name.
        ordinal: What the column gets.
        seen: The names of columns that the statement has written before.
        in_parentheses: Whether a `)` ends it besides a comma, or the statement's end.

    Raises:
        StatementError: If something is wrong, or not supported.
    """
    if cursor.token.kind is TokenKind.WORD and cursor.token.text in {
        "PRIMARY", "UNIQUE", "FOREIGN", "CONSTRAINT", "CHECK",
    }:  # fmt: skip
        _refuse(cursor, _COLUMN_REFUSALS, _SHOWN)
    at = cursor.token
    name = cursor.identifier("a column")
    if name in seen:
        raise cursor.error(
            f"Column {at.written} is there twice; names that fold alike are the same", at
        )
    column_type = read_type(cursor)
    nullable = _nullable(cursor, in_parentheses=in_parentheses)
    return Column(
        name=name,
        kind=column_type.kind,
        ordinal=ordinal,
        nullable=nullable,
        precision=column_type.precision,
        scale=column_type.scale,
        length=column_type.length,
        byte_length=column_type.byte_length,
    )


def _nullable(cursor: Cursor, *, in_parentheses: bool) -> bool:
    """Go past what follows a column's type, and tell whether nulls are allowed."""
    allowed: bool | None = None
    while not (cursor.ahead(",") or _ends(cursor, in_parentheses=in_parentheses)):
        at = cursor.token
        if cursor.accept("DEFAULT"):
            if not cursor.accept("NULL"):
                raise cursor.error(
                    "A default other than NULL is not supported: rows are stored as they are "
                    "sent; send the value with the row"
                )
            continue
        _refuse(cursor, _COLUMN_REFUSALS, _SHOWN)
        if at.kind is TokenKind.END:
            cursor.expect_one_of(",", ")")
        wanted = not cursor.accept("NOT")
        if not cursor.accept("NULL"):
            end = ")" if in_parentheses else "the end"
            raise cursor.error(f"Expected NOT NULL, a comma or {end} here, not {cursor.seen}")
        if allowed not in {None, wanted}:
            raise cursor.error("This column is both NULL and NOT NULL; write one of them", at)
        allowed = wanted
    return allowed is not False


def _ends(cursor: Cursor, *, in_parentheses: bool) -> bool:
    return cursor.ahead(")") if in_parentheses else is_at_end(cursor)


def _cluster_by(cursor: Cursor, columns: frozenset[str]) -> tuple[str, ...]:
    if not cursor.accept("CLUSTER", "BY"):
        return ()
    cursor.expect("(")
    names: list[str] = []
    while True:
        at = cursor.token
        name = cursor.identifier("a column")
        if not (cursor.ahead(",") or cursor.ahead(")")):
            raise cursor.error(
                "CLUSTER BY takes columns, not expressions: write the column's name alone", at
            )
        if name not in columns:
            raise cursor.error(
                f"CLUSTER BY names {at.written}, which is no column of this table", at
            )
        if name in names:
            raise cursor.error(f"CLUSTER BY names {at.written} twice", at)
        names.append(name)
        if not cursor.accept(","):
            break
    cursor.expect(")")
    return tuple(names)


def _refuse(cursor: Cursor, refusals: dict[str, str], shown: dict[str, str]) -> None:
    token = cursor.token
    if token.kind is TokenKind.WORD and token.text in refusals:
        what = shown.get(token.text, token.text)
        raise cursor.error(f"{what} is not supported: {refusals[token.text]}")


# --- ALTER TABLE: what can be changed of a table whose rows stay as they are.

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
