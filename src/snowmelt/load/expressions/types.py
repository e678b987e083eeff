"""Types of COPY expressions, and how a value of one becomes a value of another.

What Vertica converts implicitly is converted; where its result is not known for certain, the
expression is rejected with the cast to write, or fails for the value in question.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from snowmelt.schema.types import Column, LogicalType

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_BIGINT_DIGITS = 18
INTEGER_TEXT = r"^[ \t]*[-+]?[0-9]+[ \t]*$"
NUMBER_TEXT = r"^[ \t]*[-+]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][-+]?[0-9]{1,3})?[ \t]*$"


class ExpressionType(StrEnum):
    """The type of a part of an expression, by the name that errors use."""

    TEXT = "VARCHAR"
    LITERAL = "a text in quotes"
    INTEGER = "INTEGER"
    NUMERIC = "NUMERIC"
    FLOAT = "FLOAT"
    BOOLEAN = "BOOLEAN"
    DATE = "DATE"
    TIME = "TIME"
    TIMESTAMP = "TIMESTAMP"
    TIMESTAMP_TZ = "TIMESTAMPTZ"
    INTERVAL = "INTERVAL"
    BINARY = "VARBINARY"
    ARRAY = "ARRAY"
    NULL = "NULL"


T = ExpressionType
TEXTS = frozenset({T.TEXT, T.LITERAL})
WHOLE = frozenset({T.INTEGER, T.NUMERIC})
NUMBERS = WHOLE | {T.FLOAT}
DATED = frozenset({T.DATE, T.TIMESTAMP, T.TIMESTAMP_TZ})


class ExpressionInvalid(ValueError):
    """Part of an expression is not supported; the text says which, and what to write."""


@dataclass(frozen=True, slots=True)
class TypedSql:
    """Part of an expression in DuckDB's SQL.

    `literal` is the text of a literal. `has_scale` is False for a NUMERIC whose digits after the
    point Vertica may choose differently; its value is the same.
    """

    sql: str
    type: ExpressionType
    literal: str | None = None
    has_scale: bool = True


def column_type(column: Column) -> ExpressionType:
    """Return the type that expressions see of a parsed column."""
    if column.kind is LogicalType.FIXED:
        whole = not column.scale and (column.precision or 38) <= MAX_BIGINT_DIGITS
        return T.INTEGER if whole else T.NUMERIC
    return _COLUMN_TYPES.get(column.kind, T.TEXT)


_COLUMN_TYPES = {
    LogicalType.REAL: T.FLOAT,
    LogicalType.BOOLEAN: T.BOOLEAN,
    LogicalType.BINARY: T.BINARY,
    LogicalType.DATE: T.DATE,
    LogicalType.TIME: T.TIME,
    LogicalType.TIMESTAMP_NTZ: T.TIMESTAMP,
    LogicalType.TIMESTAMP_LTZ: T.TIMESTAMP_TZ,
    LogicalType.TIMESTAMP_TZ: T.TIMESTAMP_TZ,
}


def quote(text: str) -> str:
    """Return a text as a literal of DuckDB."""
    return "'" + text.replace("'", "''") + "'"


def text_literal(text: str) -> TypedSql:
    """Return a text of a statement."""
    return TypedSql(f"CAST({quote(text)} AS VARCHAR)", T.LITERAL, text)


def has_one_scale(values: Sequence[TypedSql]) -> bool:
    """Return whether a choice among values has the digits after the point of them all."""
    chosen = [value for value in values if value.type is not T.NULL]
    is_numeric = any(value.type is T.NUMERIC for value in chosen)
    return not is_numeric or (len(chosen) == 1 and chosen[0].has_scale)


def failing(condition: str, reason: str, value: str) -> str:
    """Return SQL for a value that is an error where a condition holds."""
    return f"(CASE WHEN {condition} THEN error({quote(reason)}) ELSE {value} END)"


def to_text(value: TypedSql) -> str:
    """Return SQL for the text of a value.

    Raises:
        ExpressionInvalid: If Vertica's text of the type is not known for certain.
    """
    sql = value.sql
    match value.type:
        case T.TEXT | T.LITERAL:
            return sql
        case T.NUMERIC if not value.has_scale:
            raise ExpressionInvalid(
                "text of a computed number with an open number of digits after the point: write "
                "::NUMERIC(p,s) before ::VARCHAR"
            )
        case T.INTEGER | T.NUMERIC | T.DATE | T.TIME | T.TIMESTAMP | T.TIMESTAMP_TZ | T.NULL:
            return f"CAST({sql} AS VARCHAR)"
        case T.FLOAT:
            whole = f"CAST(CAST({sql} AS BIGINT) AS VARCHAR)"
            reason = "text of a FLOAT with a fraction: write ::NUMERIC(p,s)::VARCHAR"
            return failing(f"{sql} <> trunc({sql}) OR abs({sql}) >= 1e15", reason, whole)
        case T.BOOLEAN:
            raise ExpressionInvalid(
                "BOOLEAN has no text here: write CASE WHEN … THEN 'true' ELSE 'false' END"
            )
        case _:
            raise ExpressionInvalid(f"{value.type} has no text here")


def to_number(value: TypedSql) -> TypedSql:
    """Return a number as it is, and a literal that is one as a number.

    Raises:
        ExpressionInvalid: If the value is not a number.
    """
    if value.type in NUMBERS:
        return value
    if value.type is T.NULL:
        return TypedSql("CAST(NULL AS BIGINT)", T.INTEGER)
    if value.literal is not None and re.match(INTEGER_TEXT, value.literal):
        return integer_literal(value.literal.strip())
    if value.literal is not None and re.match(NUMBER_TEXT, value.literal):
        return number_literal(value.literal.strip())
    raise ExpressionInvalid(f"expected a number, got {_described(value)}; write ::NUMERIC(p,s)")


def integer_literal(digits: str) -> TypedSql:
    """Return a whole number of a statement."""
    if -(2**63) <= int(digits) < 2**63:
        return TypedSql(f"CAST({int(digits)} AS BIGINT)", T.INTEGER)
    return number_literal(digits)


def number_literal(written: str) -> TypedSql:
    """Return a number of a statement with a point, an exponent, or many digits."""
    if "e" in written.lower():
        return TypedSql(f"CAST({quote(written)} AS DOUBLE)", T.FLOAT)
    whole, _, fraction = written.lstrip("+-").partition(".")
    precision = max(len(whole.lstrip("0")) + len(fraction), 1)
    if precision > 38:
        raise ExpressionInvalid(f"number {written} has more than 38 digits")
    return TypedSql(f"CAST({quote(written)} AS DECIMAL({precision},{len(fraction)}))", T.NUMERIC)


def to_integer(value: TypedSql) -> str:
    """Return SQL for an argument that is a whole number.

    Raises:
        ExpressionInvalid: If it is not.
    """
    number = to_number(value)
    if number.type is T.INTEGER:
        return number.sql
    if number.type is T.NUMERIC:
        sql = number.sql
        reason = "expected a whole number; write ROUND(…) or TRUNC(…)"
        return failing(f"{sql} <> trunc({sql})", reason, f"CAST({sql} AS BIGINT)")
    raise ExpressionInvalid(f"expected INTEGER, got {_described(value)}; write ::INTEGER")


def to_float(value: TypedSql) -> str:
    """Return SQL for a number as FLOAT.

    Raises:
        ExpressionInvalid: If the value is not a number.
    """
    return f"CAST({to_number(value).sql} AS DOUBLE)"


def to_boolean(value: TypedSql) -> str:
    """Return SQL for a condition.

    Raises:
        ExpressionInvalid: If the value is not a BOOLEAN.
    """
    if value.type is T.NULL:
        return "CAST(NULL AS BOOLEAN)"
    if value.type is not T.BOOLEAN:
        raise ExpressionInvalid(f"expected BOOLEAN, got {_described(value)}")
    return value.sql


def to_timestamp(value: TypedSql) -> str:
    """Return SQL for a date or timestamp as TIMESTAMP in UTC.

    Raises:
        ExpressionInvalid: If the value is not a date, a timestamp or a literal of one.
    """
    match value.type:
        case T.TIMESTAMP:
            return value.sql
        case T.DATE | T.NULL:
            return f"CAST({value.sql} AS TIMESTAMP)"
        case T.TIMESTAMP_TZ:
            return f"timezone('UTC', {value.sql})"
        case _ if value.literal is not None:
            return f"read_timestamp({value.sql})"
        case _:
            raise ExpressionInvalid(
                f"expected DATE or TIMESTAMP, got {_described(value)}; write ::TIMESTAMP or "
                "TO_TIMESTAMP(…)"
            )


def to_binary(value: TypedSql) -> str:
    """Return SQL for bytes.

    Raises:
        ExpressionInvalid: If the value is not VARBINARY.
    """
    if value.type is not T.BINARY:
        raise ExpressionInvalid(f"expected VARBINARY, got {_described(value)}")
    return value.sql


def unify(values: Sequence[TypedSql]) -> tuple[ExpressionType, list[str]]:
    """Return the common type of values that are compared or chosen from, and their SQL in it.

    Raises:
        ExpressionInvalid: If they have none.
    """
    types = {value.type for value in values} - {T.NULL, T.LITERAL}
    if types <= TEXTS:
        literals = any(value.type is T.LITERAL for value in values)
        found = T.TEXT if types or literals else T.NULL
        return found, [value.sql for value in values]
    if types <= NUMBERS:
        return _unify_numbers(values)
    if types <= DATED:
        if types == {T.DATE}:
            return T.DATE, [
                f"CAST({to_timestamp(value)} AS DATE)" if value.literal else value.sql
                for value in values
            ]
        return T.TIMESTAMP, [to_timestamp(value) for value in values]
    if len(types) == 1 and not any(value.type is T.LITERAL for value in values):
        return types.pop(), [value.sql for value in values]
    shown = ", ".join(sorted({_described(value) for value in values}))
    raise ExpressionInvalid(f"{shown} have no common type; write a cast")


def _unify_numbers(values: Sequence[TypedSql]) -> tuple[ExpressionType, list[str]]:
    numbers = [value if value.type is T.NULL else to_number(value) for value in values]
    types = {number.type for number in numbers}
    if T.FLOAT in types:
        return T.FLOAT, [f"CAST({number.sql} AS DOUBLE)" for number in numbers]
    return (T.NUMERIC if T.NUMERIC in types else T.INTEGER), [number.sql for number in numbers]


def assigned(value: TypedSql, column: Column) -> str:
    """Return SQL for the text of a value that its column will read as a field.

    Raises:
        ExpressionInvalid: If the column takes no value of this type without a cast.
    """
    kind, sql = column.kind, value.sql
    if value.type is T.NULL:
        return "CAST(NULL AS VARCHAR)"
    if value.type not in _ASSIGNED.get(kind, _SEMI_STRUCTURED):
        raise ExpressionInvalid(
            f"a column of type {column.sql_type} takes no {_described(value)}; write a cast"
        )
    if kind is LogicalType.TEXT:
        sql = to_text(value)
    elif value.type is T.BINARY:
        sql = f"hex({sql})"
    elif value.type is T.ARRAY:
        sql = f"to_json({sql})"
    elif value.type in DATED and kind in _DATE_CASTS:
        sql = f"CAST({to_timestamp(value)} AS {_DATE_CASTS[kind]})"
    return f"CAST({sql} AS VARCHAR)"


_DATE_CASTS = {
    LogicalType.DATE: "DATE",
    LogicalType.TIME: "TIME",
    LogicalType.TIMESTAMP_NTZ: "TIMESTAMP",
}
_ASSIGNED = {
    LogicalType.TEXT: TEXTS | NUMBERS | DATED | {T.TIME},
    LogicalType.FIXED: TEXTS | NUMBERS,
    LogicalType.REAL: TEXTS | NUMBERS,
    LogicalType.BOOLEAN: TEXTS | {T.BOOLEAN},
    LogicalType.BINARY: TEXTS | {T.BINARY},
    LogicalType.DATE: TEXTS | DATED,
    LogicalType.TIME: TEXTS | {T.TIME, T.TIMESTAMP},
    **dict.fromkeys(
        (LogicalType.TIMESTAMP_NTZ, LogicalType.TIMESTAMP_LTZ, LogicalType.TIMESTAMP_TZ),
        TEXTS | DATED,
    ),
}
_SEMI_STRUCTURED = TEXTS | NUMBERS | {T.BOOLEAN, T.ARRAY}


def _described(value: TypedSql) -> str:
    if value.literal is not None:
        return f"text {value.literal[:80]!r}"
    return str(value.type)
