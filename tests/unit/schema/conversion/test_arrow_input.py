"""Rows that come as Arrow are converted as the same rows would be one by one."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import partial
from typing import Any, cast
from zoneinfo import ZoneInfo

import duckdb
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snowmelt.errors import InvalidRow
from snowmelt.schema.conversion.arrow_input import to_arrow_table
from snowmelt.schema.conversion.row_converter import RowConversion, RowConverter
from snowmelt.schema.types import Column, Compatibility, LogicalType, TableSchema

BERLIN = ZoneInfo("Europe/Berlin")
SECONDS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
COLUMNS = [
    (LogicalType.FIXED, {"precision": 38, "scale": 0}),
    (LogicalType.FIXED, {"precision": 9, "scale": 2}),
    (LogicalType.FIXED, {"precision": 18, "scale": 0, "nullable": False}),
    (LogicalType.REAL, {}),
    (LogicalType.BOOLEAN, {}),
    (LogicalType.TEXT, {"length": 5, "byte_length": 20}),
    (LogicalType.BINARY, {"byte_length": 4}),
    (LogicalType.DATE, {}),
    (LogicalType.TIME, {"scale": 3}),
    (LogicalType.TIME, {"scale": 9}),
    *(
        (kind, {"scale": scale})
        for kind in (LogicalType.TIMESTAMP_NTZ, LogicalType.TIMESTAMP_LTZ, LogicalType.TIMESTAMP_TZ)
        for scale in (0, 3, 6, 9)
    ),
    (LogicalType.VARIANT, {}),
    (LogicalType.ARRAY, {"nullable": False}),
    (LogicalType.OBJECT, {}),
]
DURING = st.integers(-(10**10), 10**10)  # seconds: years 1653 to 2286
AROUND_A_GAP = st.integers(1_616_280_000, 1_617_000_000)


def counted(unit: str, widest: st.SearchStrategy[int] = DURING) -> st.SearchStrategy[Any]:
    """Counts of a unit, some near a change of clocks, some far beyond any calendar."""
    near = st.tuples(widest | AROUND_A_GAP, st.integers(0, SECONDS[unit] - 1))
    exact = near.map(lambda pair: pair[0] * SECONDS[unit] + pair[1])
    return exact.filter(lambda count: abs(count) < 2**62) | st.integers(-(2**62), 2**62)


def _scaled(places: int, number: int) -> Decimal:
    return Decimal(number).scaleb(places)


def arrow_types() -> list[tuple[Any, st.SearchStrategy[Any]]]:
    """Pairs of an Arrow type and what its values are built from."""
    bits = [(pa.int8(), 8), (pa.int16(), 16), (pa.int32(), 32), (pa.int64(), 64)]
    pairs: list[tuple[Any, st.SearchStrategy[Any]]] = []
    pairs += [
        (kind, st.integers(-(2 ** (width - 1)), 2 ** (width - 1) - 1)) for kind, width in bits
    ]
    pairs += [(pa.uint8(), st.integers(0, 255)), (pa.uint64(), st.integers(0, 2**64 - 1))]
    pairs += [(pa.float64(), st.floats() | st.floats(-1e6, 1e6).map(lambda n: round(n, 3)))]
    pairs += [(pa.float32(), st.floats(width=32)), (pa.float16(), st.floats(width=16))]
    pairs += [(pa.bool_(), st.booleans()), (pa.null(), st.none())]
    for kind in (pa.decimal64(12, 4), pa.decimal128(20, 5), pa.decimal256(50, 3)):
        size = st.integers(-(10**12) + 1, 10**12 - 1) | st.integers(-99999999, 99999999)
        pairs.append((kind, size.map(partial(_scaled, -kind.scale))))
    texts = st.text(max_size=6) | st.sampled_from(["1", "2.5", "true", "[1]", "{}", "2021-03-28"])
    pairs += [(kind, texts) for kind in (pa.string(), pa.large_string(), pa.string_view())]
    raw = st.binary(max_size=5)
    pairs += [(kind, raw) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())]
    pairs += [(pa.binary(3), st.binary(min_size=3, max_size=3))]
    pairs += [(pa.date32(), st.dates()), (pa.date64(), st.dates())]
    pairs += [(pa.time32("s"), st.integers(0, 86399)), (pa.time32("ms"), st.integers(0, 86399999))]
    pairs += [(pa.time64("us"), st.times()), (pa.time64("ns"), st.integers(0, 86399 * 10**9))]
    for unit in SECONDS:
        for zone in (None, "UTC", "Europe/Berlin", "+05:30", "America/Los_Angeles"):
            pairs.append((pa.timestamp(unit, zone), counted(unit)))
    pairs += [
        (pa.duration("us"), st.integers(0, 9)),
        (pa.uuid(), st.binary(min_size=16, max_size=16)),
    ]
    pairs += [(pa.json_(), st.sampled_from(["1", '{"a": 1}', "no"]))]
    return pairs


def nested(leaf: Any) -> st.SearchStrategy[Any]:
    kind, values = leaf
    if isinstance(kind, pa.BaseExtensionType):
        return st.just(leaf)
    words = st.sampled_from(["a", "b", "c"])
    return st.sampled_from(
        [
            leaf,
            (pa.dictionary(pa.int32(), kind), values),
            (pa.dictionary(pa.int8(), kind), values),
            (pa.run_end_encoded(pa.int32(), kind), values),
            (pa.run_end_encoded(pa.int32(), pa.dictionary(pa.int8(), kind)), values),
            (pa.list_(kind), st.lists(values | st.none(), max_size=3)),
            (pa.large_list(kind), st.lists(values | st.none(), max_size=3)),
            (pa.list_(kind, 2), st.lists(values, min_size=2, max_size=2)),
            (pa.struct([("x", kind), ("y", pa.string())]), st.fixed_dictionaries({"x": values})),
            (pa.map_(pa.string(), kind), st.lists(st.tuples(words, values), max_size=3)),
        ]
    )


@st.composite
def tables(draw: st.DrawFn) -> tuple[Any, TableSchema]:
    count = draw(st.integers(1, 4))
    arrays, columns = [], []
    for ordinal in range(1, draw(st.integers(1, 3)) + 1):
        leaf = draw(st.sampled_from(arrow_types()))
        kind, values = draw(st.just(leaf) | nested(leaf))
        given = draw(st.lists(values | st.none(), min_size=count + 2, max_size=count + 2))
        array = array_of(given, kind)
        # A slice, since nothing may depend on where an array begins.
        arrays.append(array.slice(1, count))
        column, options = draw(st.sampled_from(COLUMNS))
        columns.append(Column(f"C{ordinal}", column, ordinal, **cast("dict[str, Any]", options)))
    names = [f"c{ordinal}" for ordinal in range(1, len(columns) + 1)]
    return pa.table(arrays, names), TableSchema(1, tuple(columns))


def array_of(given: Any, kind: Any) -> Any:
    if pa.types.is_dictionary(kind):
        # What is null is so in its place, or in the dictionary.
        with_null = kind.index_type == pa.int8()
        places = [n if with_null or value is not None else None for n, value in enumerate(given)]
        return pa.DictionaryArray.from_arrays(
            pa.array(places, kind.index_type), array_of(given, kind.value_type)
        )
    if pa.types.is_run_end_encoded(kind):
        ends = pa.array(range(1, len(given) + 1), kind.run_end_type)
        return pa.RunEndEncodedArray.from_arrays(ends, array_of(given, kind.value_type))
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(given, kind.storage_type))
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        whole = pa.int32() if kind.bit_width == 32 else pa.int64()
        if all(value is None or isinstance(value, int) for value in given):
            return pa.array(given, whole).view(kind)
    return pa.array(given, kind)


def row_values(array: Any) -> Any:
    """The oracle: what Arrow itself says its values are, with widths and nanoseconds kept."""
    kind = array.type
    if isinstance(kind, pa.DictionaryType):
        values = row_values(array.dictionary)
        return [None if place is None else values[place] for place in array.indices.to_pylist()]
    if pa.types.is_run_end_encoded(kind):
        return row_values(array.values)[array.offset : array.offset + len(array)]
    if kind in {pa.float32(), pa.float16()}:
        narrow = np.float32 if kind == pa.float32() else np.float16
        return [None if v is None else narrow(v) for v in array.to_pylist()]
    if pa.types.is_timestamp(kind):
        return [None if not v.is_valid else stamp(v.value, kind) for v in array]
    if pa.types.is_duration(kind):
        return [None if v is None else dt.timedelta(0) for v in array.to_pylist()]
    if kind == pa.time64("ns"):
        return [None if not v.is_valid else clock(v.value) for v in array]
    if kind == pa.uuid():
        return [None if v is None else uuid.UUID(str(v)) for v in array.to_pylist()]
    if pa.types.is_struct(kind):
        parts = [row_values(part) for part in array.flatten()]
        rows = [dict(zip(("x", "y"), row, strict=True)) for row in zip(*parts, strict=True)]
        return [row if v.is_valid else None for row, v in zip(rows, array, strict=True)]
    if pa.types.is_map(kind):
        return [
            None
            if not v.is_valid
            else pairs(row_values(v.values.field(0)), row_values(v.values.field(1)))
            for v in array
        ]
    if pa.types.is_nested(kind):
        return [None if not v.is_valid else row_values(v.values) for v in array]
    return array.to_pylist()


def pairs(keys: Any, values: Any) -> dict[Any, Any]:
    # Keys of JSON are compared without their trailing NULs, so this repeats what a dict cannot.
    return {
        key + "\x00" * keys[:place].count(key): value
        for place, (key, value) in enumerate(zip(keys, values, strict=True))
    }


def stamp(count: Any, kind: Any) -> object:
    nanos = count * (10**9 // SECONDS[kind.unit])
    try:
        whole = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=nanos // 1000)
        if kind.tz is None:
            whole = whole.replace(tzinfo=None)
        elif kind.tz.startswith("+"):
            whole = whole.astimezone(dt.timezone(dt.timedelta(hours=5, minutes=30)))
        else:
            whole = whole.astimezone(ZoneInfo(kind.tz))
    except OverflowError:
        return np.datetime64(count, kind.unit) if kind.tz is None else object()
    if nanos % 1000 == 0:
        return whole
    return pd.Timestamp(whole).as_unit("ns") + pd.Timedelta(nanos % 1000, "ns")


def clock(nanos: Any) -> dt.time:
    whole = (dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=nanos // 1000)).time()
    return whole if nanos % 1000 == 0 else Fine(whole, nanos % 1000)


class Fine(dt.time):
    """A time with nanoseconds, of which Python has none."""

    nanosecond: Any

    def __new__(cls, whole: Any, nanosecond: Any) -> Fine:
        made = super().__new__(cls, whole.hour, whole.minute, whole.second, whole.microsecond)
        made.nanosecond = nanosecond
        return made


@pytest.mark.slow
@settings(
    max_examples=3 * settings().max_examples // 2,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(tables(), st.sampled_from(list(Compatibility)))
def test_arrow_is_the_sum_of_its_rows(given: tuple[Any, TableSchema], compatibility: Any) -> None:
    table, schema = given
    converter = RowConverter(schema, zone=BERLIN, compatibility=compatibility)
    columns = [row_values(column.chunk(0)) for column in table.columns]
    rows = [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]
    expected, refused = [], {}
    for index, row in enumerate(rows):
        try:
            expected.append(converter.convert_row(row, index))
        except InvalidRow as error:
            refused[index] = error.sdk_code
    done = converter.convert_arrow_table(table)
    found = {error.row_index: error.error.sdk_code for error in done.errors}
    assert found.keys() == refused.keys()
    for index, code in found.items():
        # A time that no Python value holds has no type in a row; Arrow's is out of range.
        beyond = any(type(value) is object for value in rows[index].values())
        assert code == refused[index] or (beyond and code == "0030")
    assert done.row_count == len(expected)
    wanted = converter.build_table(expected)
    assert done.table.schema == wanted.schema
    for name in done.table.column_names:
        got, want = (t[name].combine_chunks() for t in (done.table, wanted))
        assert got.equals(want) or repr(got.to_pylist()) == repr(want.to_pylist()), name
    done.table.validate(full=True)


WIDE = TableSchema(
    1,
    (
        Column("ID", LogicalType.FIXED, 1, nullable=False, precision=38, scale=0),
        Column("NOTE", LogicalType.TEXT, 2, length=4, byte_length=16),
        Column("lower", LogicalType.REAL, 3),
    ),
)


def convert(data: Any, **options: bool) -> RowConversion:
    return RowConverter(WIDE, zone=BERLIN).convert_arrow_table(to_arrow_table(data), **options)


def test_columns_go_by_name_as_keys_of_rows_do() -> None:
    done = convert(pa.table({"note": ["a"], "Id": [7], '"lower"': [1.5]}))
    assert done.table.to_pylist() == [{"ID": 7, "NOTE": "a", "lower": 1.5}]
    [error] = convert(pa.table({"id": [7], "lower": [1.5]})).errors
    assert error.extra_columns == ("lower",)
    assert error.row == {"id": 7, "lower": 1.5}
    errors = convert(pa.table({"note": ["a", "b"]})).errors
    assert [(error.row_index, error.missing_not_null) for error in errors] == [
        (0, ("ID",)),
        (1, ("ID",)),
    ]
    with pytest.raises(InvalidRow, match="more than one column named id"):
        convert(pa.table([[1], [2]], ["id", "id"]))


@pytest.mark.parametrize(
    "nulls",
    [
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), pa.array([7, None])),
        pa.RunEndEncodedArray.from_arrays(pa.array([1, 2, 3], pa.int32()), pa.array([7, None, 7])),
    ],
)
def test_what_stands_for_a_null_is_one(nulls: Any) -> None:
    done = convert(pa.table({"id": nulls}))
    assert done.table["ID"].to_pylist() == [7, 7]
    assert [(e.row_index, e.null_for_not_null) for e in done.errors] == [(1, ("ID",))]
    assert convert(pa.table({"id": [1, 2, 3], '"lower"': nulls})).table["lower"].null_count == 1


def test_periods_are_no_numbers() -> None:
    periods = pd.DataFrame({"id": pd.period_range("2020-01", periods=2, freq="M")})
    errors = convert(periods).errors
    assert [error.error.sdk_code for error in errors] == ["0004", "0004"]


def test_refused_rows_leave_the_others_in_order() -> None:
    table = pa.table({"id": list(range(1000)), "note": ["x"] * 700 + ["too long"] + ["y"] * 299})
    done = convert(table)
    [error] = done.errors
    assert (error.row_index, error.row) == (700, {"id": 700, "note": "too long"})
    assert "rowIndex:700" in str(error.error)
    assert done.table["ID"].to_pylist() == [n for n in range(1000) if n != 700]
    assert convert(table, stop_at_first=True).row_count == 0


def test_chunks_are_joined() -> None:
    parts = [pa.table({"id": [n, n + 1], "note": ["a", None]}) for n in range(0, 200, 2)]
    done = convert(pa.concat_tables(parts))
    assert done.table["ID"].to_pylist() == list(range(200))
    assert convert(pa.table({"id": pa.array([], pa.int64())})).row_count == 0


def test_large_pieces_stay_apart_wherever_each_column_has_its_own() -> None:
    numbers = pa.chunked_array([range(9_000), range(9_000, 30_000)])
    notes = ["x"] * 20_000 + ["too long"] + ["y"] * 9_999
    table = pa.table({"id": numbers, "note": pa.chunked_array([notes[:15_000], notes[15_000:]])})
    done = convert(table)
    assert [(e.row_index, e.row) for e in done.errors] == [
        (20_000, {"id": 20_000, "note": "too long"})
    ]
    assert done.table["ID"].to_pylist() == [n for n in range(30_000) if n != 20_000]
    assert done.table["NOTE"].to_pylist() == [note for note in notes if note != "too long"]
    kept = convert(table.slice(100, 19_000)).table
    assert kept["ID"].num_chunks == 2
    assert kept["ID"].to_pylist() == list(range(100, 19_100))


def test_any_library_with_the_c_stream_will_do() -> None:
    frame = pd.DataFrame({"id": [1, 2], "note": ["a", None]}, index=[5, 9])
    table = pa.table({"id": [1, 2], "note": ["a", None]})
    expected = convert(table).table
    for data in (
        frame,
        polars.DataFrame({"id": [1, 2], "note": ["a", None]}),
        duckdb.sql("SELECT * FROM (VALUES (1, 'a'), (2, NULL)) AS t(id, note)"),
        table.to_batches()[0],
        table.to_reader(),
    ):
        assert convert(data).table.equals(expected), type(data)
    with pytest.raises(TypeError, match=r"takes an object with __arrow_c_stream__.*not list"):
        to_arrow_table([{"id": 1}])


def test_what_the_caller_changes_later_changes_nothing() -> None:
    numbers = np.array([1.0, 2.0, 3.0])
    done = convert(pa.table({"id": [1, 2, 3], '"lower"': pa.array(numbers)}))
    numbers[:] = 9
    assert done.table["lower"].to_pylist() == [1.0, 2.0, 3.0]


def test_broken_arrow_is_refused() -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
    )
    with pytest.raises(InvalidRow, match="not valid Arrow"):
        convert(pa.table({"id": [1], "note": broken}))


@pytest.mark.parametrize(
    "frame",
    [
        polars.DataFrame({"x": polars.Series([{1}], dtype=polars.Object)}),
        polars.DataFrame({"x": [{"a": 2**70}]}),
        pd.DataFrame({"id": [1], "x": [2**70]}),
        pd.DataFrame({"id": [1], "x": ["\ud800"]}),
        pd.DataFrame({"id": [1], "x": [Decimal("Infinity")]}),
        pd.DataFrame({"id": [1], "x": [[1, "a"]]}),
    ],
)
def test_a_data_frame_that_arrow_cannot_represent_is_rejected(frame: Any) -> None:
    with pytest.raises(InvalidRow, match=r"column x (of|has).* (Arrow|data frame)"):
        to_arrow_table(frame)


@pytest.mark.parametrize("kind", [pa.decimal32, pa.decimal64, pa.decimal128, pa.decimal256])
@pytest.mark.parametrize("scale", [0, 2, 5])
def test_decimals_are_rounded_to_one_more_digit(kind: Any, scale: int) -> None:
    precision = {pa.decimal32: 9, pa.decimal64: 18, pa.decimal128: 38, pa.decimal256: 76}[kind]
    of = TableSchema(1, (Column("X", LogicalType.FIXED, 1, precision=38, scale=scale),))
    digits = "9" * (7 if precision > 38 else precision - 7)
    given = [Decimal(f"{sign}{digits}.9999999") for sign in ("", "-")] + [Decimal("1.5000000")]
    table = to_arrow_table(pa.table({"x": pa.array(given, kind(precision, 7))}))
    done = RowConverter(of, zone=BERLIN).convert_arrow_table(table)
    assert done.errors == []
    wanted = [
        each.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, Context(prec=99)) for each in given
    ]
    assert done.table["X"].to_pylist() == wanted
