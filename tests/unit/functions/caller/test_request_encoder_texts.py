"""Instants keep their moment in each zone, past the years that a zone's list covers, too."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from snowmelt.functions.caller.request_encoder import get_column_formatter, needs_escapes
from snowmelt.functions.wire.values import BinaryForm
from snowmelt.schema.types import LogicalType


@pytest.mark.parametrize(
    ("zone", "moment", "text"),
    [
        ("Europe/Berlin", dt.datetime(2026, 7, 1, 12), "2026-07-01 14:00:00 +0200"),
        ("Europe/Berlin", dt.datetime(2050, 7, 1, 12), "2050-07-01 14:00:00 +0200"),
        ("America/Los_Angeles", dt.datetime(2026, 1, 1, 0, 0, 0, 5), "2025-12-31 16:00:00.000005 -0800"),
        ("Asia/Kathmandu", dt.datetime(2026, 1, 1), "2026-01-01 05:45:00 +0545"),
        ("-03:30", dt.datetime(2026, 1, 1), "2025-12-31 20:30:00 -0330"),
    ],
)  # fmt: skip
def test_an_instant_is_written_in_its_zone(zone, moment, text):
    column = pa.array([moment.replace(tzinfo=dt.UTC), None], pa.timestamp("us", "UTC"))
    write = get_column_formatter(LogicalType.TIMESTAMP_LTZ, zone, BinaryForm.HEX)
    assert write(column).to_pylist() == [text, None]


def test_a_fraction_is_written_where_there_is_one():
    moments = [dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, 0, 0, 0, 500_000)]
    write = get_column_formatter(LogicalType.TIMESTAMP_NTZ, "UTC", BinaryForm.HEX)
    assert write(pa.array(moments, pa.timestamp("us"))).to_pylist() == [
        "2026-01-01 00:00:00",
        "2026-01-01 00:00:00.500000",
    ]


@pytest.mark.parametrize(
    ("texts", "needed"),
    [
        (["a", "é𝄞\x7f"], False),
        ([], False),
        (["", None], False),
        (['a"'], True),
        (["a\\"], True),
        (["\n"], True),
    ],
)
def test_texts_that_json_writes_in_another_way_are_known(texts, needed):
    column = pa.array(['"', *texts, "\\"], pa.string()).slice(1, len(texts))
    assert needs_escapes(column) is needed
