"""What a pipe computes, by columns: the same values as row by row, where that is sure.

Rows in doubt are told to the caller, who computes them one by one; so are rows without a value,
since only that way says why. What columns cannot do at all stops the whole.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.catalog.pipe_syntax import Call, Cast, Literal, Path
from snowmelt.ingest.rows.arithmetic import (
    SIGNS,
    Undone,
    Vector,
    absolute,
    calculated,
    rounded,
    vector_of,
)
from snowmelt.ingest.rows.columnar import read_texts
from snowmelt.ingest.rows.text_calls import count_of, of_texts
from snowmelt.ingest.rows.transforming import value_column
from snowmelt.schema.arrow_columns import convert_arrow
from snowmelt.schema.batches import ColumnConverter
from snowmelt.schema.types import SEMI_STRUCTURED, TIMESTAMPS, Column, Kind, display_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from zoneinfo import ZoneInfo

    from numpy.typing import NDArray

    from snowmelt.catalog.pipe_syntax import Expression, PipeCopy
    from snowmelt.clock import Clock
    from snowmelt.schema.types import TableSchema

    Mask = NDArray[np.bool_]

_types = pa.types
_MOST_INT_DIGITS = 18
_EITHER = {"COALESCE", "NVL", "IFNULL"}
# What takes texts as the column would, and is stored as it came.
# Their texts have four digits for the year.
_FIRST_DAY, _LAST_DAY = dt.date(1000, 1, 1), dt.date(9999, 12, 31)
_CHECKED = {*TIMESTAMPS, Kind.DATE, Kind.TIME, Kind.BINARY}


@dataclass(frozen=True, slots=True)
class Computed:
    """Values by the names of their columns, and which rows are in doubt, whatever they hold."""

    table: pa.Table
    doubtful: Mask


class ColumnwisePipe:
    """Computes a pipe's expressions for many rows at once; used by one thread."""

    def __init__(self, copy: PipeCopy, schema: TableSchema, zone: ZoneInfo, clock: Clock) -> None:
        columns = copy.columns or tuple(column.name for column in schema.columns)
        items = copy.items or ()
        names = [item.alias for item in items] if copy.by_name else columns
        pairs = list(zip(names, items, strict=False))
        self._names = [display_name(name or "") for name, _ in pairs]
        self._targets = [schema.column(name or "") for name, _ in pairs]
        self._expressions = [item.expression for _, item in pairs]
        self._zone = zone
        self._clock = clock
        self._converters: dict[int, ColumnConverter] = {}

    def compute(self, rows: pa.Table) -> Computed | None:
        """Compute all expressions; None where some have to be computed row by row."""
        if len(set(self._names)) < len(self._names) or None in self._targets:
            return None
        work = _Work(self, rows.combine_chunks())
        try:
            arrays = [
                work.stored(expression, target)
                for expression, target in zip(self._expressions, self._targets, strict=True)
                if target is not None
            ]
        except (Undone, pa.ArrowException, NotImplementedError):
            return None
        return Computed(pa.Table.from_arrays(arrays, names=self._names), work.doubtful)

    def now(self) -> pa.Scalar:
        """Return the time, the same for all rows."""
        return pa.scalar(self._clock.now(), pa.timestamp("us", "UTC"))

    def converter(self, cast: Cast) -> ColumnConverter:
        """Return what converts to the type of a cast."""
        found = self._converters.get(id(cast))
        if found is None:
            column = value_column(cast.type)
            found = self._converters[id(cast)] = ColumnConverter(column, self._zone)
        return found


