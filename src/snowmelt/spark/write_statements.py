"""CREATE TABLE … AS SELECT in `lake.sql`: a table with the columns of a query, and its rows."""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.functions import col, to_json
from sqlglot import Token, TokenType
from sqlglot.errors import SqlglotError

from snowmelt.catalog.jobs.loads import LoadTotals
from snowmelt.catalog.objects.tables import find_table
from snowmelt.errors import LoadRefused, SnowmeltError, StatementError, UnknownOutcome, Unsupported
from snowmelt.schema.types import TableName, display_name
from snowmelt.spark.datasource.write_commit import as_written, target_of
from snowmelt.spark.datasource.write_task import WritePlan, Written, by_position, write_rows
from snowmelt.spark.sql.query import dotted, internal_parts, own_tokens
from snowmelt.spark.tables.visible_columns import quoted as in_backticks
from snowmelt.table.load_commit import (
    LoadRequest,
    LoadResult,
    abort_load,
    begin_load,
    commit_load,
)
from snowmelt.table.load_commit import renewing_load_lease as kept

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame

    from snowmelt.clock import Clock
    from snowmelt.spark.datasource.connection import Connection

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_TYPES: dict[type[st.DataType], str] = {
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
class Creation:
    """A CREATE TABLE … AS: `table` as it is written, and the query that makes columns and rows."""

    table: str
    query: str

    def statement(self, columns: st.StructType) -> str:
        """Return the CREATE TABLE for a query's columns.

        Raises:
            Unsupported: There is no type for one of them.
        """
        parts = [f"{_name(field.name)} {_type(field)}" for field in columns.fields]
        return f"CREATE TABLE {self.table} ({', '.join(parts)})"


def read_creation(text: str) -> Creation | None:
    """Read a CREATE TABLE … AS; None for any other statement.

    Raises:
        Unsupported: A table would be replaced, or perhaps be left as it is.
        StatementError: Columns are given besides the query's.
    """
    try:
        tokens = own_tokens(text)
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
    run = dotted(tokens, at)
    at += 2 * len(run) - 1
    query = _behind(words, at)
    if not run or query is None:
        return None
    if before or kept:
        raise Unsupported(
            what=f"{' '.join([*before, 'IF NOT EXISTS' * kept]).strip()} with CREATE TABLE … AS",
            instead="its table is made and filled in two steps; leave the words out, and DROP TABLE "
            "before",
        )
    if words[at] != "AS":
        reason = "A CREATE TABLE … AS has the columns of its query: name them there"
        raise StatementError(f"{reason}.", reason=reason)
    return Creation(_written(text, run), text[tokens[query].start :].rstrip().rstrip(";"))


def _behind(words: Sequence[str], at: int) -> int | None:
    """Return where the query begins behind AS, None where there is none."""
    depth = 0
    for place in range(at, len(words) - 1):
        depth += {"(": 1, ")": -1}.get(words[place], 0)
        if not depth and words[place] == "AS":
            return (
                place + 1 if words[place + 1] in {"SELECT", "WITH", "VALUES", "FROM", "("} else None
            )
    return None


def _written(text: str, run: Sequence[Token]) -> str:
    return text[run[0].start : run[-1].end + 1]


def _name(name: str) -> str:
    return name if _PLAIN.match(name) else '"' + name.replace('"', '""') + '"'


def _type(field: st.StructField) -> str:
    kind = field.dataType
    if isinstance(kind, st.DecimalType):
        return f"NUMBER({kind.precision},{kind.scale})"
    if isinstance(kind, st.TimeType):
        return f"TIME({kind.precision})"
    if isinstance(kind, st.StringType):
        return "VARCHAR"
    found = _TYPES.get(type(kind))
    if found is None:
        raise Unsupported(
            what=f"A column of type {kind.simpleString()} ({field.name})",
            instead="cast it in the query",
        )
    return found


# --- INSERT in `lake.sql`: a query's rows into a table, by position, in one commit.

INSERTED = ("number of rows inserted",)
_PARTS = 3
_SHOWN = 10_000


@dataclass(frozen=True, slots=True)
class Insert:
    """An INSERT: `columns` are internal names, None where none are given; `query` makes the rows."""

    table: TableName
    columns: tuple[str, ...] | None
    query: str
    text: str


def read_insert(text: str, within: tuple[str, ...]) -> Insert | None:
    """Read an INSERT; None for any other statement. `within` completes a table's short name.

    Raises:
        Unsupported: Rows would be overwritten.
        StatementError: It cannot be understood.
    """
    try:
        tokens = own_tokens(text)
    except SqlglotError:
        return None
    if not tokens or tokens[0].text.upper() != "INSERT":
        return None
    if len(tokens) > 1 and tokens[1].text.upper() == "OVERWRITE":
        raise Unsupported(
            what="INSERT OVERWRITE",
            instead="tables take rows and keep them; CREATE OR REPLACE TABLE makes one anew",
        )
    words = [token.text.upper() for token in tokens[1:3]]
    at = 1 + (words[:1] == ["INTO"])
    if words[:1] != ["INTO"]:
        raise _wrong("INSERT is followed by INTO and a table")
    at += len(tokens) > at and tokens[at].text.upper() == "TABLE"
    run = dotted(tokens, at)
    parts = internal_parts(run)
    if not run or not _PARTS - len(within) <= len(parts) <= _PARTS:
        raise _wrong(
            "the table of an INSERT is named in full, database.schema.table, with backticks around "
            "names that need quotes"
        )
    at += 2 * len(run) - 1
    columns, at = _columns(tokens, at)
    if at >= len(tokens):
        raise _wrong("an INSERT ends with VALUES or a query")
    table = TableName(*within[: _PARTS - len(parts)], *parts)
    return Insert(table, columns, _query(text, tokens[at:]), text)


def insert_rows(
    connection: Connection,
    insert: Insert,
    rows: DataFrame,
    *,
    clock: Clock,
) -> int:
    """Insert a query's rows, all or none, and return how many they are.

    Raises:
        TableNotFound: The table does not exist, or the role may not insert into it.
        LoadRefused: There are too many or too few values, or one is missing that must be there.
        LoadFailed: A value does not fit its column.
        LoadOvertaken: The table was dropped or changed meanwhile.
        UnknownOutcome: It may have been committed; LOAD_HISTORY will tell.
    """
    names = _names(connection, insert, len(rows.columns))
    target = target_of(
        connection,
        insert.table,
        names,
        insert.text[:_SHOWN],
        zone=str(rows.sparkSession.conf.get("spark.sql.session.timeZone")),
    )
    # By position, so that a name that is there twice does no harm.
    given = _plain(rows.toDF(*(f"c{at}" for at in range(len(names)))))
    load = begin_load(
        connection.database,
        LoadRequest(insert.table, target.statement, connection.role, load_id=target.plan.load_id),
        warehouse_url=connection.warehouse,
        clock=clock,
    )
    try:
        load = as_written(load, target)
        with kept(connection.database, load, clock=clock):
            written = _run(given, target.plan)
            count = sum(each.rows for each in written)
            files = [file for each in written for file in each.files]
            totals = LoadTotals(0, count, 0, sum(file.size for file in files))
            commit_load(connection.database, load, LoadResult(files, (), totals), clock=clock)
    except UnknownOutcome:
        raise
    except BaseException as error:
        abort_load(connection.database, load, _sentence(error), clock=clock)
        if isinstance(error, SnowmeltError):
            raise
        sentence = _of_worker(str(error))
        if sentence is None:
            raise
        raise LoadRefused(what=f"INSERT INTO {insert.table}", reason=sentence) from error
    return count


def _run(frame: DataFrame, plan: WritePlan) -> list[Written]:
    outcomes = frame.mapInArrow(partial(_write, plan), "outcome binary").collect()
    # Written by our own tasks.
    return [pickle.loads(row.outcome) for row in outcomes]  # noqa: S301


def _write(plan: WritePlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    outcome = pickle.dumps(write_rows(plan, batches))
    yield pa.RecordBatch.from_arrays([pa.array([outcome], pa.binary())], names=["outcome"])


def _names(connection: Connection, insert: Insert, count: int) -> list[str]:
    with connection.database.reading() as reading:
        schema = find_table(reading, insert.table).schema
    return by_position(schema, insert.columns, count, insert.table)


def _plain(rows: DataFrame) -> DataFrame:
    """Return rows with documents as JSON: Python's side of Spark has no VARIANT everywhere."""
    return rows.select(
        *(
            to_json(col(in_backticks(field.name))).alias(field.name)
            if isinstance(field.dataType, st.VariantType)
            else col(in_backticks(field.name))
            for field in rows.schema.fields
        )
    )


def _columns(tokens: Sequence[Token], at: int) -> tuple[tuple[str, ...] | None, int]:
    """Return the columns in parentheses behind the table, and where what follows them begins."""
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
            raise _wrong("columns of an INSERT are names with commas between them")
        names.append(display_name(token.text if quoted else token.text.upper()))
        at += 1
        if at < len(tokens) and tokens[at].token_type == TokenType.COMMA:
            at += 1
    return tuple(names), at + 1


def _query(text: str, tokens: Sequence[Token]) -> str:
    """Return what makes the rows; DEFAULT, which no column has another of, as NULL."""
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
    return query + text[begin:end]


def _wrong(reason: str) -> StatementError:
    return StatementError(f"{reason[0].upper()}{reason[1:]}.", reason=reason)


def _sentence(error: BaseException) -> str:
    return _of_worker(str(error)) or str(error).partition("\n")[0] or type(error).__name__


def _of_worker(text: str) -> str | None:
    """Return the sentence of an error of ours that a task has raised."""
    for line in reversed(text.splitlines()):
        name, found, sentence = line.strip().partition(": ")
        if found and name.startswith("snowmelt.errors."):
            return sentence.rstrip(".")
    return None
