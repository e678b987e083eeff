"""Evaluate the expressions of a pipe by columns.

The values equal those of the row evaluator. Rows whose value is uncertain are marked, and the
caller evaluates them row by row. Rows that fail are also marked, because only the row evaluator
reports the reason. If an expression is not supported at all, the whole evaluation stops. Supports
exact decimals, floats, and text functions for which Arrow and Python agree.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.catalog.sql.pipe_copy import (
    PipeCall,
    PipeCast,
    PipeCopy,
    PipeExpression,
    PipeField,
    PipeLiteral,
)
from snowmelt.clock import Clock
from snowmelt.ingest.rows.columnar_reader import parse_text_column
from snowmelt.ingest.rows.pipe_evaluator import make_cast_column
from snowmelt.schema.chunk_types import decimal_from_int64, decimal_to_int64, make_null_mask
from snowmelt.schema.conversion.arrow_input import convert_arrow_array
from snowmelt.schema.conversion.column_converter import ColumnConverter
from snowmelt.schema.types import (
    SEMI_STRUCTURED_TYPES,
    TIMESTAMP_TYPES,
    Column,
    LogicalType,
    TableSchema,
    to_display_name,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


_types = pa.types
_INT_DIGITS = 18
_MAX_DECIMAL_DIGITS = 38
_CONTEXT_DIGITS = 28
_TEXT_DECIMAL_SCALE = 9
_PLAIN_NUMBER_PATTERN = rf"^-?[0-9]{{1,{_INT_DIGITS}}}(\.[0-9]{{1,{_TEXT_DECIMAL_SCALE}}})?$"
_QUOTIENT_EXTRA_DIGITS, _MAX_QUOTIENT_SCALE = 6, 12
_MAX_DIVIDEND = 4e18
_ROUNDING_FUNCTIONS = {"CEIL": pc.ceil, "FLOOR": pc.floor}
ARITHMETIC_FUNCTIONS = {"+": pc.add, "-": pc.subtract, "*": pc.multiply, "/": pc.divide}


class ColumnarFallback(Exception):
    """The vectorized result would differ from the row evaluator's; evaluate row by row."""


@dataclass(frozen=True, slots=True)
class PipeVector:
    """Values of an expression for all rows.

    `exponent` is the exponent of all decimals in Python's form, which is the negative scale. It is
    None if the exponents differ.
    """

    values: pa.Array
    exponent: int | None = None

    @property
    def type(self) -> pa.DataType:
        """Arrow type of the values."""
        return self.values.type

    def to_texts(self) -> pa.Array:
        """Convert the values to texts.

        Raises:
            ColumnarFallback: If Arrow's texts differ from the row evaluator's.
        """
        if _types.is_string(self.type):
            return self.values
        if _types.is_integer(self.type) or _types.is_boolean(self.type):
            return self.values.cast(pa.string())
        raise ColumnarFallback


def make_decimal_vector(decimals: pa.Array) -> PipeVector:
    """Create a vector from decimals of a cast. Decimals with scale 0 become integers."""
    if decimals.type.scale:
        return PipeVector(decimals, -decimals.type.scale)
    narrow = _narrow_decimals(decimals)
    return PipeVector(
        narrow.cast(pa.int64()) if narrow.type.precision <= _INT_DIGITS else decimals, 0
    )


def calculate(
    recorder: VectorPipeEvaluator, operator: str, left: PipeVector, right: PipeVector
) -> PipeVector:
    """Return the sum, difference, product or quotient."""
    if _types.is_floating(left.type) or _types.is_floating(right.type):
        first, second = _to_floats(left), _to_floats(right)
        if operator == "/":
            recorder.mark_fallback_rows(pc.equal(second, 0.0))
        found = ARITHMETIC_FUNCTIONS[operator](first, second)
        recorder.mark_fallback_rows(pc.invert(pc.is_finite(found)))
        return PipeVector(found)
    first, second = _to_decimals(recorder, left), _to_decimals(recorder, right)
    if operator == "/":
        return _divide_decimals(recorder, first, second)
    one, other = _narrow_decimals(first.values), _narrow_decimals(second.values)
    known = None if first.exponent is None or second.exponent is None else 0
    if operator == "*":
        exponent = None if known is None else (first.exponent or 0) + (second.exponent or 0)
        return PipeVector(_narrow_decimals(pc.multiply(one, other)), exponent)
    exponent = None if known is None else min(first.exponent or 0, second.exponent or 0)
    return PipeVector(_narrow_decimals(ARITHMETIC_FUNCTIONS[operator](one, other)), exponent)


