"""Each type has one Arrow form, and each name that Spark gives a time zone is one."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from snowmelt.functions.caller.arrow_types import (
    parse_time_zone,
    to_arrow_type,
    to_try_result_arrow_type,
)
from snowmelt.functions.errors import DeclarationInvalid
from snowmelt.functions.signature import parse_sql_type_text


@pytest.mark.parametrize(
    ("type_text", "form"),
    [
        ("NUMBER(18,0)", pa.int64()),
        ("INTEGER", pa.decimal128(38, 0)),
        ("NUMBER(10,2)", pa.decimal128(10, 2)),
        ("FLOAT", pa.float64()),
        ("VARCHAR(3)", pa.string()),
        ("TIME", pa.time64("us")),
        ("TIMESTAMP_NTZ", pa.timestamp("us")),
        ("TIMESTAMP_TZ", pa.timestamp("us", "Asia/Kathmandu")),
        ("OBJECT", pa.string()),
    ],
)
def test_a_type_has_its_form(type_text, form):
    assert to_arrow_type(parse_sql_type_text(type_text), "Asia/Kathmandu") == form


def test_trying_says_why_there_is_no_value():
    form = to_try_result_arrow_type(parse_sql_type_text("FLOAT"))
    assert [field.name for field in form] == ["value", "error", "status", "batch_id"]
    assert form.field("value").type == pa.float64()


@pytest.mark.parametrize(
    ("name", "minutes"),
    [
        ("Z", 0), ("UTC", 0), ("GMT+1", 60), ("UTC+01:30", 90), ("-08:00", -480), ("+0530", 330),
    ],
)  # fmt: skip
def test_an_offset_is_a_zone(name, minutes):
    assert parse_time_zone(name).utcoffset(None) == dt.timedelta(minutes=minutes)


def test_a_zone_may_be_of_the_database():
    assert parse_time_zone("Europe/Berlin") == ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize("name", ["Europe/Nowhere", "", "../etc/passwd", "+25:00", "CET+1"])
def test_what_is_no_zone_is_refused(name):
    with pytest.raises(DeclarationInvalid, match="is not a time zone"):
        parse_time_zone(name)
