"""One value of each SQL type, from what JSON says and to what JSON can say."""

from __future__ import annotations

import datetime as dt
import math
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from snowmelt.functions.wire import exact_json
from snowmelt.schema.types import SEMI_STRUCTURED_TYPES, TIMESTAMP_TYPES, LogicalType

if TYPE_CHECKING:
    from snowmelt.functions.signature import SqlType

Convert: TypeAlias = Callable[[Any], Any]

_WIDE = Context(prec=120)
_FLOATS = {
    "nan": math.nan,
    "inf": math.inf,
    "+inf": math.inf,
    "-inf": -math.inf,
    "infinity": math.inf,
    "+infinity": math.inf,
    "-infinity": -math.inf,
}
_OFFSET = re.compile(r"\s*([+-])(\d\d):?(\d\d)?\s*\Z")
# Python's own readers take more: underscores, digits of other scripts, weeks, dates without hyphens.
_BLANKS = " \t\r\n"
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_CLOCK = r"[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?"
_TIME = re.compile(_CLOCK)
_TIMESTAMP = re.compile(
    rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:[T ](?:[0-9]{{2}}|{_CLOCK})"
    r"(?: ?(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?))?)?"
)
_HEX = re.compile(r"(?:[0-9A-Fa-f]{2})*")
_MICRO_DIGITS = 6


class Mismatch(ValueError):
    """A value does not fit its type; the message holds nothing of the value."""


class BinaryForm(StrEnum):
    """How BINARY is written as text."""

    HEX = "HEX"
    BASE64 = "BASE64"


@dataclass(frozen=True, slots=True)
class Formats:
    """What a session decides about texts: the zone of instants without one, the form of BINARY."""

    zone: dt.tzinfo = dt.UTC
    binary: BinaryForm = BinaryForm.HEX


def reader(sql_type: SqlType, formats: Formats) -> Convert:
    """Return what turns a parsed JSON value (never null) into a value of the type.

    NUMBER gives int or Decimal, timestamps give datetimes (naive for NTZ), VARIANT what JSON
    says. The function returned raises Mismatch.
    """
    kind = sql_type.kind
    if kind is LogicalType.FIXED:
        return lambda value: _fixed(value, sql_type)
    if kind in TIMESTAMP_TYPES:
        zone = None if kind is LogicalType.TIMESTAMP_NTZ else formats.zone
        return lambda value: _timestamp(value, zone, sql_type.scale)
    if kind is LogicalType.TIME:
        return lambda value: _time(value, sql_type.scale)
    if kind is LogicalType.BINARY:
        return lambda value: _binary(value, formats.binary, sql_type)
    if kind is LogicalType.TEXT:
        return lambda value: _sized(_text(value), sql_type)
    return _READERS[kind]


def _sized(value: str, sql_type: SqlType) -> str:
    if sql_type.length is not None and len(value) > sql_type.length:
        raise Mismatch(f"the text has {len(value)} characters, more than {sql_type.full()}")
    return value


def _sized_bytes(value: bytes, sql_type: SqlType) -> bytes:
    if sql_type.length is not None and len(value) > sql_type.length:
        raise Mismatch(f"there are {len(value)} bytes, more than {sql_type.full()}")
    return value


def _micros(value: int, digits: int | None) -> int:
    """Return microseconds without the digits that a type has not."""
    if digits is None or digits >= _MICRO_DIGITS:
        return value
    unit: int = 10 ** (_MICRO_DIGITS - digits)
    return value - value % unit


def _fixed(value: object, sql_type: SqlType) -> int | Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
        raise Mismatch("a number was expected")
    if isinstance(value, str):
        value = _number_in(value)
    try:
        wide = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    except InvalidOperation:
        raise Mismatch("the number is out of range") from None
    return fitted(wide, sql_type)


def _number_in(text: str) -> str:
    text = text.strip(_BLANKS)
    if not _NUMBER.fullmatch(text):
        raise Mismatch("a number was expected, not any text")
    return text


