"""Records on lines: by fixed widths, patterns and pairs, and messages taken whole."""

from __future__ import annotations

from typing import Any

import pytest

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.parsers import definition
from snowmelt.load.portion import Portion
from snowmelt.schema.types import Column, LogicalType, TableSchema
from support.parser_runs import FILE, load, load_records
from support.phases import built

SCHEMA = TableSchema(
    1,
    (
        Column("A", LogicalType.FIXED, 1, precision=6, scale=0),
        Column("B", LogicalType.TEXT, 2, length=10),
    ),
)
PATTERN = r"(?<a>\d+) - (?<b>\w+)"


def test_fixed_widths_are_bytes_and_their_padding_goes() -> None:
    data = b"  12abc  \r\n    \xc3\xa9x  \n"
    assert load("fixedwidth", data, SCHEMA, colsizes="4,5")[0] == [(12, "abc"), (None, "éx")]
    rows, rejects = load("fixedwidth", b"0012abc--\n 1\n", SCHEMA, colsizes="4,5", trim="-")
    assert rows == [(12, "abc")]
    assert (rejects[0].record, rejects[0].offset, rejects[0].data) == (2, 10, b" 1")
    assert rejects[0].reason == "expected 9 bytes, got 2"


def test_bytes_and_records_at_the_start_are_skipped() -> None:
    data = b"HEADx\n   1a\n   2b\n"
    assert load("fixedwidth", data, SCHEMA, colsizes="4,1", skip_bytes=6, skip=1)[0] == [(2, "b")]


def test_sizes_must_fit_the_columns_and_be_positive() -> None:
    with pytest.raises(PhaseFailed, match="1 sizes for 2 columns"):
        load("fixedwidth", b"x\n", SCHEMA, colsizes="4")
    for sizes in ("", "0,1", "a"):
        with pytest.raises(LoadRefused):
            built(definition("fixedwidth"), {"colsizes": sizes})


def test_groups_of_a_pattern_are_columns() -> None:
    rows, rejects = load("fregexparser", b"12 - x\nno\n7 - y\n", SCHEMA, pattern=PATTERN)
    assert rows == [(12, "x"), (7, "y")]
    assert (rejects[0].record, rejects[0].data) == (2, b"no")
    rows = load("regex", b"12 - x", SCHEMA, pattern=r"(?<a>\d+).*", logline_column="b")[0]
    assert rows == [(12, "12 - x")]


def test_a_pattern_that_names_nothing_is_refused() -> None:
    for pattern in ("(", "a+"):
        with pytest.raises(LoadRefused):
            built(definition("fregexparser"), {"pattern": pattern})
    with pytest.raises(PhaseFailed, match="no group of the pattern is a column; its groups are X"):
        load("fregexparser", b"a\n", SCHEMA, pattern="(?<x>a)")


def test_pairs_are_found_by_key_and_quotes_hold_delimiters() -> None:
    data = b'b="x ""y=1" a=5 z=9\na=1 b=hello you\nb=""\nb= a=\n'
    rows, _ = load("fdelimitedpairparser", data, SCHEMA)
    assert rows == [(5, 'x "y=1'), (1, "hello you"), (None, ""), (None, None)]
    assert load("pairs", b"a:5|b:x\n", SCHEMA, delimiter="|", assignment=":")[0] == [(5, "x")]
    _, rejects = load("pairs", b"a=5\nfoo bar\n", SCHEMA)
    assert rejects[0].reason == "not a pair of key and value: 'foo bar'"


def test_illegal_utf8_costs_its_record() -> None:
    parsers: list[tuple[str, dict[str, Any]]] = [("regex", {"pattern": PATTERN}), ("pairs", {})]
    for name, options in parsers:
        _, rejects = load(name, b"a=\xff\n", SCHEMA, **options)
        assert rejects[0].reason == "illegal UTF-8 at byte 2 of the record"


@pytest.mark.slow
def test_portions_hold_each_record_once() -> None:
    data = b"".join(b"%d - x%s\n" % (at, b"y" * (at % 9)) for at in range(100))
    for size in (1, 10, 300):
        rows = []
        for at in range(0, len(data), size):
            portion = Portion(FILE, at, size)
            rows += load("regex", data[at:], SCHEMA, portion=portion, size=7, pattern=PATTERN)[0]
        assert [row[0] for row in rows] == list(range(100))


def test_a_message_is_the_value_of_its_one_column() -> None:
    text = TableSchema(1, (Column("M", LogicalType.TEXT, 1, length=3),))
    rows, rejects = load_records("kafkaparser", [b"a\nb", b"", b"abcd", b"\xff"], text)
    assert rows == [("a\nb",), ("",), ("abc",)]
    assert (rejects[0].record, rejects[0].offset) == (4, 7)
    binary = TableSchema(1, (Column("M", LogicalType.BINARY, 1, byte_length=2),))
    assert load_records("kafkaparser", [b"a\xff", b"abc"], binary)[0] == [(b"a\xff",), (b"ab",)]
    with pytest.raises(PhaseFailed, match="fills one column, not 2"):
        load_records("kafkaparser", [b"a"], SCHEMA)


def test_messages_may_be_delimited_each_by_itself() -> None:
    rows, rejects = load_records("pairs", [b"a=1", b"x", b"a=2"], SCHEMA)
    assert [row[0] for row in rows] == [1, 2]
    assert [(reject.record, reject.offset) for reject in rejects] == [(2, 3)]


@pytest.mark.parametrize(
    ("name", "options"), [("regex", {"pattern": r"(?<a>\d+) (?<year>\d+)"}), ("pairs", {})]
)
def test_columns_made_in_quotes_are_found_in_any_case(name: str, options: dict[str, Any]) -> None:
    columns = [
        Column(n, LogicalType.TEXT, i + 1, length=10) for i, n in enumerate(["A", "year", "a"])
    ]
    data = b"1 2024\n" if name == "regex" else b"a=1 year=2024\n"
    rows, _ = load(name, data, TableSchema(1, tuple(columns)), **options)
    assert rows == [("1", "2024", None)]
