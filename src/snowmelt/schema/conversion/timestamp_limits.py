"""The range of dates and timestamps that every documented reader can represent.

Python's `datetime` has the years 1 to 9999, so one date or local timestamp outside them would break
`collect()` and `to_pylist()` for its whole table. Instants are read in UTC and must be in those
years there. To distinguish two equal local times, CPython, and so PySpark's `collect()`, also
checks the day before an instant; the first day of year 1 has none. (Decision 0037.)
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from snowmelt.errors import InvalidValue
from snowmelt.schema.chunk_types import make_null_mask, to_contiguous_array
from snowmelt.schema.conversion.arrow_to_python import parse_arrow_zone
from snowmelt.schema.types import TIMESTAMP_TYPES, Column, LogicalType
from snowmelt.schema.value_errors import wrong_value_error, year_range_error

if TYPE_CHECKING:
    from snowmelt.schema.chunk_types import Int64s, Mask

LIMITED_TYPES = TIMESTAMP_TYPES | {LogicalType.DATE}
"""The types whose stored form has room for more than readers have."""

_DAY_S = 86_400
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_FIRST_LOCAL_S, _END_S = _FIRST_DAY * _DAY_S, (_LAST_DAY + 1) * _DAY_S
_FIRST_INSTANT_S = _FIRST_LOCAL_S + _DAY_S
_SECOND_US = 1_000_000
_TZ_BITS = 14
_TZ_BIAS = 1440
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a local clock's epoch
_MAX_SHOWN_CHARACTERS = 80


def timestamp_limits_s(kind: LogicalType) -> tuple[int, int]:
    """Return the first second since 1970 that timestamps of a type may have, and the end."""
    return _FIRST_LOCAL_S if kind is LogicalType.TIMESTAMP_NTZ else _FIRST_INSTANT_S, _END_S


def describe_limits(kind: LogicalType) -> str:
    """Return the range of a type as a sentence names it."""
    if kind is LogicalType.DATE:
        return "0001-01-01 to 9999-12-31"
    if kind is LogicalType.TIMESTAMP_NTZ:
        return "0001-01-01 00:00:00 to 9999-12-31 23:59:59.999999999"
    return "0001-01-02 00:00:00 to 9999-12-31 23:59:59.999999999 in UTC"


def find_range_error(
    stored: int, column: Column, row_index: int, value: object
) -> InvalidValue | None:
    """Return why a stored date or timestamp is out of range, or None.

    Args:
        stored: The value as a chunk stores it.
        column: A column of one of the types in `LIMITED_TYPES`.
        row_index: The row's position, for the message.
        value: What the user gave, for the message.
    """
    kind = column.kind
    if kind is LogicalType.DATE:
        seconds, local_s = stored * _DAY_S, stored * _DAY_S
        first, end = _FIRST_LOCAL_S, _END_S
    else:
        units, offset_s = stored, 0
        if kind is LogicalType.TIMESTAMP_TZ:
            offset_s = ((stored & ((1 << _TZ_BITS) - 1)) - _TZ_BIAS) * 60
            units = stored >> _TZ_BITS
        seconds = units // 10 ** (column.scale or 0)
        local_s = seconds + offset_s
        first, end = timestamp_limits_s(kind)
    if first <= seconds < end and _FIRST_LOCAL_S <= local_s < _END_S:
        return None
    if first == _FIRST_LOCAL_S:
        return year_range_error(column, row_index, str(value)[:_MAX_SHOWN_CHARACTERS])
    return instant_range_error(column, row_index, _format_utc(seconds))


def instant_range_error(column: Column, row_index: int, shown: str) -> InvalidValue:
    """Return the error for an instant that readers do not have."""
    what = "Date" if column.kind is LogicalType.DATE else "Timestamp"
    return wrong_value_error(
        column,
        row_index,
        f"{what} out of range: expected {describe_limits(column.kind)}, got {shown}. Use a time "
        "within that range, NULL, or a column of type TIMESTAMP_NTZ",
    )


def describe_unrepresentable_timestamp(value: object) -> str | None:
    """Describe an Arrow timestamp of a known zone that Python's `datetime` cannot hold.

    None for any other value.
    """
    if not isinstance(value, pa.TimestampScalar) or value.type.tz is None:
        return None
    known = parse_arrow_zone(value.type.tz) is not None
    return f"{value.value} {value.type.unit} since 1970 in UTC" if known else None


def are_timestamps_in_range(counts: Int64s, digits: int, kind: LogicalType) -> bool:
    """Return True if timestamps, counted in 10**-digits s since 1970, are all within the limits."""
    first, end = timestamp_limits_s(kind)
    # At nine digits the limits have more than 64 bits: compare as Python's integers.
    unit: int = 10**digits
    return first * unit <= int(counts.min()) and int(counts.max()) < end * unit


def out_of_range_mask(
    column: Column, native_arrays: Sequence[pa.Array | pa.ChunkedArray]
) -> Mask | None:
    """Return where values of a column in native form are out of range; None if nowhere.

    Args:
        column: Any column.
        native_arrays: Its native arrays, companions included.
    """
    if column.kind not in LIMITED_TYPES:
        return None
    own = to_contiguous_array(native_arrays[0])
    if own.null_count == len(own):
        return None
    if column.kind is LogicalType.DATE:
        seconds = own.view("int32").fill_null(0).to_numpy().astype(np.int64) * _DAY_S
        outside = (seconds < _FIRST_LOCAL_S) | (seconds >= _END_S)
    else:
        micros = own.view("int64").fill_null(0).to_numpy()
        first, end = timestamp_limits_s(column.kind)
        outside = (micros < first * _SECOND_US) | (micros >= end * _SECOND_US)
        if column.kind is LogicalType.TIMESTAMP_TZ:
            offsets = (
                to_contiguous_array(native_arrays[-1]).fill_null(0).to_numpy().astype(np.int64)
            )
            local = (
                np.clip(micros, 2 * first * _SECOND_US, 2 * end * _SECOND_US)
                + offsets * 60 * _SECOND_US
            )
            outside |= (local < _FIRST_LOCAL_S * _SECOND_US) | (local >= _END_S * _SECOND_US)
    if not outside.any():
        return None
    if own.null_count:
        outside &= ~make_null_mask(own)
    return outside if outside.any() else None


def _format_utc(seconds: int) -> str:
    """Write an instant; Python has no word for one after year 9999."""
    try:
        return f"{_EPOCH + timedelta(seconds=seconds)} in UTC"
    except OverflowError:
        return f"a time {'after year 9999' if seconds > 0 else 'before year 1'} in UTC"
