"""Parquet files with INT96 timestamps of any year, which Arrow cannot write."""

from __future__ import annotations

import datetime as dt
import io
import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_JULIAN_DAY_OF_ORDINAL_0 = 1_721_425


def int96_parquet(values: Sequence[tuple[dt.date, int]], *, is_list: bool = False) -> bytes:
    """Return a file with a column `c`: days, and nanoseconds within them, or a list of them."""
    placeholders = pa.array(range(len(values)), pa.timestamp("ns"))
    if is_list:
        placeholders = pa.ListArray.from_arrays([0, len(values)], placeholders)
    options: Any = {"use_dictionary": False, "compression": "none", "write_statistics": False}
    sink = io.BytesIO()
    pq.write_table(
        pa.table({"c": placeholders}), sink, use_deprecated_int96_timestamps=True, **options
    )
    epoch = dt.date(1970, 1, 1)
    old = _pack([(epoch, each) for each in range(len(values))])
    assert sink.getvalue().count(old) == 1
    return sink.getvalue().replace(old, _pack(values))


def _pack(values: Sequence[tuple[dt.date, int]]) -> bytes:
    return b"".join(
        struct.pack("<qi", nanoseconds, day.toordinal() + _JULIAN_DAY_OF_ORDINAL_0)
        for day, nanoseconds in values
    )
