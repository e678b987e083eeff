"""Delimited text becomes what a loop over its bytes and the exact rules of values make of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.errors import InvalidRow
from snowmelt.load.column_converter import TableConverter
from snowmelt.load.parsers import delimited_block_parser
from snowmelt.load.parsers.warmup import COMPILED_READERS
from snowmelt.load.phase_protocols import ParseTarget
from snowmelt.schema.types import Column, LogicalType, TableSchema
from support.parser_runs import load


@pytest.fixture(autouse=True, params=["exact", "scanned"], scope="module")
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Read even small blocks by the scanner, or none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimited_block_parser, "_MIN_SCANNED_BYTES", 0)
        patch.setattr(
            COMPILED_READERS["DELIMITED"], "can_be_used", lambda: request.param == "scanned"
        )
        yield


TEXTS = TableSchema(
    1, tuple(Column(n, LogicalType.TEXT, i + 1, length=100) for i, n in enumerate("AB"))
)


def _records(
    data: bytes, marks: tuple[bytes, ...], *, blank_lines: bool
) -> Iterator[tuple[int, int, list[bytes | None] | None]]:
    """Tell records apart with nothing but a loop over bytes; yields start, end, fields."""
    at = 0
    while at < len(data):
        start, fields = at, []
        broken = None
        while True:
            field, at, state = _field(data, at, marks)
            if state == "unclosed" or state == "after":
                end = data.find(b"\n", start)
                end = len(data) if end < 0 else end
                at = min(end + 1, len(data))
                broken = state
                if end > start and data[end - 1 : end] == b"\r" and end < len(data):
                    end -= 1
                break
            fields.append(field)
            if state == "delimiter":
                continue
            end = at
            at += {"end": 0, "line": 1, "windows": 2}[state]
            break
        if end == start and not blank_lines:
            continue
        yield start, end, None if broken else fields


def _field(data: bytes, at: int, marks: tuple[bytes, ...]) -> tuple[bytes | None, int, str]:
    delimiter, quote, escape, null = marks
    value = bytearray()
    quoted = bool(quote) and data[at : at + 1] == quote
    inside = quoted
    at += quoted
    start = at
    while True:
        byte = data[at : at + 1]
        if inside:
            if not byte:
                return None, at, "unclosed"
            if byte == quote:
                if data[at + 1 : at + 2] == quote:
                    value += quote
                    at += 2
                else:
                    inside = False
                    at += 1
                continue
            if escape and byte == escape:
                if at + 1 == len(data):
                    return None, at, "unclosed"
                at += 1
                byte = data[at : at + 1]
        else:
            state = None
            if not byte:
                state = "end"
            elif byte == delimiter:
                state = "delimiter"
            elif byte == b"\n":
                state = "line"
            elif data[at : at + 2] == b"\r\n":
                state = "windows"
            if state:
                result = None if not quoted and data[start:at] == null else bytes(value)
                return result, at + (state == "delimiter"), state
            if quoted:
                return None, at, "after"
            if escape and byte == escape and at + 1 < len(data):
                at += 1
                byte = data[at : at + 1]
        value += byte
        at += 1


def _slowly(
    data: bytes, marks: tuple[bytes, ...], schema: TableSchema, *, blank_lines: bool
) -> tuple[list[tuple[Any, ...]], list[tuple[int, int, bytes]]]:
    conversion = TableConverter(ParseTarget(schema), None)
    stored, rejects = [], []
    for number, (start, end, fields) in enumerate(
        _records(data, marks, blank_lines=blank_lines), 1
    ):
        try:
            if fields is None or len(fields) != len(schema.columns):
                raise InvalidRow(reason="ragged")
            stored.append(
                [
                    None if value is None else column.convert_text_exactly(value.decode())
                    for column, value in zip(conversion.columns, fields, strict=True)
                ]
            )
        except (InvalidRow, UnicodeDecodeError):
            rejects.append((number, start, data[start:end]))
    arrays = []
    for column, values in zip(
        conversion.columns,
        zip(*stored, strict=True) if stored else [()] * len(schema.columns),
        strict=True,
    ):
        arrays += column.to_native_arrays(list(values))
    table = pa.Table.from_arrays(arrays, schema=conversion.arrow_schema)
    return [tuple(row.values()) for row in table.to_pylist()], rejects


MANY = TableSchema(
    1,
    (
        Column("N", LogicalType.FIXED, 1, precision=6, scale=2),
        Column("R", LogicalType.REAL, 2),
        Column("O", LogicalType.BOOLEAN, 3),
        Column("T", LogicalType.TEXT, 4, length=4),
        Column("B", LogicalType.BINARY, 5, byte_length=3),
        Column("D", LogicalType.DATE, 6),
        Column("C", LogicalType.TIME, 7, scale=9),
        Column("TN", LogicalType.TIMESTAMP_NTZ, 8, scale=9),
        Column("TL", LogicalType.TIMESTAMP_LTZ, 9, scale=3),
        Column("TZ", LogicalType.TIMESTAMP_TZ, 10, scale=6),
        Column("V", LogicalType.VARIANT, 11),
    ),
)
_NUMBERS = [
    "1",
    "-2.5",
    "+3",
    "1.005",
    "9999.995",
    "10000",
    "1e2",
    "0x1",
    " 4 ",
    "x",
    "1.",
    ".5",
    "-0",
    "1e400",
]
_REALS = [
    *_NUMBERS,
    "NaN",
    "nan",
    "inf",
    "Infinity",
    "INFINITY",
    "-inf",
    "+inf",
    "1f",
    "nan(1)",
    "1_0",
]
_CLOCKS = [
    "05:06",
    "05:06:07",
    "23:59:59.999999",
    "05:06:07.123456789",
    "24:00",
    "5:06",
    "05:06:07.",
    "05",
]
_DAYS = [
    "2013-01-01",
    "2012-02-29",
    "2013-02-29",
    "0001-01-01",
    "0999-12-31",
    "20130101",
    "1357016767",
    "x",
]
_ZONES = ["", "", "Z", "+02:00", "-0530", "+05", "+19:00", " +01:00", "-17:59"]
_MOMENTS = st.builds(
    lambda day, mark, clock, zone: day + mark + clock + zone if mark else day,
    st.sampled_from(_DAYS),
    st.sampled_from(["", " ", "T", "  "]),
    st.sampled_from(_CLOCKS),
    st.sampled_from(_ZONES),
)
_VALUES = [
    st.sampled_from(_NUMBERS),
    st.sampled_from(_REALS),
    st.sampled_from(["t", "FALSE", "Yes", "yEs", "2", " on", "1"]),
    st.text("aé€😀b ", max_size=6),
    st.sampled_from(["", "00", "0aFF", "0aff01ee", "0", "xx"]),
    st.sampled_from([*_DAYS, "2013-01-01 05:06"]),
    st.sampled_from([*_CLOCKS, " 05:06 "]),
    _MOMENTS,
    _MOMENTS,
    _MOMENTS,
    st.sampled_from(["1", '{"a": 1}', "[1, 2]", "x", " ", "null"]),
]


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(*(st.one_of(st.just(""), value, value) for value in _VALUES)),
        min_size=1,
        max_size=6,
    )
)
def test_every_value_is_read_as_the_exact_rules_read_it(rows: list[Any]) -> None:
    data = "".join("\x01".join(row) + "\n" for row in rows).encode()
    found = load("delimited", data, MANY, delimiter="\x01", escape="")
    rejects = [(r.record, r.offset, r.data) for r in found[1]]
    slowly = _slowly(data, (b"\x01", b"", b"", b""), MANY, blank_lines=True)
    assert repr((found[0], rejects)) == repr(slowly)


@pytest.mark.parametrize(
    ("escape", "quote", "null"),
    [("", "", ""), ("\\", "", ""), ("", '"', ""), ("\\", '"', ""), ("\\", "", "N"), ("", '"', "N")],
)
@given(
    pieces=st.lists(
        st.sampled_from(
            [
                "a",
                "N",
                "1",
                "|",
                "|",
                "\n",
                "\r\n",
                "\r",
                '"',
                '""',
                "\\",
                "\n\n",
                "é",
                '|"',
                '"|',
                '"\n',
            ]
        ),
        max_size=14,
    ),
    size=st.integers(1, 9),
    blank_lines=st.booleans(),
)
def test_every_record_is_what_a_loop_over_bytes_makes_of_it(
    escape: str, quote: str, null: str, pieces: list[Any], size: int, blank_lines: bool
) -> None:
    data = "".join(pieces).encode()
    name = "delimited" if blank_lines else "csv"
    parameters: dict[str, Any] = {
        "delimiter": "|",
        "escape": escape,
        "enclosed_by": quote,
        "null": null,
    }
    if not blank_lines:
        parameters["header"] = False
    found = load(name, data, TEXTS, size=size, **parameters)
    rejects = [(r.record, r.offset, r.data) for r in found[1]]
    marks = tuple(mark.encode() for mark in ("|", quote, escape, null))
    assert (found[0], rejects) == _slowly(data, marks, TEXTS, blank_lines=blank_lines)
