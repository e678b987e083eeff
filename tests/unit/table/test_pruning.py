"""Pruning never leaves out what a condition could select, and leaves out what it cannot."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.catalog.streaming.chunks import ChunkRecord
from snowmelt.schema.chunk_types import FIELD_ID, chunk_arrow_schema
from snowmelt.schema.iceberg_table_form import to_native_table
from snowmelt.schema.statistics import collect_statistics
from snowmelt.schema.types import Column, LogicalType, TableSchema
from snowmelt.table.native_file import NativeFile
from snowmelt.table.pruning import (
    And,
    Comparison,
    InList,
    IsNull,
    Or,
    StartsWith,
    prune_chunks,
    prune_files,
)
from snowmelt.wire.column_statistics import encode_stored_statistics
from support.chunk_data import chunk_column, relaxed
from support.native_bounds import find_bounds

EPOCH = dt.datetime(1970, 1, 1)
UTC_EPOCH = EPOCH.replace(tzinfo=dt.UTC)
Op = Literal["=", "<>", "<", "<=", ">", ">=", "<=>"]
OPS: tuple[Op, ...] = ("=", "<>", "<", "<=", ">", ">=", "<=>")


def schema_of(column: Column) -> TableSchema:
    return TableSchema(1, (column,))


def chunk_of(stored: list[Any], column: Column) -> ChunkRecord:
    schema = schema_of(column)
    rows = pa.Table.from_arrays([chunk_column(column, stored)], schema=chunk_arrow_schema(schema))
    statistics = encode_stored_statistics(schema, collect_statistics(rows, schema))
    now = UTC_EPOCH
    return ChunkRecord(1, 1, "p", "x", 0, 1, "", 1, len(stored), 1, statistics, now)


def file_of(stored: list[Any], column: Column) -> NativeFile:
    schema = schema_of(column)
    rows = pa.Table.from_arrays([chunk_column(column, stored)], schema=chunk_arrow_schema(schema))
    native = to_native_table(rows, schema)
    ids = [int(field.metadata[FIELD_ID]) for field in native.schema]
    bounds = {key: find_bounds(native.column(at)) for at, key in enumerate(ids)}
    return NativeFile(
        path="x",
        sequence=1,
        size=1,
        rows=len(stored),
        lower={key: bound.lower for key, bound in bounds.items() if bound.lower is not None},
        upper={key: bound.upper for key, bound in bounds.items() if bound.upper is not None},
        nulls={key: bound.nulls for key, bound in bounds.items()},
        nans={key: bound.nans for key, bound in bounds.items() if bound.nans is not None},
    )


def kept(stored: list[Any], column: Column, *predicates: Any) -> tuple[bool, bool]:
    """Whether a chunk and a file of these stored values are kept."""
    schema = schema_of(column)
    chunks = prune_chunks([chunk_of(stored, column)], schema, {1: schema}, predicates)
    files = prune_files([file_of(stored, column)], schema, predicates)
    return bool(chunks), bool(files)


def order(value: Any) -> Any:
    """The engine's order of values that Python orders otherwise."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value.encode() if isinstance(value, str) else value


def selects(op: str, value: Any, literal: Any) -> bool:
    if value is None:
        return False
    left, right = order(value), order(literal)
    found: dict[str, bool] = {
        "=": left == right,
        "<=>": left == right,
        "<>": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }
    return found[op]


def fixed(scale: int) -> Column:
    return Column("C", LogicalType.FIXED, 1, precision=18, scale=scale)


def of(kind: LogicalType, scale: int | None = None) -> Column:
    return Column("C", kind, 1, scale=scale)


