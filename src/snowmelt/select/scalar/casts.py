"""CAST and conversion functions: INT, FLOAT, DECIMAL, STRING, BOOL and TIMESTAMP."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation

from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError, make_skippable_row_error
from snowmelt.select.sql.ast import CastExpr
from snowmelt.select.timestamps import Timestamp, parse_iso_timestamp, parse_lenient_timestamp
from snowmelt.select.values import (
    DECIMAL_CONTEXT,
    INT_MAX,
    INT_MIN,
    describe_type,
    format_excerpt,
    format_value,
    is_null_or_missing,
    normalize_zero,
    parse_boolean_text,
    parse_number_text,
    require_int64,
)

_MAX_INT_DIGITS = 20
# Ceph has microsecond resolution and rejects a longer fraction.
_MAX_CEPH_FRACTION_DIGITS = 6
_WHITESPACE = " \t\r\n\v\f"
_C_INT_PATTERN = re.compile(r"[ \t-\r]*([+-]?\d+)", re.ASCII)
_C_FLOAT_PATTERN = re.compile(
    r"[ \t-\r]*([+-]?(?:0x(?:[\da-f]++\.?[\da-f]*|\.[\da-f]+)(?:p[+-]?\d+)?"
    r"|(?:\d++\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?|nan))",
    re.ASCII | re.IGNORECASE,
)


def cast_value(value: object, target: CastExpr, dialect: Dialect) -> object:
    """Convert a value to another type. NULL stays NULL.

    Text to a number:

    * `aws` parses any number, and truncates towards zero for INT.
    * `ceph` requires that the whole text is a number of the target type.
    * `ceph-2020` parses the longest numeric prefix, or 0 if there is none.

    The Ceph dialects round DECIMAL(p, s) to s fractional digits. `aws` keeps all digits.

    Raises:
        SelectError: If this value cannot be converted (CastFailed), no value of its type can
            (InvalidCast), a timestamp is invalid (ValueParseFailure), or the result exceeds 64 bits
            (IntegerOverflow).
    """
    if is_null_or_missing(value):
        return None
    if target.type == "DECIMAL":
        return _round_to_scale(_to_decimal(value, dialect), target, dialect)
    return _CASTS[target.type](value, dialect)


def _to_int(value: object, dialect: Dialect) -> int:
    if isinstance(value, str):
        return _text_to_int(value, dialect)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _float_to_int(value, dialect)
    if isinstance(value, Decimal):
        if value.adjusted() > _MAX_INT_DIGITS:
            return _float_to_int(float(value), dialect)
        return require_int64(int(value), dialect)
    raise _invalid_cast_error(value, "INT", dialect)


def _text_to_int(text: str, dialect: Dialect) -> int:
    if dialect.is_ceph:
        number = _parse_c_int(
            _match_number_prefix(text, _C_INT_PATTERN.match(text), dialect) or "0"
        )
        if dialect is Dialect.CEPH_2020:
            # strtol clamps out-of-range values.
            return max(INT_MIN, min(number, INT_MAX))
        if not INT_MIN <= number <= INT_MAX:
            raise _out_of_range_error(text, dialect)
        return number
    inferred = parse_number_text(text)
    if inferred is None:
        raise _cast_failed_error(text, "INT", dialect)
    return _to_int(inferred, dialect)


def _parse_c_int(digits_text: str) -> int:
    """Return the integer value of a sign and digits. More than 20 digits give ±2**64."""
    digits = digits_text.lstrip("+-0") or "0"
    size = int(digits) if len(digits) <= _MAX_INT_DIGITS else 2**64
    return -size if digits_text.startswith("-") else size


def _float_to_int(value: float, dialect: Dialect) -> int:
    if math.isfinite(value) and INT_MIN <= value < -INT_MIN:
        return int(value)
    raise make_skippable_row_error(
        "IntegerOverflow", f"{value!r} does not fit in an integer of 64 bits", dialect
    )


def _to_float(value: object, dialect: Dialect) -> float:
    if isinstance(value, str):
        if dialect.is_ceph:
            return _parse_c_float(
                value,
                _match_number_prefix(value, _C_FLOAT_PATTERN.match(value), dialect) or "0",
                dialect,
            )
        number = parse_number_text(value)
        if number is None:
            raise _cast_failed_error(value, "FLOAT", dialect)
        return float(number)
    if isinstance(value, int | float | Decimal):
        return float(value)
    raise _invalid_cast_error(value, "FLOAT", dialect)


def _parse_c_float(text: str, number_text: str, dialect: Dialect) -> float:
    """Return the strtod value of a number. In `ceph`, raise SelectError if it overflows a double."""
    try:
        number = float.fromhex(number_text) if "x" in number_text.lower() else float(number_text)
    except OverflowError:
        number = -math.inf if number_text.startswith("-") else math.inf
    if dialect is Dialect.CEPH and math.isinf(number) and "inf" not in number_text.lower():
        raise _out_of_range_error(text, dialect)
    return number


def _match_number_prefix(text: str, match: re.Match[str] | None, dialect: Dialect) -> str | None:
    """Return the numeric prefix of a text. In `ceph` nothing may follow it, not even whitespace."""
    if dialect is Dialect.CEPH_2020:
        return match[1] if match else None
    if match is None:
        message = f"text cannot be converted to a number: {format_excerpt(text)}"
        raise SelectError("CastFailed", message)
    if match.end() < len(text):
        raise SelectError(
            "CastFailed", f"extra characters after the number: {format_excerpt(text)}"
        )
    return match[1]


def _to_decimal(value: object, dialect: Dialect) -> Decimal:
    try:
        if isinstance(value, str):
            if parse_number_text(value) is None:
                raise _cast_failed_error(value, "DECIMAL", dialect)
            return normalize_zero(DECIMAL_CONTEXT.create_decimal(value.strip(_WHITESPACE)))
        if isinstance(value, float):
            if not math.isfinite(value):
                raise _cast_failed_error(value, "DECIMAL", dialect)
            return normalize_zero(Decimal(repr(value)))
        if isinstance(value, int | Decimal):
            return DECIMAL_CONTEXT.create_decimal(int(value) if isinstance(value, bool) else value)
    except ArithmeticError:
        raise _cast_failed_error(value, "DECIMAL", dialect) from None
    raise _invalid_cast_error(value, "DECIMAL", dialect)


def _round_to_scale(value: Decimal, target: CastExpr, dialect: Dialect) -> Decimal:
    if target.precision is None or not dialect.is_ceph:
        return value
    try:
        scaled = value.quantize(Decimal(1).scaleb(-(target.scale or 0)), context=DECIMAL_CONTEXT)
    except InvalidOperation:
        scaled = None
    if scaled is None or len(scaled.as_tuple().digits) > target.precision:
        name = f"DECIMAL({target.precision}, {target.scale or 0})"
        raise _cast_failed_error(value, name, dialect)
    return scaled


def _to_string(value: object, dialect: Dialect) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return format_value(value, dialect)


def _to_bool(value: object, dialect: Dialect) -> bool:
    if isinstance(value, str):
        inferred = parse_boolean_text(value)
        number = parse_number_text(value) if inferred is None else None
        if inferred is None and number is None:
            raise _cast_failed_error(value, "BOOL", dialect)
        return bool(number) if inferred is None else inferred
    if isinstance(value, float | Decimal) and dialect is Dialect.CEPH:
        # `ceph` truncates to an integer first, but treats NaN and out-of-range values as nonzero.
        return not -1 < value < 1
    if isinstance(value, int | float | Decimal):
        return bool(value)
    raise _invalid_cast_error(value, "BOOL", dialect)


def _to_timestamp(value: object, dialect: Dialect) -> Timestamp:
    if isinstance(value, Timestamp):
        return value
    if not isinstance(value, str):
        raise _invalid_cast_error(value, "TIMESTAMP", dialect)
    parse = parse_lenient_timestamp if dialect is Dialect.CEPH_2020 else parse_iso_timestamp
    parsed = parse(value)
    if parsed is None or (
        dialect is Dialect.CEPH and parsed.fraction_digits > _MAX_CEPH_FRACTION_DIGITS
    ):
        message = f"{format_excerpt(value)} is not a timestamp; expected a form such as 2007-02-23T12:14:33.079-08:00"
        raise make_skippable_row_error("ValueParseFailure", message, dialect)
    return parsed


def _cast_failed_error(value: object, type_name: str, dialect: Dialect) -> SelectError:
    return make_skippable_row_error(
        "CastFailed", f"{format_excerpt(value)} cannot be converted to {type_name}", dialect
    )


def _out_of_range_error(text: str, dialect: Dialect) -> SelectError:
    message = "converted value would fall out of the range of the result type!"
    return make_skippable_row_error("CastFailed", f"{message} {format_excerpt(text)}", dialect)


def _invalid_cast_error(value: object, type_name: str, dialect: Dialect) -> SelectError:
    message = f"a {describe_type(value)} value cannot be converted to {type_name}: {format_excerpt(value)}"
    return make_skippable_row_error("InvalidCast", message, dialect)


_CASTS: dict[str, Callable[[object, Dialect], object]] = {
    "BOOL": _to_bool,
    "INT": _to_int,
    "FLOAT": _to_float,
    "STRING": _to_string,
    "TIMESTAMP": _to_timestamp,
}
