"""CREATE TABLE AS and INSERT: parses the statements, and writes the rows of the query as one load."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as st
from pyspark.sql.functions import col, to_json

from snowmelt.catalog.jobs.load_history import LoadTotals
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.sql.cursor import is_at_end
from snowmelt.catalog.sql.lexer import SqlRules, TokenKind, read_first_words, tokenize
from snowmelt.clock import Clock
from snowmelt.errors import LoadRefused, StatementError, Unsupported
from snowmelt.schema.conversion.default_values import has_defaults
from snowmelt.schema.types import TableName, to_display_name
from snowmelt.spark.companion_values import add_companions
from snowmelt.spark.datasource.catalog_connection import LakeConnection
from snowmelt.spark.datasource.write_commit import (
    resolve_write_target,
    run_as_load,
)
from snowmelt.spark.datasource.write_task import (
    WritePlan,
    WriteTaskResult,
    name_query_columns,
    write_native_files,
)
from snowmelt.spark.sql.cursor import SparkCursor
from snowmelt.spark.tables.spark_column_mapping import quote_identifier as in_backticks
from snowmelt.table.load_commit import LoadResult
from snowmelt.table.native_file_writer import WrittenFile

_MAX_MODIFIERS = 2
_QUERY_WORDS = frozenset({"SELECT", "WITH", "VALUES", "FROM", "("})
_PLAIN_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SQL_TYPES: dict[type[st.DataType], str] = {
    st.ByteType: "NUMBER(38,0)",
    st.ShortType: "NUMBER(38,0)",
    st.IntegerType: "NUMBER(38,0)",
    st.LongType: "NUMBER(38,0)",
    st.FloatType: "FLOAT",
    st.DoubleType: "FLOAT",
    st.BooleanType: "BOOLEAN",
    st.BinaryType: "BINARY",
    st.DateType: "DATE",
    st.TimestampType: "TIMESTAMP_LTZ(6)",
    st.TimestampNTZType: "TIMESTAMP_NTZ(6)",
    st.VariantType: "VARIANT",
    st.ArrayType: "ARRAY",
    st.StructType: "OBJECT",
    st.MapType: "OBJECT",
    st.NullType: "VARCHAR",
}


@dataclass(frozen=True, slots=True)
class CreateTableAs:
    """CREATE TABLE … AS statement: `table` as written, and the query."""

    table: str
    query: str

    def build_create_table(self, columns: st.StructType) -> str:
        """Build the CREATE TABLE statement for a query's columns.

        Raises:
            Unsupported: If a column's Spark type has no SQL type.
        """
        names = [
            name if _PLAIN_IDENTIFIER.match(name) else '"' + name.replace('"', '""') + '"'
            for name in columns.names
        ]
        types = map(_to_sql_type, columns.fields)
        parts = [f"{name} {kind}" for name, kind in zip(names, types, strict=True)]
        return f"CREATE TABLE {self.table} ({', '.join(parts)})"


def parse_create_table_as(text: str) -> CreateTableAs | None:
    """Parse a CREATE TABLE … AS statement, or return None for any other statement.

    Raises:
        Unsupported: If the statement has modifiers, such as OR REPLACE or IF NOT EXISTS.
        StatementError: If the statement lists columns.
    """
    if read_first_words(text)[0] != "CREATE":
        return None
    try:
        cursor = SparkCursor(text)
    except StatementError:
        return None  # Other CREATE statements follow the catalog's rules for strings.
    cursor.advance()
    modifiers = []
    while not cursor.accept("TABLE"):
        modifiers.append(cursor.advance().text)
        if len(modifiers) > _MAX_MODIFIERS:
            return None
    if cursor.accept("IF", "NOT", "EXISTS"):
        modifiers.append("IF NOT EXISTS")
    run = cursor.read_name()
    first = cursor.current
    cursor.skip_until("AS")
    if not run or not cursor.accept("AS") or cursor.current.unquoted not in _QUERY_WORDS:
        return None
    if modifiers:
        raise Unsupported(
            what=f"{' '.join(modifiers)} with CREATE TABLE … AS",
            instead="omit the words, and run DROP TABLE first if the table exists",
        )
    if first.unquoted != "AS":
        raise cursor.make_error(
            "A CREATE TABLE … AS has the columns of its query: name them there", first
        )
    return CreateTableAs(cursor.source_between(run[0], run[-1]), cursor.read_rest())


def _to_sql_type(field: st.StructField) -> str:
    kind = field.dataType
    if isinstance(kind, st.DecimalType):
        return f"NUMBER({kind.precision},{kind.scale})"
    if isinstance(kind, st.TimeType):
        return f"TIME({kind.precision})"
    if isinstance(kind, st.StringType):
        return "VARCHAR"
    found = _SQL_TYPES.get(type(kind))
    if found is None:
        raise Unsupported(
            what=f"A column of type {kind.simpleString()} ({field.name})",
            instead="cast it in the query",
        )
    return found


# --- INSERT in `Snowmelt.sql`: inserts the rows of a query by position, in one commit.

INSERT_RESULT_COLUMNS = ("number of rows inserted",)
_MAX_STATEMENT_CHARACTERS = 10_000


@dataclass(frozen=True, slots=True)
class InsertStatement:
    """INSERT statement. `columns` are the listed internal names, or None.

    `query` is the query for the rows to insert. It has NULL in place of each value DEFAULT.
    `uses_default` is True if there is such a value.
    """

    table: TableName
    columns: tuple[str, ...] | None
    query: str
    text: str
    uses_default: bool = False


def parse_insert(text: str, namespace: tuple[str, ...]) -> InsertStatement | None:
    """Parse an INSERT statement, or return None for any other statement.

    Args:
        text: The statement.
        namespace: Database and schema that complete a short table name.

    Raises:
        Unsupported: If the statement is INSERT OVERWRITE.
        StatementError: If the statement is malformed.
    """
    if read_first_words(text)[0] != "INSERT":
        return None
    cursor = SparkCursor(text)
    cursor.advance()
    if cursor.is_next("OVERWRITE"):
        raise Unsupported(
            what="INSERT OVERWRITE",
            instead="run TRUNCATE TABLE or CREATE OR REPLACE TABLE, then INSERT INTO",
        )
    if not cursor.accept("INTO"):
        raise cursor.make_error("Expected INTO and a table after INSERT")
    cursor.accept("TABLE")
    table, _ = cursor.parse_table(namespace)
    columns = _parse_column_list(cursor)
    if is_at_end(cursor):
        raise cursor.make_error("Expected VALUES or a query after the table of INSERT")
    query, uses_default = _parse_query(cursor)
    return InsertStatement(table, columns, query, text, uses_default)


def insert_rows(
    connection: LakeConnection,
    insert: InsertStatement,
    frames: Sequence[DataFrame],
    *,
    clock: Clock,
    find_frame: Callable[[str], DataFrame] | None = None,
) -> int:
    """Insert the rows of all frames in one commit and return their number.

    `find_frame` returns the rows of a query. If it is given, values that are copied from columns keep
    their nanoseconds and offsets (`add_companions`).

    Raises:
        TableNotFound: If the table does not exist or the role lacks INSERT on it.
        LoadRefused: If the number of values is invalid, a required value is missing, or a value is DEFAULT in
            a table with default values.
        LoadFailed: If a value does not fit its column.
        LoadOvertaken: If the table was dropped or changed during the insert.
        UnknownOutcome: If the rows may have been committed. LOAD_HISTORY shows the outcome.
    """
    with connection.database.reading() as reading:
        schema = find_table(reading, insert.table).schema
    if insert.uses_default and has_defaults(schema):
        raise LoadRefused(
            what=f"DEFAULT in the values of INSERT INTO {insert.table}",
            reason="the table has columns with default values. List the columns, and omit those that "
            "get their default",
        )
    names = name_query_columns(schema, insert.columns, frames[0].columns, insert.table)
    by_name = {column.name: column for column in schema.columns}
    if find_frame is not None and len(frames) == 1 and by_name.keys() >= set(names):
        copied = add_companions(insert.query, [by_name[name] for name in names], find_frame)
        if copied is not None:
            frames, names = [copied[0]], copied[1]
    target = resolve_write_target(
        connection,
        insert.table,
        names,
        insert.text[:_MAX_STATEMENT_CHARACTERS],
        timezone=str(frames[0].sparkSession.conf.get("spark.sql.session.timeZone")),
    )

    def write() -> LoadResult:
        written = [each for rows in frames for each in write_rows(target.plan, rows)]
        return make_load_result([file for each in written for file in each.files])

    what = f"INSERT INTO {insert.table}"
    return run_as_load(target, write, clock=clock, what=what).totals.rows


def make_load_result(
    files: Sequence[WrittenFile], rows: int | None = None, removed: Collection[str] = ()
) -> LoadResult:
    """Return the result of a load. `rows` is by default the number of rows in the files."""
    count = sum(file.rows for file in files) if rows is None else rows
    totals = LoadTotals(0, count, 0, sum(file.size for file in files))
    return LoadResult(files, (), totals, removed=frozenset(removed))


def write_rows(plan: WritePlan, rows: DataFrame) -> list[WriteTaskResult]:
    """Write the rows of a query as native files, by position."""
    # Name the columns by position, because a query may return duplicate names.
    named = rows.toDF(*(f"c{at}" for at in range(len(rows.columns))))
    outcomes = encode_variants_as_json(named).mapInArrow(
        partial(_write_task, plan), "outcome binary"
    )
    # Safe to unpickle: written by `_write_task`.
    return [pickle.loads(row.outcome) for row in outcomes.collect()]  # noqa: S301


def _write_task(plan: WritePlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    outcome = pickle.dumps(write_native_files(plan, batches))
    yield pa.RecordBatch.from_arrays([pa.array([outcome], pa.binary())], names=["outcome"])


def encode_variants_as_json(rows: DataFrame) -> DataFrame:
    """Encode VARIANT columns as JSON, because PySpark does not support VARIANT everywhere."""
    return rows.select(
        *(
            to_json(col(in_backticks(field.name))).alias(field.name)
            if isinstance(field.dataType, st.VariantType)
            else col(in_backticks(field.name))
            for field in rows.schema.fields
        )
    )


def _parse_column_list(cursor: SparkCursor) -> tuple[str, ...] | None:
    """Parse the optional column list."""
    if not cursor.is_next("(") or cursor.peek().unquoted in _QUERY_WORDS:
        return None
    cursor.advance()
    names: list[str] = []
    while True:
        token = cursor.advance()
        is_quoted = token.kind is TokenKind.QUOTED or token.source_text.startswith('"')
        if not is_quoted and token.kind is not TokenKind.WORD:
            raise cursor.make_error(
                "Columns of an INSERT are names with commas between them", token
            )
        names.append(to_display_name(token.text))
        if not cursor.accept(","):
            cursor.expect(")")
            return tuple(names)


def _parse_query(cursor: SparkCursor) -> tuple[str, bool]:
    """Return the query's text, with NULL for DEFAULT, and True if there is a DEFAULT."""
    is_values, text = cursor.is_next("VALUES"), cursor.read_rest()
    if not is_values:
        return text, False
    pieces, done = [], 0
    for token in tokenize(text, SqlRules.SPARK):
        if token.unquoted == "DEFAULT":
            pieces += [text[done : token.start_offset], "NULL"]
            done = token.end_offset
    return "".join((*pieces, text[done:])), bool(pieces)