def compute_absolute(recorder: VectorPipeEvaluator, operand: PipeVector) -> PipeVector:
    """Return the absolute values."""
    if _types.is_floating(operand.type) or _types.is_integer(operand.type):
        return PipeVector(pc.abs(operand.values))
    found = _to_decimals(recorder, operand)
    narrow = _narrow_decimals(found.values)
    if narrow.type.precision > _CONTEXT_DIGITS:
        raise ColumnarFallback
    return PipeVector(pc.abs(narrow), found.exponent)


def round_vector(
    recorder: VectorPipeEvaluator, function_name: str, operand: PipeVector, digits: int
) -> PipeVector:
    """Return the numbers rounded to `digits` fraction digits, half away from zero."""
    if _types.is_floating(operand.type):
        if function_name == "ROUND":
            raise ColumnarFallback
        return PipeVector(_ROUNDING_FUNCTIONS[function_name](operand.values))
    narrow = _narrow_decimals(_to_decimals(recorder, operand).values)
    if narrow.type.precision >= _MAX_DECIMAL_DIGITS:
        raise ColumnarFallback
    # One more digit, because 9.9 may round to 10.
    wide = narrow.cast(pa.decimal128(narrow.type.precision + 1, narrow.type.scale))
    if function_name in _ROUNDING_FUNCTIONS:
        return PipeVector(_ROUNDING_FUNCTIONS[function_name](wide))
    if digits >= wide.type.scale:
        return PipeVector(wide)
    return PipeVector(pc.round(wide, digits, "half_towards_infinity"))


def _to_floats(operand: PipeVector) -> pa.Array:
    if _types.is_floating(operand.type):
        return operand.values
    if not _types.is_integer(operand.type):
        raise ColumnarFallback
    return operand.values.cast(pa.float64(), safe=False)


def _to_decimals(recorder: VectorPipeEvaluator, operand: PipeVector) -> PipeVector:
    """Convert values to decimals. Texts of unusual form are marked for the row evaluator."""
    kind = operand.type
    if _types.is_decimal(kind):
        return operand
    if _types.is_integer(kind):
        return PipeVector(operand.values.cast(pa.decimal128(19, 0)), 0)
    if not _types.is_string(kind):
        raise ColumnarFallback
    plain = pc.match_substring_regex(operand.values, _PLAIN_NUMBER_PATTERN)
    recorder.mark_fallback_rows(pc.invert(plain))
    texts = pc.if_else(plain, operand.values, pa.scalar(None, pa.string()))
    return PipeVector(
        texts.cast(pa.decimal128(_INT_DIGITS + _TEXT_DECIMAL_SCALE, _TEXT_DECIMAL_SCALE))
    )


def _narrow_decimals(decimals: pa.Array) -> pa.Array:
    """Convert decimals to the narrowest type, because results have a wider type than needed."""
    scale = decimals.type.scale
    bounds = pc.min_max(decimals)
    largest = max(
        (abs(each) for side in ("min", "max") if (each := bounds[side].as_py()) is not None),
        default=0,
    )
    whole = len(str(int(largest))) if largest >= 1 else 0
    return decimals.cast(pa.decimal128(max(whole + scale, 1), scale))


