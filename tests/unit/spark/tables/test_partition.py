"""Conditions select rows as Spark does, or are refused; chunks are shared out among Spark's tasks."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.errors import Unsupported
from snowmelt.schema.types import Column, LogicalType, TableSchema
from snowmelt.spark.datasource.options import parse_where_option
from snowmelt.spark.tables.partition import ReadPartition, ReadShape, filter_rows, plan_partitions
from snowmelt.table.chunk_reader import ChunkReadTask

SCHEMA = TableSchema(
    1,
    (
        Column("N", LogicalType.FIXED, 1, precision=10, scale=2),
        Column("R", LogicalType.REAL, 2),
        Column("T", LogicalType.TEXT, 3, length=10, byte_length=40),
        Column("D", LogicalType.DATE, 4),
    ),
)
NAN = float("nan")
MIB = 1024 * 1024
ROWS = pa.table(
    {
        "N": pa.array(
            [Decimal("1.00"), Decimal("2.50"), Decimal("-3.00"), None], pa.decimal128(10, 2)
        ),
        "R": pa.array([1.0, NAN, -1.0, None]),
        "T": ["a", "ab", "b", None],
        "D": [dt.date(2020, 1, 1), dt.date(2021, 1, 1), dt.date(1969, 1, 1), None],
        "ROW": [1, 2, 3, 4],
    }
)


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("n > 1", [2]),
        ("n >= 2.495 and n < 2.505", [2]),
        ("n = 1e0 or n is null", [1, 4]),
        ("n <> 1", [2, 3]),
        ("r > 0", [1, 2]),
        ("r <= 1", [1, 3]),
        ("not n is null and (t like 'a%' or d < date '1970-01-01')", [1, 2, 3]),
        ("t in ('a', 'b', null)", [1, 3]),
        ("d between '2020-01-01' and '2020-12-31'", [1]),
        ("n <=> 1", [1]),
        ("-2.999 > n", [3]),
    ],
)
def test_rows_are_those_for_which_the_condition_is_true(where: str, rows: list[int]) -> None:
    found = filter_rows(ROWS, parse_where_option(where, SCHEMA))
    assert found["ROW"].to_pylist() == rows


@pytest.mark.parametrize(
    "where",
    [
        "n + 1 > 2",
        "t like 'a_'",
        "t like '%a'",
        "n in (select 1)",
        "not n = 1",
        "length(t) = 1",
        "n = 1 or length(t) = 1",
        "true group by n",
        "n = 1 limit 1",
    ],
)
def test_what_cannot_be_said_exactly_is_refused(where: str) -> None:
    with pytest.raises(Unsupported, match="is not supported"):
        parse_where_option(where, SCHEMA)


def chunks(lengths: list[int]) -> tuple[Any, ...]:
    schema = TableSchema(1, ())
    return tuple(
        ChunkReadTask(seq, "s", "p", "p", 0, length, "", b"", 1, schema)
        for seq, length in enumerate(lengths)
    )


def partitions(lengths: list[int], cores: int) -> list[ReadPartition]:
    shape = ReadShape("T", TableSchema(1, ()), (), (), (), dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    return plan_partitions(shape, (), chunks(lengths), cores=cores)


@given(st.lists(st.integers(1, 50 * MIB), min_size=1, max_size=300), st.integers(1, 16))
def test_every_chunk_is_in_one_part_and_parts_keep_order(lengths: list[Any], cores: int) -> None:
    parts = partitions(lengths, cores)
    numbers = [[task.seq for task in part.chunks] for part in parts]
    assert sorted(number for part in numbers for number in part) == list(range(len(lengths)))
    assert all(part == sorted(part) and part for part in numbers)


@pytest.mark.parametrize(
    ("lengths", "cores", "parts"),
    [
        ([20_000] * 5, 2, 1),
        ([20_000] * 200, 2, 2),
        ([20_000] * 1000, 2, 6),
        ([MIB] * 3, 8, 1),
        ([20 * MIB] * 3, 2, 3),
        ([20 * MIB], 2, 1),
    ],
)
def test_few_small_chunks_are_one_task(lengths: list[int], cores: int, parts: int) -> None:
    assert len(partitions(lengths, cores)) == parts


def test_parts_are_of_about_equal_work() -> None:
    parts = partitions([MIB, 27 * MIB, MIB, MIB, 27 * MIB, MIB, MIB, MIB], 2)
    sizes = [sum(task.length for task in part.chunks) for part in parts]
    assert max(sizes) == 27 * MIB
