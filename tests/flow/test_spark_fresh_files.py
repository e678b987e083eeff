"""Spark SQL reads fresh files in place of the chunks that they cover."""

from __future__ import annotations

import contextlib
import datetime as dt
import random
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from fixtures.chunks import NUMBERS, Lakehouse
from fixtures.s3 import Seaweed
from fixtures.spark import open_lake
from snowmelt import failpoints
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.clock import ManualClock
from snowmelt.failpoints import Failpoint
from snowmelt.schema.types import Column, LogicalType, TableName
from snowmelt.spark import Snowmelt
from snowmelt.table.migration import MigrationSettings, migrate_table
from snowmelt.table.warehouse_paths import open_cached_store, open_warehouse
from support.published_tables import PublishedLakehouse, published_lakehouse
from support.random_rows import TYPES, convert_rows, make_random_rows
from support.typed_rows import ROWS, TYPED, typed_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

HOUR = 3600.0
T = "demo.public.numbers"
COPY = TableName("DEMO", "PUBLIC", "COPIED")


@pytest.fixture
def house(tmp_path: Path) -> Iterator[PublishedLakehouse]:
    """A lakehouse with a publisher and table NUMBERS."""
    with published_lakehouse(tmp_path) as found:
        yield found


@pytest.fixture
def lake(spark: SparkSession, house: PublishedLakehouse) -> Snowmelt:
    return open_lake(spark, house)


def ids(frame: DataFrame) -> list[int]:
    return sorted(int(row[0]) for row in frame.collect())


def find_ids(lake: Snowmelt, condition: str = "true") -> list[int]:
    return ids(lake.sql(f"SELECT n FROM {T} WHERE {condition}"))


def list_values(frame: DataFrame) -> Counter[str]:
    """Return the rows of a frame as comparable text."""
    return Counter(
        repr([each.toJson() if hasattr(each, "toJson") else each for each in row])
        for row in frame.collect()
    )


def test_the_chunks_that_fresh_files_cover_are_not_read(
    house: PublishedLakehouse, lake: Snowmelt
) -> None:
    house.is_damaged = True
    paths = []
    for start in (0, 10):
        paths.append(house.put_numbers(start, 10))
        house.publish()
    house.put_numbers(20, 10)
    for path in paths:
        house.stage.delete(path)
    [opened] = lake.explain_files(f"SELECT n FROM {T}")
    assert (opened.fresh_files, opened.fresh_files_total) == (2, 2)
    assert (opened.native_files_total, opened.chunks, opened.chunks_total) == (0, 1, 1)
    assert "2 of 2 fresh files, 1 of 1 chunks" in str(opened)
    assert find_ids(lake) == list(range(30))
    assert ids(lake.table(T).select("n")) == list(range(30))
    house.publish()
    [row] = lake.sql(f"EXPLAIN SELECT n FROM {T}").collect()
    assert "snowmelt_chunks" not in row[0]


def test_every_type_is_the_same_from_chunks_and_from_fresh_files(
    house: PublishedLakehouse, lake: Snowmelt
) -> None:
    house.create(NUMBERS, TYPED, replace=True)
    house.put(typed_rows(ROWS))
    from_chunks = lake.sql(f"SELECT * FROM {T}")
    expected = list_values(from_chunks)
    house.publish()
    from_files = lake.sql(f"SELECT * FROM {T}")
    assert lake.explain_files(f"SELECT * FROM {T}")[0].chunks_total == 0
    assert from_files.schema == from_chunks.schema
    assert list_values(from_files) == expected
    house.migrate()
    house.put(typed_rows(ROWS))
    house.publish()
    house.put(typed_rows(ROWS))
    assert list_values(lake.table(T)) == Counter(dict.fromkeys(expected, 3))


