"""SQL values of a query: type names, inference from strings, 64-bit integers, formatting.

A value is None, MISSING, bool, int, Decimal, float, str, Timestamp, list or dict.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow
from enum import Enum
from typing import Any, TypeAlias

from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError, make_skippable_row_error
from snowmelt.select.timestamps import Timestamp, timestamp_to_string


class Missing(Enum):
    """Type of MISSING, the value of a path that does not exist. JSON output omits it, unlike NULL."""

    MISSING = "MISSING"


MISSING = Missing.MISSING


Number: TypeAlias = int | Decimal | float

INT_MIN = -(2**63)
INT_MAX = 2**63 - 1
DECIMAL_DIGITS = 38
DECIMAL_CONTEXT = Context(
    prec=DECIMAL_DIGITS, Emax=6144, Emin=-6143, traps=[InvalidOperation, DivisionByZero, Overflow]
)
"""Context of DECIMAL arithmetic: 38 digits, ties to even."""

_MAX_FIXED_POINT_EXPONENT = 60
_MAX_EXCERPT_CHARACTERS = 60
_NUMBER_PATTERN = re.compile(
    r"[ \t-\r]*(?P<number>[+-]?(?:\d+(?P<point>\.\d*)?|(?P<bare>\.\d+))(?P<exponent>[eE][+-]?\d+)?)"
    r"[ \t-\r]*",
    re.ASCII,
)
_TYPE_NAMES: dict[type, str] = {
    bool: "boolean",
    int: "numeric",
    Decimal: "numeric",
    float: "numeric",
    str: "string",
    Timestamp: "timestamp",
    list: "list",
    dict: "record",
    type(None): "null",
}


def describe_type(value: object) -> str:
    """Return the type name of a value, for messages."""
    return "missing" if value is MISSING else _TYPE_NAMES.get(type(value), type(value).__name__)


def is_null_or_missing(value: object) -> bool:
    """Return True if the value is NULL or MISSING."""
    return value is None or value is MISSING


def format_excerpt(value: object) -> str:
    """Format a value for a message, truncated to 60 characters."""
    text = value if isinstance(value, str) else str(value)
    shown = (
        text if len(text) <= _MAX_EXCERPT_CHARACTERS else text[: _MAX_EXCERPT_CHARACTERS - 1] + "…"
    )
    return repr(shown) if isinstance(value, str) else shown


def parse_number_text(text: str) -> Number | None:
    """Parse a string as a number, ignoring surrounding whitespace.

    An integer that fits in 64 bits is an int. Other numbers of at most 38 characters are exact Decimals.
    Longer numbers and those with an exponent are the nearest float.

    Returns:
        None if the string is not a number, or too large for a float.
    """
    match = _NUMBER_PATTERN.fullmatch(text)
    if match is None:
        return None
    number = match["number"]
    if match["exponent"] is None and len(number) <= DECIMAL_DIGITS:
        if match["point"] is not None or match["bare"] is not None:
            return Decimal(number)
        whole = int(number)
        return whole if INT_MIN <= whole <= INT_MAX else Decimal(number)
    nearest = float(number)
    return nearest if math.isfinite(nearest) else None


def require_int64(number: int, dialect: Dialect) -> int:
    """Return an integer, after checking that it fits in 64 bits.

    Ceph's engines compute a double instead and convert it back, which C++ leaves undefined.

    Raises:
        SelectError: If the integer does not fit (IntegerOverflow). In `ceph-2020` the error drops only
            the row.
    """
    if INT_MIN <= number <= INT_MAX:
        return number
    message = f"integer {format_excerpt(number)} does not fit in 64 bits"
    raise make_skippable_row_error("IntegerOverflow", message, dialect)


def to_three_valued_truth(value: object, dialect: Dialect) -> bool | None:
    """Convert a value to a condition: true, false, or None for unknown.

    In `aws` the strings `true` and `false` are conditions. In Ceph, nonzero numbers are true.

    Raises:
        SelectError: If the value is not a condition (InvalidDataType).
    """
    if value is True or value is False or value is None:
        return value
    if value is MISSING:
        return None
    if dialect.is_ceph and isinstance(value, int | float | Decimal):
        return bool(value)
    inferred = parse_boolean_text(value) if isinstance(value, str) and not dialect.is_ceph else None
    if inferred is None:
        message = (
            f"a condition must be true or false; {format_excerpt(value)} is {describe_type(value)}"
        )
        raise make_skippable_row_error("InvalidDataType", message, dialect)
    return inferred


def parse_boolean_text(text: str) -> bool | None:
    """Parse `true` or `false` in any case, ignoring surrounding whitespace.

    Return None for other strings.
    """
    return {"true": True, "false": False}.get(text.strip().lower())


def format_value(value: object, dialect: Dialect) -> str:
    """Format a value as text, as CSV output, `||` and CAST to STRING do.

    Raises:
        SelectError: If the nesting of a list or record exceeds Python's recursion limit.
    """
    return _FORMATTERS.get(type(value), _format_other)(value, dialect)


def normalize_zero(value: Decimal) -> Decimal:
    """Remove the sign of a zero. SQL decimals have no negative zero."""
    return value or value.copy_abs()


def format_decimal(value: Decimal) -> str:
    """Return all digits of a decimal. Only exponents outside -60 to 60 are written."""
    exponent = value.as_tuple().exponent
    if (
        isinstance(exponent, int)
        and -_MAX_FIXED_POINT_EXPONENT <= exponent <= _MAX_FIXED_POINT_EXPONENT
    ):
        return f"{value:f}"
    return str(value)


def _format_text(value: Any, _dialect: Dialect) -> str:
    return str(value)


def _format_bool(value: Any, dialect: Dialect) -> str:
    if dialect is Dialect.CEPH_2020:
        return "1" if value else "0"
    return "true" if value else "false"


def _format_float(value: Any, dialect: Dialect) -> str:
    return f"{value:.17g}" if dialect.is_ceph else repr(value)


def _format_null(_value: Any, dialect: Dialect) -> str:
    return "null" if dialect is Dialect.CEPH else ""


def _format_other(value: Any, _dialect: Dialect) -> str:
    return "" if value is MISSING else str(value)


_FORMATTERS: dict[type, Callable[[Any, Dialect], str]] = {
    str: _format_text,
    int: _format_text,
    bool: _format_bool,
    float: _format_float,
    Decimal: lambda value, _dialect: format_decimal(value),
    Timestamp: timestamp_to_string,
    type(None): _format_null,
    list: lambda value, dialect: format_json(value, dialect),
    dict: lambda value, dialect: format_json(value, dialect),
}


def format_json(value: object, dialect: Dialect) -> str:
    """Format a value as JSON. NaN and infinities are null.

    Raises:
        SelectError: If the nesting of the value exceeds Python's recursion limit.
    """
    try:
        return "".join(_list_json_tokens(value, dialect))
    except RecursionError:
        raise SelectError("JSONParsingError", "A value is nested too deep to be written.") from None


def _list_json_tokens(value: object, dialect: Dialect) -> list[str]:
    if isinstance(value, dict):
        return _list_json_object_tokens(value, dialect)
    if isinstance(value, list):
        items = [piece for item in value for piece in (",", *_list_json_tokens(item, dialect))]
        return ["[", *items[1:], "]"]
    return [_format_json_scalar(value, dialect)]


def _list_json_object_tokens(value: dict[object, object], dialect: Dialect) -> list[str]:
    fields: list[str] = []
    for name, item in value.items():
        if item is not MISSING:
            fields += [",", _format_json_string(str(name)), ":", *_list_json_tokens(item, dialect)]
    return ["{", *fields[1:], "}"]


def _format_json_scalar(value: object, dialect: Dialect) -> str:
    if isinstance(value, str):
        return _format_json_string(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float | Decimal):
        return _format_json_number(value, dialect)
    if isinstance(value, Timestamp):
        return _format_json_string(format_value(value, dialect))
    return str(value) if isinstance(value, int) else "null"


def _format_json_number(value: float | Decimal, dialect: Dialect) -> str:
    if isinstance(value, Decimal):
        # `math.isfinite` would report a finite decimal beyond the range of floats as infinite.
        return format_decimal(value) if value.is_finite() else "null"
    return format_value(value, dialect) if math.isfinite(value) else "null"


def _format_json_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
