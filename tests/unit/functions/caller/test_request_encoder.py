"""What is written from columns is what is written value by value."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.functions.caller.arrow_types import MIN_COLUMNAR_ROWS, to_arrow_type
from snowmelt.functions.caller.request_encoder import RequestEncoder
from snowmelt.functions.errors import BatchInvalid
from snowmelt.functions.signature import FunctionArgument, parse_sql_type_text
from snowmelt.functions.wire.messages import RequestReader, RequestWriter
from snowmelt.functions.wire.values import BinaryForm, Formats

ZONES = ("UTC", "Europe/Berlin", "America/Los_Angeles", "Asia/Kathmandu", "+01:30")


def fixed(precision, scale):
    limit = 10**precision - 1
    return st.integers(-limit, limit).map(lambda unscaled: Decimal(f"{unscaled}E-{scale}"))


# Before 1912 some zones have offsets with seconds, which have a test of their own.
instants = st.datetimes(dt.datetime(1930, 1, 1), dt.datetime(2200, 1, 1)).map(
    lambda value: value.replace(tzinfo=dt.UTC)
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
whole_seconds = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 1, 1)).map(
    lambda value: value.replace(microsecond=0)
)
VALUES = {
    "NUMBER(18,0)": fixed(18, 0).map(int),
    "NUMBER(38,0)": fixed(38, 0).map(int) | fixed(9, 0).map(int),
    "NUMBER(38,37)": fixed(38, 37),
    "NUMBER(10,2)": fixed(10, 2),
    "FLOAT": st.floats(),
    "BOOLEAN": st.booleans(),
    "VARCHAR": st.text(st.characters(exclude_categories=["Cs"])),
    "DATE": st.dates(),
    "TIME": st.times() | st.times().map(lambda value: value.replace(microsecond=0)),
    "TIMESTAMP_NTZ": st.datetimes() | whole_seconds,
    "TIMESTAMP_LTZ": instants,
    "TIMESTAMP_TZ": instants,
    "BINARY": st.binary(),
    "VARIANT": json_values.filter(lambda value: value is not None),
    "OBJECT": st.dictionaries(st.text(max_size=3), json_values),
    "ARRAY": st.lists(json_values),
}


def column_of(values, type_text, zone="UTC"):
    if type_text in {"VARIANT", "OBJECT", "ARRAY"}:
        values = [None if value is None else json.dumps(value) for value in values]
    return pa.array(values, to_arrow_type(parse_sql_type_text(type_text), zone))


def written(columns, types, zone="UTC", **options):
    arguments = [
        FunctionArgument(f"a{at}", parse_sql_type_text(text)) for at, text in enumerate(types)
    ]
    return RequestEncoder(arguments, zone, **options).encode_body(len(columns[0]), columns)


def slowly(columns, types, **formats):
    arguments = [
        FunctionArgument(f"a{at}", parse_sql_type_text(text)) for at, text in enumerate(types)
    ]
    return RequestWriter(arguments, Formats(**formats)).encode_body(len(columns[0]), columns)


def raw(values):
    return [None if value is None else msgspec.Raw(json.dumps(value).encode()) for value in values]


@pytest.mark.slow
@pytest.mark.parametrize("type_text", VALUES)
@given(data=st.data())
def test_columns_are_written_as_values_are(type_text, data):
    values = data.draw(st.lists(st.none() | VALUES[type_text], min_size=1))
    zone = data.draw(st.sampled_from(ZONES))
    tzinfo = dt.timezone(dt.timedelta(minutes=90)) if zone == "+01:30" else ZoneInfo(zone)
    body = written([column_of(values, type_text, zone)], [type_text], zone)
    semi_structured = type_text in {"VARIANT", "OBJECT", "ARRAY"}
    given_values = raw(values) if semi_structured else values
    if type_text == "TIMESTAMP_TZ":
        given_values = [None if each is None else each.astimezone(tzinfo) for each in values]
    assert body == slowly([given_values], [type_text], zone=tzinfo)
    reader = RequestReader(
        [FunctionArgument("a", parse_sql_type_text(type_text))], Formats(zone=tzinfo)
    )
    assert list(map(repr_of, reader.read(body).columns[0])) == list(map(repr_of, values))


@pytest.mark.parametrize("type_text", VALUES)
@settings(max_examples=settings().max_examples // 4)
@given(data=st.data())
def test_many_rows_are_written_as_few_are(type_text, data):
    some = data.draw(st.lists(VALUES[type_text], min_size=1, max_size=4))
    last = data.draw(st.none() | VALUES[type_text])
    values = [*(some * MIN_COLUMNAR_ROWS)[: MIN_COLUMNAR_ROWS - 1], last]
    truths = pa.array([None, True] * (MIN_COLUMNAR_ROWS // 2))
    columns = [pa.array(range(MIN_COLUMNAR_ROWS)), column_of(values, type_text), truths]
    types = ["INTEGER", type_text, "BOOLEAN"]
    by_row = [each.slice(0, MIN_COLUMNAR_ROWS // 2) for each in columns]
    first = written(by_row, types)[:-2]
    whole = written(columns, types)
    assert whole.startswith(first)
    listed = [column.to_pylist() for column in columns]
    if type_text in {"VARIANT", "OBJECT", "ARRAY"}:
        listed[1] = raw_texts(listed[1])
    assert whole == slowly(listed, types)


def raw_texts(texts):
    return [None if text is None else msgspec.Raw(text) for text in texts]


def repr_of(value):
    """Make NaN equal to itself, and datetimes of one instant equal."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return (type(value) is bool, value)


