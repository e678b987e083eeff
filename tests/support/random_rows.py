"""Random rows of tables with any columns, with edge values of every type."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.types import Column, LogicalType, TableSchema

if TYPE_CHECKING:
    import random

    import pyarrow as pa

TYPES = (
    *("NUMBER(4,1)", "NUMBER(9,0)", "NUMBER(18,2)", "NUMBER(38,10)", "FLOAT", "BOOLEAN"),
    *("VARCHAR", "VARCHAR(30)", "BINARY(100)", "DATE", "TIME(0)", "TIME(9)", "TIMESTAMP_NTZ(3)"),
    *("TIMESTAMP_NTZ(9)", "TIMESTAMP_LTZ(9)", "TIMESTAMP_TZ(6)", "TIMESTAMP_TZ(9)", "VARIANT"),
    *("ARRAY", "OBJECT"),
)
DEFAULTS = {"FLOAT": "1.5", "BOOLEAN": "TRUE", "VARCHAR": "'set'", "DATE": "'1582-10-10'"}
_STAMPS = (
    *("0001-01-03T00:00:00", "1500-06-15T12:00:00.123456789", "1582-10-10T01:02:03.000000001"),
    *("1899-12-31T23:59:59.999999999", "1970-01-01T00:00:00", "2013-01-31T10:11:12.123456001"),
    *("2013-01-31T10:11:12.123456999", "9999-12-30T00:00:00.999999999"),
)
_VALUES: dict[LogicalType, tuple[Any, ...]] = {
    LogicalType.FIXED: (0, 1, -1, 9, -9, 999, -999),
    LogicalType.REAL: (*map(float, ("nan", "inf", "-inf")), -0.0, 0.0, 1.5, 5e-324),
    LogicalType.BOOLEAN: (True, False),
    LogicalType.TEXT: (
        *("", "a", "ab", "abcdefghijklmnop", "abcdefghijklmnopq", "z" * 17, "é", "雪"),
        *("\U0010ffff" * 17, "\ud7ff" * 17, "a%b", "y" * 30),
    ),
    LogicalType.BINARY: (b"", b"\0", b"\xff" * 20, b"a" * 17, b"\xff\xfe"),
    LogicalType.DATE: ("0001-01-01", "1582-10-04", "1582-10-10", "1899-12-31", "9999-12-31"),
    LogicalType.TIME: ("00:00:00", "12:34:56.789123456", "23:59:59.999999999"),
    LogicalType.TIMESTAMP_NTZ: _STAMPS,
    LogicalType.TIMESTAMP_LTZ: tuple(f"{each}Z" for each in _STAMPS),
    LogicalType.TIMESTAMP_TZ: tuple(
        each + zone for each in _STAMPS for zone in ("Z", "+05:45", "-03:30")
    ),
    LogicalType.VARIANT: ('{"a": 1}', '"text"', "1", "null"),
    LogicalType.ARRAY: ("[]", "[1, 2.5]"),
    LogicalType.OBJECT: ("{}", '{"b": {"c": [1]}}'),
}


def _choose_value(column: Column, chance: random.Random) -> Any:
    if chance.random() < 0.25:
        return None
    if column.kind is LogicalType.FIXED and chance.random() < 0.3:
        largest = Decimal(10 ** (column.precision or 38) - 1)
        digits = Context(prec=38)
        value = largest.scaleb(-(column.scale or 0), digits)
        return chance.choice((value, value.copy_negate()))
    return chance.choice(_VALUES[column.kind])


def make_random_rows(
    schema: TableSchema, first: int, count: int, chance: random.Random
) -> pa.Table:
    """Return rows in chunk form. Column ID numbers them. Some rows have no other values."""
    rows: list[Any] = []
    for number in range(first, first + count):
        row = {each.name: _choose_value(each, chance) for each in schema.columns}
        rows.append({**row, "ID": number} if chance.random() < 0.8 else {"ID": number})
    return convert_rows(schema, rows)


def convert_rows(schema: TableSchema, rows: list[Any]) -> pa.Table:
    """Return rows in chunk form. Columns that a row lacks have their default."""
    conversion = RowConverter(schema, zone=ZoneInfo("UTC")).convert(rows)
    assert not conversion.errors, conversion.errors
    return conversion.table
