"""Result sinks: LIMIT, DISTINCT, ORDER BY and aggregation over block results, in object order.

Aggregation runs in row order. `AggregationLayout` maps group keys, aggregate arguments and fields
of the last row to the expressions that workers evaluate.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from snowmelt.kernels.slices import RowIndexes
from snowmelt.select.errors import ErrorBudget, SelectError
from snowmelt.select.execution.block_executor import BlockResult, SelectedRecords
from snowmelt.select.resource_limits import EngineSettings, MemoryBudget
from snowmelt.select.scalar.aggregates import Accumulator, make_accumulator
from snowmelt.select.scalar.evaluator import EvaluationContext, evaluate, is_true
from snowmelt.select.scalar.order_by import RowSorter, make_sort_key
from snowmelt.select.sql.ast import (
    AggregateExpr,
    ColumnRef,
    Expression,
    expand_aliases,
    replace_nodes,
    walk_in_source_order,
)
from snowmelt.select.sql.bound_query import BoundQuery
from snowmelt.select.timestamps import Timestamp
from snowmelt.select.vectors import VectorKind

if TYPE_CHECKING:
    from snowmelt.select.execution.serializer import OutputSegment, RecordSerializer


class RecordSink(Protocol):
    """Consumer of selected records in order."""

    @property
    def records_needed(self) -> int | None:
        """Number of further selected records that can change the result, or None for all."""

    def consume(self, block_result: BlockResult, record_count: int) -> Iterator[OutputSegment]:
        """Consume the first `record_count` records of a block result and yield output that is ready."""

    def finish(self) -> Iterator[OutputSegment]:
        """Yield the output that requires all records."""


class LimitWindow:
    """OFFSET and LIMIT over consecutive records."""

    def __init__(self, offset: int, limit: int | None) -> None:
        self._records_to_skip = offset
        self._records_left = limit

    @property
    def records_needed(self) -> int | None:
        """Number of further records needed, including those to skip, or None for all."""
        return (
            None
            if self._records_left is None
            else (self._records_to_skip + self._records_left if self._records_left else 0)
        )

    def clip_records(
        self, output: bytes | memoryview, record_ends: NDArray[np.int64]
    ) -> OutputSegment:
        """Return the part of the records that lies in the window."""
        skipped = min(self._records_to_skip, len(record_ends))
        self._records_to_skip -= skipped
        last = (
            len(record_ends)
            if self._records_left is None
            else min(len(record_ends), skipped + self._records_left)
        )
        if self._records_left is not None:
            self._records_left -= last - skipped
        if skipped == 0 and last == len(record_ends):
            return output, record_ends
        start = int(record_ends[skipped - 1]) if skipped else 0
        end = int(record_ends[last - 1]) if last > skipped else start
        return output[start:end], record_ends[skipped:last] - start


class StreamSink:
    """Sink that outputs records immediately."""

    def __init__(self, query: BoundQuery) -> None:
        self._window = LimitWindow(query.offset, query.limit)

    @property
    def records_needed(self) -> int | None:
        """Number of further records that the window needs, or None for all."""
        return self._window.records_needed

    def consume(self, block_result: BlockResult, record_count: int) -> Iterator[OutputSegment]:
        """Yield the records in the window."""
        end = int(block_result.record_ends[record_count - 1]) if record_count else 0
        yield self._window.clip_records(
            block_result.output[:end], block_result.record_ends[:record_count]
        )

    def finish(self) -> Iterator[OutputSegment]:
        """Yield nothing: all records have been output."""
        return iter(())


class BufferedSink:
    """Sink for DISTINCT and ORDER BY.

    The values of the selected records are the outputs, followed by the ORDER BY keys.
    """

    def __init__(self, query: BoundQuery, settings: EngineSettings, *, output_count: int) -> None:
        self._output_count = output_count
        self._window = LimitWindow(query.offset, query.limit)
        self._seen_keys: set[object] | None = set() if query.distinct else None
        self._budget = MemoryBudget(
            settings.group_memory_bytes,
            purpose="DISTINCT",
            setting_name="select_group_memory_bytes",
        )
        first = None if query.limit is None else query.offset + query.limit
        self._row_sorter = (
            RowSorter(query.order_by, first, settings.sort_memory_bytes) if query.order_by else None
        )
        self._records_seen = 0

    @property
    def records_needed(self) -> int | None:
        """0 if the window is full and records are not sorted, otherwise None (all records)."""
        return (
            None if self._row_sorter or self._window.records_needed else self._window.records_needed
        )

    def consume(self, block_result: BlockResult, record_count: int) -> Iterator[OutputSegment]:
        """Buffer or yield the records, without duplicates if the query is DISTINCT."""
        chosen = self._find_new_rows(block_result, record_count)
        bounds = np.concatenate((np.zeros(1, np.int64), block_result.record_ends))
        output = bytes(block_result.output)
        if self._row_sorter is None:
            parts = [output[bounds[place] : bounds[place + 1]] for place in chosen]
            yield self._window.clip_records(*concatenate_serialized_records(parts))
            return
        passed = block_result.selected
        total = len(passed.vectors) or len(passed.scalar_values[0]) if record_count else 0
        columns = [
            [make_sort_key(v) for v in passed.column_values(at)]
            for at in range(self._output_count, total)
        ]
        for place in chosen:
            keys = tuple(column[place] for column in columns)
            record = output[bounds[place] : bounds[place + 1]]
            self._row_sorter.add_row(keys, self._records_seen + place, record)
        self._records_seen += record_count

    def finish(self) -> Iterator[OutputSegment]:
        """Yield the sorted records."""
        if self._row_sorter is not None:
            yield self._window.clip_records(
                *concatenate_serialized_records(self._row_sorter.finish())
            )

    def _find_new_rows(self, block_result: BlockResult, record_count: int) -> list[int]:
        if self._seen_keys is None:
            return list(range(record_count))
        chosen = []
        for place, values in enumerate(self._iterate_distinct_keys(block_result, record_count)):
            identity = tuple(make_sort_key(each) for each in values)
            if identity not in self._seen_keys:
                self._budget.reserve(_estimate_key_bytes(values))
                self._seen_keys.add(identity)
                chosen.append(place)
        return chosen

    def _iterate_distinct_keys(
        self, block_result: BlockResult, record_count: int
    ) -> Iterator[tuple[object, ...]]:
        """Yield the DISTINCT key of each record: its values, or its output bytes for `*`."""
        if self._output_count:
            columns = [
                block_result.selected.column_values(at)[:record_count]
                for at in range(self._output_count)
            ]
            yield from zip(*columns, strict=True)
            return
        start = 0
        for end in block_result.record_ends[:record_count].tolist():
            yield (bytes(block_result.output[start:end]),)
            start = end


class AggregateSink:
    """Sink for aggregate queries, with or without GROUP BY.

    Groups are output in the order of their first record.
    """

    def __init__(
        self,
        query: BoundQuery,
        now: Timestamp,
        writer: RecordSerializer,
        settings: EngineSettings,
        error_budget: ErrorBudget,
    ) -> None:
        """Create a sink. Rows that an aggregate rejects are counted in `error_budget`."""
        self._query = query
        self._error_budget = error_budget
        self._now = now
        self._writer = writer
        self._settings = settings
        self._layout = AggregationLayout(query)
        self._argument_indexes = self._layout.list_argument_indexes()
        self._groups: dict[object, tuple[tuple[object, ...], list[Accumulator]]] = {}
        self._last_row_values: tuple[object, ...] = (None,) * len(self._layout.last_row_fields)
        self._budget = MemoryBudget(
            settings.group_memory_bytes,
            purpose="GROUP BY or DISTINCT",
            setting_name="select_group_memory_bytes",
        )
        if not self._layout.keys:
            self._groups[()] = ((), make_accumulators(query, self._budget))

    @property
    def records_needed(self) -> int | None:
        """None: all records are needed."""
        return None

    def consume(self, block_result: BlockResult, record_count: int) -> Iterator[OutputSegment]:
        """Aggregate the records. Yields nothing."""
        if record_count:
            self._aggregate_block(block_result, record_count)
        return iter(())

    def finish(self) -> Iterator[OutputSegment]:
        """Yield a record for each group that satisfies HAVING."""
        query, shape = self._query, self._layout
        outputs = [output.expression for output in query.outputs]
        orders = [order.expression for order in query.order_by]
        sink = BufferedSink(query, self._settings, output_count=len(outputs))
        found: list[tuple[object, ...]] = []
        records = []
        row = (
            RetainedRow(dict(zip(shape.last_row_fields, self._last_row_values, strict=True)))
            if self._last_row_values
            else None
        )
        scope = EvaluationContext(query, self._now)
        for keys, folded in self._groups.values():
            scope.begin_group(shape.map_group_results(keys, folded))
            if query.having is not None and not is_true(query.having, row, scope):
                continue
            values = tuple(evaluate(each, row, scope) for each in (*outputs, *orders))
            found.append(values)
            records.append(self._writer.serialize_record(values[: len(outputs)]))
        yield from sink.consume(make_block_result(found, records), len(records))
        yield from sink.finish()

    def _aggregate_block(self, block_result: BlockResult, record_count: int) -> None:
        passed = block_result.selected
        every = len(self._layout.expressions)
        first_last = every - len(self._layout.last_row_fields)
        self._last_row_values = tuple(
            passed.column_values(at)[record_count - 1] for at in range(first_last, every)
        )
        if not self._layout.keys and all(
            is_always_numeric_argument(passed, at) for at in self._argument_indexes
        ):
            _, folded = self._groups[()]
            if _all_accept_numbers(folded):
                for accumulator, at in zip(folded, self._argument_indexes, strict=True):
                    aggregate_column(accumulator, passed, at, record_count)
                return
        keys = [passed.column_values(at)[:record_count] for at in range(len(self._layout.keys))]
        at_once = bool(keys) and can_aggregate_by_group(passed, len(keys), self._argument_indexes)
        if not (at_once and self._aggregate_by_group(passed, keys, record_count)):
            self._aggregate_by_row(block_result, keys, record_count)

    def _aggregate_by_row(
        self, block_result: BlockResult, key_columns: list[list[object]], record_count: int
    ) -> None:
        passed = block_result.selected
        arguments = [
            None if at is None else passed.column_values(at) for at in self._argument_indexes
        ]
        for place in range(record_count):
            values = tuple(column[place] for column in key_columns)
            identity = tuple(make_sort_key(each) for each in values)
            is_first = bool(key_columns) and identity not in self._groups
            folded = self._get_or_create_group(values, identity)
            try:
                # If one aggregate rejects a row, all aggregates exclude it.
                for accumulator, argument in zip(folded, arguments, strict=True):
                    if argument is not None and len(folded) > 1:
                        accumulator.check_value(argument[place])
                for accumulator, argument in zip(folded, arguments, strict=True):
                    if argument is None:
                        accumulator.add_rows(1)
                    else:
                        accumulator.add_value(argument[place])
            except SelectError as error:
                if is_first:
                    del self._groups[identity]
                self._error_budget.count_dropped_row(
                    block_result.add_position_to_error(error, place)
                )

    def _aggregate_by_group(
        self, selected: SelectedRecords, key_columns: list[list[object]], record_count: int
    ) -> bool:
        """Aggregate the records of each group in one batch. Return False if a group may reject some."""
        sorted_out = [
            (
                self._get_or_create_group(values, tuple(make_sort_key(each) for each in values)),
                places,
            )
            for values, places in group_rows_by_key(key_columns, record_count)
        ]
        if not all(_all_accept_numbers(folded) for folded, _ in sorted_out):
            return False
        for folded, places in sorted_out:
            for accumulator, at in zip(folded, self._argument_indexes, strict=True):
                if at is None:
                    accumulator.add_rows(len(places))
                else:
                    vector = selected.vectors[at]
                    accumulator.add_vector(vector.array[places], vector.null[places])
        return True

    def _get_or_create_group(
        self, key_values: tuple[object, ...], identity: object
    ) -> list[Accumulator]:
        group = self._groups.get(identity)
        if group is None:
            self._budget.reserve(
                _estimate_key_bytes(key_values) + 200 * len(self._argument_indexes)
            )
            group = self._groups[identity] = (
                key_values,
                make_accumulators(self._query, self._budget),
            )
        return group[1]


def _all_accept_numbers(group_accumulators: list[Accumulator]) -> bool:
    return all(accumulator.accepts_all_numbers for accumulator in group_accumulators)


def concatenate_serialized_records(records: list[bytes]) -> OutputSegment:
    """Return records as one output with the end of each."""
    return b"".join(records), np.cumsum([len(record) for record in records], dtype=np.int64)


def make_block_result(values: list[tuple[object, ...]], records: list[bytes]) -> BlockResult:
    """Make a block result from values and serialized records."""
    places = np.arange(len(values))
    output, ends = concatenate_serialized_records(records)
    return BlockResult(SelectedRecords(places, (), places, values), output, ends)


def _estimate_key_bytes(values: tuple[object, ...]) -> int:
    """Return an upper estimate of the memory, in bytes, of values used as a key."""
    return 200 + sum(180 + sys.getsizeof(value) for value in values)


class RetainedRow:
    """Fields of one record, retained after its batch is released."""

    def __init__(self, fields: Mapping[ColumnRef, object]) -> None:
        self._fields = fields

    def field(self, column: ColumnRef) -> object:
        """Return a retained field, or NULL for other fields."""
        return self._fields.get(column)


class AggregationLayout:
    """Order of the expressions that workers evaluate for an aggregation.

    The group keys come first, then the arguments of aggregates, then the fields of the last record.
    """

    def __init__(self, query: BoundQuery) -> None:
        self._projections = [output.expression for output in query.outputs]
        self._keys = query.group_by
        self.keys = tuple(expand_aliases(key, self._projections) for key in query.group_by)
        self.aggregates = query.aggregates
        self.last_row_fields = self._find_last_row_fields(query) if query.last_row else ()
        arguments = tuple(
            expand_aliases(each.argument, self._projections)
            for each in query.aggregates
            if each.argument is not None
        )
        self.expressions: tuple[Expression, ...] = (*self.keys, *arguments, *self.last_row_fields)

    def list_argument_indexes(self) -> list[int | None]:
        """Return the expression index of each aggregate's argument, None for aggregates without one."""
        places: list[int | None] = []
        at = len(self.keys)
        for aggregate in self.aggregates:
            places.append(None if aggregate.argument is None else at)
            at += aggregate.argument is not None
        return places

    def map_group_results(
        self, key_values: Sequence[object], group_accumulators: Sequence[Accumulator]
    ) -> dict[Expression, object]:
        """Return the values of a group's keys and aggregates by expression."""
        found: dict[Expression, object] = {}
        for written, plain, value in zip(self._keys, self.keys, key_values, strict=True):
            found[written] = found[plain] = value
        for aggregate, accumulator in zip(self.aggregates, group_accumulators, strict=True):
            found[aggregate] = accumulator.compute_result()
        return found

    def _find_last_row_fields(self, query: BoundQuery) -> tuple[ColumnRef, ...]:
        found: dict[ColumnRef, None] = {}
        for output in query.outputs:
            expression = expand_aliases(output.expression, self._projections)
            outside = replace_nodes(
                expression, lambda part: _PLACEHOLDER_COLUMN if _is_aggregate(part) else None
            )
            found.update(
                (part, None)
                for part in walk_in_source_order(outside)
                if isinstance(part, ColumnRef) and part is not _PLACEHOLDER_COLUMN
            )
        return tuple(found)


