"""Cache of decoded chunks in Spark: results are correct and current, and the cache is limited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fixtures.chunks import Lakehouse, numbers
from snowmelt.schema.types import TableName
from snowmelt.spark.tables.chunk_cache import BUDGET_SETTING
from snowmelt.spark.tables.table_frame import warm_up

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from snowmelt.spark.snowmelt_session import Snowmelt


pytestmark = pytest.mark.spark

ALL = "SELECT n, word FROM demo.public.numbers"
OTHERS = TableName("DEMO", "PUBLIC", "OTHERS")


def found(lake: Snowmelt, text: str = ALL) -> list[Any]:
    return sorted(row[0] for row in lake.sql(text).collect())


def test_a_chunk_is_decoded_once(numbers_table: Lakehouse, lake: Snowmelt) -> None:
    numbers_table.is_damaged = True
    path = numbers_table.put_numbers(0, 10)
    assert found(lake) == list(range(10))
    numbers_table.stage.delete(path)
    assert found(lake) == list(range(10))
    assert found(lake, "SELECT n FROM demo.public.numbers WHERE n > 7") == [8, 9]


def test_only_columns_that_were_decoded_are_there(numbers_table: Lakehouse, lake: Snowmelt) -> None:
    numbers_table.is_damaged = True
    path = numbers_table.put_numbers(0, 10)
    assert found(lake, "SELECT n FROM demo.public.numbers") == list(range(10))
    numbers_table.stage.delete(path)
    with pytest.raises(Exception, match=path.partition("/")[2]):
        found(lake)


def test_chunks_that_come_one_by_one_are_all_seen_once(
    numbers_table: Lakehouse, lake: Snowmelt
) -> None:
    for start in range(0, 120, 10):
        if start == 60:
            numbers_table.migrate()
        numbers_table.put_numbers(start, 10)
        assert found(lake) == list(range(start + 10))
        text = f"SELECT n FROM demo.public.numbers WHERE n >= {start}"
        assert found(lake, text) == list(range(start, start + 10))
    numbers_table.migrate()
    assert found(lake) == list(range(120))


def test_an_older_view_does_not_see_what_was_kept_since(
    numbers_table: Lakehouse, lake: Snowmelt
) -> None:
    numbers_table.put_numbers(0, 10)
    old = lake.table("demo.public.numbers")
    numbers_table.put_numbers(10, 10)
    assert found(lake) == list(range(20))
    assert sorted(row.N for row in old.collect()) == list(range(10))


def test_tables_are_not_taken_for_each_other(numbers_table: Lakehouse, lake: Snowmelt) -> None:
    numbers_table.create(OTHERS, replace=True)
    numbers_table.put_numbers(0, 5)
    numbers_table.put(numbers(100, 5), OTHERS)
    for _ in range(2):
        assert found(lake) == list(range(5))
        assert found(lake, ALL.replace("numbers", "others")) == list(range(100, 105))
    numbers_table.create(replace=True)
    numbers_table.put_numbers(200, 5)
    assert found(lake) == list(range(200, 205))


def test_a_broken_chunk_fails_only_queries_that_need_it(
    numbers_table: Lakehouse, lake: Snowmelt
) -> None:
    broken = numbers_table.put_numbers(0, 10)
    numbers_table.put_numbers(10, 10)
    data = numbers_table.stage.get(broken)
    numbers_table.stage.put(broken, bytes([data[0] ^ 1]) + data[1:])
    for _ in range(2):
        with pytest.raises(Exception, match=f"Corrupt blob {broken.partition('/')[2]}.*MD5"):
            found(lake)
        assert found(lake, ALL + " WHERE n >= 10") == list(range(10, 20))
    numbers_table.stage.put(broken, data)
    assert found(lake) == list(range(20))


def test_a_session_may_keep_nothing(
    numbers_table: Lakehouse, lake: Snowmelt, spark: SparkSession
) -> None:
    numbers_table.is_damaged = True
    spark.conf.set(BUDGET_SETTING, "0")
    try:
        path = numbers_table.put_numbers(0, 10)
        assert found(lake) == list(range(10))
        numbers_table.stage.delete(path)
        with pytest.raises(Exception, match=path.partition("/")[2]):
            found(lake)
    finally:
        spark.conf.unset(BUDGET_SETTING)


def test_what_was_not_used_the_longest_goes_first(
    numbers_table: Lakehouse, lake: Snowmelt, spark: SparkSession
) -> None:
    numbers_table.is_damaged = True
    first = numbers_table.put_numbers(0, 1000)
    spark.conf.set(BUDGET_SETTING, str(len(numbers_table.stage.get(first)) * 3 // 2))
    one, other = ALL + " WHERE n < 1000", ALL + " WHERE n >= 1000"
    try:
        assert found(lake) == list(range(1000))
        second = numbers_table.put_numbers(1000, 1000)
        # The second segment does not fit with the first one, so it is not cached.
        assert found(lake) == list(range(2000))
        numbers_table.stage.delete(first)
        assert found(lake) == list(range(2000))
        assert found(lake, other) == list(range(1000, 2000))
        numbers_table.stage.delete(second)
        assert found(lake, other) == list(range(1000, 2000))
        with pytest.raises(Exception, match=first.partition("/")[2]):
            found(lake, one)
    finally:
        spark.conf.unset(BUDGET_SETTING)


def test_a_session_is_warmed_up_without_an_error(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG", "snowmelt.spark"):
        warm_up(spark)
    assert not caplog.records
