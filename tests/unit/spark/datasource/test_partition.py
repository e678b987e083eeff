"""Conditions select rows as Spark does, or are refused."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from snowmelt.errors import Unsupported
from snowmelt.schema.types import Column, LogicalType, TableSchema
from snowmelt.spark.datasource.options import parse_where_option
from snowmelt.spark.datasource.partition import filter_rows

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
def test_rows_are_those_for_which_the_condition_is_true(where, rows):
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
def test_what_cannot_be_said_exactly_is_refused(where):
    with pytest.raises(Unsupported, match="is not supported"):
        parse_where_option(where, SCHEMA)