def fitted(value: Decimal, sql_type: SqlType) -> int | Decimal:
    """Return a number as NUMBER(p,s) holds it: rounded half up to the scale.

    Raises:
        Mismatch: It is not finite, has more digits, or a fraction where s is 0.
    """
    precision, scale = sql_type.precision or 38, sql_type.scale or 0
    if value.is_zero():
        value = Decimal(0)  # with whatever exponent it was written
    if not value.is_finite() or value.adjusted() >= precision:
        raise Mismatch(f"the number does not fit into {sql_type.full()}")
    rounded = value.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _WIDE)
    if scale == 0 and rounded != value:
        raise Mismatch("a whole number was expected, not one with a fraction")
    if rounded and rounded.adjusted() >= precision - scale:
        raise Mismatch(f"the number does not fit into {sql_type.full()}")
    return int(rounded) if scale == 0 else rounded


def _float(value: object) -> float:
    if isinstance(value, str):
        special = _FLOATS.get(value.strip().lower())
        if special is not None:
            return special
        value = _number_in(value)
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
        raise Mismatch("a number was expected")
    return _in_range(value)


def _in_range(value: float | str | Decimal) -> float:
    """Return the nearest FLOAT of a number; one that is not finite stays as it is."""
    if isinstance(value, float):
        return value
    try:
        found = float(value)
    except (ValueError, OverflowError):
        found = math.inf
    if math.isinf(found) and not (isinstance(value, Decimal) and value.is_infinite()):
        raise Mismatch("a number in the range of FLOAT was expected")
    return found


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in {"true", "false"}:
        return value.strip().lower() == "true"
    raise Mismatch("true or false was expected")


def _text(value: object) -> str:
    return value if isinstance(value, str) else exact_json.write(value).decode()


def _text_of(value: object) -> str:
    if not isinstance(value, str):
        raise Mismatch("a text was expected")
    return value.strip(_BLANKS)


def _date(value: object) -> dt.date:
    text = _text_of(value)
    try:
        return instant(text).date()
    except ValueError:
        raise Mismatch("a date such as 2014-01-31 was expected") from None


def _time(value: object, digits: int | None) -> dt.time:
    text = _text_of(value)
    try:
        found = dt.time.fromisoformat(text) if _TIME.fullmatch(text) else None
    except ValueError:
        found = None
    if found is None:
        raise Mismatch("a time such as 16:00:00 was expected")
    return found.replace(microsecond=_micros(found.microsecond, digits))


def instant(text: str) -> dt.datetime:
    """Return a timestamp's text, with blank or T, any fraction, and an offset if it has one.

    Raises:
        ValueError: If it is none. Digits behind the sixth of a fraction are cut off.
    """
    if not _TIMESTAMP.fullmatch(text):
        raise ValueError("not a timestamp")
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        # A blank before the offset (`TZHTZM` of session formats) is what Python does not read.
        match = _OFFSET.search(text)
        if match is None:
            raise
        sign, hours, minutes = match.groups("00")
        return dt.datetime.fromisoformat(f"{text[: match.start()]}{sign}{hours}:{minutes}")


def _timestamp(value: object, zone: dt.tzinfo | None, digits: int | None) -> dt.datetime:
    text = _text_of(value)
    try:
        found = instant(text)
    except ValueError:
        raise Mismatch("a timestamp such as 2014-01-31 16:00:00 was expected") from None
    found = found.replace(microsecond=_micros(found.microsecond, digits))
    if zone is None:
        # The clock time counts, as in a cast of such a text to TIMESTAMP_NTZ.
        return found.replace(tzinfo=None)
    found = found if found.tzinfo is not None else found.replace(tzinfo=zone)
    try:
        found.astimezone(dt.UTC)
    except OverflowError:
        raise Mismatch("a timestamp of the years 1 to 9999 in UTC was expected") from None
    return found


def _binary(value: object, form: BinaryForm, sql_type: SqlType) -> bytes:
    text = _text_of(value)
    try:
        if form is not BinaryForm.HEX:
            return _sized_bytes(b64decode(text, validate=True), sql_type)
        found = bytes.fromhex(text) if _HEX.fullmatch(text) else None
    except Mismatch:
        raise
    except (ValueError, Base64Error):
        found = None
    if found is None:
        raise Mismatch(f"bytes in {form} were expected")
    return _sized_bytes(found, sql_type)


def _object(value: object) -> object:
    if not isinstance(value, Mapping):
        raise Mismatch("a JSON object was expected")
    return value


