"""Column vectors of query values, and the interface of a record batch.

Each row of a vector is in one of three states: a value, NULL, or *deferred*. No kernel can compute
a deferred row exactly, so the scalar evaluator computes it, in row order. Deferred takes precedence
over NULL.
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
    """What the data of a vector are."""

    TEXT = "text"  # Slices
    INT = "int"  # int64
    FLOAT = "float"  # float64
    BOOL = "bool"  # bool
    NUMERIC_TEXT = "numeral"  # Slices: integers and decimals as they are written, no exponents
    TIMESTAMP = "instant"  # Instants
    OBJECT = "values"  # anything, as the evaluator would give it


@dataclass(frozen=True, slots=True)
class TimestampFormat:
    """How all timestamps of a column are shown: precision, and digits after the second's point."""

    precision: TimestampPrecision
    fraction_digits: int


@dataclass(frozen=True, slots=True)
class TimestampVector:
    """Timestamps: the parts as their own clock shows them, and its offset in minutes.

    A word packs year, month, day, hour, minute, second and microsecond, so that words of equal
    offsets order as the timestamps do. `display_format` is None where it is not the same for all, or an
    offset is not zero: then only the evaluator can show them.
    """

    packed: NDArray[np.int64]
    offset_minutes: NDArray[np.int16]
    display_format: TimestampFormat | None = None

    def __len__(self) -> int:
        return len(self.packed)

    def take(self, rows: RowIndexes) -> TimestampVector:
        """Return the timestamps of these rows, in their order."""
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
    """Values of one expression; `data` means nothing where a row is null or deferred."""

    kind: VectorKind
    data: VectorData
    null: Mask
    deferred: Mask

    def __len__(self) -> int:
        return len(self.null)

    def take(self, rows: RowIndexes) -> ValueVector:
        """Return the values of these rows, in their order."""
        data = self.data
        taken = data.take(rows) if isinstance(data, StringSlices | TimestampVector) else data[rows]
        return ValueVector(self.kind, taken, self.null[rows], self.deferred[rows])

    @property
    def slices(self) -> StringSlices:
        """The data of a vector of texts or numerals."""
        if not isinstance(self.data, StringSlices):
            raise TypeError(self.kind)
        return self.data

    @property
    def timestamps(self) -> TimestampVector:
        """The data of an instant vector."""
        if not isinstance(self.data, TimestampVector):
            raise TypeError(self.kind)
        return self.data

    @property
    def array(self) -> NDArray[Any]:
        """The data of a vector of numbers, truths or values."""
        if isinstance(self.data, StringSlices | TimestampVector):
            raise TypeError(self.kind)
        return self.data


class BatchRow(Protocol):
    """One record, for the evaluator and for `*`."""

    def field(self, column: ColumnRef) -> object:
        """Return the value of a field, MISSING where the record has no such field."""

    def fields(self) -> Sequence[object]:
        """Return the values of all fields."""


class ColumnBatch(Protocol):
    """Some records in a row, held as columns; made in a worker, thrown away after its plan."""

    @property
    def row_count(self) -> int:
        """How many records."""

    @property
    def failure(self) -> SelectError | None:
        """What ends the query after these records: the one behind them cannot be read."""

    def read_column(self, column: ColumnRef, *, for_output: bool = False) -> ValueVector | None:
        """Return a column's values; None where only the evaluator can read it.

        Where `for_output`, a field that output leaves out is not NULL but deferred.
        """

    def read_row(self, row_index: int) -> BatchRow:
        """Return one record for the evaluator."""

    def record_offset(self, row_index: int) -> int | None:
        """Return the byte of the object's text where a record begins; None if that is not known."""


class RawRecordBatch(ColumnBatch, Protocol):
    """Records whose bytes can be copied as they were read (CSV)."""

    def read_raw_record(self, row_index: int) -> bytes:
        """Return one record as read, without its delimiter."""


def make_masked_text_vector(slices: StringSlices) -> ValueVector:
    """Return slices as values: past the end and empty-as-null are NULL, unclean is deferred."""
    null = (slices.flags & (PAST_END | EMPTY_NULL)) != 0
    return ValueVector(VectorKind.TEXT, slices, null, (slices.flags & NEEDS_UNQUOTING) != 0)


def make_false_mask(count: int) -> Mask:
    """Return a mask that holds for no row."""
    return np.zeros(count, np.bool_)
