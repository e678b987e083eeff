"""Columns read at once hold what the rows hold; whatever is in doubt goes the ordinary way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.ingest.rows.body import parse_json_lines
from snowmelt.ingest.rows.columnar_reader import read_field_columns, read_table_columns
from snowmelt.ingest.rows.field_names import BodyField, parse_scalar_fields, resolve_field_case
from snowmelt.ingest.rows.line_reader import read_scalar_lines
from snowmelt.schema.conversion.row_converter import RowConversion, RowConverter
from snowmelt.schema.types import Column, LogicalType, TableSchema

SCHEMA = TableSchema(
    1,
    (
        Column("ID", LogicalType.FIXED, 1, precision=38, scale=0),
        Column("PRICE", LogicalType.FIXED, 2, precision=12, scale=2),
        Column("RATIO", LogicalType.REAL, 3),
        Column("FLAG", LogicalType.BOOLEAN, 4),
        Column("Name", LogicalType.TEXT, 5, length=1000, byte_length=4000),
        Column("daY", LogicalType.DATE, 6),
        Column("AT", LogicalType.TIMESTAMP_NTZ, 7, precision=9, scale=9),
        Column("SEEN", LogicalType.TIMESTAMP_LTZ, 8, precision=9, scale=3),
        Column("ZONED", LogicalType.TIMESTAMP_TZ, 9, precision=9, scale=9),
    ),
)
ROW = {
    "id": 1,
    "price": "12.5",
    "Ratio": 0.1,
    "flag": True,
    "name": "x",
    "day": "2024-02-29",
    "at": "2026-11-21T10:00:00.123456",
    "seen": "2026-03-08T02:30:00",
    "zoned": "2026-11-21T10:00:00",
}
CONVERTER = RowConverter(SCHEMA, zone=ZoneInfo("Europe/Berlin"))

values = {
    "id": st.integers(-(2**70), 2**70) | st.none() | st.just("7") | st.just(1.5),
    "price": st.sampled_from(["1", "-1.25", "1.255", "1e3", " 2", "0012", None, 3, "x", ""]),
    "Ratio": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 2**60) | st.none(),
    "flag": st.sampled_from([True, False, None, "true", 1]),
    "name": st.text(max_size=20) | st.none() | st.integers(),
    "day": st.sampled_from(["2024-02-29", "2023-02-29", "0000-01-01", "2024-2-9", None, "today"]),
    "at": st.sampled_from(
        [
            "2026-11-21T10:00:00",
            "2026-11-21T24:00:00",
            "2026-11-21 10:00:00",
            "2026-03-29T02:30:00",
            "2026-03-29 02:30:00.000001",
            "2026-03-29x02:30:00",
            "11/21/2026 10:00:00",
            "2026-11-21T10:00:60",
            "2026-11-21T10:00:00Z",
            "2026-13-01T00:00:00",
            "2026-11-21T10:00:00.1234567",
            None,
        ]
    ),
    "seen": st.sampled_from(
        [
            "1900-01-01T00:00:00",
            "2026-10-25T01:30:00Z",
            "2026-10-25T02:30:00",
            "2026-03-29T02:30:00",
        ]
    ),
    "zoned": st.sampled_from(["2026-10-25T02:30:00.5", "2026-10-25T02:30:00+05:30", None]),
}


def converted(body: bytes, plain: Any = None) -> tuple[RowConversion | None, RowConversion]:
    """What the two ways give: the first None where it leaves the lines to the other."""
    columns = read_table_columns(body, SCHEMA, plain)
    at_once = None if columns is None else CONVERTER.convert_arrow_table(columns)
    return at_once, CONVERTER.convert(resolve_field_case(parse_json_lines(body).rows, SCHEMA))


def read_alone(body: Any, fields: Any) -> Any:
    """Read by the compiled reader, and by no other."""
    found = read_scalar_lines(body, fields)
    assert found is not None
    return found


def body_of(rows: list[dict[str, Any]]) -> bytes:
    return b"\n".join(map(msgspec.json.encode, [ROW] * 12 + rows)) + b"\n"


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(st.lists(st.fixed_dictionaries(values), max_size=3), st.sampled_from(list(values)))
@pytest.mark.parametrize("plain", [None, read_scalar_lines])
def test_columns_are_those_of_the_rows(
    plain: Callable[[bytes, Sequence[BodyField]], Any] | None, rows: list[Any], only: Any
) -> None:
    for some in (rows, [{**ROW, only: row[only]} for row in rows]):
        at_once, one_by_one = converted(body_of(some), plain)
        if at_once is not None and not at_once.errors:
            assert one_by_one.errors == []
            assert at_once.table.equals(one_by_one.table)


@pytest.mark.parametrize("plain", [None, read_alone])
def test_plain_rows_are_read_at_once(plain: Callable[[Any, Any], Any] | None) -> None:
    other = {**ROW, "name": 'ä\u0000"\\/€\t', "flag": None}
    body = body_of([ROW, other]).replace(b":30:00", b":30:00Z")
    at_once, one_by_one = converted(body.replace(b"\n", b"\n\n\n"), plain)
    assert at_once is not None
    assert at_once.table.num_rows == 14
    assert at_once.errors == []
    assert at_once.table.equals(one_by_one.table)


@pytest.mark.parametrize("plain", [None, read_scalar_lines])
@pytest.mark.parametrize("name", ["id", "name"])
def test_integers_after_fractions_keep_their_digits(plain: Any, name: str) -> None:
    fractions = f'{{"{name}":2.5,"Ratio":1}}\n'
    for integer in ("5", "9007199254740993", "123456789012345678"):
        for line in (f'{{"Ratio":3,"{name}" : {integer}}}', f'{{"{name}":{integer} , "Ratio":3}}'):
            at_once, one_by_one = converted((fractions * 90 + line).encode(), plain)
            assert one_by_one.errors == []
            assert at_once is None or at_once.table.equals(one_by_one.table)


@pytest.mark.parametrize("value", ['{"b":[{"c":%s}]}', '{"b":{"c":%s}}', "[%s]", "%s"])
def test_integers_among_nested_fractions_are_left_to_the_exact_reader(value: str) -> None:
    fractions = f'{{"a":{value % 2.5},"n":1}}\n' * 90
    integer = f'{{"n":1,"a":{value % 9007199254740993}}}'
    assert read_field_columns((fractions + integer).encode()) is None
    integers = fractions.replace("2.5", "9007199254740993")
    table = read_field_columns(integers.encode())
    assert table is not None
    assert "9007199254740993" in str(table["a"][0].as_py())


@pytest.mark.parametrize(
    "line",
    [
        b"null",
        b"[1]",
        b'{"id":1}{"id":2}',
        b'{"id":1} {"id":2}',
        b'{"id":1,"id":2}',
        b'{"id":1,"ID":2}',
        b'{"name":"a","NAME":"b"}',
        b'{"other":1}',
        b'{"id":1}null',
        b'{"id":1}\n null',
        b'{"id":1,\n"flag":true}',
        b'{"Ratio":NaN}',
        b'{"Ratio":-Infinity}',
        b'{"id":NaN}',
        b'{"name":NaN}',
        b'{"name":"\xff"}',
        b'{"id":',
    ],
)
def test_doubtful_lines_go_the_ordinary_way(line: bytes) -> None:
    for plain in (None, read_scalar_lines):
        for ending in (b"\n", b""):
            assert read_table_columns(body_of([]) + line + ending, SCHEMA, plain) is None


TEXTS = [
    *("0", "-0", "-0.0", "00", "1.", ".5", "-", "1e5", "1E-400", "1e400", "+1", "0x1"),
    *(
        "9" * 18,
        "9" * 19,
        "1.7976931348623157e308",
        "2.2250738585072011e-308",
        "true"[:3],
        "null"[:3],
    ),
    *('"', '"a', '"\\', '"\\u12', '"\\ud83d\\ude00"', '"\\ud83d"', '"\\u00e9"', '"\\x"', '"\t"'),
    *('"1.25"', '"-.5"', '"1."', '"-"', '""', '"2024-02-30"', '"2024-02-29"', '"1000-01-01"'),
    *('"2026-11-21T10:00:00.12345"', '"0999-01-01T00:00:00"', '"2999-12-31T23:59:59.999999"'),
    *('"1900-02-29T00:00:00Z"', '"2026-11-21T10:00:00Z"', "true", "null", "{}", "[1]"),
]


@pytest.mark.parametrize("field", list(ROW))
@pytest.mark.parametrize("plain", [None, read_scalar_lines])
def test_what_is_read_at_once_is_json_and_no_more(
    field: str, plain: Callable[[bytes, Sequence[BodyField]], Any] | None
) -> None:
    line = msgspec.json.encode(ROW)
    value = msgspec.json.encode(ROW[field])
    key = msgspec.json.encode(field) + b":"
    for text in TEXTS:
        body = body_of([]) + line.replace(key + value, key + text.encode())
        at_once, one_by_one = converted(body, plain)
        if at_once is not None and not at_once.errors:
            assert one_by_one.errors == []
            assert str(at_once.table.to_pydict()) == str(one_by_one.table.to_pydict())


@pytest.mark.slow
@pytest.mark.parametrize(("plain", "size"), [(None, 100), (read_scalar_lines, 1_000)])
def test_large_bodies_are_read_in_parts(
    plain: Callable[[bytes, Sequence[BodyField]], Any] | None, size: int
) -> None:
    rows = [{**ROW, "id": number, "name": "x" * (number % size)} for number in range(8_000)]
    at_once, one_by_one = converted(body_of(rows), plain)
    assert at_once is not None
    assert at_once.table.num_rows == 8_012
    assert at_once.table.equals(one_by_one.table)
    for place in (0, 7_999):
        some = [*rows[:place], {**ROW, "id": 1.5}, *rows[place + 1 :]]
        assert read_table_columns(body_of(some), SCHEMA, plain) is None


def test_no_more_room_is_taken_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snowmelt.ingest.rows.line_reader._MAX_BYTES", 1_000)
    body = body_of([])
    fields = parse_scalar_fields(body[: body.find(b"\n")], SCHEMA)
    assert fields is not None
    assert read_scalar_lines(body, fields) is None