def test_native_fresh_and_waiting_rows_are_one_table(
    house: PublishedLakehouse, lake: Snowmelt
) -> None:
    house.put_numbers(0, 10)
    house.publish()
    house.migrate()
    assert find_ids(lake) == list(range(10))
    house.put_numbers(10, 10)
    house.publish()
    house.put_numbers(20, 10)
    [opened] = lake.explain_files(f"SELECT * FROM {T}")
    assert (opened.native_files, opened.fresh_files, opened.chunks) == (1, 1, 1)
    assert find_ids(lake) == list(range(30))
    [row] = lake.sql(f"SELECT count(*), max(word), count(word) FROM {T}").collect()
    assert tuple(row) == (30, "word 9", 25)


def test_a_file_within_which_a_migration_ended_is_not_read(
    house: PublishedLakehouse, lake: Snowmelt
) -> None:
    house.put_numbers(0, 10)
    failpoints.arm(Failpoint.MIGRATION_STAGED, lambda: (house.put_numbers(10, 10), house.publish()))
    house.migrate()
    assert len(house.fresh_files()) == 1
    [opened] = lake.explain_files(f"SELECT * FROM {T}")
    assert (opened.native_files, opened.fresh_files_total, opened.chunks) == (1, 0, 1)
    assert find_ids(lake) == list(range(20))


def test_conditions_skip_fresh_files(house: PublishedLakehouse, lake: Snowmelt) -> None:
    for start in range(0, 50, 10):
        house.put_numbers(start, 10)
        house.publish()
    text = f"SELECT n FROM {T} WHERE n BETWEEN 25 AND 31"
    [opened] = lake.explain_files(text)
    assert (opened.fresh_files, opened.fresh_files_total) == (2, 5)
    assert find_ids(lake, "n > 100") == []
    expected = [each for each in range(30, 40) if each % 7]
    assert find_ids(lake, "word LIKE 'word 3_' AND n < 40") == expected
    for at in (0, 1, 4):
        house.warehouse.store.delete(house.fresh_files()[at].path)
    assert ids(lake.sql(text)) == list(range(25, 32))
    house.is_damaged = True


def test_counting_opens_no_fresh_file(house: PublishedLakehouse, lake: Snowmelt) -> None:
    house.is_damaged = True
    house.put_numbers(0, 10)
    house.publish()
    house.put_numbers(10, 5)
    house.warehouse.store.delete(house.fresh_files()[0].path)
    [row] = lake.sql(f"SELECT count(*) AS rows FROM {T}").collect()
    assert row.rows == 15
    with pytest.raises(Exception, match=r"FILE_NOT_EXIST|does not exist"):
        find_ids(lake)


def test_each_reference_to_a_table_reads_its_own_files(
    house: PublishedLakehouse, lake: Snowmelt
) -> None:
    for start in range(0, 40, 10):
        house.put_numbers(start, 10)
        if start < 30:
            house.publish()
    text = (
        f"SELECT a.n FROM {T} a JOIN {T} b ON a.n = b.n - 10 "
        f"WHERE a.n < 10 AND b.n BETWEEN 10 AND 14 AND a.n < (SELECT max(n) FROM {T})"
    )
    assert [opened.fresh_files for opened in lake.explain_files(text)] == [1, 1, 3]
    assert ids(lake.sql(text)) == list(range(5))
    union = f"SELECT n FROM {T} WHERE n < 15 UNION ALL SELECT n FROM {T} WHERE n >= 15"
    assert ids(lake.sql(union)) == list(range(40))
    assert ids(lake.sql(f"SELECT n FROM {T} EXCEPT ALL SELECT n FROM {T}")) == []


def test_a_dataframe_gives_the_same_rows_until_its_deadline(
    house: PublishedLakehouse, lake: Snowmelt
) -> None:
    for start in range(24):
        house.put_numbers(start, 1)
        house.publish()
    frame = lake.table(T).select("n")
    for start in range(24, 30):
        house.put_numbers(start, 1)
        house.publish()
    joined = lake.table(T).select("n")
    house.clock.advance(HOUR / 3)
    house.migrate()
    house.publish()
    house.clock.advance(HOUR / 3)
    house.collect(HOUR)
    assert house.fresh_files() == []
    assert ids(frame) == list(range(24))
    assert ids(joined) == list(range(30))
    assert find_ids(lake) == list(range(30))


