"""Bounds of native columns hold every value, whatever it is."""

from __future__ import annotations

import io
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.table.column_bounds import count_nans, decode_bound, read_column_bounds
from support.chunk_data import relaxed
from support.native_bounds import find_bounds


def column(values: Any, kind: Any) -> Any:
    return pa.chunked_array([pa.array(values, kind)])


def decoded(kind: pa.DataType, *bounds: bytes | None) -> list[Any]:
    found: list[Any] = []
    for bound in bounds:
        assert bound is not None
        found.append(decode_bound(bound, kind))
    return found


def raw(values: list[bytes]) -> pa.ChunkedArray:
    """Text of any bytes, as a foreign client may have sent it."""
    array = pa.array(values, pa.binary())
    return pa.chunked_array([pa.Array.from_buffers(pa.string(), len(array), array.buffers())])


@given(st.lists(st.text(max_size=40), min_size=1))
@relaxed
def test_text_bounds_hold_every_value_and_are_short(values: list[str]) -> None:
    bounds = find_bounds(column(values, pa.string()))
    found = sorted(value.encode() for value in values)
    assert bounds.lower is not None
    assert bounds.lower <= found[0]
    assert len(bounds.lower.decode()) <= 16
    if bounds.upper is not None:
        assert bounds.upper >= found[-1]
        assert len(bounds.upper.decode()) <= 16


@given(st.lists(st.binary(max_size=40), min_size=1))
@relaxed
def test_binary_bounds_hold_every_value_and_are_short(values: list[bytes]) -> None:
    bounds = find_bounds(column(values, pa.binary()))
    assert bounds.lower is not None
    assert bounds.lower <= min(values)
    assert len(bounds.lower) <= 16
    assert bounds.upper is None or (bounds.upper >= max(values) and len(bounds.upper) <= 16)


@pytest.mark.parametrize(
    ("text", "upper"),
    [
        ("a" * 16, "a" * 16),
        ("a" * 17, "a" * 15 + "b"),
        ("a" * 15 + "\ud7ff" + "a", "a" * 15 + "\ue000"),
        ("a" * 15 + "\U0010ffff" + "a", "a" * 14 + "b"),
        ("\U0010ffff" * 17, None),
        ("é" * 17, "é" * 15 + "ê"),
    ],
)
def test_long_text_is_rounded_up_to_the_next_code_point(text: str, upper: str | None) -> None:
    bounds = find_bounds(column([text], pa.string()))
    assert bounds.upper == (None if upper is None else upper.encode())


def test_bytes_of_only_0xff_have_no_upper_bound() -> None:
    assert find_bounds(column([b"\xff" * 17], pa.binary())).upper is None
    assert find_bounds(column([b"a" + b"\xff" * 17], pa.binary())).upper == b"b"


def test_text_that_is_not_utf8_has_no_bounds() -> None:
    bounds = find_bounds(raw([b"a", b"\xff\xfe"]))
    assert (bounds.lower, bounds.upper, bounds.nulls) == (None, None, 0)


@pytest.mark.parametrize(
    ("kind", "storage", "values"),
    [
        (pa.date32(), pa.int32(), [-(2**31), -800_000, 2**31 - 1]),
        (pa.timestamp("us"), pa.int64(), [-(2**63), -(10**17), 2**63 - 1]),
        (pa.timestamp("us", "UTC"), pa.int64(), [-(2**63), 0]),
        (pa.time64("us"), pa.int64(), [0, 86_399_999_999]),
        (pa.int32(), pa.int32(), [-1440, 999]),
        (pa.bool_(), pa.bool_(), [False, True]),
    ],
)
def test_any_instant_and_date_has_bounds(
    kind: Any, storage: Any, values: list[bool] | list[int]
) -> None:
    array = pa.chunked_array([pa.array([*values, None], storage).view(kind)])
    bounds = find_bounds(array)
    limits = decoded(kind, bounds.lower, bounds.upper)
    assert limits == [min(values), max(values)]
    assert bounds.nulls == 1


@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1), min_size=1))
@relaxed
def test_decimal_bounds_are_the_unscaled_values(values: list[int]) -> None:
    kind = pa.decimal128(38, 5)
    array = column(
        [Decimal(value).scaleb(-5) if abs(value) < 10**27 else None for value in values], kind
    )
    bounds = find_bounds(array)
    kept = [value for value in values if abs(value) < 10**27]
    if kept:
        limits = decoded(kind, bounds.lower, bounds.upper)
        assert limits == [min(kept), max(kept)]


@pytest.mark.parametrize(("number", "length"), [(0, 1), (127, 1), (128, 2), (-128, 1), (-129, 2)])
def test_decimal_bounds_take_the_fewest_bytes(number: int, length: int) -> None:
    bounds = find_bounds(column([Decimal(number)], pa.decimal128(10, 0)))
    assert bounds.lower is not None
    assert len(bounds.lower) == length


def test_real_bounds_leave_nan_out_and_hold_both_zeros() -> None:
    bounds = find_bounds(column([math.nan, 0.0, None, -0.0], pa.float64()))
    lower, upper = decoded(pa.float64(), bounds.lower, bounds.upper)
    assert (math.copysign(1, lower), math.copysign(1, upper)) == (-1, 1)
    assert (bounds.nulls, bounds.nans) == (1, 1)
    assert find_bounds(column([math.nan], pa.float64())).upper is None


def test_a_column_of_nulls_has_no_bounds() -> None:
    bounds = find_bounds(column([None, None], pa.string()))
    assert (bounds.lower, bounds.upper, bounds.nulls) == (None, None, 2)


def test_row_groups_together_hold_every_value() -> None:
    table = pa.table(
        {
            "text": pa.array([None, None, "b", "a", "c", None]),
            "real": pa.array([math.nan, None, 2.0, -1.0, math.nan, math.nan]),
            "number": pa.array([Decimal(n) for n in (5, -3, 7, 0, 1, -200)], pa.decimal128(38, 0)),
        }
    )
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=2)
    metadata = pq.read_metadata(file)
    text, real, number = (
        read_column_bounds(metadata, at, column.type, count_nans(column))
        for at, column in enumerate(table.columns)
    )
    assert (text.lower, text.upper, text.nulls) == (b"a", b"c", 3)
    limits = decoded(pa.float64(), real.lower, real.upper)
    assert (limits, real.nulls, real.nans) == ([-1.0, 2.0], 1, 3)
    limits = decoded(pa.decimal128(38, 0), number.lower, number.upper)
    assert limits == [-200, 7]


def test_a_text_too_long_for_statistics_leaves_the_bounds_unknown() -> None:
    bounds = find_bounds(column(["a", "b" * 5000], pa.string()))
    assert (bounds.lower, bounds.upper, bounds.nulls) == (None, None, 0)