def _divide_decimals(
    recorder: VectorPipeEvaluator, left: PipeVector, right: PipeVector
) -> PipeVector:
    """Divide exactly, half away from zero, with six fraction digits more than the dividend."""
    if left.exponent is None or right.exponent is None:
        raise ColumnarFallback
    scale, other = -left.exponent, -right.exponent
    digits = max(scale, min(scale + _QUOTIENT_EXTRA_DIGITS, _MAX_QUOTIENT_SCALE))
    if left.type.scale != scale or right.type.scale != other:
        raise ColumnarFallback
    dividend, divisor = (_to_int64(each.values) for each in (left, right))
    power = 10 ** (digits - scale + other)
    too_large = np.abs(dividend.astype(np.float64)) * float(power) >= _MAX_DIVIDEND
    zero = divisor == 0
    # NULL needs no fallback, regardless of the bytes in its slot.
    nulls = make_null_mask(left.values) | make_null_mask(right.values)
    recorder.mark_fallback_rows(pa.array((too_large | zero) & ~nulls))
    top = np.where(too_large, 0, dividend) * np.int64(power)
    bottom = np.where(zero, 1, divisor)
    size = np.abs(top) // np.abs(bottom)
    rest = np.abs(top) % np.abs(bottom)
    size += rest >= np.abs(bottom) - rest
    signed = np.where((top < 0) != (bottom < 0), -size, size)
    return PipeVector(decimal_from_int64(signed, nulls, 19, digits), -digits)


def _to_int64(decimals: pa.Array) -> NDArray[np.int64]:
    if _narrow_decimals(decimals).type.precision > _INT_DIGITS:
        raise ColumnarFallback
    return decimal_to_int64(decimals)


def call_text_function(
    recorder: VectorPipeEvaluator, call: PipeCall, operands: Sequence[PipeVector]
) -> pa.Array:
    """Return the result of a text function.

    Raises:
        ColumnarFallback: If Arrow's result could differ for these arguments.
    """
    if call.name in {"||", "CONCAT"}:
        return pc.binary_join_element_wise(*(each.to_texts() for each in operands), "")
    text = operands[0].to_texts()
    if call.name in {"LOWER", "UPPER"}:
        # Python's case mapping of other letters can differ from Arrow's.
        recorder.mark_fallback_rows(pc.invert(pc.string_is_ascii(text)))
    return _TEXT_FUNCTIONS[call.name](text, call.arguments[1:])


def get_int_constant(expression: PipeExpression) -> int:
    """Return the value of an integer constant.

    Raises:
        ColumnarFallback: If the expression is not an integer constant.
    """
    if isinstance(expression, PipeLiteral) and type(expression.value) is int:
        return expression.value
    raise ColumnarFallback


def _get_text_constant(expression: PipeExpression) -> str:
    if isinstance(expression, PipeLiteral) and isinstance(expression.value, str):
        return expression.value
    raise ColumnarFallback


def _replace_text(text: pa.Array, constants: Sequence[PipeExpression]) -> pa.Array:
    old, new = map(_get_text_constant, constants)
    if not old:
        raise ColumnarFallback
    return pc.replace_substring(text, old, new)


def _substring(text: pa.Array, constants: Sequence[PipeExpression]) -> pa.Array:
    first, *length = map(get_int_constant, constants)
    if first < 0:
        raise ColumnarFallback
    begin = max(first - 1, 0)
    end = begin + max(length[0], 0) if length else None
    return pc.utf8_slice_codeunits(text, begin, end)


_TEXT_FUNCTIONS: dict[str, Callable[[pa.Array, Sequence[PipeExpression]], pa.Array]] = {
    "LENGTH": lambda text, _: pc.utf8_length(text).cast(pa.int64()),
    "LOWER": lambda text, _: pc.ascii_lower(text),
    "LTRIM": lambda text, _: pc.utf8_ltrim(text, " "),
    "REPLACE": _replace_text,
    "RTRIM": lambda text, _: pc.utf8_rtrim(text, " "),
    "SUBSTR": _substring,
    "SUBSTRING": _substring,
    "TRIM": lambda text, _: pc.utf8_trim(text, " "),
    "UPPER": lambda text, _: pc.ascii_upper(text),
}


_COALESCE_FUNCTIONS = {"COALESCE", "NVL", "IFNULL"}
# Range of dates whose texts have a year of four digits.
_MIN_DATE, _MAX_DATE = dt.date(1000, 1, 1), dt.date(9999, 12, 31)
# Types that validate a text and store it unchanged.
_KINDS_STORED_AS_TEXT = {*TIMESTAMP_TYPES, LogicalType.DATE, LogicalType.TIME, LogicalType.BINARY}


