"""Projection of parsed columns to the table's columns: computed, copied or default values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from snowmelt.errors import InternalError, LoadFailed
from snowmelt.load.file_metadata import add_file_columns, make_file_columns
from snowmelt.load.phase_protocols import ParsedBatch, ParseReject, ParseTarget
from snowmelt.load.portion import InputFile
from snowmelt.load.task import ComputedExpression, StackPlan
from snowmelt.schema.conversion.default_values import make_default_native_arrays
from snowmelt.schema.iceberg_table_form import native_fields, native_schema
from snowmelt.schema.types import (
    Column,
    LogicalType,
    TableSchema,
    to_display_name,
    to_internal_name,
)

if TYPE_CHECKING:
    from snowmelt.load.expressions.evaluator import ExpressionFailure

UNKNOWN_OFFSET = -1
_TRUNCATABLE_KINDS = frozenset({LogicalType.TEXT, LogicalType.BINARY})


class ColumnProjector:
    """Converter of blocks of parsed columns to blocks of the table's columns."""

    def __init__(self, plan: StackPlan) -> None:
        """Translate and check the expressions.

        Raises:
            LoadRefused: If an expression is invalid, or its type does not fit its column.
        """
        parsed = native_schema(plan.target.schema)
        self._table = native_schema(plan.table)
        self._plan = plan
        self._defaults: dict[str, pa.Scalar] | None = None
        self._is_identity = parsed.equals(self._table)
        self._copied_columns = {
            field.name: field.name
            for column in plan.target.schema.columns
            if plan.table.column(column.name) == column
            for field in native_fields(column)
        }
        evaluated = []
        for computed in plan.computed:
            copied = _map_copied_columns(computed, plan)
            self._copied_columns.update(copied)
            if not copied:
                evaluated.append(computed)
        self._computed_columns = _ComputedColumns(plan, evaluated) if evaluated else None

    def project(self, batch: ParsedBatch, records_before: int, file: InputFile) -> ParsedBatch:
        """Return a block in the table's native form.

        Rejects a row if a computed value is NULL in a NOT NULL column, or too long for a column
        that enforces its length. If the plan rejects failed expressions, also rejects a row if an
        expression or the conversion of its value fails. The reject contains the parsed values,
        separated by `|`.

        Args:
            batch: Parsed columns.
            records_before: Number of records in the portion before this block.
            file: The file of the records.

        Raises:
            LoadFailed: If an expression fails, and the plan does not reject its row or too many rows
                of the portion were rejected for that reason. The error names the expression and the
                record.
        """
        if self._is_identity:
            return batch
        if self._computed_columns is None:
            return replace(batch, rows=self._arrange_columns(batch.rows, None))
        numbers = _list_record_numbers(batch, records_before)
        table, refused, failure = self._computed_columns.compute(batch.rows, file, numbers)
        if failure is not None:
            raise _make_load_failure(failure, numbers, file.path)
        rows = self._arrange_columns(batch.rows, table)
        truncated = batch.truncated_values + self._computed_columns.pop_truncated_count()
        if not refused:
            return replace(batch, rows=rows, truncated_values=truncated)
        keep = np.ones(rows.num_rows, np.bool_)
        keep[list(refused)] = False
        late = [
            ParseReject(
                numbers[place],
                UNKNOWN_OFFSET,
                _format_rejected_row(batch.rows, place),
                reason,
                name,
            )
            for place, (name, reason) in refused.items()
        ]
        rejects = tuple(sorted((*batch.rejects, *late), key=lambda reject: reject.record))
        return replace(
            batch, rows=rows.filter(pa.array(keep)), rejects=rejects, truncated_values=truncated
        )

    def _arrange_columns(self, parsed: pa.Table, evaluated: pa.Table | None) -> pa.Table:
        """Return the table's columns: computed, parsed or default."""
        arrays = []
        defaults = self._make_defaults()
        for field in self._table:
            if evaluated is not None and field.name in evaluated.schema.names:
                arrays.append(evaluated.column(field.name))
            elif field.name in self._copied_columns:
                arrays.append(parsed.column(self._copied_columns[field.name]))
            elif field.name in defaults:
                arrays.append(pa.repeat(defaults[field.name], parsed.num_rows))
            else:
                arrays.append(pa.nulls(parsed.num_rows, field.type))
        return pa.Table.from_arrays(arrays, schema=self._table)

    def _make_defaults(self) -> dict[str, pa.Scalar]:
        """Return the default values by native field. Computes them once, for the first block."""
        if self._defaults is None:
            self._defaults = {
                field.name: array[0]
                for column in self._plan.table.columns
                if column.default is not None
                for field, array in zip(
                    native_fields(column),
                    make_default_native_arrays(column, 1, self._plan.started_at),
                    strict=True,
                )
            }
        return self._defaults


