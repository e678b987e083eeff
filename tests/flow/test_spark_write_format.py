"""`df.write.format("snowmelt")`: files of tasks, one commit, rules for names and types."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException

from fixtures.chunks import Lakehouse, numbers
from snowmelt.catalog.jobs.load_history import list_loads
from snowmelt.catalog.jobs.run_history import RunState
from snowmelt.clock import ManualClock
from snowmelt.spark.format import register
from snowmelt.table.garbage_collection import collect_garbage
from support.typed_rows import ROWS, TYPED, TYPES, typed_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from snowmelt.spark.snowmelt_session import Snowmelt


pytestmark = pytest.mark.spark
TABLE = "demo.public.numbers"


@pytest.fixture
def append(spark: SparkSession, lakehouse: Lakehouse) -> Callable[..., None]:
    """Appends a DataFrame in a session without `Snowmelt`."""
    register(spark)

    def write(frame: Any, table: str = TABLE, mode: str = "append", **options: Any) -> None:
        writer = frame.write.format("snowmelt").mode(mode)
        writer.option("data_dir", str(lakehouse.folder)).options(table=table, **options).save()

    return write


def folders(lakehouse: Lakehouse) -> set[Any]:
    return {path.parent.name for path in lakehouse.folder.glob("warehouse/**/*.parquet")}


def test_a_table_is_copied_whole_with_digits_offsets_and_documents(
    lakehouse: Lakehouse, lake: Snowmelt, append: Any
) -> None:
    lakehouse.create(TYPES, TYPED)
    lakehouse.put(typed_rows(ROWS), TYPES)
    lake.sql(
        "CREATE TABLE demo.public.copied (id NUMBER(5), num NUMBER(38,10), real FLOAT, flag BOOLEAN,"
        " text VARCHAR(100), bytes BINARY(100), day DATE, clock3 TIME(3), clock9 TIME(9),"
        " ntz TIMESTAMP_NTZ(6), ntz9 TIMESTAMP_NTZ(9), ltz TIMESTAMP_LTZ(6), tz9 TIMESTAMP_TZ(9),"
        " v VARIANT, a ARRAY, o OBJECT)"
    )
    frame = lake.table("demo.public.types").drop("odd. `name", "text_18")
    append(frame, "demo.public.copied")

    texts = ("to_json(V) AS V", "to_json(A) AS A", "to_json(O) AS O")
    plain = [name for name in frame.columns if name not in {"V", "A", "O"}]
    found = [
        sorted(map(str, each.selectExpr(*(f"`{name}`" for name in plain), *texts).collect()))
        for each in (lake.table("demo.public.copied"), frame)
    ]
    assert found[0] == found[1]


def test_columns_go_by_name_and_what_does_not_fit_is_named(
    lakehouse: Lakehouse, lake: Snowmelt, append: Any, spark: SparkSession
) -> None:
    lakehouse.create()
    append(spark.sql("SELECT 'one' AS word, 1.5D AS n UNION ALL SELECT NULL, 7"))
    append(spark.sql("SELECT '41' AS n"))
    assert sorted(map(tuple, lake.table(TABLE).collect())) == [(2, "one"), (7, None), (41, None)]

    for query, why in (
        ("SELECT 'x' AS n", "Column N .NUMBER.18,0..: .*Not a valid number"),
        (f"SELECT 1 AS n, '{'x' * 101}' AS word", "Column WORD .VARCHAR.100.."),
        ("SELECT 1 AS n, 2 AS m", "Column m: table DEMO.PUBLIC.NUMBERS has no such column"),
        ("SELECT 'a' AS word", "no value is given for N, which must not be NULL"),
        ("SELECT CAST(NULL AS INT) AS n", "it is NOT NULL, and a value is NULL"),
        ("SELECT 1 AS n, 2 AS N", "two columns are meant for N|already exists|DUPLICATE"),
    ):
        with pytest.raises(PySparkException, match=why):
            append(spark.sql(query))
    with pytest.raises(PySparkException, match="tables take rows and keep them"):
        append(spark.sql("SELECT 1 AS n"), mode="overwrite")
    assert lake.table(TABLE).count() == 3


def test_rows_count_once_whatever_attempts_there_were(
    lakehouse: Lakehouse, lake: Snowmelt, append: Any, spark: SparkSession, tmp_path: Path
) -> None:
    """A task that fails after writing leaves files that are not read and are garbage-collected."""
    lakehouse.create()
    mark = str(tmp_path / "failed")

    def fail_late(batches: Iterator[Any]) -> Iterator[Any]:
        rows = list(batches)
        yield from rows
        from pathlib import Path

        if cast("TaskContext", TaskContext.get()).partitionId() == 1 and not Path(mark).exists():
            Path(mark).touch()
            raise RuntimeError("this attempt is lost")

    frame = spark.range(0, 1000, 1, 3).selectExpr("id AS n").mapInArrow(fail_late, "n bigint")
    with pytest.raises(PySparkException, match="this attempt is lost"):
        append(frame)
    assert lake.table(TABLE).count() == 0
    append(frame, write_id="nightly-1")
    append(frame, write_id="nightly-1")
    assert lake.table(TABLE).selectExpr("count(*)", "sum(n)").collect()[0] == (1000, 499500)
    with lakehouse.database.reading() as connection:
        states = [load.state for load in list_loads(connection)]
    assert states == [RunState.COMMITTED]
    # Files of the repeated write stay for a day, because they might belong to a commit in progress.
    # So do files of the failed write, if another of its tasks finished before the one that failed.
    there = folders(lakehouse)
    assert len(there) in {2, 3}
    lakehouse.collect(retention_s=0.0)
    assert folders(lakehouse) >= there
    later = ManualClock(lakehouse.clock.now() + dt.timedelta(hours=25))
    house = lakehouse.warehouse.store
    collect_garbage(lakehouse.database, lakehouse.stage, house, clock=later, retention_s=3600.0)
    assert len(folders(lakehouse)) == 1
    assert lake.table(TABLE).selectExpr("sum(n)").collect()[0][0] == 499500


def test_rows_of_a_write_stream_and_migrate_beside_others(
    lakehouse: Lakehouse, lake: Snowmelt, append: Any, spark: SparkSession
) -> None:
    lakehouse.create()
    lakehouse.put(numbers(0, 10))
    append(spark.range(10, 20).selectExpr("id AS n"))
    lakehouse.migrate()
    append(spark.range(20, 30).selectExpr("id AS n"))
    assert sorted(row.N for row in lake.table(TABLE).collect()) == list(range(30))