@dataclass(frozen=True, slots=True)
class PipeColumns:
    """Values by column name, and a mask of the rows to evaluate one by one."""

    table: pa.Table
    fallback_rows: NDArray[np.bool_]


class VectorPipeEvaluator:
    """Evaluates a pipe's expressions for many rows at once. Not thread-safe."""

    def __init__(self, copy: PipeCopy, schema: TableSchema, zone: ZoneInfo, clock: Clock) -> None:
        columns = copy.columns or tuple(column.name for column in schema.columns)
        items = copy.items or ()
        names = [item.alias for item in items] if copy.by_name else columns
        pairs = list(zip(names, items, strict=False))
        self._names = [to_display_name(name or "") for name, _ in pairs]
        self._targets = [schema.column(name or "") for name, _ in pairs]
        self._expressions = [item.expression for _, item in pairs]
        self._zone = zone
        self._clock = clock
        self._rows = pa.table({})
        self._fallback_rows: NDArray[np.bool_] = np.zeros(0, np.bool_)

    def evaluate(self, rows: pa.Table) -> PipeColumns | None:
        """Evaluate all expressions. Return None if the row evaluator must evaluate an expression."""
        if len(set(self._names)) < len(self._names) or None in self._targets:
            return None
        self._rows = rows.combine_chunks()
        self._fallback_rows = np.zeros(rows.num_rows, np.bool_)
        try:
            arrays = [
                self._evaluate_for_column(expression, target)
                for expression, target in zip(self._expressions, self._targets, strict=True)
                if target is not None
            ]
        except (ColumnarFallback, pa.ArrowException, NotImplementedError):
            return None
        return PipeColumns(pa.Table.from_arrays(arrays, names=self._names), self._fallback_rows)

    def _evaluate_for_column(self, expression: PipeExpression, column: Column) -> pa.Array:
        """Evaluate the expression of a column."""
        found = self._evaluate(expression)
        if _types.is_decimal(found.type) and column.kind is not LogicalType.FIXED:
            # Floats need signed zeros, and their texts need the digits that the row evaluator
            # writes.
            raise ColumnarFallback
        return _parse_texts(found.values, column)

    def _evaluate(self, expression: PipeExpression) -> PipeVector:
        match expression:
            case PipeLiteral():
                return self._repeat_constant(expression.value)
            case PipeField():
                return self._follow_path(expression.steps)
            case PipeCast():
                return self._apply_cast(
                    self._evaluate(expression.operand),
                    ColumnConverter(make_cast_column(expression.type), self._zone),
                )
            case PipeCall():
                return self._evaluate_call(expression)

    def _repeat_constant(self, value: object) -> PipeVector:
        if value is None:
            return PipeVector(pa.nulls(self._rows.num_rows))
        if isinstance(value, int) and abs(value) >= 10**_INT_DIGITS:
            raise ColumnarFallback
        scalar = pa.scalar(value)
        exponent = value.as_tuple().exponent if isinstance(value, Decimal) else None
        return PipeVector(
            pa.repeat(scalar, self._rows.num_rows), exponent if isinstance(exponent, int) else None
        )

    def _follow_path(self, steps: Sequence[str | int]) -> PipeVector:
        if not steps or not all(isinstance(step, str) for step in steps):
            raise ColumnarFallback
        if steps[0] not in self._rows.column_names:
            return PipeVector(pa.nulls(self._rows.num_rows))
        found = _combine_chunks(self._rows.column(steps[0]))
        for step in steps[1:]:
            if not _types.is_struct(found.type) or found.type.get_field_index(step) < 0:
                return PipeVector(pa.nulls(self._rows.num_rows))
            found = pc.struct_field(found, step)
        if _types.is_nested(found.type):
            raise ColumnarFallback
        if _types.is_floating(found.type):
            # 3 and 3.0 are different values, because only the second one is a float.
            self.mark_fallback_rows(pc.equal(found, pc.floor(found)))
        return PipeVector(found)

    def _apply_cast(self, operand: PipeVector, converter: ColumnConverter) -> PipeVector:
        kind = converter.column.kind
        if kind in SEMI_STRUCTURED_TYPES or _types.is_null(operand.type):
            return operand
        if kind is LogicalType.TEXT:
            operand = PipeVector(operand.to_texts())
        if _types.is_decimal(operand.type) and kind is not LogicalType.FIXED:
            raise ColumnarFallback
        if kind in _KINDS_STORED_AS_TEXT and not _types.is_string(operand.type):
            raise ColumnarFallback
        read = _parse_texts(operand.values, converter.column)
        stored, refused = convert_arrow_array(converter, read)
        self._fallback_rows[refused] = True
        if kind is LogicalType.FIXED:
            return make_decimal_vector(_combine_chunks(stored))
        if kind is LogicalType.DATE and _types.is_string(read.type):
            # Texts of other dates have more than four digits, or a leading zero.
            days = _combine_chunks(stored)
            self.mark_fallback_rows(pc.or_(pc.less(days, _MIN_DATE), pc.greater(days, _MAX_DATE)))
            return PipeVector(days.cast(pa.string()))
        return (
            PipeVector(_combine_chunks(stored))
            if kind in {LogicalType.BOOLEAN, LogicalType.REAL}
            else operand
        )

    def _evaluate_call(self, call: PipeCall) -> PipeVector:
        if call.name == "CURRENT_TIMESTAMP":
            now = pa.scalar(self._clock.now(), pa.timestamp("us", "UTC"))
            return PipeVector(pa.repeat(now, self._rows.num_rows))
        given = [self._evaluate(each) for each in call.arguments]
        if any(_types.is_timestamp(each.type) for each in given):
            raise ColumnarFallback
        if call.name in _COALESCE_FUNCTIONS:
            return _coalesce(given)
        if call.name == "NULLIF":
            return _null_if_equal(*given)
        if any(_types.is_null(each.type) for each in given):
            return PipeVector(pa.nulls(self._rows.num_rows))
        return self._apply_function(call, given)

    def _apply_function(self, call: PipeCall, operands: list[PipeVector]) -> PipeVector:
        if call.name in ARITHMETIC_FUNCTIONS:
            return calculate(self, call.name, *operands)
        if call.name == "ABS":
            return compute_absolute(self, operands[0])
        if call.name in {"CEIL", "FLOOR", "ROUND"}:
            digits = get_int_constant(call.arguments[1]) if len(call.arguments) > 1 else 0
            return round_vector(self, call.name, operands[0], digits)
        return PipeVector(call_text_function(self, call, operands))

    def mark_fallback_rows(self, mask: pa.Array) -> None:
        """Mark rows for the row evaluator. Null in the mask marks no row."""
        self._fallback_rows |= pc.fill_null(mask, fill_value=False).to_numpy(zero_copy_only=False)


def _coalesce(operands: Sequence[PipeVector]) -> PipeVector:
    there = [each for each in operands if not _types.is_null(each.type)]
    if not there:
        return operands[0]
    if len({each.type for each in there}) > 1 or _types.is_decimal(there[0].type):
        raise ColumnarFallback
    return PipeVector(pc.coalesce(*(each.values for each in there)))


def _null_if_equal(left: PipeVector, right: PipeVector) -> PipeVector:
    if left.type != right.type or not (_types.is_string(left.type) or _types.is_integer(left.type)):
        raise ColumnarFallback
    equal = pc.fill_null(pc.equal(left.values, right.values), fill_value=False)
    return PipeVector(pc.if_else(equal, pa.scalar(None, left.type), left.values))


def _parse_texts(values: pa.Array, column: Column) -> pa.Array:
    """Parse texts for a column of another type. Every text must be unambiguous."""
    if not _types.is_string(values.type):
        return values
    read = parse_text_column(pa.chunked_array([values]), column)
    return values if read is None else _combine_chunks(read)


def _combine_chunks(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(array, pa.ChunkedArray):
        return array
    return array.chunk(0) if array.num_chunks == 1 else pa.concat_arrays(array.chunks)
