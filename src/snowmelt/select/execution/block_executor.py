"""Block executor: evaluates WHERE and output expressions for one block of records.

Kernels evaluate the records for which their result is exact, and defer the others. The scalar
evaluator evaluates the deferred records in row order. Only the scalar evaluator raises errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from snowmelt.kernels.slices import Mask, RowIndexes, StringSlices
from snowmelt.select.errors import SelectError
from snowmelt.select.scalar.evaluator import EvaluationContext, evaluate, is_true
from snowmelt.select.sql.ast import Expression, StarExpr
from snowmelt.select.sql.bound_query import BoundQuery
from snowmelt.select.timestamps import Timestamp
from snowmelt.select.vector.evaluator import evaluate_condition_masks, evaluate_vector
from snowmelt.select.vector.operands_and_frames import (
    RecordFrame,
    make_null_vector,
    vector_to_values,
)
from snowmelt.select.vectors import BatchRow, ColumnBatch, TimestampVector, ValueVector, VectorKind


@runtime_checkable
class NamedFieldRow(Protocol):
    """Record with its own field names (JSON)."""

    def field_names(self) -> Sequence[str]:
        """Return the names of all fields, in order."""


@dataclass(frozen=True, slots=True)
class RecordPosition:
    """Position of a record: its index in the batch, and its byte offset in the object's text."""

    row: int
    offset: int | None

    def add_position_to_error(
        self, error: SelectError, records_before: int, object_name: str
    ) -> SelectError:
        """Return the error of this record with its position in the message.

        `records_before` is the number of records of the object before the batch. `object_name` is empty if
        there is only one object.
        """
        of = f" of {object_name}" if object_name else ""
        at = "" if self.offset is None else f", which begins at byte {self.offset}"
        return SelectError(
            error.s3_code,
            f"{error} (in record {records_before + self.row + 1}{of}{at})",
            status=error.status_code,
            fatal=error.fatal,
        )


@dataclass(frozen=True, slots=True)
class DroppedRecord:
    """Record dropped for an error. `records_passed` is the number of selected records before it."""

    records_passed: int
    error: SelectError
    position: RecordPosition


@dataclass(frozen=True, slots=True)
class SelectedRecords:
    """Records that satisfy WHERE, in order, with the values of some expressions.

    `rows` are indexes in the batch. `scalar_rows` are ascending indexes in `rows`; their values are in
    `scalar_values`. The values of all other records are in `vectors`: one vector for each expression,
    as long as `rows`. There are no vectors if the scalar evaluator evaluated all records.
    """

    rows: RowIndexes
    vectors: Sequence[ValueVector]
    scalar_rows: RowIndexes
    scalar_values: Sequence[tuple[object, ...]]
    dropped_records: Sequence[DroppedRecord] = ()
    # Error that ends the query after these records, and the position of the record that causes it.
    error: SelectError | None = None
    error_position: RecordPosition | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def column_values(self, expression_index: int) -> list[object]:
        """Return the values of one expression for all records."""
        if len(self.scalar_rows) == len(self.rows):
            return [values[expression_index] for values in self.scalar_values]
        found = vector_to_values(self.vectors[expression_index])
        for place, values in zip(self.scalar_rows.tolist(), self.scalar_values, strict=True):
            found[place] = values[expression_index]
        return found


@dataclass(frozen=True, slots=True)
class BlockResult:
    """Result of one block. The sink consumes results in block order.

    `output` contains the serialized records, and `record_ends` the end offset of each. Sinks that
    aggregate or sort also use `selected`. `records_read` is the number of records in the block,
    `records_before` the number of records of the object before it. `object_name` is set if there
    are several objects. `records_before` and `object_name` are set just before the sink consumes
    the result.
    """

    selected: SelectedRecords
    output: bytes | memoryview = b""
    record_ends: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    records_read: int = 0
    records_before: int = 0
    object_name: str = ""

    def add_position_to_error(self, error: SelectError, selected_index: int) -> SelectError:
        """Return an error with the position of the record at `selected_index` in `selected`."""
        return RecordPosition(int(self.selected.rows[selected_index]), None).add_position_to_error(
            error, self.records_before, self.object_name
        )


@dataclass(frozen=True, slots=True)
class StarValue:
    """Value of `*` among other outputs: names and values of all fields of a record."""

    names: tuple[str, ...]
    values: tuple[object, ...]

    @classmethod
    def from_row(cls, row: BatchRow) -> StarValue:
        """Create from the fields of a record. CSV fields are named `_1`, `_2`, …."""
        values = tuple(row.fields())
        names = row.field_names() if isinstance(row, NamedFieldRow) else ()
        numbered = (f"_{place + 1}" for place in range(len(names), len(values)))
        return cls((*names, *numbered), values)


def detach_from_batch(selected: SelectedRecords) -> SelectedRecords:
    """Return a copy without references to the batch's memory."""
    if not any(isinstance(vector.data, StringSlices) for vector in selected.vectors):
        return selected
    vectors = [
        _to_object_vector(vector) if isinstance(vector.data, StringSlices) else vector
        for vector in selected.vectors
    ]
    return replace(selected, vectors=vectors)


def keep_positions_and_errors(selected: SelectedRecords) -> SelectedRecords:
    """Return a copy without values: only the positions and errors of the records."""
    return replace(selected, vectors=(), scalar_values=())


