"""Conversion of values of each SQL type from and to JSON values."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

import msgspec

from snowmelt.functions.signature import SqlType
from snowmelt.json import exact
from snowmelt.schema.types import TIMESTAMP_TYPES, LogicalType

_Sized = TypeVar("_Sized", str, bytes)
ValueConverter: TypeAlias = Callable[[Any], Any]

_WIDE_CONTEXT = Context(prec=120)
_SPECIAL_FLOATS = {
    "nan": math.nan,
    "inf": math.inf,
    "+inf": math.inf,
    "-inf": -math.inf,
    "infinity": math.inf,
    "+infinity": math.inf,
    "-infinity": -math.inf,
}
_UTC_OFFSET_PATTERN = re.compile(r"\s*([+-])(\d\d):?(\d\d)?\s*\Z")
# Validate with patterns: Python's parsers also accept underscores, non-ASCII digits, weeks, and
# dates without hyphens.
_WHITESPACE = " \t\r\n"
_NUMBER_PATTERN = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_TIME_REGEX = r"[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?"
_TIME_PATTERN = re.compile(_TIME_REGEX)
_TIMESTAMP_PATTERN = re.compile(
    rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:[T ](?:[0-9]{{2}}|{_TIME_REGEX})"
    r"(?: ?(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?))?)?"
)
_HEX_PATTERN = re.compile(r"(?:[0-9A-Fa-f]{2})*")
_MICROSECOND_DIGITS = 6
_MINUTE = dt.timedelta(minutes=1)
_NUMBER_TYPES = (int, float, Decimal)


class ValueMismatch(ValueError):
    """A value does not fit its type. The message contains no part of the value."""


class BinaryForm(StrEnum):
    """Text form of BINARY."""

    HEX = "HEX"
    BASE64 = "BASE64"


@dataclass(frozen=True, slots=True)
class Formats:
    """Text formats of a session: zone of timestamps without an offset, and text form of BINARY."""

    zone: dt.tzinfo = dt.UTC
    binary: BinaryForm = BinaryForm.HEX


def make_value_reader(sql_type: SqlType, formats: Formats) -> ValueConverter:
    """Return a function that converts a parsed JSON value (never null) to a value of the type.

    It converts NUMBER to int or Decimal, timestamps to datetimes (naive ones for NTZ), and returns
    the JSON value for VARIANT. It raises ValueMismatch for a value that does not fit the type.
    """
    kind = sql_type.kind
    if kind is LogicalType.FIXED:
        return lambda value: _read_number(value, sql_type)
    if kind in TIMESTAMP_TYPES:
        zone = None if kind is LogicalType.TIMESTAMP_NTZ else formats.zone
        return lambda value: _read_timestamp(value, zone, sql_type.scale)
    if kind is LogicalType.TIME:
        return lambda value: _read_time(value, sql_type.scale)
    if kind is LogicalType.BINARY:
        return lambda value: _read_binary(value, formats.binary, sql_type)
    if kind is LogicalType.TEXT:
        return lambda value: _check_length(
            value if isinstance(value, str) else exact.serialize_json(value).decode(), sql_type
        )
    return _READERS[kind]


def _check_length(value: _Sized, sql_type: SqlType) -> _Sized:
    if sql_type.length is not None and len(value) > sql_type.length:
        most = sql_type.format_with_parameters()
        if isinstance(value, str):
            raise ValueMismatch(f"the text has {len(value)} characters, more than {most}")
        raise ValueMismatch(f"there are {len(value)} bytes, more than {most}")
    return value


def _floor_microseconds(value: int, digits: int | None) -> int:
    """Round microseconds down to the number of fraction digits of a type."""
    if digits is None or digits >= _MICROSECOND_DIGITS:
        return value
    unit: int = 10 ** (_MICROSECOND_DIGITS - digits)
    return value - value % unit


def _read_number(value: object, sql_type: SqlType) -> int | Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
        raise ValueMismatch("a number was expected")
    if isinstance(value, str):
        value = _require_number_text(value)
    try:
        wide = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    except InvalidOperation:
        raise ValueMismatch("the number is out of range") from None
    return round_number_to_type(wide, sql_type)


def _require_number_text(text: str) -> str:
    text = text.strip(_WHITESPACE)
    if not _NUMBER_PATTERN.fullmatch(text):
        raise ValueMismatch("a number was expected, got text")
    return text


def round_number_to_type(value: Decimal, sql_type: SqlType) -> int | Decimal:
    """Round a number to the scale of NUMBER(p,s), half up.

    Raises:
        ValueMismatch: If the number is not finite, has too many digits, or has a fraction and s is 0.
    """
    precision, scale = sql_type.precision or 38, sql_type.scale or 0
    if value.is_zero():
        value = Decimal(0)  # Drops the exponent.
    if not value.is_finite() or value.adjusted() >= precision:
        raise ValueMismatch(f"the number does not fit into {sql_type.format_with_parameters()}")
    rounded = value.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _WIDE_CONTEXT)
    if scale == 0 and rounded != value:
        raise ValueMismatch("an integer was expected, got a fraction")
    if rounded and rounded.adjusted() >= precision - scale:
        raise ValueMismatch(f"the number does not fit into {sql_type.format_with_parameters()}")
    return int(rounded) if scale == 0 else rounded


def _read_float(value: object) -> float:
    if isinstance(value, str):
        special = _SPECIAL_FLOATS.get(value.strip().lower())
        if special is not None:
            return special
        value = _require_number_text(value)
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
        raise ValueMismatch("a number was expected")
    return _to_float(value)


def _to_float(value: float | str | Decimal) -> float:
    """Return the nearest FLOAT of a number. Infinities and NaN stay unchanged."""
    if isinstance(value, float):
        return value
    try:
        found = float(value)
    except (ValueError, OverflowError):
        found = math.inf
    if math.isinf(found) and not (isinstance(value, Decimal) and value.is_infinite()):
        raise ValueMismatch("a number in the range of FLOAT was expected")
    return found


def _read_boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in {"true", "false"}:
        return value.strip().lower() == "true"
    raise ValueMismatch("true or false was expected")


def _require_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueMismatch("a text was expected")
    return value.strip(_WHITESPACE)


def _read_date(value: object) -> dt.date:
    text = _require_text(value)
    try:
        return parse_timestamp(text).date()
    except ValueError:
        raise ValueMismatch("a date such as 2014-01-31 was expected") from None


def _read_time(value: object, digits: int | None) -> dt.time:
    text = _require_text(value)
    try:
        found = dt.time.fromisoformat(text) if _TIME_PATTERN.fullmatch(text) else None
    except ValueError:
        found = None
    if found is None:
        raise ValueMismatch("a time such as 16:00:00 was expected")
    return found.replace(microsecond=_floor_microseconds(found.microsecond, digits))


def parse_timestamp(text: str) -> dt.datetime:
    """Parse a timestamp with a blank or T, any number of fraction digits, and an optional offset.

    Fraction digits after the sixth are cut off.

    Raises:
        ValueError: If the text is not a timestamp.
    """
    if not _TIMESTAMP_PATTERN.fullmatch(text):
        raise ValueError("not a timestamp")
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        # Remove the blank before the offset (`TZHTZM` of session formats), which Python rejects.
        match = _UTC_OFFSET_PATTERN.search(text)
        if match is None:
            raise
        sign, hours, minutes = match.groups("00")
        return dt.datetime.fromisoformat(f"{text[: match.start()]}{sign}{hours}:{minutes}")


def _read_timestamp(value: object, zone: dt.tzinfo | None, digits: int | None) -> dt.datetime:
    text = _require_text(value)
    try:
        found = parse_timestamp(text)
    except ValueError:
        raise ValueMismatch("a timestamp such as 2014-01-31 16:00:00 was expected") from None
    found = found.replace(microsecond=_floor_microseconds(found.microsecond, digits))
    if zone is None:
        # Drop the offset, as a cast of such a string to TIMESTAMP_NTZ does.
        return found.replace(tzinfo=None)
    found = found if found.tzinfo is not None else found.replace(tzinfo=zone)
    try:
        found.astimezone(dt.UTC)
    except OverflowError:
        raise ValueMismatch("a timestamp of the years 1 to 9999 in UTC was expected") from None
    return found


def _read_binary(value: object, form: BinaryForm, sql_type: SqlType) -> bytes:
    found: bytes | None = None
    if not isinstance(value, str):
        raise ValueMismatch("a text was expected")
    # Neither form allows white space within or around the value.
    with contextlib.suppress(ValueError):
        if form is not BinaryForm.HEX:
            found = b64decode(value, validate=True)
        elif _HEX_PATTERN.fullmatch(value):
            found = bytes.fromhex(value)
    if found is None:
        raise ValueMismatch(f"bytes in {form} were expected")
    return _check_length(found, sql_type)


def _read_object(value: object) -> object:
    if not isinstance(value, Mapping):
        raise ValueMismatch("a JSON object was expected")
    return value


def _read_array(value: object) -> object:
    if isinstance(value, str):
        # Also accept a string: the published format sends every type except objects as strings.
        try:
            value = exact.parse_json(value.encode("utf-8", "surrogatepass"))
        except exact.JsonSyntaxError:
            raise ValueMismatch("a JSON array was expected") from None
    if not isinstance(value, (list, tuple)):
        raise ValueMismatch("a JSON array was expected")
    return value


_READERS: dict[LogicalType, ValueConverter] = {
    LogicalType.REAL: _read_float,
    LogicalType.BOOLEAN: _read_boolean,
    LogicalType.DATE: _read_date,
    LogicalType.VARIANT: lambda value: value,
    LogicalType.OBJECT: _read_object,
    LogicalType.ARRAY: _read_array,
}


def make_value_writer(sql_type: SqlType, formats: Formats) -> ValueConverter:
    """Return a function that converts a value (never None) to one that `exact.serialize_json` writes.

    The returned function raises ValueMismatch for a value of another type.
    """
    kind = sql_type.kind
    if kind is LogicalType.FIXED:
        return lambda value: _write_number(value, sql_type)
    if kind in TIMESTAMP_TYPES:
        return lambda value: _write_timestamp(value, kind, formats.zone)
    if kind is LogicalType.BINARY:
        return lambda value: _write_binary(value, formats.binary, sql_type)
    if kind is LogicalType.TEXT:
        return lambda value: _check_length(str(_require(value, str, "a text")), sql_type)
    return _WRITERS[kind]


def _require(value: object, types: type | tuple[type, ...], what: str) -> Any:
    """Require a value of one of the types. Converts scalars of other libraries to Python first."""
    # An array with dimensions is a list, even if it has one element.
    name = "tolist" if getattr(value, "ndim", 0) else "item"
    item = getattr(value, name, None) or getattr(value, "as_py", None)
    value = item() if callable(item) else value
    if not isinstance(value, types) or (isinstance(value, bool) and types is _NUMBER_TYPES):
        raise ValueMismatch(f"{type(value).__name__} is not {what}")
    return value


def _write_number(value: object, sql_type: SqlType) -> int | Decimal:
    found = _require(value, _NUMBER_TYPES, "a number")
    wide = Decimal(repr(found)) if isinstance(found, float) else Decimal(found)
    return round_number_to_type(wide, sql_type)


def _write_float(value: object) -> float | str:
    found = _to_float(_require(value, _NUMBER_TYPES, "a number"))
    if math.isfinite(found):
        return found
    return "NaN" if math.isnan(found) else ("inf" if found > 0 else "-inf")


def _write_date(value: object) -> str:
    found: dt.date = _require(value, dt.date, "a date")
    return (found.date() if isinstance(found, dt.datetime) else found).isoformat()


def _write_time(value: object) -> str:
    found: dt.time = _require(value, dt.time, "a time")
    if found.tzinfo is not None:
        raise ValueMismatch("a time without time zone was expected")
    return found.isoformat()


def _write_timestamp(value: object, kind: LogicalType, zone: dt.tzinfo) -> str:
    found: dt.datetime = _require(value, dt.datetime, "a datetime")
    if kind is LogicalType.TIMESTAMP_NTZ:
        if found.tzinfo is not None:
            raise ValueMismatch(
                "a datetime without time zone was expected, as TIMESTAMP_NTZ has none"
            )
        return found.isoformat(" ")
    if found.tzinfo is None:
        found = found.replace(tzinfo=zone)
    elif kind is LogicalType.TIMESTAMP_LTZ:
        found = found.astimezone(zone)
    offset = found.utcoffset() or dt.timedelta()
    if offset % _MINUTE:
        # Offsets of local mean time have seconds, which the format cannot represent.
        found = found.astimezone(dt.timezone(round(offset / _MINUTE) * _MINUTE))
    return f"{found.replace(tzinfo=None).isoformat(' ')} {found:%z}"


def _write_binary(value: object, form: BinaryForm, sql_type: SqlType) -> str:
    found = bytes(_require(value, (bytes, bytearray, memoryview), "bytes"))
    _check_length(found, sql_type)
    return found.hex().upper() if form is BinaryForm.HEX else b64encode(found).decode("ascii")


_NO_OBJECT_TYPES = (
    *(str, bytes, bytearray, memoryview, *_NUMBER_TYPES),
    *(list, tuple, set, frozenset, dt.date, dt.time, dt.timedelta),
)


def _write_object(value: object) -> object:
    found = _require(value, object, "")
    # Other types, such as dataclasses and JSON text of `msgspec.Raw`, are written as objects.
    if isinstance(found, _NO_OBJECT_TYPES):
        raise ValueMismatch(f"{type(value).__name__} is not an object")
    return found


def _write_array(value: object) -> object:
    found = _require(value, object, "")
    if isinstance(found, str):
        _read_array(found)
    elif not isinstance(found, (list, tuple, set, frozenset, msgspec.Raw)):
        raise ValueMismatch(f"{type(value).__name__} is not an array")
    return found


_WRITERS: dict[LogicalType, ValueConverter] = {
    LogicalType.REAL: _write_float,
    LogicalType.BOOLEAN: lambda value: _require(value, bool, "a truth value"),
    LogicalType.DATE: _write_date,
    LogicalType.TIME: _write_time,
    LogicalType.VARIANT: lambda value: _require(value, object, ""),
    LogicalType.OBJECT: _write_object,
    LogicalType.ARRAY: _write_array,
}
