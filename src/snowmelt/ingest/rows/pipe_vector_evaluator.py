"""What a pipe computes, by columns: the same values as row by row, where that is sure.

Rows in doubt are told to the caller, who computes them one by one; so are rows without a value,
since only that way says why. What columns cannot do at all stops the whole.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.catalog.sql.pipe_ast import PipeCall, PipeCast, PipeField, PipeLiteral
from snowmelt.ingest.rows.columnar_reader import read_texts
from snowmelt.ingest.rows.pipe_evaluator import value_column
from snowmelt.schema.chunk_types import decimal_from_int64, decimal_to_int64, null_mask
from snowmelt.schema.conversion.arrow_input import convert_arrow_array
from snowmelt.schema.conversion.column_converter import ColumnConverter
from snowmelt.schema.types import (
    SEMI_STRUCTURED_TYPES,
    TIMESTAMP_TYPES,
    Column,
    LogicalType,
    display_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from zoneinfo import ZoneInfo

    from numpy.typing import NDArray

    from snowmelt.catalog.sql.pipe_ast import PipeCopy, PipeExpression
    from snowmelt.clock import Clock
    from snowmelt.schema.types import TableSchema

# --- Numbers of whole columns as a pipe computes with them: exact decimals, and floats.

_types_arithmetic = pa.types
_INT_DIGITS = 18
_MOST_DIGITS = 38
_CONTEXT_DIGITS = 28
_TEXT_SCALE = 9
_PLAIN_TEXT = rf"^-?[0-9]{{1,{_INT_DIGITS}}}(\.[0-9]{{1,{_TEXT_SCALE}}})?$"
_MORE_DIGITS, _LEAST_DIGITS = 6, 12
_LARGEST = 4e18
SIGNS = {"+": pc.add, "-": pc.subtract, "*": pc.multiply, "/": pc.divide}


class Undone(Exception):
    """Columns do not give what rows would; computed row by row, then."""


class Doubting(Protocol):
    """Who takes note of rows in doubt."""

    def doubt(self, mask: pa.Array) -> None:
        """Take note of rows; null is no doubt."""


@dataclass(frozen=True, slots=True)
class Vector:
    """Values of an expression for all rows.

    `exponent` is that of each decimal in Python's form, the scale's negative; None where they
    differ.
    """

    values: pa.Array
    exponent: int | None = None

    @property
    def type(self) -> pa.DataType:
        """Which values these are."""
        return self.values.type

    def texts(self) -> pa.Array:
        """Return the values as texts.

        Raises:
            Undone: They have others than Arrow writes.
        """
        if _types_arithmetic.is_string(self.type):
            return self.values
        if _types_arithmetic.is_integer(self.type) or _types_arithmetic.is_boolean(self.type):
            return self.values.cast(pa.string())
        raise Undone


def vector_of(stored: pa.Array) -> Vector:
    """Return decimals that a cast gave; such of no scale are integers."""
    if stored.type.scale:
        return Vector(stored, -stored.type.scale)
    narrow = _narrow(stored)
    return Vector(narrow.cast(pa.int64()) if narrow.type.precision <= _INT_DIGITS else stored, 0)


def calculated(work: Doubting, sign: str, left: Vector, right: Vector) -> Vector:
    """Return the sum, difference, product or quotient."""
    if _types_arithmetic.is_floating(left.type) or _types_arithmetic.is_floating(right.type):
        first, second = _floats(left), _floats(right)
        if sign == "/":
            work.doubt(pc.equal(second, 0.0))
        found = SIGNS[sign](first, second)
        work.doubt(pc.invert(pc.is_finite(found)))
        return Vector(found)
    first, second = _decimals(work, left), _decimals(work, right)
    if sign == "/":
        return _quotient(work, first, second)
    one, other = _narrow(first.values), _narrow(second.values)
    known = None if first.exponent is None or second.exponent is None else 0
    if sign == "*":
        exponent = None if known is None else (first.exponent or 0) + (second.exponent or 0)
        return Vector(_narrow(pc.multiply(one, other)), exponent)
    exponent = None if known is None else min(first.exponent or 0, second.exponent or 0)
    return Vector(_narrow(SIGNS[sign](one, other)), exponent)


def absolute(work: Doubting, given: Vector) -> Vector:
    """Return the numbers without their signs."""
    if _types_arithmetic.is_floating(given.type) or _types_arithmetic.is_integer(given.type):
        return Vector(pc.abs(given.values))
    found = _decimals(work, given)
    narrow = _narrow(found.values)
    if narrow.type.precision > _CONTEXT_DIGITS:
        raise Undone
    return Vector(pc.abs(narrow), found.exponent)


def rounded(work: Doubting, how: str, given: Vector, digits: int) -> Vector:
    """Return the numbers with so many digits behind the point, halves away from zero."""
    if _types_arithmetic.is_floating(given.type):
        if how == "ROUND":
            raise Undone
        return Vector(pc.ceil(given.values) if how == "CEIL" else pc.floor(given.values))
    narrow = _narrow(_decimals(work, given).values)
    if narrow.type.precision >= _MOST_DIGITS:
        raise Undone
    # One digit more, into which 9.9 may go.
    wide = narrow.cast(pa.decimal128(narrow.type.precision + 1, narrow.type.scale))
    if how == "CEIL":
        return Vector(pc.ceil(wide))
    if how == "FLOOR":
        return Vector(pc.floor(wide))
    if digits >= wide.type.scale:
        return Vector(wide)
    return Vector(pc.round(wide, digits, "half_towards_infinity"))


def _floats(given: Vector) -> pa.Array:
    if _types_arithmetic.is_floating(given.type):
        return given.values
    if not _types_arithmetic.is_integer(given.type):
        raise Undone
    return given.values.cast(pa.float64(), safe=False)


def _decimals(work: Doubting, given: Vector) -> Vector:
    """Return exact numbers; texts that are none in an obvious way are in doubt."""
    kind = given.type
    if _types_arithmetic.is_decimal(kind):
        return given
    if _types_arithmetic.is_integer(kind):
        return Vector(given.values.cast(pa.decimal128(19, 0)), 0)
    if not _types_arithmetic.is_string(kind):
        raise Undone
    plain = pc.match_substring_regex(given.values, _PLAIN_TEXT)
    work.doubt(pc.invert(plain))
    texts = pc.if_else(plain, given.values, pa.scalar(None, pa.string()))
    return Vector(texts.cast(pa.decimal128(_INT_DIGITS + _TEXT_SCALE, _TEXT_SCALE)))


def _narrow(decimals: pa.Array) -> pa.Array:
    """Return the same in a type of as many digits as there are: results have more."""
    scale = decimals.type.scale
    bounds = pc.min_max(decimals)
    largest = max(
        (abs(each) for side in ("min", "max") if (each := bounds[side].as_py()) is not None),
        default=0,
    )
    whole = len(str(int(largest))) if largest >= 1 else 0
    return decimals.cast(pa.decimal128(max(whole + scale, 1), scale))


def _quotient(work: Doubting, left: Vector, right: Vector) -> Vector:
    """Divide exactly, halves away from zero, with six digits more than the dividend has."""
    if left.exponent is None or right.exponent is None:
        raise Undone
    scale, other = -left.exponent, -right.exponent
    digits = max(scale, min(scale + _MORE_DIGITS, _LEAST_DIGITS))
    if left.type.scale != scale or right.type.scale != other:
        raise Undone
    dividend, divisor = (_int64(each.values) for each in (left, right))
    power = 10 ** (digits - scale + other)
    too_large = np.abs(dividend.astype(np.float64)) * float(power) >= _LARGEST
    zero = divisor == 0
    # A row without a value is in no doubt, whatever stands in its place.
    nulls = null_mask(left.values) | null_mask(right.values)
    work.doubt(pa.array((too_large | zero) & ~nulls))
    top = np.where(too_large, 0, dividend) * np.int64(power)
    bottom = np.where(zero, 1, divisor)
    size = np.abs(top) // np.abs(bottom)
    rest = np.abs(top) % np.abs(bottom)
    size += rest >= np.abs(bottom) - rest
    signed = np.where((top < 0) != (bottom < 0), -size, size)
    return Vector(decimal_from_int64(signed, nulls, 19, digits), -digits)


def _int64(decimals: pa.Array) -> NDArray[np.int64]:
    if _narrow(decimals).type.precision > _INT_DIGITS:
        raise Undone
    return decimal_to_int64(decimals)


# --- Functions of texts, by columns, where Arrow gives what Python gives.


def of_texts(work: Doubting, call: PipeCall, given: Sequence[Vector]) -> pa.Array:
    """Return what a function of texts gives.

    Raises:
        Undone: The arguments are not such that Arrow's answer is sure.
    """
    if call.name in {"||", "CONCAT"}:
        return pc.binary_join_element_wise(*(each.texts() for each in given), "")
    text = given[0].texts()
    if call.name in {"LOWER", "UPPER"}:
        # Python knows more letters than two of a kind.
        work.doubt(pc.invert(pc.string_is_ascii(text)))
    return _CALLS[call.name](text, call.arguments[1:])


def count_of(expression: PipeExpression) -> int:
    """Return a constant whole number.

    Raises:
        Undone: It is none.
    """
    if isinstance(expression, PipeLiteral) and type(expression.value) is int:
        return expression.value
    raise Undone


def _text_of(expression: PipeExpression) -> str:
    if isinstance(expression, PipeLiteral) and isinstance(expression.value, str):
        return expression.value
    raise Undone


def _replaced(text: pa.Array, constants: Sequence[PipeExpression]) -> pa.Array:
    old, new = map(_text_of, constants)
    if not old:
        raise Undone
    return pc.replace_substring(text, old, new)


def _part(text: pa.Array, constants: Sequence[PipeExpression]) -> pa.Array:
    first, *length = map(count_of, constants)
    if first < 0:
        raise Undone
    begin = max(first - 1, 0)
    end = begin + max(length[0], 0) if length else None
    return pc.utf8_slice_codeunits(text, begin, end)


_CALLS: dict[str, Callable[[pa.Array, Sequence[PipeExpression]], pa.Array]] = {
    "LENGTH": lambda text, _: pc.utf8_length(text).cast(pa.int64()),
    "LOWER": lambda text, _: pc.ascii_lower(text),
    "LTRIM": lambda text, _: pc.utf8_ltrim(text, " "),
    "REPLACE": _replaced,
    "RTRIM": lambda text, _: pc.utf8_rtrim(text, " "),
    "SUBSTR": _part,
    "SUBSTRING": _part,
    "TRIM": lambda text, _: pc.utf8_trim(text, " "),
    "UPPER": lambda text, _: pc.ascii_upper(text),
}


if TYPE_CHECKING:
    Mask = NDArray[np.bool_]

_types = pa.types
_MOST_INT_DIGITS = 18
_EITHER = {"COALESCE", "NVL", "IFNULL"}
# What takes texts as the column would, and is stored as it came.
# Their texts have four digits for the year.
_FIRST_DAY, _LAST_DAY = dt.date(1000, 1, 1), dt.date(9999, 12, 31)
_CHECKED = {*TIMESTAMP_TYPES, LogicalType.DATE, LogicalType.TIME, LogicalType.BINARY}


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

    def converter(self, cast: PipeCast) -> ColumnConverter:
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

    def stored(self, expression: PipeExpression, target: Column) -> pa.Array:
        """Return what a column gets."""
        found = self._value(expression)
        if _types.is_decimal(found.type) and target.kind is not LogicalType.FIXED:
            # Zeros have signs there, and texts as many digits as the row's way gives.
            raise Undone
        return _read(found.values, target)

    def _value(self, expression: PipeExpression) -> Vector:
        match expression:
            case PipeLiteral():
                return self._constant(expression.value)
            case PipeField():
                return self._reached(expression.steps)
            case PipeCast():
                return self._cast(self._value(expression.operand), self._pipe.converter(expression))
            case PipeCall():
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
        if kind in SEMI_STRUCTURED_TYPES or _types.is_null(operand.type):
            return operand
        if kind is LogicalType.TEXT:
            operand = Vector(operand.texts())
        if _types.is_decimal(operand.type) and kind is not LogicalType.FIXED:
            raise Undone
        if kind in _CHECKED and not _types.is_string(operand.type):
            raise Undone
        read = _read(operand.values, converter.column)
        stored, refused = convert_arrow_array(converter, read)
        self.doubtful[refused] = True
        if kind is LogicalType.FIXED:
            return vector_of(_one(stored))
        if kind is LogicalType.DATE and _types.is_string(read.type):
            # Some are more than a day, and lose the rest.
            days = _one(stored)
            self.doubt(pc.or_(pc.less(days, _FIRST_DAY), pc.greater(days, _LAST_DAY)))
            return Vector(days.cast(pa.string()))
        return Vector(_one(stored)) if kind in {LogicalType.BOOLEAN, LogicalType.REAL} else operand

    def _call(self, call: PipeCall) -> Vector:
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

    def _computed(self, call: PipeCall, given: list[Vector]) -> Vector:
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
