"""Evaluation of computed COPY columns from parsed columns, block by block, in DuckDB.

Each expression yields text, which is converted by the same rules as a parsed field. DuckDB can
access only the parsed columns of the block: no files, no network, no extensions and no settings.
Vertica functions that DuckDB lacks are registered on its connection, as macros if DuckDB's own
functions suffice, otherwise as Python functions over whole columns.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.errors import InvalidValue, LoadRefused
from snowmelt.load.expressions.datetime_templates import DatetimeTemplateReader
from snowmelt.load.expressions.sql_translation import translate_expression
from snowmelt.load.expressions.types import (
    ExpressionInvalid,
    ExpressionType,
    TypedSql,
    expression_type_for_column,
    render_assigned_text,
)
from snowmelt.load.task import ComputedExpression
from snowmelt.schema.chunk_types import to_contiguous_array
from snowmelt.schema.conversion.timestamps import TimestampSyntaxError, parse_time, parse_timestamp
from snowmelt.schema.iceberg_table_form import native_schema
from snowmelt.schema.types import Column, TableSchema, TimestampTextFormat, to_display_name

Read: TypeAlias = Callable[[str], object]

# Finding a failing row takes milliseconds, so the number of failing rows is limited.
MAX_FAILED_ROWS = 1000
_MEMORY_LIMIT = "256MiB"
_DUCKDB_SETTINGS = (
    f"SET memory_limit='{_MEMORY_LIMIT}'",
    "SET temp_directory=''",
    "SET TimeZone='UTC'",
    "SET python_enable_replacements=false",
    "SET enable_external_access=false",
    "SET lock_configuration=true",
)
_VIEW_NAME = "parsed"
_UDF_ERROR_PREFIX = "while executing the UDF: "


@dataclass(frozen=True, slots=True)
class ExpressionFailure:
    """Failed expression with the reason.

    `row_index` is the row's index in the block, or None if no single row causes the failure.
    """

    expression: ComputedExpression
    row_index: int | None
    reason: str


class ExpressionEvaluator:
    """Evaluator of the expressions of one load. Not thread-safe."""

    def __init__(
        self,
        parsed: TableSchema,
        computed: Sequence[tuple[ComputedExpression, Column]],
        started_at: dt.datetime | None,
    ) -> None:
        """Translate and check the expressions.

        Args:
            parsed: Parsed columns.
            computed: Each expression with its target column.
            started_at: Current time for the expressions, timezone-aware. None: not available.

        Raises:
            LoadRefused: If an expression is invalid, or its type does not fit its column.
        """
        self._connection = duckdb.connect(
            config={
                "threads": 1,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            }
        )
        register_functions(self._connection)
        self._expressions = tuple(each for each, _ in computed)
        self._failed_rows = 0
        names = {
            column.name: _render_column_reference(place, column)
            for place, column in enumerate(parsed.columns)
        }
        places = {column.name: place for place, column in enumerate(parsed.columns)}
        self._expression_sql = []
        readers: list[DatetimeTemplateReader] = []
        used: set[str] = set()
        for each, column in computed:
            value, columns = translate_expression(
                each.sql,
                names,
                started_at,
                label=describe_expression(each),
                template_readers=readers,
            )
            try:
                self._expression_sql.append(render_assigned_text(value, column))
            except ExpressionInvalid as error:
                raise LoadRefused(what=describe_expression(each), reason=str(error)) from None
            used |= columns
        register_template_readers(self._connection, readers)
        for setting in _DUCKDB_SETTINGS:
            self._connection.execute(setting)
        self._used = sorted((places[name], name) for name in used)
        self._register_rows(native_schema(parsed).empty_table())
        for each, sql in zip(self._expressions, self._expression_sql, strict=True):
            try:
                self._connection.sql(f"SELECT {sql} FROM {_VIEW_NAME}")
            except duckdb.Error as error:
                reason = _format_duckdb_error(error)
                raise LoadRefused(what=describe_expression(each), reason=reason) from None

    @property
    def used_names(self) -> frozenset[str]:
        """Internal names of the columns that the expressions use."""
        return frozenset(name for _, name in self._used)

    def evaluate_rows(self, rows: pa.Table) -> list[pa.Array] | ExpressionFailure:
        """Return the values of each expression as text, or the first failure."""
        try:
            return self._evaluate(rows, self._expression_sql)
        except duckdb.Error:
            return self._find_failing_row(rows)

    def evaluate_each_row(
        self, rows: pa.Table
    ) -> tuple[list[pa.Array], dict[int, ExpressionFailure]] | ExpressionFailure:
        """Return the values of each expression as text, and the failure of each failing row.

        The values of a failing row are NULL. Blocks that fail are halved until one row is left.
        Returns only the failure of a row if MAX_FAILED_ROWS rows have failed before.
        """
        parts: list[list[pa.Array]] = []
        failures: dict[int, ExpressionFailure] = {}
        waiting = [(0, rows.num_rows)]
        while waiting:
            start, count = waiting.pop()
            part = rows.slice(start, count)
            try:
                parts.append(self._evaluate(part, self._expression_sql))
            except duckdb.Error:
                if count > 1:
                    half = count // 2
                    waiting += [(start + half, count - half), (start, half)]
                    continue
                failure = replace(self._find_failing_row(part), row_index=start)
                if self._failed_rows == MAX_FAILED_ROWS:
                    return failure
                self._failed_rows += 1
                failures[start] = failure
                parts.append([pa.nulls(1, pa.string())] * len(self._expressions))
        return [pa.concat_arrays(arrays) for arrays in zip(*parts, strict=True)], failures

    def _register_rows(self, rows: pa.Table) -> None:
        arrays = [rows.column(name) for _, name in self._used]
        names = [f"c{place}" for place, _ in self._used]
        # A table without columns would have no rows.
        arrays.append(pa.nulls(rows.num_rows, pa.int8()))
        self._connection.register(_VIEW_NAME, pa.Table.from_arrays(arrays, names=[*names, "row"]))

    def _evaluate(self, rows: pa.Table, expressions_sql: Sequence[str]) -> list[pa.Array]:
        self._register_rows(rows)
        try:
            found = self._connection.sql(
                f"SELECT {', '.join(expressions_sql)} FROM {_VIEW_NAME}"
            ).to_arrow_table()
        finally:
            self._connection.unregister(_VIEW_NAME)
        if found.num_rows != rows.num_rows:
            raise duckdb.InvalidInputException("an expression returns more than one value per row")
        return [to_contiguous_array(column.cast(pa.string())) for column in found.columns]

    def _find_failing_row(self, rows: pa.Table) -> ExpressionFailure:
        """Find the first failing expression and its first failing row by bisection."""
        for computed, written in zip(self._expressions, self._expression_sql, strict=True):
            reason = self._find_error(rows, written)
            if reason is None:
                continue
            start, count = 0, rows.num_rows
            while count > 1:
                half = count // 2
                found = self._find_error(rows.slice(start, half), written)
                if found is None:
                    start, count = start + half, count - half
                else:
                    count, reason = half, found
            alone = self._find_error(rows.slice(start, 1), written)
            return ExpressionFailure(computed, None if alone is None else start, alone or reason)
        return ExpressionFailure(
            self._expressions[0], None, "the expressions fail together, but not one by one"
        )

    def _find_error(self, rows: pa.Table, expression_sql: str) -> str | None:
        try:
            self._evaluate(rows, [expression_sql])
        except duckdb.Error as error:
            return _format_duckdb_error(error)
        return None


def describe_expression(computed: ComputedExpression) -> str:
    """Return the label of an expression for error messages."""
    return f"column {to_display_name(computed.column)} AS {computed.sql}"


def _render_column_reference(index: int, column: Column) -> TypedSql:
    """Return the DuckDB reference of a column. Integers are cast to BIGINT, as functions require."""
    found = expression_type_for_column(column)
    sql = f'"c{index}"'
    return TypedSql(f"CAST({sql} AS BIGINT)" if found is ExpressionType.INTEGER else sql, found)


def _format_duckdb_error(error: duckdb.Error) -> str:
    line = str(error).partition("\n")[0]
    reason = line.rpartition(_UDF_ERROR_PREFIX)[2]
    return reason.removeprefix("Invalid Input Error: ").removeprefix("ValueError: ")


_IS_ASCII_SQL = "regexp_matches(s, '^[\\x00-\\x7F]*$')"
_DIGITS_SQL = "CAST(replace(CAST({0} AS VARCHAR), '.', '') AS HUGEINT)"
# Number of digits after the decimal point.
_SCALE_SQL = (
    "CASE WHEN contains(CAST({0} AS VARCHAR), '.') "
    "THEN strlen(CAST({0} AS VARCHAR)) - strpos(CAST({0} AS VARCHAR), '.') ELSE 0 END"
)
# Number of digits after the decimal point of a quotient.
_QUOTIENT_SCALE = 18
_MACROS = (
    f"unicode_upper(s) AS CASE WHEN {_IS_ASCII_SQL} THEN upper(s) ELSE python_upper(s) END",
    f"unicode_lower(s) AS CASE WHEN {_IS_ASCII_SQL} THEN lower(s) ELSE python_lower(s) END",
    (
        "cut_octets(s, n) AS CASE WHEN strlen(s) <= n THEN s WHEN strlen(s) = length(s) "
        "THEN left(s, n) ELSE python_cut(s, n) END"
    ),
    "hex_digits(s) AS regexp_replace(s, '^0[xX]', '')",
    (
        "hex_to_binary(s) AS CASE WHEN NOT regexp_matches(s, '^(0[xX])?([0-9a-fA-F]{2})*$') "
        "THEN error('HEX_TO_BINARY: expected pairs of hexadecimal digits') "
        "ELSE unhex(hex_digits(s)) END"
    ),
    (
        "hex_to_integer(s) AS CASE WHEN NOT regexp_matches(s, '^(0[xX])?[0-9a-fA-F]{1,15}$') "
        "THEN error('HEX_TO_INTEGER: expected 1 to 15 hexadecimal digits') "
        "ELSE CAST('0x' || hex_digits(s) AS BIGINT) END"
    ),
    "power_of_ten(n) AS CAST(rpad('1', CAST(n + 1 AS INTEGER), '0') AS HUGEINT)",
    f"digits_of(x) AS {_DIGITS_SQL.format('x')}",
    f"scale_of(x) AS {_SCALE_SQL.format('x')}",
    (
        "rounded_quotient(n, d) AS n // d + CASE WHEN abs(n % d) >= abs(d) - abs(n % d) "
        "THEN CASE WHEN (n < 0) = (d < 0) THEN 1 ELSE -1 END ELSE 0 END"
    ),
    (
        "divide_numbers(a, b) AS CAST(rounded_quotient("
        f"digits_of(a) * power_of_ten(greatest({_QUOTIENT_SCALE} + scale_of(b) - scale_of(a), 0)), "
        f"digits_of(b) * power_of_ten(greatest(scale_of(a) - scale_of(b) - {_QUOTIENT_SCALE}, 0))"
        f") AS DECIMAL(38,0)) * CAST('0.{'1':0>{_QUOTIENT_SCALE}}' AS DECIMAL(18,18))"
    ),
)


def register_functions(connection: duckdb.DuckDBPyConnection) -> None:
    """Register all functions except those for templates."""
    for name, change in (("python_upper", str.upper), ("python_lower", str.lower)):
        _create_function(connection, name, _apply_to_distinct(change, pa.string()), "VARCHAR")
    _create_function(connection, "python_cut", _truncate_octets, "VARCHAR", ("VARCHAR", "BIGINT"))
    for name, read, arrow, result in _TEXT_READERS:
        _create_function(connection, f"read_{name}", _apply_to_distinct(read, arrow), result)
        lenient = _apply_to_distinct(_return_none_on_error(read), arrow)
        _create_function(connection, f"try_read_{name}", lenient, result)
    for macro in _MACROS:
        connection.execute(f"CREATE TEMP MACRO {macro}")


def register_template_readers(
    connection: duckdb.DuckDBPyConnection, readers: Sequence[DatetimeTemplateReader]
) -> None:
    """Register the functions that parse text by templates."""
    for number, reader in enumerate(readers):
        _create_function(
            connection, f"read_template_{number}", _make_template_function(reader), "TIMESTAMP"
        )


def _create_function(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    function: Callable[..., pa.Array],
    result: str,
    parameters: Sequence[str] = ("VARCHAR",),
) -> None:
    # Pass types as strings: the module of DuckDB's type objects differs between versions.
    create: Any = connection.create_function
    create(name, function, list(parameters), result, type="arrow", null_handling="special")


def _apply_to_distinct(
    parse: Read, arrow_type: pa.DataType
) -> Callable[[pa.ChunkedArray], pa.Array]:
    """Return a column function that parses each distinct text once."""

    def function(texts: pa.ChunkedArray) -> pa.Array:
        found = to_contiguous_array(texts).dictionary_encode()
        try:
            values = [
                None if text is None else parse(text) for text in found.dictionary.to_pylist()
            ]
        except InvalidValue as error:
            raise ValueError(error.fields["reason"]) from None
        return pa.array(values, arrow_type).take(found.indices)

    return function


def _truncate_octets(texts: pa.ChunkedArray, lengths: pa.ChunkedArray) -> pa.Array:
    """Truncate texts to a number of bytes, without splitting a character."""
    cut = [
        None if text is None else text.encode()[:length].decode(errors="ignore")
        for text, length in zip(texts.to_pylist(), lengths.to_pylist(), strict=True)
    ]
    return pa.array(cut, pa.string())


def _make_template_function(
    reader: DatetimeTemplateReader,
) -> Callable[[pa.ChunkedArray], pa.Array]:
    exact = _apply_to_distinct(
        lambda text: _parse_timestamp_us(reader.read(text).iso_timestamp), pa.timestamp("us")
    )

    def function(texts: pa.ChunkedArray) -> pa.Array:
        array = to_contiguous_array(texts)
        if reader.bulk_pattern is None:
            return exact(texts)
        pattern, iso = reader.bulk_pattern
        if pc.all(pc.match_substring_regex(array, pattern)).as_py() is False:
            return exact(texts)
        try:
            return pc.replace_substring_regex(array, pattern, iso).cast(pa.timestamp("us"))
        except pa.ArrowInvalid:
            return exact(texts)

    return function


def _parse_timestamp_us(text: str, *, apply_offset: bool = False) -> int:
    try:
        found = parse_timestamp(text, TimestampTextFormat.VERTICA)
    except TimestampSyntaxError as error:
        reason = error.reason or f"{text[:80]!r} is not a date or timestamp"
        raise InvalidValue(reason=reason) from None
    seconds = found.local_s - ((found.offset_s or 0) if apply_offset else 0)
    return seconds * 1_000_000 + found.nanos // 1000


def _parse_epoch_day(text: str) -> int:
    return _parse_timestamp_us(text) // 86_400_000_000


def _parse_time_us(text: str) -> int:
    try:
        seconds, nanos = parse_time(text, TimestampTextFormat.VERTICA)
    except TimestampSyntaxError as error:
        reason = error.reason or f"{text[:80]!r} is not a time of day"
        raise InvalidValue(reason=reason) from None
    return seconds * 1_000_000 + nanos // 1000


def _return_none_on_error(parse: Read) -> Read:
    def function(text: str) -> object:
        try:
            return parse(text)
        except InvalidValue:
            return None

    return function


_TEXT_READERS: tuple[tuple[str, Read, pa.DataType, str], ...] = (
    ("timestamp", _parse_timestamp_us, pa.timestamp("us"), "TIMESTAMP"),
    (
        "instant",
        lambda text: _parse_timestamp_us(text, apply_offset=True),
        pa.timestamp("us"),
        "TIMESTAMP",
    ),
    ("date", _parse_epoch_day, pa.date32(), "DATE"),
    ("time", _parse_time_us, pa.time64("us"), "TIME"),
)
