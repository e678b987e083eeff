"""ALTER TABLE: changes that do not rewrite stored rows.

Rows that were stored before a column was added have NULL in it. Dropped columns are not read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.objects import namespaces, renames_and_evolution, tables
from snowmelt.catalog.sql.column_types import parse_column_type
from snowmelt.catalog.sql.cursor import NameLevel, ObjectName, TokenCursor
from snowmelt.catalog.sql.lexer import SourcePosition, TokenKind
from snowmelt.catalog.statements.statement_context import (
    Statement,
    StatementPart,
    StatementResult,
    StatementSession,
    make_statement_error,
    skipping_missing,
)
from snowmelt.catalog.statements.tables import (
    DefaultClause,
    parse_column,
    parse_default_clause,
    parse_set_or_unset,
    resolve_error_table_property,
)
from snowmelt.schema.inference import next_ordinal, widen_column_type
from snowmelt.schema.types import Column, TableName, to_display_name

_MAX_LISTED_COLUMNS = 20


class TableChange(StatementPart, ABC):
    """One change of ALTER TABLE. Names are internal names with their positions in the statement."""

    @property
    def is_evolution(self) -> bool:
        """True if the privilege EVOLVE SCHEMA allows the change."""
        return False

    @abstractmethod
    def apply(self, session: StatementSession, table: TableRecord) -> str:
        """Apply the change to a locked table and return the message of the statement.

        Raises:
            StatementError: If the change does not fit the table.
            AlreadyExists: If the new name exists.
        """


class AlterTable(Statement):
    """ALTER TABLE with one change."""

    name: ObjectName
    change: TableChange
    if_exists: bool

    def execute(self, session: StatementSession) -> StatementResult:
        with skipping_missing(self.if_exists):
            table = session.find_table(session.resolve_table_name(self.name))
        change = self.change
        privileges = ("OWNERSHIP", "EVOLVE SCHEMA") if change.is_evolution else ("OWNERSHIP",)
        session.require_privilege("TABLE", table.table_id, table.name, *privileges)
        if isinstance(change, SetProperties):
            change = SetProperties(
                resolve_error_table_property(change.properties, session, table.name)
            )
        if not isinstance(change, RenameTable):
            # RENAME locks the schema before the table.
            table = tables.lock_found_table(session.connection, table)
        return StatementResult(message=change.apply(session, table))


@dataclass(frozen=True, slots=True)
class ColumnName:
    """Name of a column, and its position in the statement."""

    name: str
    position: SourcePosition


class AddColumns(TableChange):
    """ADD COLUMN. Ordinals are 0 until execution. `if_not_exists_names` are columns with IF NOT EXISTS."""

    columns: tuple[Column, ...]
    positions: tuple[SourcePosition, ...]
    if_not_exists_names: frozenset[str]

    @property
    def is_evolution(self) -> bool:
        return True

    def apply(self, session: StatementSession, table: TableRecord) -> str:
        ordinal = next_ordinal(
            tables.list_table_schema_versions(session.connection, table.table_id).values()
        )
        added: list[Column] = []
        for column, place in zip(self.columns, self.positions, strict=True):
            if table.schema.column(column.name) is not None:
                if column.name in self.if_not_exists_names:
                    continue
                raise make_statement_error(
                    f"Table {table.name} already has a column {column.display_name}. Use another name, "
                    "or ADD COLUMN IF NOT EXISTS",
                    place,
                )
            if not column.nullable and renames_and_evolution.has_had_rows(table):
                raise make_statement_error(
                    f"Column {column.display_name} cannot be NOT NULL, because the existing rows of "
                    f"table {table.name} have no value for it. Omit NOT NULL",
                    place,
                )
            added.append(replace(column, ordinal=ordinal + len(added)))
        if not added:
            return f"Table {table.name} already has these columns; nothing was done."
        columns = [*table.schema.columns, *added]
        tables.add_schema_version(session.connection, table, columns, now=session.now)
        return f"Table {table.name}: {_display_columns(added)} added."


class DropColumns(TableChange):
    """DROP COLUMN."""

    columns: tuple[ColumnName, ...]
    if_exists: bool

    def apply(self, session: StatementSession, table: TableRecord) -> str:
        dropped: list[Column] = []
        for wanted in self.columns:
            if self.if_exists and table.schema.column(wanted.name) is None:
                continue
            column = _require_column(wanted, table)
            if column.name in table.cluster_by:
                raise make_statement_error(
                    f"Cannot drop column {column.display_name}: table {table.name} is clustered by it. "
                    "First CLUSTER BY other columns, or DROP CLUSTERING KEY",
                    wanted.position,
                )
            dropped.append(column)
        if not dropped:
            return f"Table {table.name} has no such columns; nothing was done."
        left = [column for column in table.schema.columns if column not in dropped]
        if not left:
            raise make_statement_error(
                f"Cannot drop all columns of table {table.name}. Use DROP TABLE, or add a column first",
                self.columns[0].position,
            )
        tables.add_schema_version(session.connection, table, left, now=session.now)
        return f"Table {table.name}: {_display_columns(dropped)} dropped."


class RenameColumn(TableChange):
    """RENAME COLUMN … TO …."""

    column: ColumnName
    new_name: ColumnName

    def apply(self, session: StatementSession, table: TableRecord) -> str:
        column = _require_column(self.column, table)
        if table.schema.column(self.new_name.name) is not None:
            raise make_statement_error(
                f"Table {table.name} already has a column {to_display_name(self.new_name.name)}. Use "
                "another name",
                self.new_name.position,
            )
        renamed = replace(column, name=self.new_name.name)
        columns = [renamed if each is column else each for each in table.schema.columns]
        tables.add_schema_version(session.connection, table, columns, now=session.now)
        if column.name in table.cluster_by:
            clustered = [renamed.name if name == column.name else name for name in table.cluster_by]
            renames_and_evolution.set_cluster_by(session.connection, table, clustered)
        return (
            f"Table {table.name}: column {column.display_name} renamed to {renamed.display_name}."
        )


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """Change of one column: a new type, a default, or DROP NOT NULL.

    Name and ordinal of `new_type` are unused.
    """

    column: ColumnName
    new_type: Column | None = None
    default: DefaultClause | None = None

    def apply_to(self, column: Column) -> Column:
        """Return the changed column.

        Raises:
            StatementError: If the change does not fit the column.
        """
        if self.default is not None:
            return replace(column, default=self.default.resolve(column))
        if self.new_type is None:
            return replace(column, nullable=True)
        found = widen_column_type(column, self.new_type)
        if isinstance(found, str):
            raise make_statement_error(
                f"Column {column.display_name} of type {column.sql_type} cannot become "
                f"{self.new_type.sql_type}: {found}",
                self.column.position,
            )
        return found


class AlterColumns(TableChange):
    """ALTER COLUMN of one or more columns."""

    changes: tuple[ColumnChange, ...]

    @property
    def is_evolution(self) -> bool:
        return all(each.new_type is None and each.default is None for each in self.changes)

    def apply(self, session: StatementSession, table: TableRecord) -> str:
        changed: dict[str, Column] = {}
        for each in self.changes:
            column = _require_column(each.column, table)
            changed[each.column.name] = each.apply_to(column)
        columns = [changed.get(column.name, column) for column in table.schema.columns]
        if tuple(columns) == table.schema.columns:
            return f"The columns of table {table.name} are already as requested; nothing was done."
        tables.add_schema_version(session.connection, table, columns, now=session.now)
        return f"Table {table.name}: {_display_columns(list(changed.values()))} changed."


class RenameTable(TableChange):
    """RENAME TO, with one to three parts. The current name of the table supplies missing parts."""

    new_name_parts: tuple[str, ...]

    def apply(self, session: StatementSession, table: TableRecord) -> str:
        old = table.name
        place = (old.database, old.schema)[: 3 - len(self.new_name_parts)]
        name = TableName(*place, *self.new_name_parts)
        session.require_in_schema(name, "CREATE TABLE")
        renames_and_evolution.rename_table(session.connection, table, name, session.now)
        return f"Table {old} renamed to {name}."


class ClusterBy(TableChange):
    """CLUSTER BY, or DROP CLUSTERING KEY if there are no columns."""

    columns: tuple[ColumnName, ...]

    def apply(self, session: StatementSession, table: TableRecord) -> str:
        names = [_require_column(column, table).name for column in self.columns]
        renames_and_evolution.set_cluster_by(session.connection, table, names)
        if not names:
            return f"Table {table.name}: clustering key dropped."
        shown = ", ".join(map(to_display_name, names))
        return f"New files of table {table.name} are clustered by {shown}. Existing files stay unchanged."


class SetProperties(TableChange):
    """SET or UNSET of table properties, with their new values."""

    properties: Mapping[str, object]

    def apply(self, session: StatementSession, table: TableRecord) -> str:
        namespaces.set_object_properties(
            session.connection, "TABLE", table.table_id, self.properties
        )
        return f"Table {table.name} altered."


def _require_column(column_name: ColumnName, table: TableRecord) -> Column:
    column = table.schema.column(column_name.name)
    if column is None:
        names = [each.display_name for each in table.schema.columns]
        more = ", …" if len(names) > _MAX_LISTED_COLUMNS else ""
        raise make_statement_error(
            f"Table {table.name} has no column {to_display_name(column_name.name)}. Columns: "
            f"{', '.join(names[:_MAX_LISTED_COLUMNS])}{more}",
            column_name.position,
        )
    return column


def _display_columns(columns: Sequence[Column]) -> str:
    names = ", ".join(column.display_name for column in columns)
    return f"column{'' if len(columns) == 1 else 's'} {names}"


_UNSUPPORTED_CHANGES = {
    "SWAP": "SWAP WITH is not supported: RENAME both tables",
    "SUSPEND": "SUSPEND RECLUSTER is not supported. Use DROP CLUSTERING KEY",
    "RESUME": "RESUME RECLUSTER is not supported. Use CLUSTER BY (…)",
}


def parse_alter_table(cursor: TokenCursor, if_exists: bool) -> AlterTable:
    """Parse the text after ALTER TABLE [IF EXISTS]."""
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
    seen, keeping = set[str](), set[str]()
    while True:
        cursor.accept("COLUMN")
        keeps = cursor.accept("IF", "NOT", "EXISTS")
        places.append(cursor.current.position)
        at = cursor.current
        column = parse_column(cursor, 0, seen, in_parentheses=False)
        if column.default is not None:
            raise cursor.make_error(
                f"A default for the new column {at.source_text} is not supported, because existing rows "
                "would keep NULL. Add the column without a default",
                at,
            )
        columns.append(column)
        seen.add(column.name)
        if keeps:
            keeping.add(columns[-1].name)
        if not cursor.accept(","):
            return AddColumns(tuple(columns), tuple(places), frozenset(keeping))


def _parse_drop_change(cursor: TokenCursor) -> DropColumns | ClusterBy:
    if cursor.accept("CLUSTERING", "KEY"):
        return ClusterBy(())
    token = cursor.current
    constraints = {"CONSTRAINT", "PRIMARY", "UNIQUE", "FOREIGN"}
    if token.kind is TokenKind.WORD and token.text in constraints:
        raise cursor.make_error(
            "NOT NULL is the only supported constraint: ALTER COLUMN … DROP NOT NULL"
        )
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
            raise cursor.make_error(f"Column {at.source_text} is changed twice. Change it once", at)
        changes.append(change)
        if not cursor.accept(","):
            return AlterColumns(tuple(changes))


def _parse_column_change(cursor: TokenCursor) -> ColumnChange:
    column = _parse_column_name(cursor)
    if cursor.accept("DROP", "NOT", "NULL"):
        return ColumnChange(column)
    if cursor.is_next("SET", "NOT", "NULL"):
        raise cursor.make_error(
            "SET NOT NULL is not supported: existing rows may contain NULL. Filter NULL "
            "in queries, or create another table"
        )
    if cursor.accept("SET", "DEFAULT"):
        return ColumnChange(column, default=parse_default_clause(cursor))
    if cursor.accept("DROP", "DEFAULT"):
        return ColumnChange(column, default=DefaultClause(None, False, column.position))
    if not (cursor.accept("SET", "DATA", "TYPE") or cursor.accept("TYPE")):
        raise cursor.make_error(
            f"Expected SET DATA TYPE …, SET DEFAULT …, DROP DEFAULT or DROP NOT NULL here, not {cursor.current_label}"
        )
    return ColumnChange(column, parse_column_type(cursor).to_column(column.name))


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


def _parse_properties(word: str, cursor: TokenCursor) -> SetProperties:
    return SetProperties(parse_set_or_unset(cursor, NameLevel.TABLE, word))


def _parse_column_names(cursor: TokenCursor, clause: str) -> tuple[ColumnName, ...]:
    found: list[ColumnName] = []
    while True:
        at = cursor.current
        column = _parse_column_name(cursor)
        if column.name in {other.name for other in found}:
            raise cursor.make_error(f"{clause} lists {at.source_text} twice", at)
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
    "SET": partial(_parse_properties, "SET"),
    "UNSET": partial(_parse_properties, "UNSET"),
}
