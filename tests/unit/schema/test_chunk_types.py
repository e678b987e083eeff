"""128-bit numbers in numpy are those that Arrow holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.schema.chunk_types import (
    chunk_arrow_schema,
    chunk_arrow_type,
    decimal_from_int64,
    decimal_from_unscaled,
    decimal_to_int64,
    decimal_to_words,
)
from snowmelt.schema.types import Column, LogicalType, TableSchema

INT64 = st.integers(-(10**18) + 1, 10**18 - 1)
INT128 = st.integers(-(10**38) + 1, 10**38 - 1)


@given(st.lists(st.none() | INT64), st.integers(0, 9))
def test_int64_values_survive_the_way_through_decimals(values: list[Any], scale: int) -> None:
    numbers = np.array([value or 0 for value in values], dtype=np.int64)
    nulls = np.array([value is None for value in values], dtype=np.bool_)
    array = decimal_from_int64(numbers, nulls, 18, scale)
    array.validate(full=True)
    assert array.equals(decimal_from_unscaled(values, 18, scale))
    assert decimal_to_int64(array).tolist() == numbers.tolist()
    assert array.is_null().to_pylist() == nulls.tolist()


@given(st.lists(st.none() | INT128, min_size=1), st.integers(0, 3))
def test_words_are_those_of_the_unscaled_value(values: list[Any], skipped: int) -> None:
    array = decimal_from_unscaled(values, 38, 0)
    array.validate(full=True)
    low, high = decimal_to_words(pa.chunked_array([array.slice(skipped), array]))
    together = [(h << 64) + w for w, h in zip(low.tolist(), high.tolist(), strict=True)]
    assert together == [value or 0 for value in values[skipped:] + values]


def test_a_number_beyond_64_bits_is_refused_as_an_int64() -> None:
    with pytest.raises(OverflowError):
        decimal_to_int64(decimal_from_unscaled([2**63], 38, 0))
    assert decimal_to_int64(decimal_from_unscaled([-(2**63)], 38, 0)).tolist() == [-(2**63)]


@pytest.mark.parametrize(
    ("kind", "scale", "expected"),
    [
        (LogicalType.TIME, 4, pa.decimal128(9, 4)),
        (LogicalType.TIME, 5, pa.decimal128(18, 5)),
        (LogicalType.TIMESTAMP_NTZ, 6, pa.decimal128(18, 6)),
        (LogicalType.TIMESTAMP_LTZ, 7, pa.decimal128(38, 7)),
        (LogicalType.TIMESTAMP_TZ, 2, pa.decimal128(18, 2)),
        (LogicalType.TIMESTAMP_TZ, 3, pa.decimal128(38, 3)),
    ],
)
def test_times_are_decimals_as_wide_as_their_physical_type(
    kind: LogicalType, scale: int, expected: Any
) -> None:
    assert chunk_arrow_type(Column("C", kind, 1, scale=scale)) == expected


def test_field_ids_are_ordinals() -> None:
    columns = (
        Column("A", LogicalType.TEXT, 3, nullable=False, length=1),
        Column("B", LogicalType.DATE, 7),
    )
    schema = chunk_arrow_schema(TableSchema(1, columns))
    assert [field.metadata[b"PARQUET:field_id"] for field in schema] == [b"3", b"7"]
    assert [field.nullable for field in schema] == [False, True]


def test_words_of_a_single_null_are_zero() -> None:
    low, high = decimal_to_words(pa.array([None], pa.decimal128(38, 9)))
    assert (low.tolist(), high.tolist()) == ([0], [0])
