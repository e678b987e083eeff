"""CREATE TABLE AS and INSERT: parses the statements, and writes the rows of the query as one load."""

from __future__ import annotations

import pickle
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as st
from pyspark.sql.functions import col, to_json
from sqlglot import Token, TokenType
from sqlglot.errors import SqlglotError

from snowmelt.catalog.jobs.load_history import LoadTotals
from snowmelt.catalog.objects.tables import find_table
from snowmelt.clock import Clock
from snowmelt.errors import LoadRefused, StatementError, Unsupported
from snowmelt.schema.conversion.default_values import has_defaults
from snowmelt.schema.types import TableName, to_display_name
from snowmelt.spark.datasource.catalog_connection import LakeConnection
from snowmelt.spark.datasource.write_commit import (
    resolve_write_target,
    run_as_load,
)
from snowmelt.spark.datasource.write_task import (
    WritePlan,
    WriteTaskResult,
    name_values_by_position,
    write_native_files,
)
from snowmelt.spark.sql.table_references import (
    read_dotted_name,
    to_internal_parts,
    tokenize_statement,
)
from snowmelt.spark.tables.spark_column_mapping import quote_identifier as in_backticks
from snowmelt.table.load_commit import LoadResult
from snowmelt.table.native_file_writer import WrittenFile

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
    try:
        tokens = tokenize_statement(text)
    except SqlglotError:
        return None
    words = [token.text.upper() for token in tokens]
    if words[:1] != ["CREATE"]:
        return None
    at = words.index("TABLE") if "TABLE" in words[:4] else 0
    if not at:
        return None
    before = words[1:at]
    kept = words[at + 1 : at + 4] == ["IF", "NOT", "EXISTS"]
    at += 4 if kept else 1
    run = read_dotted_name(tokens, at)
    at += 2 * len(run) - 1
    query = _find_query_start(words, at)
    if not run or query is None:
        return None
    if before or kept:
        raise Unsupported(
            what=f"{' '.join([*before, 'IF NOT EXISTS' * kept]).strip()} with CREATE TABLE … AS",
            instead="omit the words, and run DROP TABLE first if the table exists",
        )
    if words[at] != "AS":
        reason = "A CREATE TABLE … AS has the columns of its query: name them there"
        raise StatementError(f"{reason}.", reason=reason)
    return CreateTableAs(
        text[run[0].start : run[-1].end + 1], text[tokens[query].start :].rstrip().rstrip(";")
    )


def _find_query_start(words: Sequence[str], at: int) -> int | None:
    """Return the index of the query's first word after AS, or None if there is no query."""
    depth = 0
    for place in range(at, len(words) - 1):
        depth += {"(": 1, ")": -1}.get(words[place], 0)
        if not depth and words[place] == "AS":
            return (
                place + 1 if words[place + 1] in {"SELECT", "WITH", "VALUES", "FROM", "("} else None
            )
    return None


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
_FULL_NAME_PARTS = 3
_MAX_STATEMENT_CHARACTERS = 10_000


@dataclass(frozen=True, slots=True)
class InsertStatement:
    """INSERT statement. `columns` are the listed internal names, or None. `query` gives the rows.

    `uses_default` is True if a value is the word DEFAULT, which `query` has as NULL.
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
    try:
        tokens = tokenize_statement(text)
    except SqlglotError:
        return None
    if not tokens or tokens[0].text.upper() != "INSERT":
        return None
    if len(tokens) > 1 and tokens[1].text.upper() == "OVERWRITE":
        raise Unsupported(
            what="INSERT OVERWRITE",
            instead="run TRUNCATE TABLE or CREATE OR REPLACE TABLE, then INSERT INTO",
        )
    words = [token.text.upper() for token in tokens[1:3]]
    at = 1 + (words[:1] == ["INTO"])
    if words[:1] != ["INTO"]:
        raise _make_statement_error("expected INTO and a table after INSERT")
    at += len(tokens) > at and tokens[at].text.upper() == "TABLE"
    run = read_dotted_name(tokens, at)
    parts = to_internal_parts(run)
    if not run or not _FULL_NAME_PARTS - len(namespace) <= len(parts) <= _FULL_NAME_PARTS:
        raise _make_statement_error(
            "write the full name of the table, database.schema.table, with backticks around names that "
            "need quotes"
        )
    at += 2 * len(run) - 1
    columns, at = _parse_column_list(tokens, at)
    if at >= len(tokens):
        raise _make_statement_error("expected VALUES or a query after the table of INSERT")
    table = TableName(*namespace[: _FULL_NAME_PARTS - len(parts)], *parts)
    query, uses_default = _extract_query(text, tokens[at:])
    return InsertStatement(table, columns, query, text, uses_default)


def insert_rows(
    connection: LakeConnection,
    insert: InsertStatement,
    rows: DataFrame,
    *,
    clock: Clock,
) -> int:
    """Insert a query's rows in one commit and return their number.

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
    names = name_values_by_position(schema, insert.columns, len(rows.columns), insert.table)
    target = resolve_write_target(
        connection,
        insert.table,
        names,
        insert.text[:_MAX_STATEMENT_CHARACTERS],
        timezone=str(rows.sparkSession.conf.get("spark.sql.session.timeZone")),
    )

    def write() -> LoadResult:
        written = write_rows(target.plan, rows)
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


def _parse_column_list(tokens: Sequence[Token], at: int) -> tuple[tuple[str, ...] | None, int]:
    """Parse the optional column list. Return it or None, and the index of the next token."""
    if at >= len(tokens) or tokens[at].token_type != TokenType.L_PAREN:
        return None, at
    if at + 1 < len(tokens) and tokens[at + 1].text.upper() in {"SELECT", "WITH", "VALUES", "("}:
        return None, at
    names: list[str] = []
    at += 1
    while at < len(tokens) and tokens[at].token_type != TokenType.R_PAREN:
        token = tokens[at]
        quoted = token.token_type in {TokenType.IDENTIFIER, TokenType.STRING}
        if not quoted and not token.text.isidentifier():
            raise _make_statement_error("columns of an INSERT are names with commas between them")
        names.append(to_display_name(token.text if quoted else token.text.upper()))
        at += 1
        if at < len(tokens) and tokens[at].token_type == TokenType.COMMA:
            at += 1
    return tuple(names), at + 1


def _extract_query(text: str, tokens: Sequence[Token]) -> tuple[str, bool]:
    """Return the query's text, with NULL for DEFAULT, and True if there is a DEFAULT."""
    end = tokens[-1].start if tokens[-1].token_type == TokenType.SEMICOLON else len(text)
    query, begin = "", tokens[0].start
    if tokens[0].text.upper() == "VALUES":
        for token in tokens:
            if token.text.upper() == "DEFAULT" and token.token_type not in {
                TokenType.STRING,
                TokenType.IDENTIFIER,
            }:
                query += text[begin : token.start] + "NULL"
                begin = token.end + 1
    return query + text[begin:end], bool(query)


def _make_statement_error(reason: str) -> StatementError:
    return StatementError(f"{reason[0].upper()}{reason[1:]}.", reason=reason)