def _array(value: object) -> object:
    if isinstance(value, str):
        # The published format says that everything but objects goes as text.
        try:
            value = exact_json.parse(value.encode("utf-8", "surrogatepass"))
        except exact_json.NotJson:
            raise Mismatch("a JSON array was expected") from None
    if not isinstance(value, (list, tuple)):
        raise Mismatch("a JSON array was expected")
    return value


_READERS: dict[LogicalType, Convert] = {
    LogicalType.REAL: _float,
    LogicalType.BOOLEAN: _boolean,
    LogicalType.DATE: _date,
    LogicalType.VARIANT: lambda value: value,
    LogicalType.OBJECT: _object,
    LogicalType.ARRAY: _array,
}


def writer(sql_type: SqlType, formats: Formats) -> Convert:
    """Return what turns a value (never None) into what `exact.write` writes for the type.

    The function returned raises Mismatch for a value of another type.
    """
    kind = sql_type.kind
    if kind is LogicalType.FIXED:
        return lambda value: _written_fixed(value, sql_type)
    if kind in TIMESTAMP_TYPES:
        return lambda value: _written_timestamp(value, kind, formats.zone)
    if kind is LogicalType.BINARY:
        return lambda value: _written_binary(value, formats.binary, sql_type)
    if kind is LogicalType.TEXT:
        return lambda value: _sized(_written_text(value), sql_type)
    return _WRITERS[kind]


def _scalar(value: object) -> object:
    """Return the Python value of another library's scalar."""
    item = getattr(value, "item", None) or getattr(value, "as_py", None)
    return item() if callable(item) else value


def _written_fixed(value: object, sql_type: SqlType) -> int | Decimal:
    value = _scalar(value)
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise Mismatch(f"{type(value).__name__} is not a number")
    wide = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    return fitted(wide, sql_type)


def _written_float(value: object) -> float | str:
    value = _scalar(value)
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise Mismatch(f"{type(value).__name__} is not a number")
    found = _in_range(value)
    if math.isfinite(found):
        return found
    return "NaN" if math.isnan(found) else ("inf" if found > 0 else "-inf")


def _written_boolean(value: object) -> bool:
    value = _scalar(value)
    if not isinstance(value, bool):
        raise Mismatch(f"{type(value).__name__} is not a truth value")
    return value


def _written_text(value: object) -> str:
    value = _scalar(value)
    if not isinstance(value, str):
        raise Mismatch(f"{type(value).__name__} is not a text")
    return str(value)


def _written_date(value: object) -> str:
    value = _scalar(value)
    if isinstance(value, dt.datetime):
        return value.date().isoformat()
    if not isinstance(value, dt.date):
        raise Mismatch(f"{type(value).__name__} is not a date")
    return value.isoformat()


def _written_time(value: object) -> str:
    value = _scalar(value)
    if not isinstance(value, dt.time):
        raise Mismatch(f"{type(value).__name__} is not a time")
    if value.tzinfo is not None:
        raise Mismatch("a time without time zone was expected")
    return value.isoformat()


def _written_timestamp(value: object, kind: LogicalType, zone: dt.tzinfo) -> str:
    value = _scalar(value)
    if not isinstance(value, dt.datetime):
        raise Mismatch(f"{type(value).__name__} is not a datetime")
    if kind is LogicalType.TIMESTAMP_NTZ:
        if value.tzinfo is not None:
            raise Mismatch("a datetime without time zone was expected, as TIMESTAMP_NTZ has none")
        return value.isoformat(" ")
    if value.tzinfo is None:
        value = value.replace(tzinfo=zone)
    elif kind is LogicalType.TIMESTAMP_LTZ:
        value = value.astimezone(zone)
    return f"{value.replace(tzinfo=None).isoformat(' ')} {value:%z}"


def _written_binary(value: object, form: BinaryForm, sql_type: SqlType) -> str:
    value = _scalar(value)
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise Mismatch(f"{type(value).__name__} is not bytes")
    found = _sized_bytes(bytes(value), sql_type)
    return found.hex().upper() if form is BinaryForm.HEX else b64encode(found).decode("ascii")


def _written_variant(value: object) -> object:
    return _scalar(value)


_WRITERS: dict[LogicalType, Convert] = {
    LogicalType.REAL: _written_float,
    LogicalType.BOOLEAN: _written_boolean,
    LogicalType.DATE: _written_date,
    LogicalType.TIME: _written_time,
    **dict.fromkeys(SEMI_STRUCTURED_TYPES, _written_variant),
}
