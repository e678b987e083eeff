"""Parser for CREATE TABLE and ALTER TABLE, with a specific error for each unsupported option."""

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
from snowmelt.catalog.sql.column_types import parse_column_type
from snowmelt.catalog.sql.lexer import TokenKind
from snowmelt.catalog.sql.object_name_types import NameLevel
from snowmelt.catalog.sql.object_parser import make_property_reader, parse_set_or_unset
from snowmelt.catalog.sql.property_clauses import is_at_end
from snowmelt.schema.types import Column

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.catalog.sql.ast import TableChange
    from snowmelt.catalog.sql.cursor import TokenCursor
    from snowmelt.catalog.sql.object_name_types import CreateMode, ObjectName

_KEYS_UNSUPPORTED = (
    "keys are not checked while rows stream in; leave it out, and write NOT NULL where nulls are "
    "to be refused"
)
_COLUMN_COMMENTS_UNSUPPORTED = (
    "comments on columns are not kept; write them into the table's comment"
)
_AUTOINCREMENT_UNSUPPORTED = "rows are numbered by nobody; send the number with the row"
_COMPUTED_COLUMNS_UNSUPPORTED = (
    "columns are not computed; send the value with the row, or compute it in the query"
)

_UNSUPPORTED_COLUMN_OPTIONS = {
    "COLLATE": "text is compared by its code points; leave it out",
    "AUTOINCREMENT": _AUTOINCREMENT_UNSUPPORTED,
    "IDENTITY": _AUTOINCREMENT_UNSUPPORTED,
    "AS": _COMPUTED_COLUMNS_UNSUPPORTED,
    "GENERATED": _COMPUTED_COLUMNS_UNSUPPORTED,
    "PRIMARY": _KEYS_UNSUPPORTED,
    "UNIQUE": _KEYS_UNSUPPORTED,
    "FOREIGN": _KEYS_UNSUPPORTED,
    "REFERENCES": _KEYS_UNSUPPORTED,
    "CONSTRAINT": _KEYS_UNSUPPORTED,
    "CHECK": "rows are checked by type and NOT NULL alone; leave it out",
    "COMMENT": _COLUMN_COMMENTS_UNSUPPORTED,
    "WITH": "policies and tags do not exist here; leave it out",
    "MASKING": "policies and tags do not exist here; leave it out",
    "TAG": "policies and tags do not exist here; leave it out",
}
_COLUMN_OPTION_LABELS = {
    "PRIMARY": "PRIMARY KEY",
    "FOREIGN": "FOREIGN KEY",
    "AS": "A computed column",
}
_UNSUPPORTED_TABLE_OPTIONS = {
    "AS": "create the table with its columns, then INSERT INTO it SELECT …",
    "CLONE": "CREATE TABLE … LIKE it, then INSERT INTO the new one SELECT * FROM it",
}
_TABLE_OPTION_LABELS = {"AS": "CREATE TABLE … AS SELECT", "CLONE": "CREATE TABLE … CLONE"}


def parse_create_table(
    cursor: TokenCursor, name: ObjectName, create_mode: CreateMode
) -> CreateTable | CreateTableLike:
    """Go past columns and options of a CREATE TABLE whose name has been read.

    Raises:
        StatementError: If something is wrong, or not supported.
    """
    if cursor.accept("LIKE"):
        source = cursor.parse_name("a table", 3)
        cursor.expect_end("CREATE TABLE … LIKE")
        return CreateTableLike(name, source, create_mode)
    _reject_unsupported(cursor, _UNSUPPORTED_TABLE_OPTIONS, _TABLE_OPTION_LABELS)
    cursor.expect("(")
    columns = [parse_column(cursor, 1, frozenset())]
    while cursor.accept(","):
        if cursor.is_next(")"):
            raise cursor.make_error("Expected another column after the comma, or no comma")
        seen = frozenset(column.name for column in columns)
        columns.append(parse_column(cursor, len(columns) + 1, seen))
    if not cursor.is_next(")"):
        cursor.expect_one_of(",", ")")
    cursor.expect(")")
    cluster_by: tuple[str, ...] = ()
    properties = make_property_reader(NameLevel.TABLE)
    copies_grants = False
    names = frozenset(column.name for column in columns)
    while True:
        if not cluster_by and cursor.is_next("CLUSTER", "BY"):
            cluster_by = _parse_cluster_by(cursor, names)
        elif cursor.accept("COPY", "GRANTS"):
            copies_grants = True
        elif not properties.parse_next(cursor):
            break
    _reject_unsupported(cursor, _UNSUPPORTED_TABLE_OPTIONS, _TABLE_OPTION_LABELS)
    cursor.expect_end("the columns of a table but CLUSTER BY and its properties")
    return CreateTable(
        name, tuple(columns), cluster_by, create_mode, properties.field_values(), copies_grants
    )


