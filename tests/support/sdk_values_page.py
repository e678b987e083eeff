"""Generates the table of `docs/reference/value-conversion.md` by running the SDK's rules."""

from __future__ import annotations

import array
import datetime as dt
import uuid
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, IntFlag
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from snowmelt.errors import InvalidRow
from snowmelt.schema.conversion.value_rules import make_value_rule
from snowmelt.schema.types import Column, Compatibility, LogicalType

if TYPE_CHECKING:
    from collections.abc import Iterable


class Sample(Enum):
    NUMBER = 1
    HEX = "ab"
    DAY = "2026-11-21"
    CLOCK = "10:30"
    DOCUMENT = {"a": 1}  # noqa: RUF012 - members are what is asked about


class Bit(IntFlag):
    ONE = 1
    TWO = 2


@dataclass
class Point:
    x: int
    y: int


Pair = namedtuple("Pair", "first second")

COLUMNS = {
    "NUMBER": Column("C", LogicalType.FIXED, 1, precision=38, scale=2),
    "FLOAT": Column("C", LogicalType.REAL, 1),
    "BOOLEAN": Column("C", LogicalType.BOOLEAN, 1),
    "VARCHAR": Column("C", LogicalType.TEXT, 1, length=1000, byte_length=4000),
    "BINARY": Column("C", LogicalType.BINARY, 1, byte_length=100),
    "DATE": Column("C", LogicalType.DATE, 1),
    "TIME": Column("C", LogicalType.TIME, 1, scale=9),
    "TIMESTAMP_*": Column("C", LogicalType.TIMESTAMP_TZ, 1, scale=9),
    "VARIANT": Column("C", LogicalType.VARIANT, 1),
    "ARRAY": Column("C", LogicalType.ARRAY, 1),
    "OBJECT": Column("C", LogicalType.OBJECT, 1),
}
DAY = dt.datetime(2026, 11, 21, 10, 30)
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
# Values of each type. If a column accepts the type, it accepts at least one of them.
VALUES: dict[str, Iterable[object]] = {
    "`None`": [None],
    "`bool`, `numpy.bool_`": [True, np.bool_(False)],
    "`int`, `numpy.int8` … `uint64`": [1, np.int8(1), np.uint64(2), np.uint64(1)],
    "`float`, `numpy.float16` … `float64`": [
        1.5,
        1.0,
        np.float16(1.5),
        np.float16(1),
        np.float32(1.5),
        np.float32(0),
        np.float64(2),
        np.float64(1),
    ],
    "`decimal.Decimal`": [Decimal("1.5"), Decimal("1.0")],
    "`str` in a format of the column": [
        "1",
        "true",
        "ab",
        "2026-11-21",
        "10:30",
        "[1]",
        '{"a": 1}',
    ],
    "`bytes`, `bytearray`, `memoryview` of bytes": [
        b"a",
        bytearray(b"a"),
        memoryview(b"a"),
        np.bytes_(b"a"),
    ],
    "`memoryview` of words, `array.array`": [
        memoryview(b"abcd").cast("I"),
        memoryview(array.array("d", [1.5])),
        array.array("B", b"a"),
    ],
    "`datetime.date`": [DAY.date()],
    "`datetime.time`": [DAY.time(), DAY.time().replace(tzinfo=dt.UTC)],
    "`datetime.datetime`": [
        DAY,
        DAY.replace(tzinfo=dt.UTC),
        DAY.replace(tzinfo=ZoneInfo("Asia/Kolkata")),
    ],
    "`datetime.timedelta`, `pandas.Timedelta`": [dt.timedelta(1), pd.Timedelta(1)],
    "`pandas.Timestamp`": [pd.Timestamp(DAY), pd.Timestamp(DAY, tz="UTC")],
    "`numpy.datetime64`": [np.datetime64(DAY, "ns"), np.datetime64("2026-11-21")],
    "`numpy.timedelta64`": [np.timedelta64(1, "s")],
    "`pandas.NaT`, `pandas.NA`, `numpy.datetime64('NaT')`": [
        pd.NaT,
        pd.NA,
        np.datetime64("NaT", "us"),
    ],
    "`uuid.UUID`": [ID],
    "a member of an `enum.Enum`: its value": list(Sample),
    "a member of an `enum.IntFlag` or `IntEnum`: its number": [Bit.ONE, Bit.ONE | Bit.TWO],
    "`list`, `tuple`, named tuple": [[1], (1, 2), Pair(1, 2)],
    "`set`, `frozenset`, `collections.deque`": [{1}, frozenset({1})],
    "`numpy.ndarray`": [np.array([1, 2])],
    "`dict` and other mappings": [{"a": 1}, OrderedDict(a=1)],
    "a dataclass's instance": [Point(1, 2)],
    "`pathlib.Path`": [Path("a")],
    "`complex`": [1j],
    "`object`, functions, classes": [object(), print, int],
}


def cell(values: Iterable[object], column: Column, mode: Compatibility) -> str:
    """Return the table cell: whether a column accepts values of these types."""
    rule = make_value_rule(column, ZoneInfo("UTC"), mode)
    types: dict[type, bool] = {}
    null = False
    for value in values:
        try:
            null |= rule(value, 0) is None
        except InvalidRow:
            # An accepted type may have rejected values: `ab` is not a number.
            types.setdefault(type(value), False)
        else:
            types[type(value)] = True
    if null:
        return "NULL"
    return "yes" if all(types.values()) else "some" if any(types.values()) else "–"


def cells(values: Iterable[object], column: Column) -> str:
    """Return the cell for both modes, if they differ."""
    snowflake, strict = (
        cell(values, column, mode) for mode in (Compatibility.SNOWFLAKE, Compatibility.STRICT)
    )
    return snowflake if snowflake == strict else f"{snowflake}, strict: {strict}"


def table() -> str:
    """Return the table in Markdown."""
    lines = ["| Python type | " + " | ".join(COLUMNS) + " |", "|" + " --- |" * (len(COLUMNS) + 1)]
    for name, values in VALUES.items():
        row = [cells(values, column) for column in COLUMNS.values()]
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"
