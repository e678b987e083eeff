"""Evaluate the expressions of a pipe row by row.

Functions return NULL if an argument is NULL, except functions that replace NULL.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import (
    ROUND_CEILING,
    ROUND_FLOOR,
    ROUND_HALF_UP,
    Decimal,
    DecimalException,
    localcontext,
)
from typing import TypeAlias
from zoneinfo import ZoneInfo

import msgspec

from snowmelt.catalog.sql.column_types import ColumnType
from snowmelt.catalog.sql.pipe_copy import (
    PipeCall,
    PipeCast,
    PipeCopy,
    PipeExpression,
    PipeField,
    PipeLiteral,
)
from snowmelt.clock import Clock
from snowmelt.errors import InvalidRow
from snowmelt.schema.conversion.value_rules import make_value_rule
from snowmelt.schema.types import (
    SEMI_STRUCTURED_TYPES,
    Column,
    LogicalType,
    TableSchema,
    to_display_name,
)

RowExpression: TypeAlias = "Callable[[Mapping[str, object]], object]"

_encoder = msgspec.json.Encoder(decimal_format="number")
_EPOCH_DATE = dt.date(1970, 1, 1)
_DECIMAL_PRECISION = 60
_QUOTIENT_EXTRA_DIGITS, _MAX_QUOTIENT_SCALE = 6, 12
# Larger than any column accepts. Writing out a larger exponent would need much memory.
_MAX_EXPONENT = 1_000


class ExpressionFailed(Exception):
    """An expression has no value for a row."""


class PipeEvaluator:
    """Converts rows of a request to rows of the table."""

    def __init__(self, copy: PipeCopy, schema: TableSchema, zone: ZoneInfo, clock: Clock) -> None:
        compiler = _ExpressionCompiler(zone, clock)
        columns = copy.columns or tuple(column.name for column in schema.columns)
        self._items: list[tuple[str, RowExpression]] | None = None
        if copy.items is not None:
            names = [item.alias for item in copy.items] if copy.by_name else columns
            self._items = [
                (to_display_name(name or ""), compiler.compile_expression(item.expression))
                for name, item in zip(names, copy.items, strict=False)
            ]

    def evaluate_rows(
        self, rows: Sequence[Mapping[str, object]]
    ) -> tuple[list[Mapping[str, object]], dict[int, str]]:
        """Return the converted rows, and the errors of rejected rows by row number."""
        items = self._items
        if items is None:
            return list(rows), {}
        made: list[Mapping[str, object]] = []
        failed: dict[int, str] = {}
        for number, row in enumerate(rows):
            name = ""
            try:
                values: dict[str, object] = {}
                for name, evaluate in items:
                    values[name] = evaluate(row)
                made.append(values)
            except (ExpressionFailed, DecimalException, OverflowError) as error:
                reason = error if isinstance(error, ExpressionFailed) else "a number is too large"
                failed[number] = f"row {number}: the pipe's expression for {name}: {reason}"
        return made, failed


class _ExpressionCompiler:
    def __init__(self, zone: ZoneInfo, clock: Clock) -> None:
        self._zone = zone
        self._clock = clock

    def compile_expression(self, expression: PipeExpression) -> RowExpression:
        match expression:
            case PipeLiteral():
                value = expression.value
                return lambda _: value
            case PipeField():
                steps = expression.steps
                return lambda row: _follow_path(row, steps)
            case PipeCast():
                return self._compile_cast(
                    self.compile_expression(expression.operand), expression.type
                )
            case PipeCall():
                return self._compile_call(expression)

    def _compile_call(self, call: PipeCall) -> RowExpression:
        arguments = [self.compile_expression(each) for each in call.arguments]
        if call.name == "CURRENT_TIMESTAMP":
            return lambda _: self._clock.now()
        if call.name in {"COALESCE", "NVL", "IFNULL"}:
            return lambda row: next(
                (value for each in arguments if (value := each(row)) is not None), None
            )
        work = _FUNCTIONS[call.name]

        def evaluate(row: Mapping[str, object]) -> object:
            values = [each(row) for each in arguments]
            if call.name == "NULLIF":
                return None if values[0] == values[1] else values[0]
            return None if None in values else work(*values)

        return evaluate

    def _compile_cast(self, operand: RowExpression, column_type: ColumnType) -> RowExpression:
        column = make_cast_column(column_type)
        rule = make_value_rule(column, self._zone)

        def evaluate(row: Mapping[str, object]) -> object:
            value = operand(row)
            if value is None:
                return None
            if column_type.kind is LogicalType.TEXT:
                value = to_varchar(value)
            elif column_type.kind is LogicalType.FIXED and isinstance(value, bool):
                # A value that the column rejects may still be convertible by a cast.
                value = int(value)
            if column_type.kind in SEMI_STRUCTURED_TYPES:
                return value
            try:
                stored = rule(value, 0)
            except InvalidRow:
                raise ExpressionFailed(
                    f"{to_varchar(value)[:100]!r} is not a {column.sql_type}"
                ) from None
            return _from_stored_value(value, stored, column)

        return evaluate


def make_cast_column(column_type: ColumnType) -> Column:
    """Return a column with the type of a cast, used to convert its value."""
    return column_type.to_column("VALUE", 1)


def _from_stored_value(value: object, stored: object, column: Column) -> object:
    """Convert a stored value to a value of the column's type."""
    if column.kind is LogicalType.FIXED and isinstance(stored, int):
        scale = column.scale or 0
        return Decimal(stored).scaleb(-scale) if scale else stored
    if column.kind is LogicalType.BOOLEAN:
        return bool(stored)
    if column.kind is LogicalType.REAL:
        return stored
    if column.kind is LogicalType.DATE and isinstance(stored, int):
        with contextlib.suppress(OverflowError):
            return (_EPOCH_DATE + dt.timedelta(days=stored)).isoformat()
    # Times and binary values are only checked here. The target column converts them.
    return value


