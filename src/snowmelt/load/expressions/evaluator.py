"""Evaluation of computed COPY columns from parsed columns, block by block, in DuckDB.

Each expression yields text, which is then converted like a parsed field, so the same conversion
rules hold for both. DuckDB sees only the parsed columns of the block: no files, no network, no
extensions and no settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from snowmelt.errors import LoadRefused
from snowmelt.load.expressions.duckdb_functions import register_functions, register_template_readers
from snowmelt.load.expressions.sql_translation import DatetimeTemplateRegistry, translate_expression
from snowmelt.load.expressions.types import (
    ExpressionInvalid,
    ExpressionType,
    TypedSql,
    expression_type_for_column,
    render_assigned_text,
)
from snowmelt.schema.chunk_types import to_contiguous_array
from snowmelt.schema.iceberg_table_form import native_schema
from snowmelt.schema.types import to_display_name

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from snowmelt.load.task import ComputedExpression
    from snowmelt.schema.types import Column, TableSchema

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
    """An expression that failed: which, at which row of the block (None: not one row's), why."""

    expression: ComputedExpression
    row_index: int | None
    reason: str


class ExpressionEvaluator:
    """Computes the expressions of one load; not for several threads at once."""

    def __init__(
        self,
        parsed: TableSchema,
        computed: Sequence[tuple[ComputedExpression, Column]],
        started_at: dt.datetime | None,
    ) -> None:
        """Check the expressions, each with the column that it is for, against the parsed columns.

        Raises:
            LoadRefused: One cannot be understood, or does not fit the types of the columns.
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
        names = {
            column.name: _render_column_reference(place, column)
            for place, column in _index_parsed_columns(parsed)
        }
        places = {column.name: place for place, column in _index_parsed_columns(parsed)}
        self._expression_sql = []
        readers = DatetimeTemplateRegistry()
        used: set[str] = set()
        for each, column in computed:
            value, columns = translate_expression(
                each.sql,
                names,
                started_at,
                label=describe_expression(each),
                template_registry=readers,
            )
            try:
                self._expression_sql.append(render_assigned_text(value, column))
            except ExpressionInvalid as error:
                raise LoadRefused(what=describe_expression(each), reason=str(error)) from None
            used |= columns
        register_template_readers(self._connection, readers.readers)
        for setting in _DUCKDB_SETTINGS:
            self._connection.execute(setting)
        self._used = sorted((places[name], name) for name in used)
        self._register_rows(native_schema(parsed).empty_table())
        for each, sql in zip(self._expressions, self._expression_sql, strict=True):
            self._check_expression(each, sql)

    def evaluate_rows(self, rows: pa.Table) -> list[pa.Array] | ExpressionFailure:
        """Return the values of each expression as texts, or why there is none."""
        try:
            return self._evaluate(rows, self._expression_sql)
        except duckdb.Error:
            return self._find_failing_row(rows)

    def _check_expression(self, computed: ComputedExpression, sql: str) -> None:
        """Let DuckDB look at an expression that was translated."""
        try:
            self._connection.sql(f"SELECT {sql} FROM {_VIEW_NAME}")
        except duckdb.Error as error:
            raise LoadRefused(
                what=describe_expression(computed), reason=_format_duckdb_error(error)
            ) from None

    def _register_rows(self, rows: pa.Table) -> None:
        arrays = [rows.column(name) for _, name in self._used]
        names = [f"c{place}" for place, _ in self._used]
        # A table without columns has no rows to compute from.
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
            raise duckdb.InvalidInputException("an expression gives more than one value for a row")
        return [to_contiguous_array(column.cast(pa.string())) for column in found.columns]

    def _find_failing_row(self, rows: pa.Table) -> ExpressionFailure:
        """Find the first row that an expression fails for, by halves."""
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
            self._expressions[0], None, "the expressions fail together, but not alone"
        )

    def _find_error(self, rows: pa.Table, expression_sql: str) -> str | None:
        try:
            self._evaluate(rows, [expression_sql])
        except duckdb.Error as error:
            return _format_duckdb_error(error)
        return None


def describe_expression(computed: ComputedExpression) -> str:
    """Say which expression it is, as errors do."""
    return f"column {to_display_name(computed.column)} AS {computed.sql}"


def _index_parsed_columns(parsed_schema: TableSchema) -> list[tuple[int, Column]]:
    return list(enumerate(parsed_schema.columns))


def _render_column_reference(index: int, column: Column) -> TypedSql:
    """Return what stands for a column: whole numbers as such, so that functions take them."""
    found = expression_type_for_column(column)
    sql = f'"c{index}"'
    return TypedSql(f"CAST({sql} AS BIGINT)" if found is ExpressionType.INTEGER else sql, found)


def _format_duckdb_error(error: duckdb.Error) -> str:
    line = str(error).partition("\n")[0]
    reason = line.rpartition(_UDF_ERROR_PREFIX)[2]
    return reason.removeprefix("Invalid Input Error: ").removeprefix("ValueError: ")
