"""From the columns that were parsed to the columns of the table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from snowmelt.errors import InternalError, LoadFailed
from snowmelt.load.phases import Parsed, Rejected, Target
from snowmelt.schema.native_types import native_fields, native_schema
from snowmelt.schema.types import Column, LogicalType, TableSchema, internal_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from snowmelt.load.expressions.evaluator import Failure
    from snowmelt.load.task import Computed, StackPlan

UNKNOWN_OFFSET = -1
_CUT = frozenset({LogicalType.TEXT, LogicalType.BINARY})


class Shaper:
    """Turns blocks of parsed columns into blocks of the table's columns."""

    def __init__(self, plan: StackPlan) -> None:
        """Check the expressions.

        Raises:
            LoadRefused: One cannot be understood, or does not fit the types of the columns.
        """
        parsed = native_schema(plan.target.schema)
        self._table = native_schema(plan.table)
        self._as_it_is = parsed.equals(self._table)
        self._taken = {
            field.name: field.name
            for column in plan.target.schema.columns
            if plan.table.column(column.name) == column
            for field in native_fields(column)
        }
        evaluated = []
        for computed in plan.computed:
            copied = _copied(computed, plan)
            self._taken.update(copied)
            if not copied:
                evaluated.append(computed)
        self._evaluation = _Evaluation(plan, evaluated) if evaluated else None

    def shape(self, block: Parsed, before: int, file: str) -> Parsed:
        """Return a block in native form of the table; `before` counts the records before it.

        Rows whose computed value is NULL where it may not be, or too long where lengths are
        enforced, become rejects; they hold the parsed values, with `|` between them.

        Raises:
            LoadFailed: An expression fails; says which, and for which record of which file.
        """
        if self._as_it_is:
            return block
        if self._evaluation is None:
            return replace(block, rows=self._arranged(block.rows, None))
        table, refused, failure = self._evaluation.values(block.rows)
        if failure is not None:
            raise _failed(failure, block, before, file)
        rows = self._arranged(block.rows, table)
        if not refused:
            return replace(block, rows=rows)
        keep = np.ones(rows.num_rows, np.bool_)
        keep[list(refused)] = False
        numbers = _record_numbers(block, before)
        late = [
            Rejected(numbers[place], UNKNOWN_OFFSET, _written(block.rows, place), reason, name)
            for place, (name, reason) in refused.items()
        ]
        rejects = tuple(sorted((*block.rejects, *late), key=lambda reject: reject.record))
        return Parsed(rows.filter(pa.array(keep)), rejects, block.records)

    def _arranged(self, parsed: pa.Table, evaluated: pa.Table | None) -> pa.Table:
        """Return the table's columns: computed, parsed, or NULL."""
        arrays = []
        for field in self._table:
            if evaluated is not None and field.name in evaluated.schema.names:
                arrays.append(evaluated.column(field.name))
            elif field.name in self._taken:
                arrays.append(parsed.column(self._taken[field.name]))
            else:
                arrays.append(pa.nulls(parsed.num_rows, field.type))
        return pa.Table.from_arrays(arrays, schema=self._table)


class _Evaluation:
    """The expressions, and the conversion of their values to the types of their columns."""

    def __init__(self, plan: StackPlan, computed: Sequence[Computed]) -> None:
        # Late: a load without expressions does without DuckDB.
        from snowmelt.load.column_converter import Conversion
        from snowmelt.load.expressions.evaluator import Calculator

        schema = TableSchema(1, tuple(_column(each.column, plan) for each in computed))
        columns = zip(computed, schema.columns, strict=True)
        self._calculator = Calculator(plan.target.schema, list(columns), plan.started_at)
        self._conversion = Conversion(Target(schema, {}, plan.target.enforce_length))
        self._by_name = {
            column.display_name: (column, each)
            for column, each in zip(schema.columns, computed, strict=True)
        }
        for text_column in self._conversion.columns:
            text_column.rounds = True

    def values(
        self, rows: pa.Table
    ) -> tuple[pa.Table, Mapping[int, tuple[str, str]], Failure | None]:
        """Return all rows, those that become rejects with column and reason, or the failure."""
        from snowmelt.load.column_converter import NULL_REFUSED
        from snowmelt.load.expressions.evaluator import Failure

        texts = self._calculator.compute(rows)
        if isinstance(texts, Failure):
            return rows, {}, texts
        table, refused = self._conversion.convert(texts, rows.num_rows)
        for place, (name, reason) in sorted(refused.items()):
            column, computed = self._by_name[name]
            if not reason.endswith(NULL_REFUSED) and column.kind not in _CUT:
                return table, {}, Failure(computed, place, reason)
        return table, refused, None


def _column(name: str, plan: StackPlan) -> Column:
    column = plan.table.column(name)
    if column is None:
        raise InternalError(f"An expression is for column {name}, which the table has not")
    return column


def _copied(computed: Computed, plan: StackPlan) -> dict[str, str]:
    """Return the native columns that an expression copies as they are; none if it does more."""
    written = computed.sql.strip()
    if not (written.isidentifier() or (written[:1] == written[-1:] == '"')):
        return {}
    source = plan.target.schema.column(internal_name(written))
    column = _column(computed.column, plan)
    alike = source is not None and column == replace(
        source, name=column.name, ordinal=column.ordinal
    )
    if source is None or not alike:
        return {}
    pairs = zip(native_fields(column), native_fields(source), strict=True)
    return {to.name: of.name for to, of in pairs}


def _record_numbers(block: Parsed, before: int) -> list[int]:
    """Return the number, from 1 in the portion, of the record of each row."""
    rejected = {reject.record for reject in block.rejects}
    numbers = range(before + 1, before + 1 + block.records)
    return [number for number in numbers if number not in rejected]


def _written(rows: pa.Table, place: int) -> bytes:
    values = rows.slice(place, 1).to_pylist()[0].values()
    return "|".join("" if value is None else str(value) for value in values).encode()


def _failed(failure: Failure, block: Parsed, before: int, file: str) -> LoadFailed:
    from snowmelt.load.expressions.evaluator import named

    where = [file, named(failure.computed)]
    if failure.row is not None:
        where.append(f"record {_record_numbers(block, before)[failure.row]:,}")
    return LoadFailed(where=", ".join(where), reason=failure.reason, file=file)
