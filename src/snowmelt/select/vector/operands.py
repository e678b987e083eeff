"""What the plan calculates with: columns of values, and single values that hold for all records."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from snowmelt.select.dialect import Dialect
from snowmelt.select.kernels.timestamps import utc_micros
from snowmelt.select.timestamps import Timestamp
from snowmelt.select.vectors import PAST_END, Instants, Kind, Slices, Vector, no_rows

if TYPE_CHECKING:
    from snowmelt.select.sql.ast import Column
    from snowmelt.select.sql.bound_query import Query
    from snowmelt.select.vectors import Batch, Mask, Rows


class NoKernel(Exception):
    """No kernel says exactly what this is worth: the evaluator has to, in every record."""


@dataclass(frozen=True, slots=True)
class Constant:
    """One value for all records."""

    value: object


Operand: TypeAlias = Vector | Constant


class Frame:
    """Some records of a batch, with the columns that were asked for."""

    def __init__(
        self,
        batch: Batch,
        query: Query,
        now: Timestamp,
        rows: Rows | None = None,
        *,
        shown: bool = False,
    ) -> None:
        """Take records; `shown` tells that output may show their fields as they are."""
        self.batch = batch
        self._shown = shown
        self.query = query
        self.now = now
        self._rows = rows
        self._columns: dict[Column, Vector | None] = {}

    def __len__(self) -> int:
        return self.batch.rows if self._rows is None else len(self._rows)

    @property
    def dialect(self) -> Dialect:
        """The query's dialect."""
        return self.query.dialect

    def column(self, column: Column) -> Vector:
        """Return a column's values in these records.

        Raises:
            NoKernel: Only the evaluator can read it.
        """
        if column not in self._columns:
            whole = self.batch.vector(column, shown=self._shown)
            taken = whole if whole is None or self._rows is None else whole.take(self._rows)
            self._columns[column] = self._checked(taken)
        found = self._columns[column]
        if found is None:
            raise NoKernel
        return found

    def narrow(self, places: Rows) -> Frame:
        """Return the frame of some of these records."""
        if len(places) == len(self):
            return self
        rows = places if self._rows is None else self._rows[places]
        return Frame(self.batch, self.query, self.now, rows, shown=self._shown)

    def for_output(self) -> Frame:
        """Return the frame of the same records for what is shown of them."""
        return Frame(self.batch, self.query, self.now, self._rows, shown=True)

    def _checked(self, vector: Vector | None) -> Vector | None:
        """Defer fields past the end of their row where the dialect makes them an error."""
        if vector is None or self.dialect is not Dialect.CEPH_2020 or vector.kind is not Kind.TEXT:
            return vector
        past = (vector.slices.flags & PAST_END) != 0
        return Vector(vector.kind, vector.data, vector.null, vector.deferred | past)


def all_deferred(count: int) -> Vector:
    """Return a vector that knows nothing."""
    return Vector(Kind.VALUES, np.empty(count, np.object_), no_rows(count), ~no_rows(count))


def all_null(count: int) -> Vector:
    """Return a vector of NULL."""
    return Vector(Kind.VALUES, np.empty(count, np.object_), ~no_rows(count), no_rows(count))


def spread(operand: Operand, count: int) -> Vector:
    """Return an operand as a vector.

    Raises:
        NoKernel: A value that vectors do not hold.
    """
    if isinstance(operand, Vector):
        return operand
    value = operand.value
    none = no_rows(count)
    if value is None:
        return all_null(count)
    if isinstance(value, bool):
        return Vector(Kind.BOOL, np.full(count, value), none, none)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return Vector(Kind.INT, np.full(count, value, np.int64), none, none)
    if isinstance(value, float):
        return Vector(Kind.FLOAT, np.full(count, value), none, none)
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogateescape")
        ends = np.full(count, len(text), np.int32)
        flags = np.zeros(count, np.uint8)
        buffer = np.frombuffer(text or b"\0", np.uint8)
        return Vector(Kind.TEXT, Slices(buffer, np.zeros(count, np.int32), ends, flags), none, none)
    raise NoKernel


def unknown(left: Operand, right: Operand, count: int) -> tuple[Mask, Mask]:
    """Return where either operand is NULL, and where either is deferred."""
    null, deferred = no_rows(count), no_rows(count)
    for operand in (left, right):
        if isinstance(operand, Vector):
            null = null | operand.null
            deferred = deferred | operand.deferred
        elif operand.value is None:
            null = ~no_rows(count)
    return null, deferred


def chosen(first: Vector, second: Vector, takes_first: Mask) -> Vector:
    """Return one vector's values where the mask holds, the other's elsewhere.

    Raises:
        NoKernel: They are of different kinds.
    """
    null = np.where(takes_first, first.null, second.null)
    deferred = np.where(takes_first, first.deferred, second.deferred)
    if first.kind is Kind.VALUES and first.null.all():
        return Vector(second.kind, second.data, null, deferred)
    if second.kind is Kind.VALUES and second.null.all():
        return Vector(first.kind, first.data, null, deferred)
    if first.kind is not second.kind or first.kind is Kind.VALUES:
        raise NoKernel
    return Vector(first.kind, _chosen_data(first, second, takes_first), null, deferred)


def _chosen_data(
    first: Vector, second: Vector, takes_first: Mask
) -> Slices | Instants | np.ndarray[tuple[int], np.dtype[np.int64]]:
    if isinstance(first.data, Slices):
        a, b = first.slices, second.slices
        buffer, shift = a.buffer, 0
        if a.buffer is not b.buffer:
            buffer, shift = np.concatenate((a.buffer, b.buffer)), len(a.buffer)
        start = np.where(takes_first, a.start, b.start + shift).astype(np.int32)
        end = np.where(takes_first, a.end, b.end + shift).astype(np.int32)
        return Slices(buffer, start, end, np.where(takes_first, a.flags, b.flags))
    if first.kind is Kind.INSTANT:
        c, d = first.instants, second.instants
        return Instants(
            np.where(takes_first, c.packed, d.packed),
            np.where(takes_first, c.offset, d.offset),
            c.form if c.form == d.form else None,
        )
    data: np.ndarray[tuple[int], np.dtype[np.int64]]
    data = np.where(takes_first, first.array, second.array)
    return data


def plain_values(vector: Vector) -> list[object]:
    """Return a vector's values as the evaluator would give them; deferred ones are None."""
    found: list[object]
    if isinstance(vector.data, Slices):
        slices = vector.data
        whole = slices.buffer.tobytes()
        bounds = zip(slices.start.tolist(), slices.end.tolist(), strict=True)
        found = [whole[start:end].decode("utf-8", "surrogateescape") for start, end in bounds]
        if vector.kind is Kind.NUMERAL:
            known = ~(vector.null | vector.deferred)
            found = [
                _number(str(text)) if there else None
                for text, there in zip(found, known.tolist(), strict=True)
            ]
    elif vector.kind is Kind.INSTANT:
        found = _timestamps(vector.instants)
    else:
        found = vector.array.tolist()
    for place in np.flatnonzero(vector.null | vector.deferred).tolist():
        found[place] = None
    return found


def _number(text: str) -> int | Decimal:
    return Decimal(text) if "." in text else int(text)


def _timestamps(instants: Instants) -> list[object]:
    form = instants.form
    if form is None:
        raise TypeError(Kind.INSTANT)
    micros = utc_micros(instants).tolist()
    return [Timestamp(each * 1000, 0, form.precision, form.digits) for each in micros]
