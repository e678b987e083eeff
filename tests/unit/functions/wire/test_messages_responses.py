"""Replies are read by the rules of the published format; each broken one says what is wrong."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest

from snowmelt.functions.errors import ResponseInvalid
from snowmelt.functions.signature import parse_sql_type_text
from snowmelt.functions.wire.messages import ResponseReader, ResponseWriter, RowFailure
from snowmelt.functions.wire.values import Formats


def read(body, type_text="VARCHAR", count=2, **options):
    return ResponseReader(parse_sql_type_text(type_text), **options).read(body, count)


def written(values, type_text):
    writer = ResponseWriter(parse_sql_type_text(type_text))
    found, failures = writer.convert_values(values)
    return writer.encode_body(found, failures), failures


@pytest.mark.parametrize("type_text", ["TIMESTAMP_LTZ", "TIMESTAMP_TZ"])
@pytest.mark.parametrize(
    ("zone", "text"),
    [
        ("Europe/Berlin", "1890-01-01 11:59:32 +0053"),
        ("America/New_York", "1880-01-01 12:00:02 -0456"),
        ("Africa/Monrovia", "1950-01-01 12:00:30 -0044"),
    ],
)
def test_offsets_with_seconds_are_written_in_minutes_and_the_instant_stays(type_text, zone, text):
    value = dt.datetime(int(text[:4]), 1, 1, 12, tzinfo=ZoneInfo(zone))
    writer = ResponseWriter(parse_sql_type_text(type_text), Formats(zone=ZoneInfo(zone)))
    found, failures = writer.convert_values([value])
    assert found == [text]
    assert read(writer.encode_body(found, failures), type_text, 1).values == [value]


def test_the_published_example_is_read_as_values_and_as_text():
    body = b"""{ "data": [ [ 0, { "City" : "Warsaw",  "latitude" : 52.23, "longitude" :  21.01 } ],
            [ 1, { "City" : "Toronto", "latitude" : 43.65, "longitude" : -79.38 } ] ] }"""
    assert read(body, "VARIANT").values[1]["City"] == "Toronto"
    assert read(body, "OBJECT", raw=True).values[0].startswith('{ "City" : "Warsaw"')


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"data":[[0,"a"]]}', "wrong number of rows: 1 for 2"),
        (b'{"data":[[0,"a"],[1,"b"],[2,"c"]]}', "wrong number of rows: 3 for 2"),
        (b'{"data":[[0,"a"],[0,"b"]]}', "Row numbers out of order"),
        (b'{"data":[[1,"a"],[0,"b"]]}', "Row numbers out of order"),
        (b'{"data":[["0","a"],["1","b"]]}', "Row numbers out of order"),
        (b'{"data":[[0,"a",1],[1,"b",1]]}', "index 0 contains 3 elements, but 2"),
        (b'{"data":[[0,"a"],[1]]}', "index 1 contains 1 elements, but 2"),
        (b'{"result":[]}', 'must contain "data" JSON array'),
        (b'{"data":{}}', 'must contain "data" JSON array'),
        (b"<html>secret</html>", "not JSON"),
        (b"", "not JSON"),
        (b'{"data":[[0,"a"],[1,NaN]]}', "NaN is not"),
        (b'\xef\xbb\xbf{"data":[[0,"a"],[1,"b"]]}', "byte order mark"),
        (b'{"data":[[0,"a"],[1,"b"],]}', "not JSON"),
        (b'{"data":[[0,"a"],[1,"b"', "not JSON"),
    ],
)
def test_each_broken_reply_has_its_sentence_without_the_payload(body, reason):
    with pytest.raises(ResponseInvalid, match=reason) as refused:
        read(body)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("type_text", "json", "value"),
    [
        ("VARCHAR", "5", "5"),
        ("VARCHAR", "true", "true"),
        ("NUMBER(38,0)", '"12"', 12),
        ("NUMBER(38,0)", "12.0", 12),
        ("NUMBER(38,0)", "9" * 38, int("9" * 38)),
        ("NUMBER(10,2)", "1.005", Decimal("1.01")),
        ("NUMBER(10,2)", "1E-7", Decimal("0.00")),
        ("FLOAT", '"Infinity"', math.inf),
        ("FLOAT", "3", 3.0),
        ("BOOLEAN", '"false"', False),
        ("DATE", '"2020-02-29 10:00:00"', dt.date(2020, 2, 29)),
        ("ARRAY", '"[1,2]"', [1, 2]),
        ("VARIANT", "null", None),
    ],
)
def test_values_are_read_as_the_result_is_declared(type_text, json, value):
    assert read(f'{{"data":[[0,{json}]]}}'.encode(), type_text, 1).values[0] == value


@pytest.mark.parametrize(
    ("type_text", "json"),
    [
        ("NUMBER(38,0)", "1.5"),
        ("NUMBER(3,0)", "1000"),
        ("NUMBER(3,2)", "10"),
        ("NUMBER(38,0)", "9" * 39),
        ("NUMBER(38,0)", "true"),
        ("BOOLEAN", "1"),
        ("DATE", '"secret"'),
        ("OBJECT", "[1]"),
        ("ARRAY", "{}"),
        ("BINARY", '"xyz"'),
    ],
)
@pytest.mark.parametrize("raw", [False, True])
def test_a_value_that_does_not_fit_is_named_by_its_row(type_text, json, raw):
    with pytest.raises(ResponseInvalid, match="Row 0"):
        read(f'{{"data":[[0,{json}]]}}'.encode(), type_text, 1, raw=raw)


def test_errors_of_rows_come_with_their_numbers():
    reply = read(b'{"data":[[0,"a"],[1,null]],"errors":[[1,"ValueError","no city"]]}')
    assert reply.values == ["a", None]
    assert reply.failures == {1: RowFailure("ValueError", "no city")}
    for foreign in (b'[{"code":"x"}]', b'["slow"]', b'[[0,"E","m"],null]', b'"none"', b"null"):
        reply = read(b'{"data":[[0,"a"],[1,null]],"errors":' + foreign + b"}")
        assert (tuple(reply.values), dict(reply.failures)) == (("a", None), {})


@pytest.mark.parametrize(
    ("type_text", "values", "json"),
    [
        ("FLOAT", [1.5, math.nan, math.inf, None], '[0,1.5],[1,"NaN"],[2,"inf"],[3,null]'),
        ("FLOAT", [1, Decimal(2)], "[0,1.0],[1,2.0]"),
        ("NUMBER(38,0)", [10**37, None, 5], f"[0,{10**37}],[1,null],[2,5]"),
        ("NUMBER(38,2)", [Decimal("1.005"), 2], "[0,1.01],[1,2.00]"),
        ("TIMESTAMP_NTZ", [dt.datetime(2020, 1, 1)], '[0,"2020-01-01 00:00:00"]'),
        (
            "TIMESTAMP_TZ",
            [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)],
            '[0,"2020-01-01 00:00:00 +0000"]',
        ),
        ("BINARY", [b"\x00\xff"], '[0,"00FF"]'),
        ("DATE", [dt.date(2020, 1, 1)], '[0,"2020-01-01"]'),
        ("VARIANT", [{"a": Decimal("0.10")}, None], '[0,{"a":0.10}],[1,null]'),
    ],
)
def test_values_are_written_as_the_result_is_declared(type_text, values, json):
    body, failures = written(values, type_text)
    assert not failures
    assert body.decode() == f'{{"data":[{json}]}}'


@pytest.mark.parametrize(
    ("type_text", "value"),
    [("VARCHAR", 5), ("NUMBER(38,0)", "5"), ("NUMBER(38,0)", 10**38), ("NUMBER(38,0)", True),
     ("BOOLEAN", 1), ("DATE", "2020-01-01"), ("BINARY", "00")],
)  # fmt: skip
def test_a_result_of_another_type_is_that_rows_failure(type_text, value):
    body, failures = written([None, value], type_text)
    assert list(failures) == [1]
    assert b'[1,null]],"errors":[[1,"WrongType",' in body
