"""Exact readers of Avro's logical types, in place of those of fastavro that change values.

fastavro rounds a decimal with more digits than its precision, wraps a negative time of day, and reads
timestamps in nanoseconds as integers. `install_readers` registers these readers for the process.
"""

from __future__ import annotations

import datetime as dt
from decimal import Context, Decimal
from typing import Any, cast

import fastavro.read

from snowmelt.schema.conversion.arrow_to_python import nanoseconds_to_datetime

_DAY_US = 86_400_000_000
_EXACT = Context(prec=1_000_000, Emax=1_000_000, Emin=-1_000_000)


def install_readers() -> None:
    """Register the readers with fastavro."""
    # fastavro documents this dictionary for additional logical types.
    readers = cast("dict[str, Any]", fastavro.read.LOGICAL_READERS)
    readers["bytes-decimal"] = readers["fixed-decimal"] = _read_decimal
    readers["int-time-millis"] = _read_time_millis
    readers["long-time-micros"] = _read_time_micros
    readers["long-timestamp-nanos"] = _read_timestamp_nanos
    readers["long-local-timestamp-nanos"] = _read_local_timestamp_nanos


def _read_decimal(data: bytes, schema: Any, _: Any = None) -> Decimal:
    unscaled = Decimal(int.from_bytes(data, "big", signed=True))
    return unscaled.scaleb(-schema.get("scale", 0), _EXACT)


def _read_time_millis(data: int, schema: Any, _: Any = None) -> dt.time:
    return _read_time_micros(data * 1000, schema)


def _read_time_micros(data: int, schema: Any, _: Any = None) -> dt.time:
    if not 0 <= data < _DAY_US:
        raise ValueError(f"{schema['logicalType']}: {data} microseconds are no time of day")
    return (dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=data)).time()


def _read_timestamp_nanos(data: int, _schema: Any, _: Any = None) -> dt.datetime:
    return nanoseconds_to_datetime(data, dt.UTC)


def _read_local_timestamp_nanos(data: int, _schema: Any, _: Any = None) -> dt.datetime:
    return nanoseconds_to_datetime(data, None)
