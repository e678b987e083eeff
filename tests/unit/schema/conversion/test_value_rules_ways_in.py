"""The same value by every way in: stored equal bit for bit, or rejected, save what the page says."""

from __future__ import annotations

import datetime as dt
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.schema.types import Column, LogicalType
from support.sdk_values_page import COLUMNS
from support.ways_in import KINDS, REJECTED, WAYS, Json, as_read, is_meant, stored

EXACT = Context(prec=1_100, rounding=ROUND_HALF_UP)
WIDE = Column("C", LogicalType.FIXED, 1, precision=38, scale=27)
TARGETS = [
    *COLUMNS.values(),
    WIDE,
    Column("C", LogicalType.FIXED, 1, precision=38, scale=0),
    Column("C", LogicalType.FIXED, 1, precision=18, scale=4),
    Column("C", LogicalType.TEXT, 1, length=7, byte_length=28),
    Column("C", LogicalType.TIMESTAMP_NTZ, 1, scale=9),
    Column("C", LogicalType.TIMESTAMP_LTZ, 1, scale=3),
    Column("C", LogicalType.TIME, 1, scale=0),
]
DIGITS = st.text("0123456789", min_size=1, max_size=45)
NUMBERS = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "-"]),
    DIGITS,
    st.one_of(st.just(""), DIGITS.map(".{}".format)),
)
MOMENTS = st.datetimes(timezones=st.sampled_from([None, dt.UTC]))
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.floats(width=32).map(np.float32),
        NUMBERS,
        NUMBERS.map(Decimal),
        st.binary(max_size=6),
        st.dates(),
        st.times(),
        MOMENTS,
        MOMENTS.map(str),
        MOMENTS.map(dt.datetime.isoformat),
        st.dates().map(str),
        st.times().map(str),
        st.text(max_size=9),
        st.text("0123456789abAB+-. :/TZx", max_size=20),
        st.sampled_from(list(KINDS.values())),
    ),
    lambda items: st.one_of(
        st.lists(items, max_size=3), st.dictionaries(st.text("ab", min_size=1), items, max_size=2)
    ),
    max_leaves=4,
)


def compare(column: Any, value: Any) -> None:
    found = stored(column, value)
    for way, outcome in found.items():
        if not is_meant(way, column, value):
            wanted = WAYS["insert_row"](column, as_read(way, value))
            assert outcome == wanted, (way, column, value, found)


@given(st.sampled_from(TARGETS), VALUES)
def test_a_value_is_stored_equal_by_every_way_or_rejected(column: Any, value: Any) -> None:
    compare(column, value)


@pytest.mark.parametrize("scale", [0, 2, 20, 27, 38])
@pytest.mark.parametrize(
    "text",
    [
        "750928769727.925204226",
        "434193618546762037.995392786403558635996",
        "5." + "1" * 38,
        "5." + "1" * 255,
        "0." + "9" * 1001,
        "1E+37",
        "1E-255",
        "0E-8",
        "0E-300",
    ],
)
def test_digits_beyond_128_bits_are_rounded_or_rejected_and_never_lost(
    text: str, scale: int
) -> None:
    column = Column("C", LogicalType.FIXED, 1, precision=38, scale=scale)
    number = Decimal(text)
    compare(column, number)
    fits = number.quantize(Decimal(1).scaleb(-scale), context=EXACT) < 10 ** (38 - scale)
    assert (stored(column, number)["insert_rows"] != REJECTED) == fits


@pytest.mark.parametrize(
    ("json", "wanted"),
    [
        ("-0.0", "-0.0"),
        ("0.0", "0.0"),
        ("1e400", REJECTED),
        ("1e99999999999999999999", REJECTED),
        ("1" * 400, REJECTED),
        ("1" * 5000, REJECTED),
        ("NaN", REJECTED),
        ("-Infinity", REJECTED),
        ("01", REJECTED),
        ("[" * 3000 + "]" * 3000, REJECTED),
        (r'"\ud800"', REJECTED),
    ],
)
def test_json_at_its_limits_is_read_alike_and_stops_no_way(json: str, wanted: str) -> None:
    found = stored(COLUMNS["FLOAT"], Json(json))
    assert set(found.values()) == {wanted}, found
    assert len(found) == 4


def nested(levels: int) -> dict[str, Any]:
    return {"a": nested(levels - 1)} if levels > 1 else {}


@pytest.mark.parametrize("as_text", [True, False])
def test_the_array_around_a_document_counts_as_a_level(as_text: bool) -> None:
    for name, levels, is_rejected in (
        ("ARRAY", 199, False),
        ("ARRAY", 200, True),
        ("OBJECT", 200, False),
        ("OBJECT", 201, True),
    ):
        document = nested(levels)
        given = str(document).replace("'", '"') if as_text else document
        found = stored(COLUMNS[name], given)
        for way in ("insert_row", "insert_rows", "insert_arrow"):
            assert (found[way] == REJECTED) == is_rejected, (name, levels, way)