def _follow_path(row: object, steps: Sequence[str | int]) -> object:
    for step in steps:
        if isinstance(step, int):
            row = row[step] if isinstance(row, list) and step < len(row) else None
        else:
            row = row.get(step) if isinstance(row, dict) else None
        if row is None:
            return None
    return row


def to_varchar(value: object) -> str:
    """Convert a value to text as CAST to VARCHAR does."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case dt.datetime():
            return value.isoformat(sep=" ")
        case dict() | list():
            return _encoder.encode(value).decode()
        case Decimal():
            return f"{value:f}"
        case _:
            return str(value)


def _to_number(value: object) -> int | float | Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        raise ExpressionFailed(f"{to_varchar(value)[:100]!r} is not a number")
    if not isinstance(value, str):
        return value
    try:
        found = Decimal(value.strip())
    except DecimalException:
        raise ExpressionFailed(f"{value[:100]!r} is not a number") from None
    if not found.is_finite():
        raise ExpressionFailed(f"{value[:100]!r} is not a number")
    if found and not -_MAX_EXPONENT <= _get_exponent(found) <= _MAX_EXPONENT:
        raise ExpressionFailed(
            f"{value[:100]!r} has an exponent outside of -{_MAX_EXPONENT} to {_MAX_EXPONENT}"
        )
    return found


def _to_int(value: object) -> int:
    number = _to_number(value)
    if not math.isfinite(number):
        raise ExpressionFailed(f"{number} is not a valid count")
    return int(number)


def _calculate(operator: str, left: object, right: object) -> object:
    first, second = _to_number(left), _to_number(right)
    if operator == "/" and second == 0:
        raise ExpressionFailed("Division by zero")
    if isinstance(first, float) or isinstance(second, float):
        one, other = float(first), float(second)
        return (
            {"+": one + other, "-": one - other, "*": one * other}.get(operator)
            if operator != "/"
            else one / other
        )
    with localcontext(prec=_DECIMAL_PRECISION):
        one_exact, other_exact = Decimal(first), Decimal(second)
        if operator == "/":
            scale = max(0, -_get_exponent(one_exact))
            digits = max(scale, min(scale + _QUOTIENT_EXTRA_DIGITS, _MAX_QUOTIENT_SCALE))
            return (one_exact / other_exact).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
        if operator == "*":
            return one_exact * other_exact
        return one_exact + other_exact if operator == "+" else one_exact - other_exact


def _get_exponent(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0


def _round(value: object, digits: object = 0, rounding: str = ROUND_HALF_UP) -> object:
    number, places = _to_number(value), _to_int(digits)
    if isinstance(number, float):
        if not math.isfinite(number):
            return number
        with localcontext(prec=_DECIMAL_PRECISION * 6):
            return float(Decimal(repr(number)).quantize(Decimal(1).scaleb(-places), rounding))
    with localcontext(prec=_DECIMAL_PRECISION):
        return Decimal(number).quantize(Decimal(1).scaleb(-places), rounding)


def _substring(value: object, start: object, length: object | None = None) -> str:
    text, first = to_varchar(value), _to_int(start)
    begin = first - 1 if first > 0 else len(text) + first if first < 0 else 0
    if begin < 0:
        return ""
    end = len(text) if length is None else begin + max(_to_int(length), 0)
    return text[begin:end]


def _replace_text(value: object, old: object, new: object) -> str:
    searched = to_varchar(old)
    return to_varchar(value).replace(searched, to_varchar(new)) if searched else to_varchar(value)


_FUNCTIONS: dict[str, Callable[..., object]] = {
    "+": lambda left, right: _calculate("+", left, right),
    "-": lambda left, right: _calculate("-", left, right),
    "*": lambda left, right: _calculate("*", left, right),
    "/": lambda left, right: _calculate("/", left, right),
    "||": lambda left, right: to_varchar(left) + to_varchar(right),
    "ABS": lambda value: abs(_to_number(value)),
    "CEIL": lambda value: _round(value, 0, ROUND_CEILING),
    "CONCAT": lambda *values: "".join(map(to_varchar, values)),
    "FLOOR": lambda value: _round(value, 0, ROUND_FLOOR),
    "LENGTH": lambda value: len(to_varchar(value)),
    "LOWER": lambda value: to_varchar(value).lower(),
    "LTRIM": lambda value: to_varchar(value).lstrip(" "),
    "NULLIF": lambda left, right: None if left == right else left,
    "REPLACE": _replace_text,
    "ROUND": _round,
    "RTRIM": lambda value: to_varchar(value).rstrip(" "),
    "SUBSTR": _substring,
    "SUBSTRING": _substring,
    "TRIM": lambda value: to_varchar(value).strip(" "),
    "UPPER": lambda value: to_varchar(value).upper(),
}
