"""Plain values for the types of other libraries (NumPy, pandas) and for enumeration members."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import Enum

import numpy as np

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a local clock's epoch
_UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_NULL_TYPES = frozenset({("pandas", "NaTType"), ("pandas", "NAType")})
_MAX_ENUM_DEPTH = 8


def to_plain_value(value: object) -> object:
    """Return what an enumeration's member, `numpy.datetime64` or a missing value stands for.

    Anything else is returned as it is. `NaT` and `pandas.NA` are None; a `datetime64` is a date,
    a datetime, or ISO 8601 text where a datetime is too narrow for it.
    """
    for _ in range(_MAX_ENUM_DEPTH):
        if not isinstance(value, Enum):
            break
        value = value.value
    if isinstance(value, np.datetime64):
        if np.isnat(value):
            return None
        found = split_datetime64(value)
        if not has_time_of_day(value):
            return found[0].date() if found else format_datetime64(value.astype("datetime64[D]"))
        if found is None:
            return format_datetime64(value)
        clock, nanos = found
        if nanos % 1000 == 0:
            return clock.replace(microsecond=nanos // 1000)
        return f"{clock.isoformat()}.{nanos:09}"
    return None if is_missing(value) else value


def is_missing(value: object) -> bool:
    """Tell whether a value is pandas' or numpy's null; neither library is loaded for it."""
    if isinstance(value, np.datetime64):
        return bool(np.isnat(value))
    kind = type(value)
    return (kind.__module__.partition(".")[0], kind.__name__) in _NULL_TYPES


def split_datetime64(value: np.datetime64) -> tuple[datetime, int] | None:
    """Return the clock time to the second, and its nanoseconds; None beyond years 1 to 9999."""
    unit = np.datetime_data(value.dtype)[0]
    if unit not in {"ps", "fs", "as"}:
        # Days to nanoseconds, whatever the multiple; exactly, in Python's integers.
        finer = unit if unit in _UNIT_NS else "s"
        value = value.astype(f"datetime64[{finer}]")
    else:
        finer, value = "ns", value.astype("datetime64[ns]")
    total = int(value.astype(np.int64)) * _UNIT_NS[finer]
    seconds, nanos = divmod(total, 10**9)
    try:
        return _EPOCH + timedelta(seconds=seconds), nanos
    except OverflowError:
        return None


def has_time_of_day(value: np.datetime64) -> bool:
    """Tell whether a value is a moment rather than a day, month or year."""
    return np.datetime_data(value.dtype)[0] not in {"Y", "M", "W", "D"}


def format_datetime64(value: np.datetime64) -> str:
    """Write a moment in ISO 8601, which wants a sign before a year of more than four digits."""
    text = str(value)
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    year, rest = digits.split("-", 1)
    if len(year) > len("9999"):
        sign = sign or "+"
    return f"{sign}{year.rjust(4, '0')}-{rest}"
