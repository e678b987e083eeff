"""Arrow types of arguments and results, and the JSON text around the values of a body.

The encoder and the decoder share the row numbers and row prefixes, such as `{"data":[[0,` and
`],[1,`.
"""

from __future__ import annotations

import datetime as dt
import re
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.functions.errors import DeclarationInvalid
from snowmelt.functions.signature import MAX_PRECISION, SqlType
from snowmelt.schema.types import SEMI_STRUCTURED_TYPES, LogicalType

_MAX_INT64_DIGITS = 18
_MICROSECOND_DIGITS = 6
# Zone names of Spark that the time zone database lacks.
_UTC_OFFSET_PATTERN = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d\d))?\Z")
_ARROW_TYPES = {
    LogicalType.REAL: pa.float64(),
    LogicalType.BOOLEAN: pa.bool_(),
    LogicalType.TEXT: pa.string(),
    LogicalType.BINARY: pa.binary(),
    LogicalType.DATE: pa.date32(),
    LogicalType.TIME: pa.time64("us"),
    LogicalType.TIMESTAMP_NTZ: pa.timestamp("us"),
    **dict.fromkeys(SEMI_STRUCTURED_TYPES, pa.string()),
}


def to_arrow_type(sql_type: SqlType, zone: str = "UTC") -> pa.DataType:
    """Return the Arrow type of an argument or a result.

    NUMBER of up to 18 digits without a fraction is int64, any other NUMBER is decimal128. VARIANT,
    ARRAY and OBJECT are JSON strings. Arguments may have any type that Arrow casts to this type. NUMBER
    arguments may also be strings of numbers, or int64 if they have no fraction.

    Args:
        sql_type: Type of the argument or the result.
        zone: Time zone of the session, the zone of timestamps with time zone.
    """
    if sql_type.kind is LogicalType.FIXED:
        precision, scale = sql_type.precision or MAX_PRECISION, sql_type.scale or 0
        if scale == 0 and precision <= _MAX_INT64_DIGITS:
            return pa.int64()
        return pa.decimal128(precision, scale)
    return _ARROW_TYPES.get(sql_type.kind) or pa.timestamp("us", zone)


def to_try_result_arrow_type(sql_type: SqlType, zone: str = "UTC") -> pa.StructType:
    """Return the Arrow type of the results of a call that reports errors per row."""
    return pa.struct(
        [
            ("value", to_arrow_type(sql_type, zone)),
            ("error", pa.string()),
            ("status", pa.int32()),
            ("batch_id", pa.string()),
        ]
    )


def floor_to_fraction_digits(column: pa.Array, digits: int | None) -> pa.Array:
    """Return timestamps in microseconds, rounded down to the fraction digits of a type.

    Args:
        column: Timestamps of any zone. Timestamps before 1970 are also rounded towards the past.
        digits: Fraction digits of the type. None: all of them.
    """
    if digits is None or digits >= _MICROSECOND_DIGITS:
        return column
    unit = 10 ** (_MICROSECOND_DIGITS - digits)
    micros = column.view(pa.int64())
    rest = pc.subtract(micros, pc.multiply(pc.divide(micros, unit), unit))
    rest = pc.if_else(pc.less(rest, 0), pc.add(rest, unit), rest)
    return pc.subtract(micros, rest).view(column.type)


@lru_cache(maxsize=64)
def parse_time_zone(name: str) -> dt.tzinfo:
    """Parse a time zone: a name of the time zone database, or an offset such as `+01:00`.

    Raises:
        DeclarationInvalid: If the name is neither.
    """
    if name in {"Z", "UTC", "GMT", "UT"}:
        return dt.UTC
    match = _UTC_OFFSET_PATTERN.match(name)
    try:
        if match is None:
            return ZoneInfo(name)
        sign, hours, minutes = match.groups("00")
        offset = dt.timedelta(hours=int(hours), minutes=int(minutes))
        return dt.timezone(-offset if sign == "-" else offset)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise DeclarationInvalid(
            reason=f"{name!r} is not a time zone. Use a name such as Europe/Berlin, or an offset such as +02:00"
        ) from None


# Minimum rows for columnar encoding, which costs 100 µs more per batch and less per row (measured).
MIN_COLUMNAR_ROWS = 500


def make_row_prefixes(
    count: int, value_prefix: str, value_suffix: str, whitespace: str = ""
) -> pa.StringArray:
    """Return the text before the first value of each row, such as `{"data":[[0,` and `],[1,`.

    Args:
        count: Number of rows.
        value_prefix: Text after each number, such as the quotation mark of a string.
        value_suffix: Text at the end of each row but the last, such as the closing quotation mark.
        whitespace: Text after each comma and colon.
    """
    # Cache few arrays although counts vary: round up to a power of two, and return a slice.
    return _make_row_prefixes(
        1 << (count - 1).bit_length(), value_prefix, value_suffix, whitespace
    ).slice(0, count)


@lru_cache(maxsize=16)
def _make_row_prefixes(
    count: int, value_prefix: str, value_suffix: str, whitespace: str
) -> pa.StringArray:
    first = f'{{"data":{whitespace}[[0,{whitespace}{value_prefix}'
    others = (
        f"{value_suffix}],{whitespace}[{number},{whitespace}{value_prefix}"
        for number in range(1, count)
    )
    return pa.array([first, *others], pa.string())