KINDS: dict[str, tuple[Column, st.SearchStrategy[Any], Callable[[Any], Any]]] = {
    "fixed": (
        fixed(2),
        st.integers(-1000, 1000),
        lambda stored: Decimal(stored).scaleb(-2),
    ),
    "real": (of(LogicalType.REAL), st.floats() | st.sampled_from([0.0, -0.0, math.nan]), float),
    "text": (
        Column("C", LogicalType.TEXT, 1, length=99, byte_length=400),
        st.text(alphabet="ab\U0010ffff", max_size=40),
        str,
    ),
    "binary": (
        Column("C", LogicalType.BINARY, 1, byte_length=99),
        st.binary(max_size=3) | st.binary(min_size=30, max_size=40),
        bytes,
    ),
    "boolean": (of(LogicalType.BOOLEAN), st.booleans(), bool),
    "date": (
        of(LogicalType.DATE),
        st.integers(-1000, 1000),
        lambda stored: EPOCH.date() + dt.timedelta(days=stored),
    ),
    "time(4)": (
        of(LogicalType.TIME, 4),
        st.integers(0, 10**4),
        lambda stored: (EPOCH + dt.timedelta(microseconds=stored * 100)).time(),
    ),
    "time(9)": (
        of(LogicalType.TIME, 9),
        st.integers(0, 10**4),
        lambda stored: (EPOCH + dt.timedelta(microseconds=stored // 1000)).time(),
    ),
    "ntz(3)": (
        of(LogicalType.TIMESTAMP_NTZ, 3),
        st.integers(-5000, 5000),
        lambda stored: EPOCH + dt.timedelta(milliseconds=stored),
    ),
    "ntz(9)": (
        of(LogicalType.TIMESTAMP_NTZ, 9),
        st.integers(-5000, 5000),
        lambda stored: EPOCH + dt.timedelta(microseconds=stored // 1000),
    ),
    "ltz(7)": (
        of(LogicalType.TIMESTAMP_LTZ, 7),
        st.integers(-5000, 5000),
        lambda stored: UTC_EPOCH + dt.timedelta(microseconds=stored // 10),
    ),
    "tz(9)": (
        of(LogicalType.TIMESTAMP_TZ, 9),
        st.builds(lambda t, o: (t << 14) + o, st.integers(-5000, 5000), st.integers(0, 2880)),
        lambda stored: UTC_EPOCH + dt.timedelta(microseconds=(stored >> 14) // 1000),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@relaxed
def test_what_could_match_is_never_left_out(kind: str, data: st.DataObject) -> None:
    column, values, engine_value = KINDS[kind]
    stored = data.draw(st.lists(st.none() | values, min_size=1, max_size=5))
    literal = engine_value(data.draw(values))
    op = data.draw(st.sampled_from(OPS))
    seen = [None if value is None else engine_value(value) for value in stored]
    if any(selects(op, value, literal) for value in seen):
        assert kept(stored, column, Comparison("C", op, literal)) == (True, True)
        assert kept(stored, column, And((Comparison("C", op, literal),))) == (True, True)
    if any(selects("=", value, literal) for value in seen):
        assert kept(stored, column, InList("C", (literal, None))) == (True, True)
    if None in stored:
        assert kept(stored, column, IsNull("C")) == (True, True)
        assert kept(stored, column, Comparison("C", "<=>", None)) == (True, True)
    if any(value is not None for value in stored):
        assert kept(stored, column, IsNull("C", negated=True)) == (True, True)


@given(
    st.lists(st.text(alphabet="ab\U0010ffff", max_size=40), min_size=1, max_size=4),
    st.text(alphabet="ab\U0010ffff", max_size=40),
)
@relaxed
def test_a_prefix_that_could_match_is_never_left_out(values: list[str], prefix: str) -> None:
    column = KINDS["text"][0]
    if any(value.startswith(prefix) for value in values):
        assert kept(values, column, StartsWith("C", prefix)) == (True, True)


@pytest.mark.parametrize(
    ("kind", "stored", "predicate"),
    [
        ("fixed", [100, 200], Comparison("C", "=", 3)),
        ("fixed", [100, 200], Comparison("C", ">", Decimal("2.00"))),
        ("fixed", [100, 200], Comparison("C", "<", 0.5)),
        ("fixed", [100, 100], Comparison("C", "<>", 1)),
        ("fixed", [100, 200], InList("C", (5, 6, None))),
        ("fixed", [None, None], Comparison("C", "<>", 5)),
        ("fixed", [None, None], IsNull("C", negated=True)),
        ("fixed", [100], IsNull("C")),
        ("real", [1.0, 2.0], Comparison("C", ">", Decimal("2.1"))),
        ("real", [1.0, 2.0], Comparison("C", "=", math.nan)),
        ("text", ["b" * 40, "c" * 40], Comparison("C", "<", "b")),
        ("text", ["b" * 40, "c" * 40], StartsWith("C", "d")),
        ("binary", [b"b", b"c"], Comparison("C", ">=", b"d")),
        ("boolean", [True], Comparison("C", "=", False)),
        ("date", [10, 20], Comparison("C", ">", dt.date(1971, 1, 1))),
        ("time(9)", [1000], Comparison("C", ">", dt.time(0, 0, 1))),
        ("ntz(9)", [1000], Comparison("C", ">", dt.datetime(1970, 1, 2))),
        ("tz(9)", [(1000 << 14) + 5], Comparison("C", ">", UTC_EPOCH + dt.timedelta(1))),
    ],
)
def test_what_cannot_match_is_left_out(kind: str, stored: Any, predicate: Any) -> None:
    column = KINDS[kind][0]
    assert kept(stored, column, predicate) == (False, False)
    assert kept(stored, column, Or((predicate, predicate))) == (False, False)


@pytest.mark.parametrize(
    ("kind", "stored", "value"),
    [
        ("fixed", [100], "7"),
        ("fixed", [100], True),
        ("fixed", [100], math.nan),
        ("text", ["a"], 7),
        ("date", [10], dt.datetime(1999, 1, 1)),
        ("ntz(9)", [10], dt.datetime(1999, 1, 1, tzinfo=dt.UTC)),
        ("tz(9)", [1 << 14], dt.datetime(1999, 1, 1)),
        ("fixed", [100], None),
    ],
)
def test_a_literal_of_another_kind_leaves_nothing_out(
    kind: str, stored: list[int] | list[str], value: dt.datetime | float | str | None
) -> None:
    column = KINDS[kind][0]
    assert kept(stored, column, Comparison("C", "=", value)) == (True, True)


def test_a_column_that_a_chunk_or_file_does_not_know_leaves_nothing_out() -> None:
    old, new = fixed(0), Column("D", LogicalType.FIXED, 2, precision=18, scale=0)
    schemas = {1: schema_of(old), 2: TableSchema(2, (old, new))}
    predicates = [Comparison("D", "=", 5), Comparison("NONE", "=", 5)]
    chunk, file = chunk_of([1], old), file_of([1], old)
    assert prune_chunks([chunk], schemas[2], schemas, predicates) == [chunk]
    assert prune_files([file], schemas[2], predicates) == [file]


def test_nan_in_a_column_lifts_its_upper_bound() -> None:
    column = of(LogicalType.REAL)
    assert kept([1.0, math.nan], column, Comparison("C", ">", 5.0)) == (True, True)
    assert kept([1.0, math.nan], column, Comparison("C", "<", 1.0)) == (False, False)