def parse_column(
    cursor: TokenCursor, ordinal: int, seen_names: frozenset[str], *, in_parentheses: bool = True
) -> Column:
    """Go past a column: name, type, and whether it may be NULL.

    Args:
        cursor: Stands before the name.
        ordinal: What the column gets.
        seen_names: The names of columns that the statement has written before.
        in_parentheses: Whether a `)` ends it besides a comma, or the statement's end.

    Raises:
        StatementError: If something is wrong, or not supported.
    """
    # PRIMARY and FOREIGN are names elsewhere; the other words are reserved.
    if (
        cursor.is_next("PRIMARY", "KEY")
        or cursor.is_next("FOREIGN", "KEY")
        or any(cursor.is_next(word) for word in ("UNIQUE", "CONSTRAINT", "CHECK"))
    ):
        _reject_unsupported(cursor, _UNSUPPORTED_COLUMN_OPTIONS, _COLUMN_OPTION_LABELS)
    at = cursor.current
    name = cursor.parse_identifier("a column")
    if name in seen_names:
        raise cursor.make_error(
            f"Column {at.source_text} is there twice; names that fold alike are the same", at
        )
    column_type = parse_column_type(cursor)
    nullable = _parse_nullability(cursor, in_parentheses=in_parentheses)
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


def _parse_nullability(cursor: TokenCursor, *, in_parentheses: bool) -> bool:
    """Go past what follows a column's type, and tell whether nulls are allowed."""
    allowed: bool | None = None
    while not (cursor.is_next(",") or _is_column_list_end(cursor, in_parentheses=in_parentheses)):
        at = cursor.current
        if cursor.accept("DEFAULT"):
            if not cursor.accept("NULL"):
                raise cursor.make_error(
                    "A default other than NULL is not supported: rows are stored as they are "
                    "sent; send the value with the row"
                )
            continue
        _reject_unsupported(cursor, _UNSUPPORTED_COLUMN_OPTIONS, _COLUMN_OPTION_LABELS)
        if at.kind is TokenKind.END:
            cursor.expect_one_of(",", ")")
        wanted = not cursor.accept("NOT")
        if not cursor.accept("NULL"):
            end = ")" if in_parentheses else "the end"
            raise cursor.make_error(
                f"Expected NOT NULL, a comma or {end} here, not {cursor.current_label}"
            )
        if allowed not in {None, wanted}:
            raise cursor.make_error("This column is both NULL and NOT NULL; write one of them", at)
        allowed = wanted
    return allowed is not False


def _is_column_list_end(cursor: TokenCursor, *, in_parentheses: bool) -> bool:
    return cursor.is_next(")") if in_parentheses else is_at_end(cursor)


def _parse_cluster_by(cursor: TokenCursor, column_names: frozenset[str]) -> tuple[str, ...]:
    if not cursor.accept("CLUSTER", "BY"):
        return ()
    cursor.expect("(")
    names: list[str] = []
    while True:
        at = cursor.current
        name = cursor.parse_identifier("a column")
        if not (cursor.is_next(",") or cursor.is_next(")")):
            raise cursor.make_error(
                "CLUSTER BY takes columns, not expressions: write the column's name alone", at
            )
        if name not in column_names:
            raise cursor.make_error(
                f"CLUSTER BY names {at.source_text}, which is no column of this table", at
            )
        if name in names:
            raise cursor.make_error(f"CLUSTER BY names {at.source_text} twice", at)
        names.append(name)
        if not cursor.accept(","):
            break
    cursor.expect(")")
    return tuple(names)


def _reject_unsupported(
    cursor: TokenCursor, reasons: dict[str, str], labels: dict[str, str]
) -> None:
    token = cursor.current
    if token.kind is TokenKind.WORD and token.text in reasons:
        what = labels.get(token.text, token.text)
        raise cursor.make_error(f"{what} is not supported: {reasons[token.text]}")


# --- ALTER TABLE: what can be changed of a table whose rows stay as they are.

_UNSUPPORTED_CHANGES = {
    "SWAP": "SWAP WITH is not supported: RENAME both tables",
    "SUSPEND": "Clustering is not suspended: DROP CLUSTERING KEY",
    "RESUME": "Clustering is not resumed: write CLUSTER BY (…)",
}
_UNSUPPORTED_DROPS = {
    "CONSTRAINT": "There are no constraints but NOT NULL: ALTER COLUMN … DROP NOT NULL",
    "PRIMARY": "There are no constraints but NOT NULL: ALTER COLUMN … DROP NOT NULL",
    "UNIQUE": "There are no constraints but NOT NULL: ALTER COLUMN … DROP NOT NULL",
    "FOREIGN": "There are no constraints but NOT NULL: ALTER COLUMN … DROP NOT NULL",
}


