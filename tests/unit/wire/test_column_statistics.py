"""Statistics survive the wire: bounds hold, and statistics that cannot be true are refused."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.schema.statistics import ChunkStatistics, ColumnStatistics, collect_statistics
from snowmelt.schema.types import Column, LogicalType, TableSchema
from snowmelt.wire import column_statistics
from snowmelt.wire.streaming import ChunkStatisticsMessage, ResponseCode
from snowmelt.wire.streaming import ColumnStatisticsMessage as Sent
from support.chunk_data import chunks, every_type, relaxed

TEXT = Column("T", LogicalType.TEXT, 4, length=100, byte_length=400)
REAL = Column("r", LogicalType.REAL, 5)
FIXED = Column("N", LogicalType.FIXED, 6, precision=38, scale=0)


def decoded(text: bytes, columns: Any) -> dict[Any, Any]:
    """Bounds of the columns in one chunk, by ordinal."""
    decoder = column_statistics.StoredStatisticsDecoder(each.ordinal for each in columns)
    chunks = decoder.decode([text])
    return {
        each.ordinal: column_statistics.StatisticBounds(
            *(values[0] for values in decoder.list_bounds(each.ordinal, chunks))
        )
        for each in columns
    }


def sent_of(
    column: Column,
    minimum: bytes | float | None,
    maximum: bytes | float | None,
    *,
    nulls: int = 0,
    rows: int = 2,
) -> Sent:
    collected = ChunkStatistics(rows, (ColumnStatistics(minimum, maximum, nulls, 1),))
    wire = column_statistics.statistics_to_message(TableSchema(1, (column,)), collected)
    return wire.columns[column.display_name]


@pytest.mark.parametrize(
    ("maximum", "expected"),
    [
        (b"abc", b"abc".hex()),
        (b"", ""),
        (b"\xff" * 32, "ff" * 32),
        (b"a" * 32, "61" * 32),
        (b"a" * 33, "61" * 31 + "62"),
        (b"a" * 31 + b"\xff" + b"z", "61" * 30 + "6200"),
        (b"\xff" * 33, "Z"),
    ],
)
def test_a_long_maximum_is_cut_and_raised(maximum: bytes, expected: str) -> None:
    assert sent_of(TEXT, b"", maximum).maxStrValue == expected


def test_a_long_minimum_is_cut() -> None:
    assert sent_of(TEXT, b"m" * 40, b"n").minStrValue == b"m".hex() * 32


def test_numbers_of_any_size_are_sent_as_json_numbers() -> None:
    sent = sent_of(FIXED, -(10**38) + 1, 10**38 - 1)
    again = msgspec.json.decode(msgspec.json.encode(sent), type=Sent)
    assert (again.minIntValue, again.maxIntValue) == (-(10**38) + 1, 10**38 - 1)
    assert (again.minStrValue, again.minRealValue, again.columnId) == (None, 0.0, 6)


@pytest.mark.parametrize(
    ("value", "expected"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")]
)
def test_special_reals_are_texts(value: float, expected: str) -> None:
    sent = sent_of(REAL, value, value)
    assert (sent.minRealValue, sent.maxRealValue) == (expected, expected)


def test_keys_are_display_names() -> None:
    collected = ChunkStatistics(1, (ColumnStatistics(1.0, 1.0, 0),))
    assert list(
        column_statistics.statistics_to_message(TableSchema(1, (REAL,)), collected).columns
    ) == ['"r"']


def test_a_column_without_values_has_no_bounds() -> None:
    for column in (TEXT, REAL, FIXED):
        sent = sent_of(column, None, None, nulls=2)
        wire = ChunkStatisticsMessage(rows=2, columns={column.display_name: sent})
        schema = TableSchema(1, (column,))
        assert column_statistics.find_statistics_error(schema, wire, 2) is None
        assert column_statistics.bounds_from_message(schema, wire) == {
            column.ordinal: column_statistics.StatisticBounds(None, None, 2)
        }


@given(part=chunks())
@relaxed
def test_what_is_collected_passes_the_check_and_bounds_every_value(
    part: tuple[TableSchema, pa.Table],
) -> None:
    schema, table = part
    collected = collect_statistics(table, schema)
    wire = column_statistics.statistics_to_message(schema, collected)
    text = msgspec.json.encode(wire)
    wire = msgspec.json.decode(text, type=ChunkStatisticsMessage)
    assert column_statistics.find_statistics_error(schema, wire, table.num_rows) is None
    bounds = column_statistics.bounds_from_message(schema, wire)
    stored = column_statistics.encode_stored_statistics(schema, collected)
    assert decoded(stored, schema.columns) == bounds
    for column in schema.columns:
        assert decoded(stored, [column]) == {column.ordinal: bounds[column.ordinal]}
    assert len(stored) < len(text) / 2
    for column, found in zip(schema.columns, collected.columns, strict=True):
        bound = bounds[column.ordinal]
        assert bound.null_count == found.null_count
        values: tuple[Any, Any] = (found.minimum, found.maximum)
        for value in values:
            if isinstance(value, float) and math.isnan(value):
                assert bound.maximum is None
            elif value is not None:
                assert bound.minimum is None or bound.minimum <= value
                assert bound.maximum is None or value <= bound.maximum


@given(low=st.binary(max_size=50), high=st.binary(max_size=50))
def test_cut_texts_still_bound(low: bytes, high: bytes) -> None:
    low, high = sorted((low, high))
    wire = ChunkStatisticsMessage(rows=2, columns={"T": sent_of(TEXT, low, high)})
    bound = column_statistics.bounds_from_message(TableSchema(1, (TEXT,)), wire)[4]
    assert isinstance(bound.minimum, bytes)
    assert bound.minimum <= low
    assert bound.maximum is None or cast("bytes", bound.maximum) >= high
    assert column_statistics.find_statistics_error(TableSchema(1, (TEXT,)), wire, 2) is None


def test_a_column_that_was_not_sent_is_unknown() -> None:
    wire = ChunkStatisticsMessage(rows=2, columns={})
    unknown = column_statistics.StatisticBounds(None, None, None)
    assert column_statistics.bounds_from_message(TableSchema(1, (TEXT,)), wire) == {4: unknown}
    assert decoded(column_statistics.NO_STORED_STATISTICS, (TEXT,)) == {4: unknown}


def test_of_statistics_in_the_form_of_earlier_versions_nothing_is_known() -> None:
    old = b'{"rows":3,"columns":{"T":{"minStrValue":"61","maxStrValue":"62"}}}'
    schema = TableSchema(1, (TEXT,))
    collected = ChunkStatistics(2, (ColumnStatistics(b"a", b"b", 1),))
    new = column_statistics.encode_stored_statistics(schema, collected)
    decoder = column_statistics.StoredStatisticsDecoder([4])
    found = decoder.list_bounds(4, decoder.decode([old, new, b""]))
    assert list(zip(*found, strict=True)) == [(None,) * 3, (b"a", b"b", 1), (None,) * 3]


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**38 - 1, 2**64, 2**63 - 1, -(2**63)])
def test_integers_beyond_64_bits_are_stored_exactly(value: int) -> None:
    schema = TableSchema(1, (FIXED,))
    collected = ChunkStatistics(2, (ColumnStatistics(value, value, 0),))
    stored = column_statistics.encode_stored_statistics(schema, collected)
    assert decoded(stored, [FIXED]) == {
        FIXED.ordinal: column_statistics.StatisticBounds(value, value, 0)
    }


def good() -> dict[str, Sent]:
    return {
        "T": sent_of(TEXT, b"a", b"b"),
        '"r"': sent_of(REAL, -1.0, 2.0),
        "N": sent_of(FIXED, 1, 2),
    }


REQUIRED = TableSchema(1, (dataclasses.replace(TEXT, nullable=False), REAL, FIXED))


def refusal(rows: int = 2, **changes: Any) -> int | None:
    columns = good()
    for name, fields in changes.items():
        key = '"r"' if name == "r" else name
        if fields is None:
            del columns[key]
        else:
            columns[key] = msgspec.structs.replace(columns.get(key, Sent()), **fields)
    problem = column_statistics.find_statistics_error(
        REQUIRED, ChunkStatisticsMessage(rows=rows, columns=columns), 2
    )
    return None if problem is None else problem[0]


def test_good_statistics_are_taken() -> None:
    assert refusal() is None
    assert refusal(N=None) is None
    assert refusal(N={"columnId": None}) is None
    assert refusal(r={"minRealValue": -0.0, "maxRealValue": 0.0}) is None
    assert refusal(r={"minRealValue": "NaN", "maxRealValue": "NaN"}) is None
    assert refusal(T={"maxStrValue": "Z"}) is None


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"rows": 3}, ResponseCode.EP_ROW_COUNT_INVALID),
        ({"T": None}, ResponseCode.EP_COLUMN_MISSING),
        ({"X": {}}, ResponseCode.EP_COLUMN_INVALID),
        ({"N": {"columnId": 7}}, ResponseCode.EP_COLUMN_INVALID),
        ({"N": {"nullCount": 3}}, ResponseCode.EP_INVALID),
        ({"N": {"nullCount": -1}}, ResponseCode.EP_INVALID),
        ({"N": {"distinctValues": 3}}, ResponseCode.EP_INVALID),
        ({"T": {"nullCount": 1}}, ResponseCode.EP_INVALID),
        ({"N": {"minIntValue": 3}}, ResponseCode.EP_VALUE_INVALID),
        ({"N": {"maxIntValue": 2**127}}, ResponseCode.EP_VALUE_INVALID),
        ({"T": {"minStrValue": "63"}}, ResponseCode.EP_VALUE_INVALID),
        ({"T": {"minStrValue": "no hex"}}, ResponseCode.EP_VALUE_INVALID),
        ({"T": {"minStrValue": None}}, ResponseCode.EP_VALUE_INVALID),
        ({"T": {"minStrValue": "Z"}}, ResponseCode.EP_VALUE_INVALID),
        ({"T": {"maxStrValue": "62" * 33}}, ResponseCode.EP_VALUE_INVALID),
        ({"r": {"minRealValue": "nan"}}, ResponseCode.EP_VALUE_INVALID),
        ({"r": {"minRealValue": "NaN"}}, ResponseCode.EP_VALUE_INVALID),
        ({"r": {"minRealValue": 0.0, "maxRealValue": -0.0}}, ResponseCode.EP_VALUE_INVALID),
    ],
)
def test_statistics_that_cannot_be_true_are_refused(changes: Any, code: ResponseCode) -> None:
    assert refusal(**changes) == code


def test_the_reason_names_the_column() -> None:
    columns = good() | {'"r"': Sent(nullCount=9)}
    found = column_statistics.find_statistics_error(
        REQUIRED, ChunkStatisticsMessage(rows=2, columns=columns), 2
    )
    assert found is not None
    assert '"r"' in found[1]


@given(
    st.dictionaries(
        st.sampled_from([column.name for column in every_type().columns]),
        st.builds(
            Sent,
            minStrValue=st.none() | st.text(max_size=5),
            maxStrValue=st.none() | st.text(max_size=5),
            minIntValue=st.integers(),
            maxIntValue=st.integers(),
            minRealValue=st.floats() | st.text(max_size=4),
            maxRealValue=st.floats() | st.text(max_size=4),
            nullCount=st.integers(-3, 3),
        ),
    )
)
@relaxed
def test_any_statistics_are_judged_without_failing(columns: dict[str, Sent]) -> None:
    wire = ChunkStatisticsMessage(rows=2, columns=columns)
    column_statistics.find_statistics_error(every_type(), wire, 2)
    column_statistics.bounds_from_message(every_type(), wire)
