"""A table with every type, and rows for it."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.types import Column, LogicalType, TableName, TableSchema

TYPES = TableName("DEMO", "PUBLIC", "TYPES")
TYPED = (
    Column("ID", LogicalType.FIXED, 1, nullable=False, precision=5, scale=0),
    Column("NUM", LogicalType.FIXED, 2, precision=38, scale=10),
    Column("REAL", LogicalType.REAL, 3),
    Column("FLAG", LogicalType.BOOLEAN, 4),
    Column("TEXT", LogicalType.TEXT, 5, length=100, byte_length=400),
    Column("BYTES", LogicalType.BINARY, 6, byte_length=100),
    Column("DAY", LogicalType.DATE, 7),
    Column("CLOCK3", LogicalType.TIME, 8, scale=3),
    Column("CLOCK9", LogicalType.TIME, 9, scale=9),
    Column("NTZ", LogicalType.TIMESTAMP_NTZ, 10, scale=6),
    Column("NTZ9", LogicalType.TIMESTAMP_NTZ, 11, scale=9),
    Column("LTZ", LogicalType.TIMESTAMP_LTZ, 12, scale=6),
    Column("TZ9", LogicalType.TIMESTAMP_TZ, 13, scale=9),
    Column("V", LogicalType.VARIANT, 14),
    Column("A", LogicalType.ARRAY, 15),
    Column("O", LogicalType.OBJECT, 16),
    Column("odd. `name", LogicalType.TEXT, 17, length=10, byte_length=40),
    Column("text", LogicalType.TEXT, 18, length=10, byte_length=40),
)
ROWS: list[dict[str, Any]] = [
    {
        "ID": 1,
        "NUM": "1234567890123456789012345678.0123456789",
        "REAL": 2.5,
        "FLAG": True,
        "TEXT": "Grüße, 雪",
        "BYTES": b"\x00\xff",
        "DAY": "2013-01-31",
        "CLOCK3": "23:59:59.123",
        "CLOCK9": "01:02:03.123456789",
        "NTZ": "2013-01-31T10:11:12.123456",
        "NTZ9": "1969-12-31T23:59:59.999999999",
        "LTZ": "2013-01-31T10:11:12.5+02:00",
        "TZ9": "2013-01-31T10:11:12.000000001-03:30",
        "V": '{"city": "Köln", "at": [1, 2.5, null]}',
        "A": "[1, 2]",
        "O": '{"a": {"b": "c"}}',
        '"odd. `name"': "x",
        '"text"': "low",
    },
    {
        "ID": 2,
        "NUM": "-0.0000000001",
        "REAL": float("nan"),
        "FLAG": False,
        "TEXT": "",
        "BYTES": b"",
        "DAY": "0001-01-01",
        "CLOCK3": "00:00:00",
        "CLOCK9": "00:00:00",
        "NTZ": "0001-01-01T00:00:00",
        "NTZ9": "1500-06-15T12:00:00",
        "LTZ": "9999-12-31T23:59:59.999999Z",
        "TZ9": "1500-06-15T12:00:00Z",
        "V": "1234567890123456789012",
        "A": "[]",
        "O": "{}",
        '"odd. `name"': "",
        '"text"': "",
    },
    {"ID": 3},
]


def typed_rows(rows: list[Any]) -> Any:
    schema = TableSchema(1, TYPED)
    conversion = RowConverter(schema, zone=ZoneInfo("UTC")).convert(rows)
    assert not conversion.errors, conversion.errors
    return conversion.table