def _to_object_vector(vector: ValueVector) -> ValueVector:
    values = np.empty(len(vector), np.object_)
    values[:] = vector_to_values(vector)
    return ValueVector(VectorKind.OBJECT, values, vector.null, vector.deferred)


@dataclass(slots=True)
class _ScalarResults:
    """Results of the scalar evaluator in row order. Positions are indexes in the candidates."""

    positions: list[int] = field(default_factory=list)
    values: list[tuple[object, ...]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    failed: list[tuple[int, SelectError]] = field(default_factory=list)
    # First candidate that was not evaluated, because of an error or `max_records`. None: all were.
    stop_position: int | None = None
    error: SelectError | None = None


class BlockExecutor:
    """Evaluator of WHERE and of expressions for matching records. All workers share it."""

    def __init__(
        self,
        query: BoundQuery,
        expressions: Sequence[Expression],
        now: Timestamp,
        *,
        max_records: int | None,
    ) -> None:
        """Create an executor for a query.

        `expressions` are evaluated for each matching record. At most `max_records` matching records are
        needed, or all if None. `now` is the value of `utcnow()`.
        """
        self._query = query
        self._expressions = tuple(expressions)
        self._now = now
        self._max_records = max_records

    def select_records(self, batch: ColumnBatch) -> SelectedRecords:
        """Return the records of a batch that satisfy WHERE."""
        frame = RecordFrame(batch, self._query, self._now)
        unsure: Mask | None = None
        candidates = np.arange(batch.row_count)
        if self._query.where is not None:
            true, deferred = evaluate_condition_masks(self._query.where, frame)
            candidates = np.flatnonzero(true | deferred)
            unsure = deferred[candidates]
            frame = frame.select_rows(candidates)
        frame = frame.for_output()
        vectors = [evaluate_vector(expression, frame) for expression in self._expressions]
        slow = np.zeros(len(candidates), np.bool_) if unsure is None else unsure
        for at, vector in enumerate(vectors):
            slow = slow | vector.deferred
            if isinstance(vector.data, TimestampVector) and vector.data.display_format is None:
                # Kernels can compare these timestamps and extract date parts, but cannot format
                # them.
                slow = slow | ~vector.null
                vectors[at] = make_null_vector(len(vector))
        if not slow.any():
            none = np.empty(0, np.int64)
            return SelectedRecords(candidates, vectors, none, ())
        return self._merge_scalar_results(batch, candidates, vectors, slow, unsure)

    def _merge_scalar_results(
        self,
        batch: ColumnBatch,
        candidates: RowIndexes,
        vectors: Sequence[ValueVector],
        needs_scalar: Mask,
        needs_condition: Mask | None,
    ) -> SelectedRecords:
        """Evaluate the deferred candidates with the scalar evaluator and merge the results."""
        found = self._evaluate_deferred_rows(batch, candidates, needs_scalar, needs_condition)
        keep = np.ones(len(candidates), np.bool_)
        keep[found.dropped] = False
        if found.stop_position is not None:
            keep[found.stop_position :] = False
        before = np.zeros(len(candidates) + 1, np.int64)
        np.cumsum(keep, out=before[1:])
        rows = candidates.tolist()
        failures = [
            DroppedRecord(int(before[place]), error, _make_record_position(batch, rows[place]))
            for place, error in found.failed
        ]
        fatal = found.error is not None and found.stop_position is not None
        spot = _make_record_position(batch, rows[found.stop_position or 0]) if fatal else None
        kept = np.flatnonzero(keep)
        if len(kept) == len(found.positions):
            vectors = ()
        elif len(kept) < len(candidates):
            vectors = [vector.take(kept) for vector in vectors]
        places = before[np.array(found.positions, np.int64)]
        return SelectedRecords(
            candidates[kept], vectors, places, found.values, failures, found.error, spot
        )

    def _evaluate_deferred_rows(
        self,
        batch: ColumnBatch,
        candidates: RowIndexes,
        needs_scalar: Mask,
        needs_condition: Mask | None,
    ) -> _ScalarResults:
        found = _ScalarResults()
        scope = EvaluationContext(self._query, self._now)
        slow_before = 0
        for place in np.flatnonzero(needs_scalar).tolist():
            passed = place - slow_before + len(found.positions)
            if self._max_records is not None and passed >= self._max_records:
                found.stop_position = place
                break
            slow_before += 1
            row = batch.read_row(int(candidates[place]))
            try:
                scope.begin_row()
                where = self._query.where
                asked = needs_condition is not None and needs_condition[place]
                if where is not None and asked and not is_true(where, row, scope):
                    found.dropped.append(place)
                    continue
                values = tuple(_evaluate_output(each, row, scope) for each in self._expressions)
            except SelectError as error:
                if error.fatal:
                    found.stop_position, found.error = place, error
                    break
                found.dropped.append(place)
                found.failed.append((place, error))
                continue
            found.positions.append(place)
            found.values.append(values)
        return found


def _make_record_position(batch: ColumnBatch, row: int) -> RecordPosition:
    return RecordPosition(row, batch.record_offset(row))


def _evaluate_output(expression: Expression, row: BatchRow, context: EvaluationContext) -> object:
    if isinstance(expression, StarExpr):
        return StarValue.from_row(row)
    return evaluate(expression, row, context)
