"""Statements on tables: CREATE, TRUNCATE, UNDROP, DESCRIBE, SHOW, and SHOW CHANNELS.

TRUNCATE replaces a table with an empty one in one transaction, and retains the old table as
dropped. An error names each unsupported option.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import cast

from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.objects import namespaces, tables
from snowmelt.catalog.objects.channel_tombstones import transfer_channels
from snowmelt.catalog.security import access_control
from snowmelt.catalog.security.access_control import VisibleObjects
from snowmelt.catalog.sql.column_types import parse_column_type
from snowmelt.catalog.sql.cursor import (
    MAX_RETENTION_DAYS,
    Clause,
    ClauseReader,
    CreateMode,
    NameLevel,
    ObjectName,
    TokenCursor,
    display_schema,
    integer_parser,
    is_at_end,
    parse_boolean,
    text_parser,
)
from snowmelt.catalog.sql.lexer import SourcePosition, TokenKind
from snowmelt.catalog.statements.statement_context import (
    Listing,
    ShowObjects,
    ShowRow,
    Statement,
    StatementResult,
    StatementSession,
    creation_result,
    make_statement_error,
    skip_if_exists,
    skipping_missing,
)
from snowmelt.catalog.streaming.channels import list_channels
from snowmelt.catalog.views.channel_states import find_channel_conditions
from snowmelt.errors import TableNotFound
from snowmelt.schema.error_table import ERROR_SCHEMA, find_missing_error_columns
from snowmelt.schema.types import TIMESTAMP_TYPES, Column, TableName, to_display_name

_DURATION = re.compile(r"\s*(\d{1,9})\s+(second|minute|hour|day)s?\s*", re.IGNORECASE)
_DURATION_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}
_MAX_FRESHNESS_DAYS = 365


def parse_duration(cursor: TokenCursor) -> int:
    """Parse a string such as '5 minutes'. Return seconds."""
    token = cursor.current
    text = cursor.parse_string("a duration such as '5 minutes'")
    found = _DURATION.fullmatch(text)
    seconds = int(found[1]) * _DURATION_UNITS[found[2].lower()] if found else 0
    if not 0 < seconds <= _MAX_FRESHNESS_DAYS * _DURATION_UNITS["day"]:
        raise cursor.make_error(
            "Expected a duration from '1 second' to '365 days' here, in seconds, minutes, hours or days,"
            f" not {text[:80]!r}",
            token,
        )
    return seconds


_NAMESPACE_CLAUSES = {
    "DATA_RETENTION_TIME_IN_DAYS": Clause(
        integer_parser("the retention in days", 0, MAX_RETENTION_DAYS), field="retention_days"
    ),
    "COMMENT": Clause(text_parser("a comment")),
}
_TABLE_CLAUSES = {
    **_NAMESPACE_CLAUSES,
    "ENABLE_SCHEMA_EVOLUTION": Clause(parse_boolean, default=False, field="schema_evolution"),
    "ICEBERG_FRESH": Clause(
        lambda cursor: not parse_boolean(cursor), default=False, field="hides_fresh_rows"
    ),
    "ERROR_TABLE": Clause(lambda cursor: cursor.parse_name("a table", 3)),
    "FRESHNESS": Clause(parse_duration, field="freshness_s"),
}


def make_property_reader(level: NameLevel) -> ClauseReader:
    """Create a reader for the property clauses of a kind of object."""
    return ClauseReader(
        _TABLE_CLAUSES if level is NameLevel.TABLE else _NAMESPACE_CLAUSES, f"a {level.lower()}"
    )


def parse_properties(cursor: TokenCursor, level: NameLevel) -> dict[str, object]:
    """Parse the properties that follow. There may be none."""
    found = make_property_reader(level)
    while found.parse_next(cursor):
        cursor.accept(",")
    return found.field_values()


def parse_set_or_unset(cursor: TokenCursor, level: NameLevel, word: str) -> dict[str, object]:
    """Parse the text after SET or UNSET. `word` is that keyword."""
    found = make_property_reader(level)
    while found.parse_next(cursor, unset=word == "UNSET"):
        cursor.accept(",")
    if not found.values:
        found.raise_unknown_clause(cursor)
    cursor.expect_end(f"the properties of a {level.lower()}")
    return found.field_values()


def format_duration(seconds: int) -> str:
    """Format a duration for FRESHNESS, in the largest unit that divides it."""
    unit = next(name for name, size in reversed(_DURATION_UNITS.items()) if seconds % size == 0)
    count = seconds // _DURATION_UNITS[unit]
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"


def resolve_error_table_property(
    properties: Mapping[str, object], session: StatementSession, table: TableName
) -> dict[str, object]:
    """Replace the name in ERROR_TABLE with a table ID. Create the table if it is missing.

    The caller must not have locked the table that has the property: creating a table locks its
    schema, and schemas are locked before tables.

    Raises:
        StatementError: If the error table is the table itself, or does not have the columns of an
            error table.
        PrivilegeMissing: If the role may not create the error table, or lacks INSERT on it.
        DatabaseNotFound: If the database does not exist.
        SchemaNotFound: If the schema does not exist.
    """
    found = dict(properties)
    if "error_table" in found:
        written = cast("ObjectName | None", found.pop("error_table"))
        found["error_table_id"] = (
            written and _find_or_create_error_table(written, session, table).table_id
        )
    return found


def _find_or_create_error_table(
    requested_name: ObjectName, session: StatementSession, table: TableName
) -> TableRecord:
    name = session.resolve_table_name(requested_name)
    if name == table:
        raise make_statement_error(
            f"Table {table} cannot be its own ERROR_TABLE. Name another table",
            requested_name.position,
        )
    schema = session.find_schema(name.database, name.schema)
    # The locks prevent that another transaction creates or replaces the error table.
    tables.find_namespace_ids(session.connection, name.database, name.schema, lock=True)
    try:
        there = tables.lock_table_by_name(session.connection, name)
    except TableNotFound:
        shown = display_schema(name.database, name.schema)
        session.require_privilege("SCHEMA", schema.schema_id, shown, "CREATE TABLE")
        new = tables.create_table(
            session.connection, name, ERROR_SCHEMA.columns, owner=session.role, now=session.now
        )
        access_control.apply_future_table_grants(session.connection, new)
        return new
    session.require_privilege("TABLE", there.table_id, name, "INSERT")
    wanting = find_missing_error_columns(there.schema)
    if wanting:
        raise make_statement_error(
            f"Table {name} cannot be an ERROR_TABLE, because it lacks the columns "
            f"{', '.join(wanting)}. Use the name of a missing table, which is then created",
            requested_name.position,
        )
    return there


class CreateTable(Statement):
    """CREATE TABLE with its columns in ordinal order. `cluster_by` has column names.

    If `copies_grants` is true, the new table receives the grants of the table that it replaces.
    """

    name: ObjectName
    columns: tuple[Column, ...]
    cluster_by: tuple[str, ...]
    create_mode: CreateMode
    properties: Mapping[str, object] = field(default_factory=dict)
    copies_grants: bool = False

    def execute(self, session: StatementSession) -> StatementResult:
        connection = session.connection
        name = session.resolve_table_name(self.name)
        session.require_in_schema(name, "CREATE TABLE")
        try:
            there = tables.find_table(connection, name)
        except TableNotFound:
            there = None
        skip_if_exists(f"Table {name}", self.create_mode, exists=there is not None)
        if there is not None and self.create_mode is CreateMode.OR_REPLACE:
            session.require_ownership("TABLE", there.table_id, name)
        properties = resolve_error_table_property(self.properties, session, name)
        new = tables.create_table(
            connection,
            name,
            self.columns,
            cluster_by=self.cluster_by,
            owner=session.role,
            now=session.now,
            replace=self.create_mode is CreateMode.OR_REPLACE,
            if_not_exists=self.create_mode is CreateMode.IF_NOT_EXISTS,
        )
        namespaces.set_object_properties(connection, "TABLE", new.table_id, properties)
        if there is not None and self.copies_grants:
            access_control.copy_grants(connection, "TABLE", there.table_id, new.table_id)
        else:
            access_control.apply_future_table_grants(connection, new)
        return creation_result(f"Table {name}", replaced=there is not None)


class CreateTableLike(Statement):
    """CREATE TABLE … LIKE: the columns of another table, without its rows."""

    name: ObjectName
    source: ObjectName
    create_mode: CreateMode

    def execute(self, session: StatementSession) -> StatementResult:
        source = session.find_table(session.resolve_table_name(self.source))
        session.require_privilege("TABLE", source.table_id, source.name, "SELECT")
        columns = tuple(
            replace(column, ordinal=ordinal)
            for ordinal, column in enumerate(source.schema.columns, start=1)
        )
        properties = {
            "schema_evolution": source.schema_evolution,
            "hides_fresh_rows": source.hides_fresh_rows,
        }
        return CreateTable(
            self.name, columns, source.cluster_by, self.create_mode, properties
        ).execute(session)


class TruncateTable(Statement):
    """TRUNCATE TABLE."""

    name: ObjectName
    if_exists: bool

    def execute(self, session: StatementSession) -> StatementResult:
        """Replace the table with an empty one, and retain the old one as dropped.

        This takes one transaction. Rows that were registered before are removed; rows that are
        registered later stay. A running migration, COPY or compaction fails because its table no
        longer exists.
        """
        connection, now = session.connection, session.now
        name = session.resolve_table_name(self.name)
        with skipping_missing(self.if_exists):
            table = session.find_table(name)
        session.require_ownership("TABLE", table.table_id, table.name)
        # Schemas are always locked before tables.
        tables.find_namespace_ids(connection, name.database, name.schema, lock=True)
        old = tables.lock_found_table(connection, table)
        new = tables.create_table(
            connection,
            name,
            old.schema.columns,
            cluster_by=old.cluster_by,
            owner=old.owner,
            now=now,
            replace=True,
        )
        namespaces.transfer_table_properties(connection, old.table_id, new.table_id)
        access_control.copy_grants(connection, "TABLE", old.table_id, new.table_id)
        transfer_channels(connection, old.table_id, new.table_id, now)
        tables.redirect_error_rows(connection, old.table_id, new.table_id)
        return StatementResult(message=f"Table {name} truncated.")


def list_visible_tables(
    session: StatementSession, database: str | None, schema: str | None
) -> list[TableRecord]:
    """Return the tables on which the role has a privilege, optionally of one database or schema."""
    sight = VisibleObjects(session.connection, session.role)
    found = tables.list_tables(session.connection, database, schema)
    return [each for each in found if sight.includes_table(each)]


def _list_table_rows(statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    database, schema, _ = statement.resolve_scope(session)
    found = list_visible_tables(session, database, schema)
    if statement.with_history:
        sight = VisibleObjects(session.connection, session.role, with_dropped=True)
        found += [
            each
            for each in tables.list_restorable_tables(session.connection, session.now)
            if database in {None, each.name.database}
            and schema in {None, each.name.schema}
            and sight.includes_table(each)
        ]
    for each in found:
        error_table = tables.find_error_table(session.connection, each)
        error_name = "" if error_table is None else str(error_table.name)
        clustered = ", ".join(map(to_display_name, each.cluster_by))
        name = (each.created_at, each.name.table, each.name.database, each.name.schema)
        options = (each.comment or "", clustered, each.schema_evolution, each.owner)
        freshness = None if each.freshness_s is None else format_duration(each.freshness_s)
        more = (each.retention_days, error_name, not each.hides_fresh_rows, freshness)
        row = (*name, *options, *more)
        yield (*row, each.dropped_at) if statement.with_history else row


def _list_channel_rows(statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    database, schema, table = statement.resolve_scope(session)
    seen = {
        each.table_id: each.name
        for each in list_visible_tables(session, database, schema)
        if table in {None, each.name.table}
    }
    # Without a scope, fetch the channels of all tables: a list of all IDs could be too long for a
    # query.
    found = list_channels(session.connection, None if statement.scope is None else list(seen))
    mine = [each for each in found if each.table_id in seen]
    mine.sort(key=lambda channel: (seen[channel.table_id], channel.name))
    conditions = find_channel_conditions(session.connection, mine, session.now)
    for each, condition in zip(mine, conditions, strict=True):
        name = seen[each.table_id]
        place = (each.opened_at, each.name, name.table, name.database, name.schema)
        sequencers = (each.client_sequencer, each.row_sequencer)
        state = (each.offset_token, each.last_commit_at, each.rows, condition.state)
        yield (*place, *sequencers, *state)


TABLES = Listing(
    "TABLES",
    NameLevel.SCHEMA,
    "created_on name database_name schema_name comment cluster_by enable_schema_evolution owner "
    "retention_time error_table iceberg_fresh freshness",
    _list_table_rows,
    has_history=True,
)
CHANNELS = Listing(
    "CHANNELS",
    NameLevel.TABLE,
    "created_on name table_name database_name schema_name client_sequencer row_sequencer "
    "offset_token last_commit_on rows state",
    _list_channel_rows,
)


_UNSUPPORTED_COLUMN_OPTIONS = {
    "COLLATE": "text is compared by code points. Omit it",
    **dict.fromkeys(
        ("AUTOINCREMENT", "IDENTITY"), "Snowmelt does not number rows. Send the number with the row"
    ),
    **dict.fromkeys(
        ("AS", "GENERATED"),
        "columns are not computed. Send the value with the row, or compute it in the query",
    ),
    **dict.fromkeys(
        ("PRIMARY", "UNIQUE", "FOREIGN", "REFERENCES", "CONSTRAINT"),
        "keys are not checked for streamed rows. Omit it, and write NOT NULL where NULL must be "
        "rejected",
    ),
    "CHECK": "rows are only checked by type and NOT NULL. Omit it",
    "COMMENT": "comments on columns are not stored. Use the comment of the table",
    **dict.fromkeys(("WITH", "MASKING", "TAG"), "policies and tags are not supported. Omit it"),
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


def parse_truncate(cursor: TokenCursor) -> TruncateTable:
    """Parse the text after TRUNCATE."""
    cursor.accept("TABLE")
    if_exists = cursor.accept("IF", "EXISTS")
    return TruncateTable(cursor.parse_last_name("a table", 3, "TRUNCATE TABLE"), if_exists)


def parse_create_table(
    cursor: TokenCursor, create_mode: CreateMode
) -> CreateTable | CreateTableLike:
    """Parse the text after CREATE TABLE."""
    name = cursor.parse_name("a table", 3)
    if cursor.accept("LIKE"):
        source = cursor.parse_last_name("a table", 3, "CREATE TABLE … LIKE")
        return CreateTableLike(name, source, create_mode)
    _reject_unsupported(cursor, _UNSUPPORTED_TABLE_OPTIONS, _TABLE_OPTION_LABELS)
    cursor.expect("(")
    columns = [parse_column(cursor, 1, frozenset())]
    seen = {columns[0].name}
    while cursor.accept(","):
        if cursor.is_next(")"):
            raise cursor.make_error(
                "Expected another column after the comma. Add a column, or remove the comma"
            )
        columns.append(parse_column(cursor, len(columns) + 1, seen))
        seen.add(columns[-1].name)
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
    cursor: TokenCursor, ordinal: int, seen_names: Set[str], *, in_parentheses: bool = True
) -> Column:
    """Parse a column: name, type, nullability and default.

    `seen_names` are the columns already parsed. The column ends at a comma, at a `)` if
    `in_parentheses`, or at the end of the statement.
    """
    # PRIMARY and FOREIGN may be column names. The other words are reserved.
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
            f"Column {at.source_text} is specified twice. Unquoted names are not case-sensitive", at
        )
    column = parse_column_type(cursor).to_column(name, ordinal)
    nullable, default = _parse_column_options(cursor, column, in_parentheses=in_parentheses)
    return replace(column, nullable=nullable, default=default)


def _parse_column_options(
    cursor: TokenCursor, column: Column, *, in_parentheses: bool
) -> tuple[bool, str | None]:
    """Parse the rest of a column after its type. Return True if NULL is allowed, and the default."""
    allowed: bool | None = None
    default: str | None = None
    while not (
        cursor.is_next(",") or (cursor.is_next(")") if in_parentheses else is_at_end(cursor))
    ):
        at = cursor.current
        if cursor.accept("DEFAULT"):
            default = parse_default_clause(cursor).resolve(column)
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
            raise cursor.make_error("This column is both NULL and NOT NULL. Use one of them", at)
        allowed = wanted
    return allowed is not False, default


@dataclass(frozen=True, slots=True)
class DefaultClause:
    """The text of a default as written, and its position. None: NULL."""

    text: str | None
    is_current_timestamp: bool
    position: SourcePosition

    def resolve(self, column: Column) -> str | None:
        """Return `Column.default`.

        Raises:
            StatementError: If the default does not fit the column.
        """
        # Imported here, because it loads Arrow, and few statements need it.
        from snowmelt.schema.conversion.default_values import find_default_error

        if self.text is None:
            return None
        if self.is_current_timestamp:
            if column.kind not in TIMESTAMP_TYPES:
                raise make_statement_error(
                    "The default CURRENT_TIMESTAMP needs a column of a timestamp type, not "
                    f"{column.sql_type}",
                    self.position,
                )
            return self.text
        reason = find_default_error(replace(column, default=self.text))
        if reason is not None:
            raise make_statement_error(
                f"Invalid default for {column.display_name}: {reason}", self.position
            )
        return self.text


def parse_default_clause(cursor: TokenCursor) -> DefaultClause:
    """Parse a constant, CURRENT_TIMESTAMP or NULL."""
    at = cursor.current
    if cursor.accept("NULL"):
        return DefaultClause(None, False, at.position)
    if cursor.accept("CURRENT_TIMESTAMP"):
        if cursor.accept("("):
            cursor.expect(")")
        return DefaultClause("CURRENT_TIMESTAMP", True, at.position)
    sign = "-" if cursor.accept("-") else ""
    token = cursor.current
    is_boolean = token.kind is TokenKind.WORD and token.text in {"TRUE", "FALSE"}
    if not (
        token.kind is TokenKind.NUMBER
        or (not sign and (token.kind is TokenKind.STRING or is_boolean))
    ):
        raise cursor.make_error(
            "Expected a constant, CURRENT_TIMESTAMP or NULL as default here, not "
            f"{cursor.current_label}"
        )
    return DefaultClause(sign + cursor.advance().text, False, at.position)


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
                "CLUSTER BY takes columns, not expressions. Use the name of a column", at
            )
        if name not in column_names:
            raise cursor.make_error(
                f"CLUSTER BY contains {at.source_text}, which is not a column of this table", at
            )
        if name in names:
            raise cursor.make_error(f"CLUSTER BY contains {at.source_text} twice", at)
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
