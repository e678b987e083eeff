"""Delimited text becomes the rows and rejects that its rules say, whole and in portions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.parsers import definition
from snowmelt.load.phase_protocols import ColumnOptions
from snowmelt.load.portion import Portion
from snowmelt.schema.types import Column, LogicalType, TableSchema
from support import parser_runs
from support.phases import built

SCHEMA = TableSchema(
    1,
    (
        Column("N", LogicalType.FIXED, 1, precision=5, scale=1),
        Column("T", LogicalType.TEXT, 2, length=3),
        Column("D", LogicalType.DATE, 3),
    ),
)
TEXTS = TableSchema(
    1, tuple(Column(n, LogicalType.TEXT, i + 1, length=100) for i, n in enumerate("AB"))
)


def load(
    name: str, data: bytes, schema: TableSchema = SCHEMA, **options: Any
) -> tuple[list[tuple[Any, ...]], list[Any]]:
    return parser_runs.load(name, data, schema, **options)


def texts(name: str, data: bytes, **options: Any) -> list[tuple[Any, ...]]:
    return load(name, data, TEXTS, **options)[0]


def test_fields_are_told_apart_unescaped_and_null_where_empty() -> None:
    assert texts("delimited", b"a|b\n\\||\\\\\n|\\n\n") == [("a", "b"), ("|", "\\"), (None, "n")]


def test_a_quoted_field_holds_delimiters_line_ends_and_doubled_quotes_and_is_never_null() -> None:
    data = b'"a|b\nc"|"d""e"\n""|x"y\n'
    assert texts("delimited", data, enclosed_by='"') == [("a|b\nc", 'd"e'), ("", 'x"y')]


def test_an_escape_holds_inside_quotes_and_before_a_line_end() -> None:
    data = b'"a\\"b"|c\\\nd\n'
    assert texts("delimited", data, enclosed_by='"') == [('a"b', "c\nd")]


def test_windows_line_ends_are_line_ends_unless_the_terminator_says_otherwise() -> None:
    assert texts("delimited", b"a|b\r\nc|d\n") == [("a", "b"), ("c", "d")]
    assert texts("delimited", b"a|b\r\nc|d\n", record_terminator="\n") == [("a", "b\r"), ("c", "d")]
    assert texts("delimited", b"a|b\nc\r\n", record_terminator="\r\n") == [("a", "b\nc")]


def test_any_text_may_end_a_record() -> None:
    rows, rejects = load(
        "delimited",
        b"1|a|;;x|b|;;3",
        TEXTS_AND_NUMBER,
        record_terminator=";;",
        trailing_nullcols=True,
    )
    assert rows == [(1, "a", None), (3, None, None)]
    assert [(r.record, r.offset, r.data) for r in rejects] == [(2, 6, b"x|b|")]


TEXTS_AND_NUMBER = TableSchema(
    1,
    (
        Column("N", LogicalType.FIXED, 1, precision=5, scale=0),
        *(Column(n, LogicalType.TEXT, 2 + i) for i, n in enumerate("AB")),
    ),
)


def test_a_reject_names_place_column_and_value() -> None:
    rows, rejects = load("delimited", b"1|a|2013-02-28\n2|b|2013-02-30\n")
    assert len(rows) == 1
    (reject,) = rejects
    assert (reject.record, reject.offset, reject.data) == (2, 15, b"2|b|2013-02-30")
    assert reject.column == "D"
    assert reject.reason.startswith("column 3 (D DATE): Not a valid date or timestamp")
    assert ": '2013-02-30'; for another format" in reject.reason


def test_a_record_of_another_length_is_rejected_with_both_numbers() -> None:
    _, rejects = load("delimited", b"1|a\n1|a||\n\n1|a|\n")
    assert [reject.reason for reject in rejects] == [
        "Expected 3 fields, got 2: no value for column 3 (D DATE)",
        "Expected 3 fields, got 4",
        "Expected 3 fields, got 1: no value for column 2 (T VARCHAR(3))",
    ]


def test_short_records_are_padded_where_asked() -> None:
    rows, rejects = load("delimited", b"1\n1|a\n1|a||\n", trailing_nullcols=True)
    assert [row[1:] for row in rows] == [(None, None), ("a", None)]
    assert [reject.record for reject in rejects] == [3]


def test_a_long_text_is_cut_or_rejected_as_asked() -> None:
    assert load("delimited", b"1|abcd|\n")[0][0][1] == "abc"
    options = {"T": ColumnOptions(enforce_length=True)}
    rows, rejects = load("delimited", b"1|abcd|\n2|abc|\n", options=options)
    assert len(rows) == 1
    assert "String too long: length=4 characters maxLength=3" in rejects[0].reason


def test_a_null_in_a_column_that_forbids_it_is_rejected() -> None:
    schema = TableSchema(1, (Column("A", LogicalType.FIXED, 1, False, precision=5, scale=0),))
    rows, rejects = load("delimited", b"1\n\n2\n", schema)
    assert rows == [(1,), (2,)]
    assert rejects[0].record == 2
    assert "NOT NULL" in rejects[0].reason


def test_illegal_utf8_is_located() -> None:
    _, rejects = load("delimited", b"1|a\xff|\n")
    assert rejects[0].reason == "column 2 (T VARCHAR(3)): illegal UTF-8 at byte 1 of the value"


def test_a_record_of_another_length_may_hold_illegal_utf8() -> None:
    rows, rejects = load("delimited", b"1|a|\n1|\xff|a|\n2|\xff\n")
    assert [row[0] for row in rows] == [1]
    assert [reject.reason.partition(":")[0] for reject in rejects] == [
        "Expected 3 fields, got 4",
        "Expected 3 fields, got 2",
    ]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16"])
@pytest.mark.parametrize("name", ["delimited", "csv", "json", "fregexparser"])
def test_text_that_is_utf_16_is_refused_with_what_helps(name: str, encoding: str) -> None:
    data = "näme|wörd|a\nb|word|c\n".encode(encoding)
    options = {"pattern": "(?<A>.*)"} if name == "fregexparser" else {}
    with pytest.raises(PhaseFailed, match=r"Iconverter\(from_encoding='UTF-16"):
        load(name, data, TEXTS, **options)


def test_zeros_that_are_said_to_separate_fields_are_no_utf_16() -> None:
    assert texts("delimited", b"a\x00b\n" * 9, delimiter="\0") == [("a", "b")] * 9
    assert texts("delimited", b"a|b\x00\n" * 9) == [("a", "b\x00")] * 9


def test_columns_may_have_marks_of_their_own() -> None:
    options = {"A": ColumnOptions(delimiter=",", null="-"), "B": ColumnOptions(enclosed_by="'")}
    assert texts("delimited", b"a,'b|c'\n-,d\n", options=options) == [("a", "b|c"), (None, "d")]


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 5 // 3)
@given(
    rows=st.lists(
        st.tuples(
            *[st.sampled_from(["", "-", "NA", '"NA"', '""', "1", "12.34", "x", "2013-01-01"])] * 3,
            st.sampled_from(["\n", "\n", "\r\n", "\n\n", "|1\n", "\\\n"]),
        ),
        max_size=5,
    ),
    usual=st.sampled_from(["", "NA", "x"]),
    quote=st.sampled_from(["", '"']),
)
def test_what_is_null_may_differ_from_column_to_column(
    rows: list[Any], usual: Any, quote: Any
) -> None:
    data = "".join("|".join(fields) + end for *fields, end in rows).encode()
    found = [
        load(
            "delimited",
            data,
            options={
                "N": ColumnOptions(null="-", escape=escape),
                "T": ColumnOptions(null="NA", escape=escape),
            },
            null=usual,
            enclosed_by=quote,
        )
        # Where columns differ in more than what is NULL, fields are read one by one.
        for escape in (None, "\2")
        if escape is None or b"\\" not in data
    ]
    assert repr(found[0]) == repr(found[-1])


def test_a_column_may_have_a_format_and_be_trimmed() -> None:
    options = {"D": ColumnOptions(format="DD.MM.YYYY"), "T": ColumnOptions(trim="*")}
    rows, rejects = load(
        "delimited", b"1|*a*|28.02.2013\n1||31.02.2013\n1||2013-02-01\n", options=options
    )
    assert [(row[1], str(row[2])) for row in rows] == [("a", "2013-02-28")]
    assert "Does not match the format 'DD.MM.YYYY'" in rejects[1].reason


def test_records_are_skipped_at_the_start_of_a_file_only() -> None:
    assert len(texts("delimited", b"x\ny\na|b\n", skip=2)) == 1
    portion = Portion(parser_runs.FILE, 2, 10)
    assert len(texts("delimited", b"y\na|b\n", skip=2, portion=portion)) == 1


def test_a_header_names_the_columns_in_any_case_and_order() -> None:
    rows = texts("csv", b'\xef\xbb\xbfb,c,"a"\n1,2,3\n')
    assert rows == [("3", "1")]
    assert texts("csv", b"") == []
    with pytest.raises(PhaseFailed, match="names none of the columns; it has X, Y"):
        texts("csv", b"x,y\n1,2\n")
    with pytest.raises(PhaseFailed, match="names column A twice"):
        texts("csv", b"a,A\n1,2\n")


def test_blank_lines_of_csv_are_no_records() -> None:
    assert texts("csv", b"a,b\n\n1,2\n\r\n\n3,4\n\n") == [("1", "2"), ("3", "4")]


def test_text_after_a_closing_quote_and_a_quote_that_does_not_close_cost_one_record_each() -> None:
    rows, rejects = load("csv", b'a,b\n"x"y,1\n1,2\n3,"z\n5,6\n', TEXTS)
    assert rows == [("1", "2"), ("5", "6")]
    assert [(r.record, r.offset, r.reason) for r in rejects] == [
        (1, 4, "expected a delimiter or the end of the record after the closing quote of field 1"),
        (3, 15, "the quote that opens field 2 is not closed"),
    ]


def test_a_record_without_end_is_rejected_and_the_next_ones_are_read() -> None:
    data = b"a|b\n" + b"x" * 3_000_000 + b"\nc|d\n"
    rows, rejects = load("delimited", data, TEXTS, size=100_000, max_record=1_000_000)
    assert rows == [("a", "b"), ("c", "d")]
    assert rejects[0].reason.startswith("the record has 3000001 bytes, more than 1000000")
    assert (rejects[0].record, rejects[0].offset) == (2, 4)


def test_marks_that_cannot_be_told_apart_are_refused() -> None:
    for parameters in (
        {"delimiter": "ab"},
        {"delimiter": "\\"},
        {"null": "|"},
        {"enclosed_by": "ä"},
    ):
        with pytest.raises(LoadRefused):
            built(definition("delimited"), parameters)


def test_arrays_are_read_with_their_marks() -> None:
    schema = TableSchema(1, (Column("A", LogicalType.ARRAY, 1),))
    rows, _ = load("delimited", b'[1,a b,"c,d",null,[true]]\n', schema)
    assert rows == [('[1,"a b","c,d",null,[true]]',)]
    rows, rejects = load(
        "delimited",
        b"{1;x}\n{1\n",
        schema,
        collection_delimiter=";",
        collection_open="{",
        collection_close="}",
    )
    assert rows == [('[1,"x"]',)]
    assert "Not a valid array" in rejects[0].reason


def test_arrays_beyond_a_limit_of_json_are_rejected() -> None:
    schema = TableSchema(1, (Column("A", LogicalType.ARRAY, 1),))
    texts = ["[" * 200 + "x" + "]" * 200, "[" * 201 + "x" + "]" * 201, "[" * 100_000]
    texts += ["[x,1e400]", "[x,0." + "1" * 1_000 + "]", "[" * 200 + '{"a":1}' + "]" * 200]
    rows, rejects = load("delimited", "".join(f"{text}\n" for text in texts).encode(), schema)
    assert rows == [("[" * 200 + '"x"' + "]" * 200,)]
    assert [reject.record for reject in rejects] == [2, 3, 4, 5, 6]
    assert all("nests deeper than 200 levels" in reject.reason for reject in rejects)


@pytest.mark.slow
def test_portions_hold_each_record_once() -> None:
    data = b"".join(b"%d|%s\n" % (at, b"x" * (at * 7 % 23)) for at in range(200))
    _portions_agree(data, (1, 7, 64, 1000), TEXTS_OF_NUMBERS)


def test_portions_agree_on_escaped_line_ends() -> None:
    data = b"a\\\nb|c\\\\\n\\\\\\\n|x\nd|\\\n\ne|f"
    _portions_agree(data, range(1, len(data) + 1), TEXTS)


def test_portions_agree_on_long_terminators_and_windows_line_ends() -> None:
    data = b"a|b\r\n\r\nc|d\r\n"
    _portions_agree(data, range(1, len(data) + 1), TEXTS)
    data = b"a|b#;c|d#;#;;e|f"
    _portions_agree(data, range(1, len(data) + 1), TEXTS, record_terminator="#;")
    assert not built(definition("delimited"), {"record_terminator": ";;"}).splittable
    assert not built(definition("delimited"), {"enclosed_by": '"'}).splittable
    assert built(definition("delimited"), {}).splittable


TEXTS_OF_NUMBERS = TableSchema(
    1, (Column("N", LogicalType.FIXED, 1, precision=9, scale=0), Column("T", LogicalType.TEXT, 2))
)


def _portions_agree(
    data: bytes, sizes: range | tuple[int, int, int, int], schema: TableSchema, **parameters: str
) -> None:
    expected = load("delimited", data, schema, **parameters)
    for size in sizes:
        rows, rejects = [], []
        for at in range(0, len(data), size):
            portion = Portion(parser_runs.FILE, at, size)
            found = load("delimited", data[at:], schema, portion=portion, size=5, **parameters)
            rows += found[0]
            rejects += [(reject.offset + at, reject.data) for reject in found[1]]
        assert rows == expected[0], size
        assert rejects == [(reject.offset, reject.data) for reject in expected[1]], size


def test_a_header_with_a_million_names_is_refused_at_once() -> None:
    header = b",".join(b"name%d" % number for number in range(100_000))
    with pytest.raises(PhaseFailed, match="100,000 names, more than the limit of 65,536"):
        load("fcsvparser", header)


@pytest.mark.parametrize("header", ["year", "YEAR", "Year", '"year"'])
def test_a_column_made_in_quotes_is_found_in_any_case(header: str) -> None:
    schema = TableSchema(1, (Column("year", LogicalType.TEXT, 1, length=10),))
    rows, rejects = load("fcsvparser", f"x,{header}\n1,2024\n".encode(), schema)
    assert (rows, rejects) == ([("2024",)], [])


def test_columns_that_differ_in_case_alone_are_each_found_by_their_own_name() -> None:
    schema = TableSchema(
        1,
        tuple(
            Column(name, LogicalType.TEXT, at + 1, length=10) for at, name in enumerate(["A", "a"])
        ),
    )
    rows, _ = load("fcsvparser", b'"""a""",A\n1,2\n', schema)
    assert rows == [("2", "1")]
    with pytest.raises(PhaseFailed, match="names column A twice"):
        load("fcsvparser", b"a,A\n1,2\n", schema)
