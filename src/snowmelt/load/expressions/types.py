"""Expression types of COPY, and the conversions between them.

Applies Vertica's implicit conversions. If Vertica's result is not documented, the expression is
rejected with a message that gives the cast to write, or evaluation fails for the value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from snowmelt.schema.types import Column, LogicalType

MAX_BIGINT_DIGITS = 18
INTEGER_TEXT_PATTERN = r"^[ \t]*[-+]?[0-9]+[ \t]*$"
NUMBER_TEXT_PATTERN = r"^[ \t]*[-+]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][-+]?[0-9]{1,3})?[ \t]*$"


class ExpressionType(StrEnum):
    """Type of an expression. The value is its name in error messages."""

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


ExprType = ExpressionType
TEXT_TYPES = frozenset({ExprType.TEXT, ExprType.LITERAL})
EXACT_NUMBER_TYPES = frozenset({ExprType.INTEGER, ExprType.NUMERIC})
NUMBER_TYPES = EXACT_NUMBER_TYPES | {ExprType.FLOAT}
DATE_TYPES = frozenset({ExprType.DATE, ExprType.TIMESTAMP, ExprType.TIMESTAMP_TZ})


class ExpressionInvalid(ValueError):
    """Raised if part of an expression is not supported. The message names it and an alternative."""


@dataclass(frozen=True, slots=True)
class TypedSql:
    """Part of an expression as DuckDB SQL, with its type.

    `literal` is the text of a string literal. `has_scale` is False for a NUMERIC whose scale may
    differ from Vertica's. Its value does not differ.
    """

    sql: str
    type: ExpressionType
    literal: str | None = None
    has_scale: bool = True


def expression_type_for_column(column: Column) -> ExpressionType:
    """Return the expression type of a parsed column."""
    if column.kind is LogicalType.FIXED:
        whole = not column.scale and (column.precision or 38) <= MAX_BIGINT_DIGITS
        return ExprType.INTEGER if whole else ExprType.NUMERIC
    return _COLUMN_TYPES.get(column.kind, ExprType.TEXT)


_COLUMN_TYPES = {
    LogicalType.REAL: ExprType.FLOAT,
    LogicalType.BOOLEAN: ExprType.BOOLEAN,
    LogicalType.BINARY: ExprType.BINARY,
    LogicalType.DATE: ExprType.DATE,
    LogicalType.TIME: ExprType.TIME,
    LogicalType.TIMESTAMP_NTZ: ExprType.TIMESTAMP,
    LogicalType.TIMESTAMP_LTZ: ExprType.TIMESTAMP_TZ,
    LogicalType.TIMESTAMP_TZ: ExprType.TIMESTAMP_TZ,
}


def quote_literal(text: str) -> str:
    """Return a string literal in DuckDB SQL."""
    return "'" + text.replace("'", "''") + "'"


def render_text_literal(text: str) -> TypedSql:
    """Return a string literal of a statement."""
    return TypedSql(f"CAST({quote_literal(text)} AS VARCHAR)", ExprType.LITERAL, text)


def is_scale_preserved(values: Sequence[TypedSql]) -> bool:
    """Return True unless a choice among these values is a NUMERIC whose scale may differ."""
    chosen = [value for value in values if value.type is not ExprType.NULL]
    is_numeric = any(value.type is ExprType.NUMERIC for value in chosen)
    return not is_numeric or (len(chosen) == 1 and chosen[0].has_scale)


def render_failure_if(condition: str, reason: str, value: str) -> str:
    """Return SQL that raises an error if a condition holds, and returns `value` otherwise."""
    return f"(CASE WHEN {condition} THEN error({quote_literal(reason)}) ELSE {value} END)"


def render_as_text(value: TypedSql) -> str:
    """Return SQL that converts a value to text.

    Raises:
        ExpressionInvalid: If Vertica does not document the text of the type.
    """
    sql = value.sql
    match value.type:
        case ExprType.TEXT | ExprType.LITERAL:
            return sql
        case ExprType.NUMERIC if not value.has_scale:
            raise ExpressionInvalid(
                "text of a computed number with an open number of digits after the point: write "
                "::NUMERIC(p,s) before ::VARCHAR"
            )
        case (
            ExprType.INTEGER
            | ExprType.NUMERIC
            | ExprType.DATE
            | ExprType.TIME
            | ExprType.TIMESTAMP
            | ExprType.TIMESTAMP_TZ
            | ExprType.NULL
        ):
            return f"CAST({sql} AS VARCHAR)"
        case ExprType.FLOAT:
            whole = f"CAST(CAST({sql} AS BIGINT) AS VARCHAR)"
            reason = "text of a FLOAT with a fraction: write ::NUMERIC(p,s)::VARCHAR"
            return render_failure_if(f"{sql} <> trunc({sql}) OR abs({sql}) >= 1e15", reason, whole)
        case ExprType.BOOLEAN:
            raise ExpressionInvalid(
                "BOOLEAN has no text here: write CASE WHEN … THEN 'true' ELSE 'false' END"
            )
        case _:
            raise ExpressionInvalid(f"{value.type} has no text here")


def require_number(value: TypedSql) -> TypedSql:
    """Return a number unchanged, or convert a numeric string literal to a number.

    Raises:
        ExpressionInvalid: If the value is not a number.
    """
    if value.type in NUMBER_TYPES:
        return value
    if value.type is ExprType.NULL:
        return TypedSql("CAST(NULL AS BIGINT)", ExprType.INTEGER)
    if value.literal is not None and re.match(INTEGER_TEXT_PATTERN, value.literal):
        return render_integer_literal(value.literal.strip())
    if value.literal is not None and re.match(NUMBER_TEXT_PATTERN, value.literal):
        return render_number_literal(value.literal.strip())
    raise ExpressionInvalid(
        f"expected a number, got {_describe_value(value)}; write ::NUMERIC(p,s)"
    )


def render_integer_literal(digits: str) -> TypedSql:
    """Return an integer literal of a statement."""
    if -(2**63) <= int(digits) < 2**63:
        return TypedSql(f"CAST({int(digits)} AS BIGINT)", ExprType.INTEGER)
    return render_number_literal(digits)


def render_number_literal(written: str) -> TypedSql:
    """Return a literal that has a decimal point, an exponent or more digits than BIGINT."""
    if "e" in written.lower():
        return TypedSql(f"CAST({quote_literal(written)} AS DOUBLE)", ExprType.FLOAT)
    whole, _, fraction = written.lstrip("+-").partition(".")
    precision = max(len(whole.lstrip("0")) + len(fraction), 1)
    if precision > 38:
        raise ExpressionInvalid(f"number {written} has more than 38 digits")
    return TypedSql(
        f"CAST({quote_literal(written)} AS DECIMAL({precision},{len(fraction)}))", ExprType.NUMERIC
    )


def render_as_integer(value: TypedSql) -> str:
    """Return SQL for an integer argument.

    Raises:
        ExpressionInvalid: If the value is not an INTEGER or NUMERIC.
    """
    number = require_number(value)
    if number.type is ExprType.INTEGER:
        return number.sql
    if number.type is ExprType.NUMERIC:
        sql = number.sql
        reason = "expected a whole number; write ROUND(…) or TRUNC(…)"
        return render_failure_if(f"{sql} <> trunc({sql})", reason, f"CAST({sql} AS BIGINT)")
    raise ExpressionInvalid(f"expected INTEGER, got {_describe_value(value)}; write ::INTEGER")


def render_as_float(value: TypedSql) -> str:
    """Return SQL that converts a number to FLOAT.

    Raises:
        ExpressionInvalid: If the value is not a number.
    """
    return f"CAST({require_number(value).sql} AS DOUBLE)"


def render_as_condition(value: TypedSql) -> str:
    """Return SQL for a condition.

    Raises:
        ExpressionInvalid: If the value is not a BOOLEAN.
    """
    if value.type is ExprType.NULL:
        return "CAST(NULL AS BOOLEAN)"
    if value.type is not ExprType.BOOLEAN:
        raise ExpressionInvalid(f"expected BOOLEAN, got {_describe_value(value)}")
    return value.sql


def render_as_timestamp(value: TypedSql) -> str:
    """Return SQL that converts a date or timestamp to TIMESTAMP in UTC.

    Raises:
        ExpressionInvalid: If the value is not a date, a timestamp or a string literal.
    """
    match value.type:
        case ExprType.TIMESTAMP:
            return value.sql
        case ExprType.DATE | ExprType.NULL:
            return f"CAST({value.sql} AS TIMESTAMP)"
        case ExprType.TIMESTAMP_TZ:
            return f"timezone('UTC', {value.sql})"
        case _ if value.literal is not None:
            return f"read_timestamp({value.sql})"
        case _:
            raise ExpressionInvalid(
                f"expected DATE or TIMESTAMP, got {_describe_value(value)}; write ::TIMESTAMP or "
                "TO_TIMESTAMP(…)"
            )


def require_binary_sql(value: TypedSql) -> str:
    """Return SQL for a binary value.

    Raises:
        ExpressionInvalid: If the value is not VARBINARY.
    """
    if value.type is not ExprType.BINARY:
        raise ExpressionInvalid(f"expected VARBINARY, got {_describe_value(value)}")
    return value.sql


def convert_to_common_type(values: Sequence[TypedSql]) -> tuple[ExpressionType, list[str]]:
    """Return the common type of values, and their SQL converted to it.

    Raises:
        ExpressionInvalid: If they have no common type.
    """
    types = {value.type for value in values} - {ExprType.NULL, ExprType.LITERAL}
    if types <= TEXT_TYPES:
        literals = any(value.type is ExprType.LITERAL for value in values)
        found = ExprType.TEXT if types or literals else ExprType.NULL
        return found, [value.sql for value in values]
    if types <= NUMBER_TYPES:
        return _convert_to_common_number_type(values)
    if types <= DATE_TYPES:
        if types == {ExprType.DATE}:
            return ExprType.DATE, [
                f"CAST({render_as_timestamp(value)} AS DATE)" if value.literal else value.sql
                for value in values
            ]
        return ExprType.TIMESTAMP, [render_as_timestamp(value) for value in values]
    if len(types) == 1 and not any(value.type is ExprType.LITERAL for value in values):
        return types.pop(), [value.sql for value in values]
    shown = ", ".join(sorted({_describe_value(value) for value in values}))
    raise ExpressionInvalid(f"{shown} have no common type; write a cast")


def _convert_to_common_number_type(values: Sequence[TypedSql]) -> tuple[ExpressionType, list[str]]:
    numbers = [value if value.type is ExprType.NULL else require_number(value) for value in values]
    types = {number.type for number in numbers}
    if ExprType.FLOAT in types:
        return ExprType.FLOAT, [f"CAST({number.sql} AS DOUBLE)" for number in numbers]
    return (ExprType.NUMERIC if ExprType.NUMERIC in types else ExprType.INTEGER), [
        number.sql for number in numbers
    ]


def render_assigned_text(value: TypedSql, column: Column) -> str:
    """Return SQL for the text of a value, in the form that its column parses.

    Raises:
        ExpressionInvalid: If the column does not accept this type without a cast.
    """
    kind, sql = column.kind, value.sql
    if value.type is ExprType.NULL:
        return "CAST(NULL AS VARCHAR)"
    if value.type not in _ASSIGNABLE_TYPES.get(kind, _SEMI_STRUCTURED_TYPES):
        raise ExpressionInvalid(
            f"a column of type {column.sql_type} does not accept {_describe_value(value)}; write a cast"
        )
    if kind is LogicalType.TEXT:
        sql = render_as_text(value)
    elif value.type is ExprType.BINARY:
        sql = f"hex({sql})"
    elif value.type is ExprType.ARRAY:
        sql = f"to_json({sql})"
    elif value.type in DATE_TYPES and kind in _DATE_CASTS:
        sql = f"CAST({render_as_timestamp(value)} AS {_DATE_CASTS[kind]})"
    return f"CAST({sql} AS VARCHAR)"


_DATE_CASTS = {
    LogicalType.DATE: "DATE",
    LogicalType.TIME: "TIME",
    LogicalType.TIMESTAMP_NTZ: "TIMESTAMP",
}
_ASSIGNABLE_TYPES = {
    LogicalType.TEXT: TEXT_TYPES | NUMBER_TYPES | DATE_TYPES | {ExprType.TIME},
    LogicalType.FIXED: TEXT_TYPES | NUMBER_TYPES,
    LogicalType.REAL: TEXT_TYPES | NUMBER_TYPES,
    LogicalType.BOOLEAN: TEXT_TYPES | {ExprType.BOOLEAN},
    LogicalType.BINARY: TEXT_TYPES | {ExprType.BINARY},
    LogicalType.DATE: TEXT_TYPES | DATE_TYPES,
    LogicalType.TIME: TEXT_TYPES | {ExprType.TIME, ExprType.TIMESTAMP},
    **dict.fromkeys(
        (LogicalType.TIMESTAMP_NTZ, LogicalType.TIMESTAMP_LTZ, LogicalType.TIMESTAMP_TZ),
        TEXT_TYPES | DATE_TYPES,
    ),
}
_SEMI_STRUCTURED_TYPES = TEXT_TYPES | NUMBER_TYPES | {ExprType.BOOLEAN, ExprType.ARRAY}


def _describe_value(value: TypedSql) -> str:
    if value.literal is not None:
        return f"text {value.literal[:80]!r}"
    return str(value.type)