class _ComputedColumns:
    """Computed columns: their expressions, and the conversion of the results to column types."""

    def __init__(self, plan: StackPlan, computed: Sequence[ComputedExpression]) -> None:
        # Import late: a load without expressions does not need DuckDB.
        from snowmelt.load.column_converter import TableConverter
        from snowmelt.load.expressions.evaluator import ExpressionEvaluator

        schema = TableSchema(1, tuple(_find_table_column(each.column, plan) for each in computed))
        columns = zip(computed, schema.columns, strict=True)
        parsed = plan.target.schema.columns
        following = max((column.ordinal for column in parsed), default=0) + 1
        about_file = make_file_columns(plan.partition_columns, following)
        self._evaluator = ExpressionEvaluator(
            TableSchema(1, (*parsed, *about_file)), list(columns), plan.started_at
        )
        self._file_columns = [
            column for column in about_file if column.name in self._evaluator.used_names
        ]
        self._has_files = plan.source.name.upper() in {"FILE", "URL"}
        self._started_at = plan.started_at
        self._rejects_failures = plan.rejects_failed_expressions
        self._converter = TableConverter(ParseTarget(schema, {}, plan.target.enforce_length))
        self._by_name = {
            column.display_name: (column, each)
            for column, each in zip(schema.columns, computed, strict=True)
        }
        for text_column in self._converter.columns:
            text_column.rounds = True

    def compute(
        self, rows: pa.Table, file: InputFile, numbers: Sequence[int]
    ) -> tuple[pa.Table, Mapping[int, tuple[str, str]], ExpressionFailure | None]:
        """Return all rows, the column and reason of each rejected row, and the failure, if any."""
        from snowmelt.load.column_converter import NOT_NULL_VIOLATION
        from snowmelt.load.expressions.evaluator import ExpressionFailure, describe_expression

        about = file if self._has_files else None
        given = add_file_columns(rows, self._file_columns, about, numbers, self._started_at)
        texts = self._evaluator.evaluate_rows(given)
        failures: Mapping[int, ExpressionFailure] = {}
        if isinstance(texts, ExpressionFailure):
            if not self._rejects_failures:
                return rows, {}, texts
            evaluated = self._evaluator.evaluate_each_row(given)
            if isinstance(evaluated, ExpressionFailure):
                return rows, {}, evaluated
            texts, failures = evaluated
        table, refused = self._converter.convert_columns(texts, rows.num_rows)
        if self._rejects_failures:
            failed = {
                place: (
                    to_display_name(failure.expression.column),
                    f"{describe_expression(failure.expression)}: {failure.reason}",
                )
                for place, failure in failures.items()
            }
            return table, {**refused, **failed}, None
        for place, (name, reason) in sorted(refused.items()):
            column, computed = self._by_name[name]
            if not reason.endswith(NOT_NULL_VIOLATION) and column.kind not in _TRUNCATABLE_KINDS:
                return table, {}, ExpressionFailure(computed, place, reason)
        return table, refused, None

    def pop_truncated_count(self) -> int:
        """Return the number of computed values truncated since the last call."""
        return self._converter.pop_truncated_count()


def _find_table_column(name: str, plan: StackPlan) -> Column:
    column = plan.table.column(name)
    if column is None:
        raise InternalError(f"Expression for unknown column {name}")
    return column


def _map_copied_columns(computed: ComputedExpression, plan: StackPlan) -> dict[str, str]:
    """Return the source of each native column that an expression copies from a parsed column.

    Return nothing if the expression is not just the name of a column of the same type.
    """
    written = computed.sql.strip()
    if not (written.isidentifier() or (written[:1] == written[-1:] == '"')):
        return {}
    source = plan.target.schema.column(to_internal_name(written))
    column = _find_table_column(computed.column, plan)
    alike = source is not None and column == replace(
        source, name=column.name, ordinal=column.ordinal, default=column.default
    )
    if source is None or not alike:
        return {}
    pairs = zip(native_fields(column), native_fields(source), strict=True)
    return {to.name: of.name for to, of in pairs}


def _list_record_numbers(batch: ParsedBatch, records_before: int) -> list[int]:
    """Return the record number of each row, from 1 in the portion."""
    rejected = {reject.record for reject in batch.rejects}
    numbers = range(records_before + 1, records_before + 1 + batch.records)
    return [number for number in numbers if number not in rejected]


def _format_rejected_row(rows: pa.Table, row_index: int) -> bytes:
    values = rows.slice(row_index, 1).to_pylist()[0].values()
    return "|".join("" if value is None else str(value) for value in values).encode()


def _make_load_failure(
    failure: ExpressionFailure, numbers: Sequence[int], file_path: str
) -> LoadFailed:
    from snowmelt.load.expressions.evaluator import describe_expression

    where = [file_path, describe_expression(failure.expression)]
    if failure.row_index is not None:
        where.append(f"record {numbers[failure.row_index]:,}")
    return LoadFailed(where=", ".join(where), reason=failure.reason, file=file_path)
