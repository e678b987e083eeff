"""The scanner makes of hostile bytes what the exact reader makes of them, in any dialect."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.parsers import delimited_block_parser, portion_stream
from snowmelt.load.parsers.warmup import COMPILED_READERS
from snowmelt.load.phase_protocols import ColumnOptions
from snowmelt.schema.types import Column, LogicalType, TableSchema
from support.parser_runs import load

_SCHEMA = TableSchema(
    1,
    (
        Column("N", LogicalType.FIXED, 1, precision=6, scale=2),
        Column("T", LogicalType.TEXT, 2, length=4, nullable=False),
        Column("R", LogicalType.REAL, 3),
        Column("D", LogicalType.DATE, 4),
        Column("TZ", LogicalType.TIMESTAMP_TZ, 5, scale=3),
        Column("O", LogicalType.BOOLEAN, 6),
        Column("W", LogicalType.FIXED, 7, precision=38, scale=0),
        Column("NTZ", LogicalType.TIMESTAMP_NTZ, 8, scale=9),
        Column("LTZ", LogicalType.TIMESTAMP_LTZ, 9, scale=0),
        Column("C", LogicalType.TIME, 10, scale=3),
        Column("B", LogicalType.BINARY, 11, length=3),
        Column("V", LogicalType.VARIANT, 12),
        Column("L", LogicalType.ARRAY, 13),
        Column("M", LogicalType.OBJECT, 14),
    ),
)
_TERMINATORS = ["", "", "\n", "\r\n", "\r", "ab", "~|~", "xyx", "é", "NN"]
_VALUES = [
    "1",
    "-2.50",
    "+3.",
    ".5",
    "-0",
    "123456789012345678901",
    "1e3",
    "abcde",
    "2013-02-28",
    "0999-01-01",
    "2013-02-28T01:02:03.1234567Z",
    "2013-02-28 01:02:03+17:59",
    "2013-02-28 01:02:03-18:00",
    "true",
    "01:02:03.4567",
    "24:00:00",
    "abcd",
    "[1]",
    '{"a": 1}',
    "N",
    " ",
]


_FITTING = [
    ["1", "-2.50", "+3.", ".5", "-0", "12.3", ""],
    ["abcd", "é", "a b", "x"],
    ["1", "1e3", "-2.50", "-0", "0.123456789012345678", ""],
    ["2013-02-28", "0999-01-01", "9999-12-31", ""],
    [
        "2013-02-28 01:02:03+17:59",
        "2013-02-28T01:02:03.123456Z",
        "2013-02-28T01:02:03",
        "9999-12-31 20:00:00-03:59",
        "",
    ],
    ["true", "0", "F", ""],
    ["1", "-0", "12345678901234567890123456789012345678", "+007", ""],
    [
        "2013-02-28 01:02:03.123456789",
        "1969-12-31T23:59:59.5",
        "1582-10-04",
        "9999-12-31T23:59:59-05:00",
        "",
    ],
    ["2013-02-28 01:02:03.5-08:00", "2262-04-12 00:00:00", "9999-12-31 20:00:00-05:00", ""],
    ["01:02:03", "23:59:59.9996", "1:2", ""],
    ["abc", "é", "61", ""],
    ["1", "true", "{}", ""],
    ["[]", "[1]", ""],
    ["{}", "{}", ""],
]


@st.composite
def _dialects(draw: st.DrawFn) -> tuple[str, dict[str, Any], dict[str, ColumnOptions]]:
    parameters = {
        "delimiter": draw(st.sampled_from("||,\t\x00N1")),
        "enclosed_by": draw(st.sampled_from(["", '"', '"', "'", "q", "1"])),
        "escape": draw(st.sampled_from(["", "\\", "\\", '"', "1", "q"])),
        "null": draw(st.sampled_from(["", "", "N", "\\N", "ab", '"N"'])),
        "record_terminator": draw(st.sampled_from(_TERMINATORS)),
        "trailing_nullcols": draw(st.booleans()),
    }
    name = draw(st.sampled_from(["delimited", "delimited", "csv"]))
    if name == "csv":
        parameters |= {"type": "traditional", "header": False, "trim": draw(st.booleans())}
    options = {
        column.name: ColumnOptions(null=draw(st.sampled_from(["1", "", "\\N"])))
        for column in _SCHEMA.columns
        if draw(st.integers(0, 9)) == 0
    }
    return name, parameters, options


@st.composite
def _texts(draw: st.DrawFn, parameters: dict[str, Any]) -> bytes:
    marks = [parameters["delimiter"]] * 4 + [
        parameters["enclosed_by"],
        parameters["escape"],
        parameters["null"],
        parameters["record_terminator"] or "\n",
        "\n",
        "\r\n",
        "\r",
        "a",
    ]
    quote, ends = parameters["enclosed_by"], parameters["record_terminator"] or "\n"
    values = st.sampled_from(_VALUES)
    rows = [
        st.tuples(
            *(
                st.one_of(choice, choice.map(lambda text: quote + text + quote))
                for choice in choices
            )
        ).map(lambda row: (parameters["delimiter"].join(row) + ends).encode())
        for choices in (
            [values] * len(_FITTING),
            [st.sampled_from(fitting) for fitting in _FITTING],
        )
    ]
    noise = st.sampled_from(marks).map(str.encode)
    wild = st.sampled_from([b"\xff", b"\xc3", b"\x00", "é€".encode()])
    return b"".join(draw(st.lists(st.one_of(*rows, rows[1], rows[1], noise, wild), max_size=14)))


@settings(max_examples=150)
@given(data=st.data(), dialect=_dialects(), size=st.integers(1, 40), block=st.integers(4, 400))
def test_both_ways_give_the_same_rows_and_rejects(
    data: st.DataObject,
    dialect: tuple[str, dict[str, Any], dict[str, ColumnOptions]],
    size: int,
    block: int,
) -> None:
    name, parameters, options = dialect
    text = data.draw(_texts(parameters))
    found = []
    for is_scanned in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(delimited_block_parser, "_MIN_SCANNED_BYTES", 0)
            patch.setattr(
                COMPILED_READERS["DELIMITED"],
                "can_be_used",
                lambda is_scanned=is_scanned: is_scanned,
            )
            patch.setattr(portion_stream, "_BLOCK_BYTES", block)
            try:
                found.append(
                    repr(load(name, text, _SCHEMA, size=size, options=options, **parameters))
                )
            except (LoadRefused, PhaseFailed) as error:
                found.append(repr(error))
    assert found[0] == found[1]