class _Work:
    """The expressions of one body."""

    def __init__(self, pipe: ColumnwisePipe, rows: pa.Table) -> None:
        self._pipe = pipe
        self._rows = rows
        self._count = rows.num_rows
        self.doubtful: Mask = np.zeros(rows.num_rows, np.bool_)

    def stored(self, expression: Expression, target: Column) -> pa.Array:
        """Return what a column gets."""
        found = self._value(expression)
        if _types.is_decimal(found.type) and target.kind is not Kind.FIXED:
            # Zeros have signs there, and texts as many digits as the row's way gives.
            raise Undone
        return _read(found.values, target)

    def _value(self, expression: Expression) -> Vector:
        match expression:
            case Literal():
                return self._constant(expression.value)
            case Path():
                return self._reached(expression.steps)
            case Cast():
                return self._cast(self._value(expression.operand), self._pipe.converter(expression))
            case Call():
                return self._call(expression)

    def _constant(self, value: object) -> Vector:
        if value is None:
            return Vector(pa.nulls(self._count))
        if isinstance(value, int) and abs(value) >= 10**_MOST_INT_DIGITS:
            raise Undone
        scalar = pa.scalar(value)
        exponent = value.as_tuple().exponent if isinstance(value, Decimal) else None
        return Vector(
            pa.repeat(scalar, self._count), exponent if isinstance(exponent, int) else None
        )

    def _reached(self, steps: Sequence[str | int]) -> Vector:
        if not steps or not all(isinstance(step, str) for step in steps):
            raise Undone
        if steps[0] not in self._rows.column_names:
            return Vector(pa.nulls(self._count))
        found = _one(self._rows.column(steps[0]))
        for step in steps[1:]:
            if not _types.is_struct(found.type) or found.type.get_field_index(step) < 0:
                return Vector(pa.nulls(self._count))
            found = pc.struct_field(found, step)
        if _types.is_nested(found.type):
            raise Undone
        if _types.is_floating(found.type):
            # 3 and 3.0 are two values, of which only one is a float.
            self.doubt(pc.equal(found, pc.floor(found)))
        return Vector(found)

    def _cast(self, operand: Vector, converter: ColumnConverter) -> Vector:
        kind = converter.column.kind
        if kind in SEMI_STRUCTURED or _types.is_null(operand.type):
            return operand
        if kind is Kind.TEXT:
            operand = Vector(operand.texts())
        if _types.is_decimal(operand.type) and kind is not Kind.FIXED:
            raise Undone
        if kind in _CHECKED and not _types.is_string(operand.type):
            raise Undone
        read = _read(operand.values, converter.column)
        stored, refused = convert_arrow(converter, read)
        self.doubtful[refused] = True
        if kind is Kind.FIXED:
            return vector_of(_one(stored))
        if kind is Kind.DATE and _types.is_string(read.type):
            # Some are more than a day, and lose the rest.
            days = _one(stored)
            self.doubt(pc.or_(pc.less(days, _FIRST_DAY), pc.greater(days, _LAST_DAY)))
            return Vector(days.cast(pa.string()))
        return Vector(_one(stored)) if kind in {Kind.BOOLEAN, Kind.REAL} else operand

    def _call(self, call: Call) -> Vector:
        if call.name == "CURRENT_TIMESTAMP":
            return Vector(pa.repeat(self._pipe.now(), self._count))
        given = [self._value(each) for each in call.arguments]
        if any(_types.is_timestamp(each.type) for each in given):
            raise Undone
        if call.name in _EITHER:
            return _first_of(given)
        if call.name == "NULLIF":
            return _unless_equal(*given)
        if any(_types.is_null(each.type) for each in given):
            return Vector(pa.nulls(self._count))
        return self._computed(call, given)

    def _computed(self, call: Call, given: list[Vector]) -> Vector:
        if call.name in SIGNS:
            return calculated(self, call.name, *given)
        if call.name == "ABS":
            return absolute(self, given[0])
        if call.name in {"CEIL", "FLOOR", "ROUND"}:
            digits = count_of(call.arguments[1]) if len(call.arguments) > 1 else 0
            return rounded(self, call.name, given[0], digits)
        return Vector(of_texts(self, call, given))

    def doubt(self, mask: pa.Array) -> None:
        """Leave rows to be computed one by one; null is no doubt."""
        self.doubtful |= pc.fill_null(mask, fill_value=False).to_numpy(zero_copy_only=False)


def _first_of(given: Sequence[Vector]) -> Vector:
    there = [each for each in given if not _types.is_null(each.type)]
    if not there:
        return given[0]
    if len({each.type for each in there}) > 1 or _types.is_decimal(there[0].type):
        raise Undone
    return Vector(pc.coalesce(*(each.values for each in there)))


def _unless_equal(left: Vector, right: Vector) -> Vector:
    if left.type != right.type or not (_types.is_string(left.type) or _types.is_integer(left.type)):
        raise Undone
    equal = pc.fill_null(pc.equal(left.values, right.values), fill_value=False)
    return Vector(pc.if_else(equal, pa.scalar(None, left.type), left.values))


def _read(values: pa.Array, column: Column) -> pa.Array:
    """Read texts that the column takes for something else, where that is sure for all."""
    if not _types.is_string(values.type):
        return values
    read = read_texts(pa.chunked_array([values]), column)
    return values if read is None else _one(read)


def _one(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(array, pa.ChunkedArray):
        return array
    return array.chunk(0) if array.num_chunks == 1 else pa.concat_arrays(array.chunks)
