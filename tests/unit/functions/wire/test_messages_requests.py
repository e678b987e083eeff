"""Requests are read exactly, tolerated where they can be understood, and else refused."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest

from snowmelt.functions.errors import BatchInvalid
from snowmelt.functions.signature import FunctionArgument, parse_sql_type_text
from snowmelt.functions.wire.messages import RequestReader, RequestWriter
from snowmelt.functions.wire.values import BinaryForm, Formats

SEED = b"""{
    "data": [
                [0, 10, "Alex", "2014-01-01 16:00:00"],
                [1, 20, "Steve", "2015-01-01 16:00:00"]
            ]
}"""


def arguments(*types, nullable=False):
    return [
        FunctionArgument(f"a{at}", parse_sql_type_text(text), nullable)
        for at, text in enumerate(types)
    ]


def columns(body, *types, **formats):
    return RequestReader(arguments(*types), Formats(**formats)).read(body)[:2]


def test_the_published_example_is_read():
    count, found = columns(SEED, "INTEGER", "VARCHAR", "TIMESTAMP")
    assert count == 2
    assert [list(column) for column in found] == [
        [10, 20],
        ["Alex", "Steve"],
        [dt.datetime(2014, 1, 1, 16), dt.datetime(2015, 1, 1, 16)],
    ]


def test_a_call_without_arguments_is_read():
    assert columns(b'{"data":[[0],[1]]}') == (2, [])
    assert columns(b'{"data":[]}', "VARCHAR") == (0, [[]])


def test_every_type_has_its_python_value():
    body = b"""{"data":[[0,1,1.50,2,true,"s","2020-02-29","16:00:00.5","2020-01-01T00:00:00 +0130",
      "00FF",{"a":[1,{"b":null}]},[1],null]]}"""
    _, found = columns(
        body, "INT", "NUMBER(5,2)", "FLOAT", "BOOLEAN", "VARCHAR", "DATE", "TIME", "TIMESTAMP_TZ",
        "BINARY", "VARIANT", "ARRAY", "OBJECT",
    )  # fmt: skip
    assert [column[0] for column in found] == [
        1,
        Decimal("1.50"),
        2.0,
        True,
        "s",
        dt.date(2020, 2, 29),
        dt.time(16, 0, 0, 500000),
        dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(minutes=90))),
        b"\x00\xff",
        {"a": [1, {"b": None}]},
        [1],
        None,
    ]


def test_an_instant_without_offset_is_of_the_session():
    zone = dt.timezone(dt.timedelta(hours=2))
    _, found = columns(b'{"data":[[0,"2020-01-01 00:00:00"]]}', "TIMESTAMP_LTZ", zone=zone)
    assert found[0][0].utcoffset() == dt.timedelta(hours=2)


def test_bytes_may_be_base64():
    _, found = columns(b'{"data":[[0,"AP8="]]}', "BINARY", binary=BinaryForm.BASE64)
    assert found[0][0] == b"\x00\xff"


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"data":[[0,"NaN"]]}', "nan"),
        (b'{"data":[[0,NaN]]}', "nan"),
        (b'\xef\xbb\xbf{"data":[[0,"1e3"]]}', "1000.0"),
        (b'{"data":[[0,"-inf"]]}', "-inf"),
    ],
)
def test_what_python_engines_write_for_floats_is_understood(body, value):
    assert str(columns(body, "FLOAT")[1][0][0]) == value


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"secret", "not JSON"),
        (b"[]", 'array "data"'),
        (b'{"data":{}}', 'array "data"'),
        (b'{"data":[5]}', "row 0 is not an array"),
        (b'{"data":[[0,1,2]]}', "row 0 has 3 elements"),
        (b'{"data":[[1,1]]}', "row numbers"),
        (b'{"data":[["0",1]]}', "row numbers"),
        (b'{"data":[[0,1],[0,1]]}', "row numbers"),
        (b'{"data":[[0,1],[1,"secret"]]}', "argument 1 of row 1: a number"),
        (b'{"data":[[0,1.5]]}', "argument 1 of row 0: an integer"),
        (b'{"data":[[0,null],[1,1%s]]}' % (b"0" * 38), "argument 1 of row 1: .* fit into NUMBER"),
        (b'{"data":[[0,-1%s]]}' % (b"0" * 38), "argument 1 of row 0: .* fit into NUMBER"),
    ],
)
def test_what_cannot_be_understood_is_refused_without_repeating_it(body, reason):
    with pytest.raises(BatchInvalid, match=reason) as refused:
        columns(body, "INT")
    assert "secret" not in str(refused.value)


def test_what_is_written_is_read_again():
    types = ("INT", "NUMBER(38,10)", "FLOAT", "TIMESTAMP_NTZ", "BINARY", "VARIANT")
    row = (
        10**37,
        Decimal("1234567890123456789012345678.0123456789"),
        float("-inf"),
        dt.datetime(2020, 1, 1, 1, 2, 3, 4),
        b"\x01",
        {"a": 10**30},
    )
    body = RequestWriter(arguments(*types)).encode_body(2, [(value, None) for value in row])
    count, found = RequestReader(arguments(*types)).read(body)[:2]
    assert count == 2
    assert [column[0] for column in found] == list(row)
    assert {column[1] for column in found} == {None}
