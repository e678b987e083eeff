"""What a pipe computes from each row. NULL goes through every function but those that replace it."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
from decimal import (
    ROUND_CEILING,
    ROUND_FLOOR,
    ROUND_HALF_UP,
    Decimal,
    DecimalException,
    localcontext,
)
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from snowmelt.catalog.sql.pipe_ast import PipeCall, PipeCast, PipeField, PipeLiteral
from snowmelt.errors import InvalidRow
from snowmelt.schema.conversion.value_rules import make_value_rule
from snowmelt.schema.types import SEMI_STRUCTURED_TYPES, Column, LogicalType, display_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from zoneinfo import ZoneInfo

    from snowmelt.catalog.sql.column_types import ColumnType
    from snowmelt.catalog.sql.pipe_ast import PipeCopy, PipeExpression
    from snowmelt.clock import Clock
    from snowmelt.schema.types import TableSchema

Evaluate: TypeAlias = "Callable[[Mapping[str, object]], object]"

_encoder = msgspec.json.Encoder(decimal_format="number")
_TEXT = Column("TEXT", LogicalType.TEXT, 1)
_DAY_0 = dt.date(1970, 1, 1)
_DIGITS = 60
_MORE_DIGITS, _MOST_DIGITS = 6, 12
# Beyond what any column takes; written out, a number of an endless exponent would take memory.
_LARGEST_EXPONENT = 1_000


class ExpressionFailed(Exception):
    """An expression has no value for a row."""


class Transformation:
    """Turns rows that came into rows of the table."""

    def __init__(self, copy: PipeCopy, schema: TableSchema, zone: ZoneInfo, clock: Clock) -> None:
        compiler = _Compiler(zone, clock)
        columns = copy.columns or tuple(column.name for column in schema.columns)
        self._items: list[tuple[str, Evaluate]] | None = None
        if copy.items is not None:
            names = [item.alias for item in copy.items] if copy.by_name else columns
            self._items = [
                (display_name(name or ""), compiler.compiled(item.expression))
                for name, item in zip(names, copy.items, strict=False)
            ]

    def apply(
        self, rows: Sequence[Mapping[str, object]]
    ) -> tuple[list[Mapping[str, object]], dict[int, str]]:
        """Return the rows of the table, and by number why others have none."""
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


class _Compiler:
    def __init__(self, zone: ZoneInfo, clock: Clock) -> None:
        self._zone = zone
        self._clock = clock

    def compiled(self, expression: PipeExpression) -> Evaluate:
        match expression:
            case PipeLiteral():
                value = expression.value
                return lambda _: value
            case PipeField():
                steps = expression.steps
                return lambda row: _reached(row, steps)
            case PipeCast():
                return self._cast(self.compiled(expression.operand), expression.type)
            case PipeCall():
                return self._call(expression)

    def _call(self, call: PipeCall) -> Evaluate:
        arguments = [self.compiled(each) for each in call.arguments]
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

    def _cast(self, operand: Evaluate, kind: ColumnType) -> Evaluate:
        column = value_column(kind)
        rule = make_value_rule(column, self._zone)

        def evaluate(row: Mapping[str, object]) -> object:
            value = operand(row)
            if value is None:
                return None
            if kind.kind is LogicalType.TEXT:
                value = text_of(value)
            elif kind.kind is LogicalType.FIXED and isinstance(value, bool):
                # What a column refuses may be cast.
                value = int(value)
            if kind.kind in SEMI_STRUCTURED_TYPES:
                return value
            try:
                stored = rule(value, 0)
            except InvalidRow:
                raise ExpressionFailed(
                    f"{text_of(value)[:100]!r} is no {column.sql_type}"
                ) from None
            return _cast_value(value, stored, column)

        return evaluate


def value_column(kind: ColumnType) -> Column:
    """Return the column that a value of a cast's type would be in; errors do not name it."""
    return Column(
        "VALUE",
        kind.kind,
        1,
        precision=kind.precision,
        scale=kind.scale,
        length=kind.length,
        byte_length=kind.byte_length,
    )


def _cast_value(value: object, stored: object, column: Column) -> object:
    """Return what a value is once it has been taken as one of the column's type."""
    if column.kind is LogicalType.FIXED and isinstance(stored, int):
        scale = column.scale or 0
        return Decimal(stored).scaleb(-scale) if scale else stored
    if column.kind is LogicalType.BOOLEAN:
        return bool(stored)
    if column.kind is LogicalType.REAL:
        return stored
    if column.kind is LogicalType.DATE and isinstance(stored, int):
        with contextlib.suppress(OverflowError):
            return (_DAY_0 + dt.timedelta(days=stored)).isoformat()
    # Times and bytes are checked; the column that they go to reads them in its own way.
    return value


