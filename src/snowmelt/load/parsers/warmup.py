"""Warm-up of the parsers: compiles or loads what COPY of delimited text and JSON runs compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.load.parsers.delimited import DelimitedOptions
from snowmelt.load.parsers.json_document_mapping import JsonOptions
from snowmelt.load.parsers.json_parser import JsonParser
from snowmelt.load.phase_protocols import ByteReader, ParseTarget
from snowmelt.load.portion import InputFile, Portion
from snowmelt.schema.types import Column, LogicalType, TableSchema

if TYPE_CHECKING:
    from snowmelt.load.phase_protocols import Parser

_SCHEMA = TableSchema(
    1,
    (
        Column("N", LogicalType.FIXED, 1, precision=18, scale=0),
        Column("P", LogicalType.FIXED, 2, precision=12, scale=2),
        Column("R", LogicalType.REAL, 3),
        Column("T", LogicalType.TEXT, 4, length=100),
        Column("D", LogicalType.DATE, 5),
        Column("AT", LogicalType.TIMESTAMP_NTZ, 6, scale=6),
        Column("Z", LogicalType.TIMESTAMP_TZ, 7, scale=6),
        Column("O", LogicalType.BOOLEAN, 8),
    ),
)
_VALUES = (
    *("1", "2.50", "0.5", "West", "2013-01-02"),
    *("2013-01-02 03:04:05.678", "2013-01-02 03:04:05+01:00", "true"),
)
# Smaller inputs are read exactly, without compiled code.
_SAMPLE_BYTES = 1 << 16


def warm_up_parsers() -> None:
    """Parse some records of every type; what it takes stays loaded in this process."""
    quoted = ",".join(f'"{value}"' for value in _VALUES)
    delimited = DelimitedOptions(delimiter=",", enclosed_by='"').parser()
    _parse(delimited, f"{','.join(_VALUES)}\n{quoted}\n")
    names = (column.name for column in _SCHEMA.columns)
    members = ", ".join(f'"{name}": "{value}"' for name, value in zip(names, _VALUES, strict=True))
    numbers = '{"N": 1, "P": 2.50, "R": 0.5, "O": true}'
    _parse(JsonParser(JsonOptions()), f"{{{members}}}\n{numbers}\n")


def _parse(parser: Parser, records: str) -> None:
    sample = (records * (_SAMPLE_BYTES // len(records) + 1)).encode()
    target = ParseTarget(_SCHEMA, {})
    for _ in parser.parse(ByteReader(iter((sample,))), target, Portion(InputFile("sample"))):
        pass