def parse_alter_table(cursor: TokenCursor) -> AlterTable:
    """Go past ALTER TABLE after these two words.

    Raises:
        StatementError: If something is wrong, or not supported.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.parse_name("a table", 3)
    token = cursor.current
    if token.kind is TokenKind.WORD and token.text in _UNSUPPORTED_CHANGES:
        raise cursor.make_error(_UNSUPPORTED_CHANGES[token.text])
    change = _CHANGE_PARSERS[cursor.expect_one_of(*_CHANGE_PARSERS)](cursor)
    cursor.expect_end("this change of a table")
    return AlterTable(name, change, if_exists)


def _parse_add_columns(cursor: TokenCursor) -> AddColumns:
    columns: list[Column] = []
    places = []
    keeping = set[str]()
    while True:
        cursor.accept("COLUMN")
        keeps = cursor.accept("IF", "NOT", "EXISTS")
        places.append(cursor.current.position)
        seen = frozenset(column.name for column in columns)
        columns.append(parse_column(cursor, 0, seen, in_parentheses=False))
        if keeps:
            keeping.add(columns[-1].name)
        if not cursor.accept(","):
            return AddColumns(tuple(columns), tuple(places), frozenset(keeping))


def _parse_drop_change(cursor: TokenCursor) -> DropColumns | ClusterBy:
    if cursor.accept("CLUSTERING", "KEY"):
        return ClusterBy(())
    token = cursor.current
    if token.kind is TokenKind.WORD and token.text in _UNSUPPORTED_DROPS:
        raise cursor.make_error(_UNSUPPORTED_DROPS[token.text])
    cursor.accept("COLUMN")
    if_exists = cursor.accept("IF", "EXISTS")
    return DropColumns(_parse_column_names(cursor, "DROP COLUMN"), if_exists)


def _parse_rename_change(cursor: TokenCursor) -> RenameTable | RenameColumn:
    if cursor.accept("COLUMN"):
        column = _parse_column_name(cursor)
        cursor.expect("TO")
        return RenameColumn(column, _parse_column_name(cursor))
    if not cursor.accept("TO"):
        cursor.expect_one_of("COLUMN", "TO")
    return RenameTable(cursor.parse_name("a table", 3).parts)


def _parse_alter_columns(cursor: TokenCursor) -> AlterColumns:
    changes: list[ColumnChange] = []
    while True:
        cursor.accept("COLUMN")
        at = cursor.current
        change = _parse_column_change(cursor)
        if change.column.name in {other.column.name for other in changes}:
            raise cursor.make_error(f"Column {at.source_text} is changed twice; write it once", at)
        changes.append(change)
        if not cursor.accept(","):
            return AlterColumns(tuple(changes))


def _parse_column_change(cursor: TokenCursor) -> ColumnChange:
    column = _parse_column_name(cursor)
    if cursor.accept("DROP", "NOT", "NULL"):
        return ColumnChange(column, None)
    if cursor.is_next("SET", "NOT", "NULL"):
        raise cursor.make_error(
            "SET NOT NULL is not supported: rows that are there may hold NULL; write the condition "
            "into the query, or make a table anew"
        )
    if cursor.is_next("SET", "DEFAULT") or cursor.is_next("DROP", "DEFAULT"):
        raise cursor.make_error("Defaults do not exist here: send the value with the row")
    if not (cursor.accept("SET", "DATA", "TYPE") or cursor.accept("TYPE")):
        raise cursor.make_error(
            f"Expected DROP NOT NULL or SET DATA TYPE … here, not {cursor.current_label}"
        )
    found = parse_column_type(cursor)
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


def _parse_cluster_by_change(cursor: TokenCursor) -> ClusterBy:
    cursor.expect("BY")
    cursor.expect("(")
    columns = _parse_column_names(cursor, "CLUSTER BY")
    if not cursor.is_next(")"):
        raise cursor.make_error(
            f"CLUSTER BY takes columns, not expressions: expected a comma or ) here, not "
            f"{cursor.current_label}"
        )
    cursor.expect(")")
    return ClusterBy(columns)


def _parse_set_properties(cursor: TokenCursor) -> SetProperties:
    return SetProperties(parse_set_or_unset(cursor, NameLevel.TABLE, "SET"))


def _parse_unset_properties(cursor: TokenCursor) -> SetProperties:
    return SetProperties(parse_set_or_unset(cursor, NameLevel.TABLE, "UNSET"))


def _parse_column_names(cursor: TokenCursor, clause: str) -> tuple[ColumnName, ...]:
    found: list[ColumnName] = []
    while True:
        at = cursor.current
        column = _parse_column_name(cursor)
        if column.name in {other.name for other in found}:
            raise cursor.make_error(f"{clause} names {at.source_text} twice", at)
        found.append(column)
        if not cursor.accept(","):
            return tuple(found)


def _parse_column_name(cursor: TokenCursor) -> ColumnName:
    place = cursor.current.position
    return ColumnName(cursor.parse_identifier("a column"), place)


_CHANGE_PARSERS: dict[str, Callable[[TokenCursor], TableChange]] = {
    "ADD": _parse_add_columns,
    "DROP": _parse_drop_change,
    "ALTER": _parse_alter_columns,
    "MODIFY": _parse_alter_columns,
    "RENAME": _parse_rename_change,
    "CLUSTER": _parse_cluster_by_change,
    "SET": _parse_set_properties,
    "UNSET": _parse_unset_properties,
}