def test_a_plan_that_is_too_old_fails_with_a_sentence(tmp_path: Path, spark: SparkSession) -> None:
    clock = ManualClock(dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    with contextlib.closing(PublishedLakehouse(tmp_path, clock)) as house:
        house.create()
        house.put_numbers(0, 10)
        house.publish()
        lake = open_lake(spark, house)
        for text in (f"SELECT n FROM {T}", f"SELECT max(n) FROM {T} WHERE n > 3"):
            with pytest.raises(Exception, match="expired: its files may be deleted"):
                lake.sql(text).collect()


@pytest.mark.parametrize("fresh", [1, 2])
def test_fresh_files_are_scanned_apart_from_many_native_files(
    house: PublishedLakehouse, lake: Snowmelt, monkeypatch: pytest.MonkeyPatch, fresh: int
) -> None:
    monkeypatch.setattr("snowmelt.spark.tables.table_frame._MIN_PATHS_TO_LIST_FOLDERS", 2)
    for start in (0, 10):
        house.put_numbers(start, 10)
    places = MigrationSettings(house.stage.url, house.warehouse.url, target_bytes=1)
    result = migrate_table(house.database, house.keyring, NUMBERS, places, clock=house.clock)
    assert result is not None
    assert result.files == 2
    count = 20
    for _ in range(fresh):
        house.put_numbers(count, 10)
        house.publish()
        count += 10
    for _ in range(3):
        assert find_ids(lake) == list(range(count))
        assert find_ids(lake, "n >= 15") == list(range(15, count))
        [opened] = lake.explain_files(f"SELECT n FROM {T}")
        assert (opened.native_files, opened.fresh_files) == (2, fresh)
        house.put_numbers(count, 1)
        count += 1
    house.publish()
    assert find_ids(lake) == list(range(count))


def test_chunks_are_read_if_spark_has_no_file_system_for_the_warehouse(
    tmp_path: Path, spark: SparkSession, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    clock = ManualClock(dt.datetime.now(dt.UTC))
    with contextlib.closing(PublishedLakehouse(tmp_path, clock)) as house:
        house.warehouse = open_warehouse(f"s3://behind/warehouse-{uuid.uuid4().hex[:8]}")
        house.start_publisher()
        house.create()
        house.put_numbers(0, 10)
        house.publish()
        assert len(house.fresh_files()) == 1
        house.put_numbers(10, 10)
        lake = open_lake(spark, house)
        [opened] = lake.explain_files(f"SELECT n FROM {T}")
        assert (opened.fresh_files_total, opened.chunks) == (0, 2)
        assert find_ids(lake) == list(range(20))
    open_cached_store.cache_clear()


def alter(house: Lakehouse, *changes: str, name: TableName = NUMBERS) -> None:
    for change in changes:
        execute_statement(house.database, f"ALTER TABLE {name} {change}", clock=house.clock)
    house.reopen_channels()


def test_pushed_conditions_know_the_columns_of_older_fresh_files(
    house: PublishedLakehouse, lake: Snowmelt
) -> None:
    house.put_numbers(0, 10)
    house.publish()
    alter(
        house,
        "ALTER COLUMN n SET DATA TYPE NUMBER(38,0)",
        "RENAME COLUMN word TO text",
        "ADD COLUMN word NUMBER(9,0)",
        "ALTER COLUMN word SET DEFAULT 7",
    )
    house.put(convert_rows(house.table().schema, [{"N": 10**30, "TEXT": "new"}]))
    house.publish()
    assert lake.explain_files(f"SELECT * FROM {T}")[0].fresh_files == 2
    rows = lake.sql(f"SELECT n, text, word FROM {T} WHERE n >= 8").collect()
    assert sorted(map(tuple, rows)) == [
        (8, "word 8", None),
        (9, "word 9", None),
        (10**30, "new", 7),
    ]
    assert find_ids(lake, "word = 7") == [10**30]
    assert find_ids(lake, "word IS NULL AND text LIKE 'word 1%'") == [1]
    assert find_ids(lake, "n < 3000000000 AND n > 5") == [6, 7, 8, 9]
    alter(house, "DROP COLUMN word", "ADD COLUMN word VARCHAR")
    assert find_ids(lake, "word IS NOT NULL") == []
    assert len(find_ids(lake, "word IS NULL")) == 11


def test_a_table_gives_the_answers_of_one_that_is_not_published(
    house: PublishedLakehouse, lake: Snowmelt
) -> None:
    """Random rows and changes of columns, in two tables. Only one of them has files."""
    chance = random.Random(4)
    columns = (Column("ID", LogicalType.FIXED, 1, nullable=False, precision=9, scale=0),)
    house.create(NUMBERS, columns, replace=True)
    house.create(COPY, columns, replace=True)
    count = 0

    def change(text: str) -> None:
        for name in (NUMBERS, COPY):
            alter(house, text, name=name)

    def put() -> None:
        nonlocal count
        rows = make_random_rows(house.table().schema, count, 8, chance)
        house.put_all([(NUMBERS, rows), (COPY, rows)])
        count += 8

    for number, kind in enumerate(TYPES):
        change(f"ADD COLUMN c{number} {kind}")
    put()
    house.publish()
    put()
    house.migrate()
    put()
    change("ALTER COLUMN c1 SET DATA TYPE NUMBER(20,0), c7 TYPE VARCHAR(100)")
    change("DROP COLUMN c2")
    change("ADD COLUMN c2 TIMESTAMP_NTZ(9)")
    change("RENAME COLUMN c6 TO text")
    change("CLUSTER BY (text, c9)")
    house.publish()
    put()
    house.publish()
    put()
    [opened] = lake.explain_files(f"SELECT * FROM {T}")
    assert (opened.native_files, opened.fresh_files, opened.chunks) == (1, 2, 1)
    expected = lake.table(str(COPY))
    assert lake.table(T).schema == expected.schema
    assert list_values(lake.table(T)) == list_values(expected)
    conditions = [
        *("c0 = 99.9", "c0 < 0.5", "c1 > 3000000000", "c1 IN (1, 9, -9)", "c3 >= 0.1", "c3 < -1e5"),
        *("c4 = 'NaN'", "c4 > 1e300", "c4 = 0", "c4 IN (-0.0D, 1.5D)", "c5", "c5 IS NULL"),
        *("text = ''", "text LIKE 'abcdefghijklmnopq%'", "text > 'y'", "c7 LIKE 'zzzz%'"),
        *("c8 = X'FFFE'", "c8 > X'FF'", "c9 < DATE'1582-10-05'", "c9 = DATE'1582-10-10'"),
        *("c10 = TIME'12:34:56'", "c11 >= TIME'12:34:56.789123'", "`c11$ns` = 456"),
        *("c2 IS NULL", "c2 < TIMESTAMP_NTZ'1582-10-15 00:00:00'", "`c2$ns` > 0"),
        *(
            "c14 = TIMESTAMP_LTZ'2013-01-31 10:11:12.123456Z'",
            "c16 > TIMESTAMP_LTZ'9999-01-01 00:00:00Z'",
        ),
        *(
            "c16 < TIMESTAMP_LTZ'1900-01-01 00:00:00Z' OR c16 IS NULL",
            "`c16$tz` <> 0",
            "c17 IS NULL",
        ),
        *("c18 IS NOT NULL", "NOT (c1 < 0 AND c9 IS NULL)", "id IN (3, 20, 33)"),
    ]

    def find(name: object) -> Counter[Any]:
        # One query per table, because each query takes long.
        parts = [
            f"SELECT {at} AS number, id FROM {name} WHERE {each}"
            for at, each in enumerate(conditions)
        ]
        return Counter(map(tuple, lake.sql(" UNION ALL ".join(parts)).collect()))

    found = find(COPY)
    assert len({number for number, _ in found}) > len(conditions) // 2
    assert find(T) == found