def test_several_arguments_stand_in_their_order():
    columns = [pa.array(["a", None]), pa.array([1, 2])]
    assert written(columns, ["VARCHAR", "INTEGER"]) == b'{"data":[[0,"a",1],[1,null,2]]}'


def test_a_function_without_arguments_is_sent_row_numbers():
    assert RequestEncoder([]).encode_body(2, [pa.nulls(2)]) == b'{"data":[[0],[1]]}'


def test_numbers_may_come_as_text_of_all_their_digits():
    texts = pa.array(["12345678901234567890123456789012345678", "-0.10", "1E-7", None])
    assert written([texts], ["NUMBER(38,7)"]) == (
        b'{"data":[[0,12345678901234567890123456789012345678],[1,-0.10],[2,1E-7],[3,null]]}'
    )


@pytest.mark.parametrize("text", ["NaN", "1,2", "01", "+1", "", "1]"])
def test_text_that_is_no_number_is_refused(text):
    with pytest.raises(BatchInvalid, match="argument a"):
        written([pa.array([text])], ["NUMBER(38,7)"])


def test_a_column_of_another_type_is_refused():
    with pytest.raises(BatchInvalid, match=r"argument a0? has type list<item: int64>"):
        written([pa.array([[1]])], ["VARCHAR"])


def test_integers_of_any_width_are_numbers():
    assert written([pa.array([1], pa.int8())], ["INTEGER"]) == b'{"data":[[0,1]]}'
    assert written([pa.array([1], pa.int32())], ["NUMBER(5,0)"]) == b'{"data":[[0,1]]}'


def test_an_array_is_an_array_or_text():
    column = pa.array(['[1,"a"]'])
    assert written([column], ["ARRAY"]) == b'{"data":[[0,[1,"a"]]]}'
    assert written([column], ["ARRAY"], array_as_string=True) == b'{"data":[[0,"[1,\\"a\\"]"]]}'


def test_bytes_may_be_base64():
    column = pa.array([b"\x00\xff", None])
    assert written([column], ["BINARY"], binary=BinaryForm.BASE64) == (
        b'{"data":[[0,"AP8="],[1,null]]}'
    )


@pytest.mark.parametrize("zone", ["GMT+1", "UTC+01:00", "+01:00", "Etc/GMT-1"])
def test_each_name_of_a_zone_that_spark_knows_is_taken(zone):
    column = pa.array([dt.datetime(2020, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", zone))
    assert written([column], ["TIMESTAMP_LTZ"], zone) == (
        b'{"data":[[0,"2020-01-01 01:00:00 +0100"]]}'
    )


def test_an_instant_of_local_mean_time_is_kept_with_an_offset_of_minutes():
    moment = dt.datetime(1880, 1, 1, tzinfo=dt.UTC)
    body = written([pa.array([moment])], ["TIMESTAMP_LTZ"], "Europe/Berlin")
    assert body == b'{"data":[[0,"1880-01-01 00:53:00 +0053"]]}'
    reader = RequestReader([FunctionArgument("a", parse_sql_type_text("TIMESTAMP_LTZ"))])
    assert reader.read(body).columns[0] == [moment]