def _reached(row: object, steps: Sequence[str | int]) -> object:
    for step in steps:
        if isinstance(step, int):
            row = row[step] if isinstance(row, list) and step < len(row) else None
        else:
            row = row.get(step) if isinstance(row, dict) else None
        if row is None:
            return None
    return row


def text_of(value: object) -> str:
    """Return a value as text, as a cast to VARCHAR has it."""
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


def _number(value: object) -> int | float | Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        raise ExpressionFailed(f"{text_of(value)[:100]!r} is no number")
    if not isinstance(value, str):
        return value
    try:
        found = Decimal(value.strip())
    except DecimalException:
        raise ExpressionFailed(f"{value[:100]!r} is no number") from None
    if not found.is_finite():
        raise ExpressionFailed(f"{value[:100]!r} is no number")
    if found and not -_LARGEST_EXPONENT <= _exponent(found) <= _LARGEST_EXPONENT:
        raise ExpressionFailed(f"{value[:100]!r} has too many digits")
    return found


def _count(value: object) -> int:
    number = _number(value)
    if not math.isfinite(number):
        raise ExpressionFailed(f"{number} is no count")
    return int(number)


def _exact(value: int | Decimal) -> Decimal:
    return Decimal(value)


def _calculate(sign: str, left: object, right: object) -> object:
    first, second = _number(left), _number(right)
    if sign == "/" and second == 0:
        raise ExpressionFailed("Division by zero")
    if isinstance(first, float) or isinstance(second, float):
        one, other = float(first), float(second)
        return (
            {"+": one + other, "-": one - other, "*": one * other}.get(sign)
            if sign != "/"
            else one / other
        )
    with localcontext(prec=_DIGITS):
        one_exact, other_exact = _exact(first), _exact(second)
        if sign == "/":
            scale = max(0, -_exponent(one_exact))
            digits = max(scale, min(scale + _MORE_DIGITS, _MOST_DIGITS))
            return (one_exact / other_exact).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
        if sign == "*":
            return one_exact * other_exact
        return one_exact + other_exact if sign == "+" else one_exact - other_exact


def _exponent(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0


def _rounded(value: object, digits: object = 0, how: str = ROUND_HALF_UP) -> object:
    number, places = _number(value), _count(digits)
    if isinstance(number, float):
        if not math.isfinite(number):
            return number
        with localcontext(prec=_DIGITS * 6):
            return float(Decimal(repr(number)).quantize(Decimal(1).scaleb(-places), how))
    with localcontext(prec=_DIGITS):
        return _exact(number).quantize(Decimal(1).scaleb(-places), how)


def _part(value: object, start: object, length: object | None = None) -> str:
    text, first = text_of(value), _count(start)
    begin = first - 1 if first > 0 else len(text) + first if first < 0 else 0
    if begin < 0:
        return ""
    end = len(text) if length is None else begin + max(_count(length), 0)
    return text[begin:end]


def _replaced(value: object, old: object, new: object) -> str:
    searched = text_of(old)
    return text_of(value).replace(searched, text_of(new)) if searched else text_of(value)


_FUNCTIONS: dict[str, Callable[..., object]] = {
    "+": lambda left, right: _calculate("+", left, right),
    "-": lambda left, right: _calculate("-", left, right),
    "*": lambda left, right: _calculate("*", left, right),
    "/": lambda left, right: _calculate("/", left, right),
    "||": lambda left, right: text_of(left) + text_of(right),
    "ABS": lambda value: abs(_number(value)),
    "CEIL": lambda value: _rounded(value, 0, ROUND_CEILING),
    "CONCAT": lambda *values: "".join(map(text_of, values)),
    "FLOOR": lambda value: _rounded(value, 0, ROUND_FLOOR),
    "LENGTH": lambda value: len(text_of(value)),
    "LOWER": lambda value: text_of(value).lower(),
    "LTRIM": lambda value: text_of(value).lstrip(" "),
    "NULLIF": lambda left, right: None if left == right else left,
    "REPLACE": _replaced,
    "ROUND": _rounded,
    "RTRIM": lambda value: text_of(value).rstrip(" "),
    "SUBSTR": _part,
    "SUBSTRING": _part,
    "TRIM": lambda value: text_of(value).strip(" "),
    "UPPER": lambda value: text_of(value).upper(),
}
