"""Column vectors of query values, and the interface of a record batch.

Each row of a vector is a value, NULL, or *deferred*. No kernel can compute a deferred row exactly,
so the scalar evaluator computes the deferred rows, in row order. Deferred takes precedence over
NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from snowmelt.kernels.slices import (
    EMPTY_NULL,
    NEEDS_UNQUOTING,
    PAST_END,
    Mask,
    RowIndexes,
    StringSlices,
)
from snowmelt.select.errors import SelectError
from snowmelt.select.sql.ast import ColumnRef
from snowmelt.select.timestamps import TimestampPrecision


class VectorKind(Enum):
    """Data type of a vector."""

    TEXT = "text"  # StringSlices
    INT = "int"  # int64
    FLOAT = "float"  # float64
    BOOL = "bool"  # bool
    NUMERIC_TEXT = "numeral"  # StringSlices: integers and decimals as written, without exponents
    TIMESTAMP = "instant"  # TimestampVector
    OBJECT = "values"  # any values, as the scalar evaluator returns them


@dataclass(frozen=True, slots=True)
class TimestampFormat:
    """Display format of a column's timestamps: precision, and digits of the fractional second."""

    precision: TimestampPrecision
    fraction_digits: int


@dataclass(frozen=True, slots=True)
class TimestampVector:
    """Vector of timestamps: local date and time, and the offset in minutes.

    Each `packed` word holds year, month, day, hour, minute, second and microsecond. Words with equal
    offsets sort like the timestamps. `display_format` is None if rows differ in it or an offset is not
    zero. Only the scalar evaluator can format such timestamps.
    """

    packed: NDArray[np.int64]
    offset_minutes: NDArray[np.int16]
    display_format: TimestampFormat | None = None

    def __len__(self) -> int:
        return len(self.packed)

    def take(self, rows: RowIndexes) -> TimestampVector:
        """Return the timestamps of the rows in `rows`, in that order."""
        return TimestampVector(self.packed[rows], self.offset_minutes[rows], self.display_format)


VectorData: TypeAlias = (
    StringSlices
    | TimestampVector
    | NDArray[np.int64]
    | NDArray[np.float64]
    | NDArray[np.object_]
    | Mask
)


@dataclass(frozen=True, slots=True)
class ValueVector:
    """Values of one expression. `data` is undefined in rows that are null or deferred."""

    kind: VectorKind
    data: VectorData
    null: Mask
    deferred: Mask

    def __len__(self) -> int:
        return len(self.null)

    def take(self, rows: RowIndexes) -> ValueVector:
        """Return the values of the rows in `rows`, in that order."""
        data = self.data
        taken = data.take(rows) if isinstance(data, StringSlices | TimestampVector) else data[rows]
        return ValueVector(self.kind, taken, self.null[rows], self.deferred[rows])

    @property
    def slices(self) -> StringSlices:
        """Data of a vector of strings or numerals."""
        if not isinstance(self.data, StringSlices):
            raise TypeError(self.kind)
        return self.data

    @property
    def timestamps(self) -> TimestampVector:
        """Data of a vector of timestamps."""
        if not isinstance(self.data, TimestampVector):
            raise TypeError(self.kind)
        return self.data

    @property
    def array(self) -> NDArray[Any]:
        """Data of a vector of numbers, booleans or objects."""
        if isinstance(self.data, StringSlices | TimestampVector):
            raise TypeError(self.kind)
        return self.data


class BatchRow(Protocol):
    """One record, for the scalar evaluator and for `*`."""

    def field(self, column: ColumnRef) -> object:
        """Return the value of a field, or MISSING if the record has no such field."""

    def fields(self) -> Sequence[object]:
        """Return the values of all fields."""


class ColumnBatch(Protocol):
    """Consecutive records as columns. A worker creates, processes and discards a batch."""

    @property
    def row_count(self) -> int:
        """Number of records."""

    @property
    def failure(self) -> SelectError | None:
        """Error of the record after the batch, which ends the query, or None."""

    def read_column(self, column: ColumnRef, *, for_output: bool = False) -> ValueVector | None:
        """Return the values of a column, or None if only the scalar evaluator can read it.

        With `for_output`, a field that output omits is deferred instead of NULL.
        """

    def read_row(self, row_index: int) -> BatchRow:
        """Return one record for the scalar evaluator."""

    def record_offset(self, row_index: int) -> int | None:
        """Return the byte offset of a record in the object's decompressed text, or None if unknown."""


def make_masked_text_vector(slices: StringSlices) -> ValueVector:
    """Make a vector of slices: past-end and empty-as-null are NULL, NEEDS_UNQUOTING is deferred."""
    null = (slices.flags & (PAST_END | EMPTY_NULL)) != 0
    return ValueVector(VectorKind.TEXT, slices, null, (slices.flags & NEEDS_UNQUOTING) != 0)


def make_false_mask(count: int) -> Mask:
    """Return a mask that is False for every row."""
    return np.zeros(count, np.bool_)