_PLACEHOLDER_COLUMN = ColumnRef(None, "")


def _is_aggregate(expression: Expression) -> bool:
    return isinstance(expression, AggregateExpr)


def make_accumulators(query: BoundQuery, budget: MemoryBudget) -> list[Accumulator]:
    """Return a new accumulator for each aggregate of the query."""
    return [make_accumulator(aggregate, query.dialect, budget) for aggregate in query.aggregates]


def is_always_numeric_argument(selected: SelectedRecords, expression_index: int | None) -> bool:
    """Return True if an argument is a number or NULL in every record, so that no aggregate rejects it."""
    if expression_index is None:
        return True
    if not selected.vectors or selected.vectors[expression_index].kind not in (
        VectorKind.INT,
        VectorKind.FLOAT,
    ):
        return False
    return all(
        values[expression_index] is None or type(values[expression_index]) in (int, float, Decimal)
        for values in selected.scalar_values
    )


def aggregate_column(
    accumulator: Accumulator,
    selected: SelectedRecords,
    expression_index: int | None,
    record_count: int,
) -> None:
    """Add the first `record_count` records to an accumulator, in order.

    `expression_index` is the index of the argument, None for `count(*)`. Requires
    `is_always_numeric_argument`.
    """
    if expression_index is None:
        accumulator.add_rows(record_count)
        return
    data, null = selected.vectors[expression_index].array, selected.vectors[expression_index].null
    start = 0
    for place, values in zip(selected.scalar_rows.tolist(), selected.scalar_values, strict=True):
        if place >= record_count:
            break
        if place > start:
            accumulator.add_vector(data[start:place], null[start:place])
        accumulator.add_value(values[expression_index])
        start = place + 1
    if start < record_count:
        accumulator.add_vector(data[start:record_count], null[start:record_count])


def can_aggregate_by_group(
    selected: SelectedRecords, key_count: int, argument_indexes: Sequence[int | None]
) -> bool:
    """Return True if records can be grouped by key first, and each group aggregated in one batch."""
    return (
        not len(selected.scalar_rows)
        and all(selected.vectors[at].kind is not VectorKind.FLOAT for at in range(key_count))
        and all(is_always_numeric_argument(selected, at) for at in argument_indexes)
    )


def group_rows_by_key(
    key_columns: Sequence[Sequence[object]], record_count: int
) -> Iterator[tuple[tuple[object, ...], RowIndexes]]:
    """Yield each key of the first `record_count` records with its row indexes in ascending order.

    Keys are yielded in the order of their first record.
    """
    codes: dict[tuple[object, ...], int] = {}
    coded = np.fromiter(
        (codes.setdefault(key, len(codes)) for key in zip(*key_columns, strict=True)),
        np.int64,
        record_count,
    )
    order = np.argsort(coded, kind="stable")
    ends = np.cumsum(np.bincount(coded, minlength=len(codes)))
    yield from zip(codes, np.split(order, ends[:-1]), strict=True)
