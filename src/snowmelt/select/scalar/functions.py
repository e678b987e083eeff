"""Scalar SQL functions: strings, timestamps, addition, NULLIF, COALESCE and version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, TypeAlias

from snowmelt.select import timestamps
from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import make_skippable_row_error
from snowmelt.select.scalar.operators import are_equal_without_inference, calculate_arithmetic
from snowmelt.select.scalar.timestamp_formats import format_timestamp
from snowmelt.select.timestamps import Timestamp, parse_iso_timestamp, parse_lenient_timestamp
from snowmelt.select.values import (
    describe_type,
    format_excerpt,
    is_null_or_missing,
    parse_number_text,
)

if TYPE_CHECKING:
    Run: TypeAlias = Callable[[Sequence[object], Dialect], object]

_INT64_END = 2**63


@dataclass(frozen=True, slots=True)
class SelectFunction:
    """Implementation of a function. With `accepts_null` it also runs for NULL arguments."""

    implementation: Run
    accepts_null: bool = False


def call_function(name: str, arguments: Sequence[object], dialect: Dialect) -> object:
    """Call a function. The result is NULL if an argument is NULL, unless the function accepts NULL.

    Raises:
        SelectError: If an argument has an invalid type or is out of range.
    """
    function = FUNCTIONS[name]
    if not function.accepts_null and any(is_null_or_missing(argument) for argument in arguments):
        return None
    return function.implementation(arguments, dialect)


def _require_text(value: object, function_name: str, dialect: Dialect) -> str:
    if isinstance(value, str):
        return value
    message = f"{function_name} expects text, got {format_excerpt(value)} ({describe_type(value)}); CAST it AS STRING"
    raise make_skippable_row_error("IncorrectSqlFunctionArgumentType", message, dialect)


def _require_integer(value: object, function_name: str, dialect: Dialect) -> int:
    number = parse_number_text(value) if isinstance(value, str) and not dialect.is_ceph else value
    if isinstance(number, int | float | Decimal) and not isinstance(number, bool):
        # The range check excludes infinity and NaN.
        whole = int(number) if -_INT64_END < number < _INT64_END else None
        if whole is not None and whole == number:
            return whole
    message = (
        f"{function_name} expects an integer, got {format_excerpt(value)} ({describe_type(value)})"
    )
    raise make_skippable_row_error("IncorrectSqlFunctionArgumentType", message, dialect)


def _require_timestamp(value: object, function_name: str, dialect: Dialect) -> Timestamp:
    if isinstance(value, Timestamp):
        return value
    inferred = (
        parse_iso_timestamp(value) if isinstance(value, str) and not dialect.is_ceph else None
    )
    if inferred is None:
        message = f"{function_name} expects a timestamp, got {format_excerpt(value)} ({describe_type(value)})"
        raise make_skippable_row_error("IncorrectSqlFunctionArgumentType", message, dialect)
    return inferred


def _char_length(arguments: Sequence[object], dialect: Dialect) -> int:
    return len(_require_text(arguments[0], "char_length", dialect))


def _substring(arguments: Sequence[object], dialect: Dialect) -> str:
    """Return a part of a text. `aws` moves a start before the first character to the first character.

    The Ceph dialects count the length from the given start, even if it is before the text.
    """
    text = _require_text(arguments[0], "substring", dialect)
    start, length = _parse_substring_range(arguments, "substring", dialect)
    if dialect is Dialect.AWS:
        start = max(start, 1)
    end = len(text) if length is None else max(start + length - 1, 0)
    return text[max(start, 1) - 1 : end]


def _substr(arguments: Sequence[object], dialect: Dialect) -> str:
    """Return the result of `substring`. In `ceph-2020`, a range outside the text is an error."""
    if dialect is not Dialect.CEPH_2020:
        return _substring(arguments, dialect)
    text = _require_text(arguments[0], "substr", dialect)
    start, length = _parse_substring_range(arguments, "substr", dialect)
    if start == 0:
        return ""
    end = len(text) if length is None else start - 1 + length
    if not 0 < start <= len(text) or end > len(text):
        message = f"substr of {len(text)} characters from {start} to {end} is out of range"
        raise make_skippable_row_error("EvaluatorInvalidArguments", message, dialect)
    return text[start - 1 : end]


def _parse_substring_range(
    arguments: Sequence[object], function_name: str, dialect: Dialect
) -> tuple[int, int | None]:
    start = _require_integer(arguments[1], function_name, dialect)
    length = _require_integer(arguments[2], function_name, dialect) if len(arguments) > 2 else None
    if length is not None and length < 0:
        message = f"{function_name} expects a length of 0 or more, got {length}"
        raise make_skippable_row_error("EvaluatorInvalidArguments", message, dialect)
    return start, length


def _trim(arguments: Sequence[object], dialect: Dialect) -> str:
    mode = arguments[0]
    characters = _require_text(arguments[1], "trim", dialect)
    text = _require_text(arguments[2], "trim", dialect)
    if mode == "leading":
        return text.lstrip(characters) if characters else text
    if mode == "trailing":
        return text.rstrip(characters) if characters else text
    return text.strip(characters) if characters else text


def _coalesce(arguments: Sequence[object], _dialect: Dialect) -> object:
    return next((argument for argument in arguments if not is_null_or_missing(argument)), None)


def _to_timestamp(arguments: Sequence[object], dialect: Dialect) -> Timestamp:
    value = arguments[0]
    if isinstance(value, Timestamp):
        return value
    parsed = parse_lenient_timestamp(_require_text(value, "timestamp", dialect))
    if parsed is None:
        message = f"{format_excerpt(value)} is not a timestamp; expected a form such as 1999:10:10-12:23:44"
        raise make_skippable_row_error("ValueParseFailure", message, dialect)
    return parsed


def _extract(arguments: Sequence[object], dialect: Dialect) -> int:
    return timestamps.extract_date_part(
        str(arguments[0]), _require_timestamp(arguments[1], "extract", dialect)
    )


def _date_add(
    arguments: Sequence[object], dialect: Dialect, *, function_name: str, keep_month_end: bool
) -> Timestamp:
    count = _require_integer(arguments[1], function_name, dialect)
    moment = _require_timestamp(arguments[2], function_name, dialect)
    added = timestamps.date_add(str(arguments[0]), count, moment, keep_month_end=keep_month_end)
    if added is None:
        message = f"the result of {function_name} is outside the years 1 to 9999"
        raise make_skippable_row_error("EvaluatorInvalidArguments", message, dialect)
    return added


def _date_diff(
    arguments: Sequence[object],
    dialect: Dialect,
    *,
    function_name: str,
    subtract: Callable[[str, Timestamp, Timestamp], int],
) -> int:
    start, end = (_require_timestamp(each, function_name, dialect) for each in arguments[1:])
    return subtract(str(arguments[0]), start, end)


def _to_string(arguments: Sequence[object], dialect: Dialect) -> str:
    moment = _require_timestamp(arguments[0], "to_string", dialect)
    picture = _require_text(arguments[1], "to_string", dialect)
    return format_timestamp(moment, picture, is_ceph=dialect.is_ceph)


def _engine_version(_arguments: Sequence[object], _dialect: Dialect) -> str:
    return "snowmelt " + version("snowmelt")


FUNCTIONS = {
    "add": SelectFunction(
        lambda values, dialect: calculate_arithmetic("+", values[0], values[1], dialect)
    ),
    "char_length": SelectFunction(_char_length),
    "character_length": SelectFunction(_char_length),
    "coalesce": SelectFunction(_coalesce, accepts_null=True),
    "date_add": SelectFunction(partial(_date_add, function_name="date_add", keep_month_end=False)),
    "date_diff": SelectFunction(
        partial(_date_diff, function_name="date_diff", subtract=timestamps.date_diff)
    ),
    "dateadd": SelectFunction(partial(_date_add, function_name="dateadd", keep_month_end=True)),
    "datediff": SelectFunction(
        partial(_date_diff, function_name="datediff", subtract=timestamps.calendar_diff)
    ),
    "engine_version": SelectFunction(_engine_version),
    "extract": SelectFunction(_extract),
    "lower": SelectFunction(
        lambda values, dialect: _require_text(values[0], "lower", dialect).lower()
    ),
    "nullif": SelectFunction(
        lambda values, _: None if are_equal_without_inference(*values) else values[0],
        accepts_null=True,
    ),
    "substr": SelectFunction(_substr),
    "substring": SelectFunction(_substring),
    "timestamp": SelectFunction(_to_timestamp),
    "to_string": SelectFunction(_to_string),
    "trim": SelectFunction(_trim),
    "upper": SelectFunction(
        lambda values, dialect: _require_text(values[0], "upper", dialect).upper()
    ),
    "version": SelectFunction(_engine_version),
}
