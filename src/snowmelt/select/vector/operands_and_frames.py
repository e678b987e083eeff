"""Operands of the vectorized evaluator: column vectors, constants, and frames of records."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

import numpy as np

from snowmelt.kernels.slices import PAST_END, Mask, RowIndexes, StringSlices, view_bytes
from snowmelt.select.dialect import Dialect
from snowmelt.select.kernels.timestamps import to_utc_micros
from snowmelt.select.sql.ast import ColumnRef
from snowmelt.select.sql.bound_query import BoundQuery
from snowmelt.select.timestamps import Timestamp
from snowmelt.select.vectors import (
    ColumnBatch,
    TimestampVector,
    ValueVector,
    VectorKind,
    make_false_mask,
)


class KernelUnsupported(Exception):
    """No kernel computes this expression exactly. The scalar evaluator must evaluate it in each record."""


@dataclass(frozen=True, slots=True)
class ConstantOperand:
    """A constant value for all records."""

    value: object


Operand: TypeAlias = ValueVector | ConstantOperand


class RecordFrame:
    """Selected records of a batch. Caches the columns that were read."""

    def __init__(
        self,
        batch: ColumnBatch,
        query: BoundQuery,
        now: Timestamp,
        rows: RowIndexes | None = None,
        *,
        reads_for_output: bool = False,
    ) -> None:
        """Select `rows` of `batch`, or all rows if None.

        With `reads_for_output`, fields that the output omits are deferred.
        """
        self.batch = batch
        self._reads_for_output = reads_for_output
        self.query = query
        self.now = now
        self._rows = rows
        self._columns: dict[ColumnRef, ValueVector | None] = {}

    def __len__(self) -> int:
        return self.batch.row_count if self._rows is None else len(self._rows)

    @property
    def dialect(self) -> Dialect:
        """Dialect of the query."""
        return self.query.dialect

    def read_column(self, column: ColumnRef) -> ValueVector:
        """Return the values of a column in these records.

        Raises:
            KernelUnsupported: If only the scalar evaluator can read the column.
        """
        if column not in self._columns:
            whole = self.batch.read_column(column, for_output=self._reads_for_output)
            taken = whole if whole is None or self._rows is None else whole.take(self._rows)
            self._columns[column] = self._defer_past_end(taken)
        found = self._columns[column]
        if found is None:
            raise KernelUnsupported
        return found

    def select_rows(self, positions: RowIndexes) -> RecordFrame:
        """Return a frame of the records at these positions in the frame."""
        if len(positions) == len(self):
            return self
        rows = positions if self._rows is None else self._rows[positions]
        return RecordFrame(
            self.batch, self.query, self.now, rows, reads_for_output=self._reads_for_output
        )

    def for_output(self) -> RecordFrame:
        """Return a frame of the same records with `reads_for_output`."""
        return RecordFrame(self.batch, self.query, self.now, self._rows, reads_for_output=True)

    def _defer_past_end(self, vector: ValueVector | None) -> ValueVector | None:
        """Defer fields past the end of the row, which are errors in `ceph-2020`."""
        if (
            vector is None
            or self.dialect is not Dialect.CEPH_2020
            or vector.kind is not VectorKind.TEXT
        ):
            return vector
        past = (vector.slices.flags & PAST_END) != 0
        return ValueVector(vector.kind, vector.data, vector.null, vector.deferred | past)


def make_deferred_vector(count: int) -> ValueVector:
    """Return a vector with all rows deferred."""
    return ValueVector(
        VectorKind.OBJECT,
        np.empty(count, np.object_),
        make_false_mask(count),
        ~make_false_mask(count),
    )


def make_null_vector(count: int) -> ValueVector:
    """Return a vector with all rows NULL."""
    return ValueVector(
        VectorKind.OBJECT,
        np.empty(count, np.object_),
        ~make_false_mask(count),
        make_false_mask(count),
    )


def operand_to_vector(operand: Operand, count: int) -> ValueVector:
    """Return an operand as a vector.

    Raises:
        KernelUnsupported: If vectors do not support the type or size of the constant.
    """
    if isinstance(operand, ValueVector):
        return operand
    value = operand.value
    none = make_false_mask(count)
    if value is None:
        return make_null_vector(count)
    if isinstance(value, bool):
        return ValueVector(VectorKind.BOOL, np.full(count, value), none, none)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return ValueVector(VectorKind.INT, np.full(count, value, np.int64), none, none)
    if isinstance(value, float):
        return ValueVector(VectorKind.FLOAT, np.full(count, value), none, none)
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogateescape")
        ends = np.full(count, len(text), np.int32)
        flags = np.zeros(count, np.uint8)
        buffer = view_bytes(text or b"\0")
        return ValueVector(
            VectorKind.TEXT,
            StringSlices(buffer, np.zeros(count, np.int32), ends, flags),
            none,
            none,
        )
    raise KernelUnsupported


def combine_null_and_deferred_masks(left: Operand, right: Operand, count: int) -> tuple[Mask, Mask]:
    """Return two masks: rows where either operand is NULL, and rows where either is deferred."""
    null, deferred = make_false_mask(count), make_false_mask(count)
    for operand in (left, right):
        if isinstance(operand, ValueVector):
            null = null | operand.null
            deferred = deferred | operand.deferred
        elif operand.value is None:
            null = ~make_false_mask(count)
    return null, deferred


def choose_values(first: ValueVector, second: ValueVector, first_mask: Mask) -> ValueVector:
    """Return the values of `first` where the mask is True, and those of `second` elsewhere.

    Raises:
        KernelUnsupported: If the vectors are of different kinds.
    """
    null = np.where(first_mask, first.null, second.null)
    deferred = np.where(first_mask, first.deferred, second.deferred)
    if first.kind is VectorKind.OBJECT and first.null.all():
        return ValueVector(second.kind, second.data, null, deferred)
    if second.kind is VectorKind.OBJECT and second.null.all():
        return ValueVector(first.kind, first.data, null, deferred)
    if first.kind is not second.kind or first.kind is VectorKind.OBJECT:
        raise KernelUnsupported
    return ValueVector(first.kind, _choose_data(first, second, first_mask), null, deferred)


def _choose_data(
    first: ValueVector, second: ValueVector, first_mask: Mask
) -> StringSlices | TimestampVector | np.ndarray[tuple[int], np.dtype[np.int64]]:
    if isinstance(first.data, StringSlices):
        a, b = first.slices, second.slices
        buffer, shift = a.buffer, 0
        if a.buffer is not b.buffer:
            buffer, shift = np.concatenate((a.buffer, b.buffer)), len(a.buffer)
        start = np.where(first_mask, a.start, b.start + shift).astype(np.int32)
        end = np.where(first_mask, a.end, b.end + shift).astype(np.int32)
        return StringSlices(buffer, start, end, np.where(first_mask, a.flags, b.flags))
    if first.kind is VectorKind.TIMESTAMP:
        c, d = first.timestamps, second.timestamps
        return TimestampVector(
            np.where(first_mask, c.packed, d.packed),
            np.where(first_mask, c.offset_minutes, d.offset_minutes),
            c.display_format if c.display_format == d.display_format else None,
        )
    data: np.ndarray[tuple[int], np.dtype[np.int64]]
    data = np.where(first_mask, first.array, second.array)
    return data


def vector_to_values(vector: ValueVector) -> list[object]:
    """Return a vector as Python values of the scalar evaluator. Deferred rows are None."""
    found: list[object]
    if isinstance(vector.data, StringSlices):
        slices = vector.data
        whole = slices.buffer.tobytes()
        bounds = zip(slices.start.tolist(), slices.end.tolist(), strict=True)
        found = [whole[start:end].decode("utf-8", "surrogateescape") for start, end in bounds]
        if vector.kind is VectorKind.NUMERIC_TEXT:
            known = ~(vector.null | vector.deferred)
            found = [
                _parse_exact_number(str(text)) if there else None
                for text, there in zip(found, known.tolist(), strict=True)
            ]
    elif vector.kind is VectorKind.TIMESTAMP:
        found = _to_timestamps(vector.timestamps)
    else:
        found = vector.array.tolist()
    for place in np.flatnonzero(vector.null | vector.deferred).tolist():
        found[place] = None
    return found


def _parse_exact_number(text: str) -> int | Decimal:
    return Decimal(text) if "." in text else int(text)


def _to_timestamps(vector: TimestampVector) -> list[object]:
    form = vector.display_format
    if form is None:
        raise TypeError(VectorKind.TIMESTAMP)
    micros = to_utc_micros(vector).tolist()
    return [Timestamp(each * 1000, 0, form.precision, form.fraction_digits) for each in micros]
