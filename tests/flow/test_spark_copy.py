"""COPY as a Spark job, the views of loads, and raw files as DataFrames."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from fixtures.copy import Copying
from snowmelt.errors import LoadFailed, TableNotFound
from snowmelt.spark.copy_dataframe_source import REJECTED_COLUMN
from snowmelt.spark.load_job import SparkLoadRunner

if TYPE_CHECKING:
    from snowmelt.spark.snowmelt_session import Snowmelt


pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMA = st.StructType(
    [st.StructField("n", st.IntegerType()), st.StructField("word", st.StringType())]
)


@pytest.fixture
def frame(spark: SparkSession, copying: Copying) -> Callable[..., DataFrame]:
    """Read text as a DataFrame."""

    def read(
        data: Any, schema: st.StructType = SCHEMA, copy: str = "", **options: Any
    ) -> DataFrame:
        path = copying.file("frame.csv", data).strip("'")
        reader = spark.read.format("snowmelt-load").schema(schema).option("copy", copy)
        return reader.options(**options).load(path)

    return read


def test_files_are_loaded_as_tasks_and_read_with_streamed_rows(
    lake: Snowmelt, copying: Copying
) -> None:
    copying.house.put_numbers(0, 5)
    for number in range(4):
        copying.file(f"{number}.csv.gz", gzip.compress(f"{number + 5}|word\nx|\n".encode()))
    [row] = lake.sql(
        f"COPY demo.public.numbers FROM '{copying.folder}/*.gz' "
        "REJECTED DATA AS TABLE demo.public.rejects"
    ).collect()
    assert (row.rows_loaded, row.rows_rejected, row.files_loaded) == (4, 4, 4)
    numbers = lake.sql("SELECT n FROM demo.public.numbers ORDER BY n").collect()
    assert [int(row.n) for row in numbers] == list(range(9))
    rejects = lake.sql("SELECT row_number, rejected_data FROM demo.public.rejects").collect()
    assert [(int(a), b) for a, b in rejects] == [(2, "x|")] * 4
    [again] = lake.sql(f"COPY numbers FROM '{copying.folder}/*.gz'", database="demo").collect()
    assert (again.files_skipped, again.load_id) == (4, None)
    files = lake.sql(
        "SELECT status, row_count, rejected_count, first_error FROM copy_history "
        f"WHERE load_id = '{row.load_id}' ORDER BY file_name"
    ).collect()
    assert [each[:3] for each in files] == [("PARTIALLY_LOADED", 1, 1)] * 4
    assert "record 2" in files[0].first_error
    call = "TABLE(INFORMATION_SCHEMA.COPY_HISTORY(TABLE_NAME => 'numbers', START_TIME => {}))"
    since = call.format("DATEADD(hours, -1, CURRENT_TIMESTAMP())")
    told = lake.sql(f"SELECT * FROM {since} WHERE error_count = 1", database="demo").collect()
    assert [(each.STATUS, each.ROW_PARSED) for each in told] == [("Partially loaded", 2)] * 4
    late = call.format("DATEADD(hours, 1, CURRENT_TIMESTAMP())")
    assert lake.sql(f"SELECT * FROM {late}", database="demo").count() == 0
    with pytest.raises(TableNotFound):
        lake.sql(f"SELECT * FROM {late.replace('numbers', 'others')}", database="demo")
    rows = f"(SELECT max(ROW_COUNT) FROM {since})"
    merge = (
        f"MERGE INTO numbers USING (SELECT {rows} AS k) AS h ON n = h.k + 6 WHEN MATCHED AND {rows} = 1 "
        "THEN UPDATE SET word = 'y' WHEN NOT MATCHED THEN INSERT (n) VALUES (h.k)"
    )
    for change, done in (
        (f"DELETE FROM numbers WHERE n = {rows} + 7", (0, 0, 1)),
        (f"UPDATE numbers SET word = concat('x', {rows}) WHERE n = 7", (0, 1, 0)),
        (merge, (0, 1, 0)),
    ):
        assert tuple(lake.sql(change, database="demo").collect()[0]) == done
    words = lake.sql("SELECT n, word FROM numbers WHERE n > 5 ORDER BY n", database="demo")
    assert [(int(n), word) for n, word in words.collect()] == [(6, "word"), (7, "y")]
    [load, *_] = lake.sql("SELECT * FROM load_history ORDER BY start_time").collect()
    assert (load.STATE, load.ROW_COUNT, load.TABLE_NAME) == ("committed", 4, "NUMBERS")


def test_tasks_that_are_done_are_told_while_others_run(
    spark: SparkSession, lake: Snowmelt, copying: Copying
) -> None:
    paths = ", ".join(copying.file(f"{number}.csv", f"{number}|x\n") for number in range(3))
    told = []
    run = SparkLoadRunner(spark, lambda *counts: told.append(counts))
    # Spark reports a task only with the next one that ends at least 0.1 s later.
    slow = 'read line; sleep ${line%%|*}.5; echo "$line"'
    copying.copy(f"COPY numbers FROM {paths} FILTER ExternalCommand(cmd = '{slow}')", run=run)
    assert {count for _, count in told} == {3}
    assert {done for done, _ in told} & {1, 2}


def test_a_failed_load_says_why_and_loads_nothing(lake: Snowmelt, copying: Copying) -> None:
    path = copying.file("a.csv.gz", gzip.compress(b"1|one\n" * 100)[:-9])
    with pytest.raises(LoadFailed, match=r"a\.csv\.gz.*GZIP"):
        lake.sql(f"COPY demo.public.numbers FROM {path}")
    [load] = lake.sql("SELECT state, message FROM load_history").collect()
    assert load.state == "failed"
    assert "a.csv.gz" in load.message
    with pytest.raises(TableNotFound):
        lake.sql(f"COPY demo.public.nothing FROM {path}")


def test_code_of_users_that_ends_its_process_is_named(lake: Snowmelt, copying: Copying) -> None:
    (copying.folder / "own.py").write_text("import os\ndef ends(data):\n    os._exit(7)\n")
    copying.sql(f"CREATE LIBRARY own AS '{copying.folder / 'own.py'}'")
    copying.sql("CREATE FILTER ends AS NAME 'ends' LIBRARY own")
    path = copying.file("a.csv", "1|one\n")
    with pytest.raises(
        LoadFailed, match=r"a\.csv, filter ends\(\): its process exited with status 7"
    ):
        lake.copy(f"COPY demo.public.numbers FROM {path} FILTER ends()")
    assert copying.house.read_numbers() == []


def test_raw_files_are_a_frame(frame: Any) -> None:
    rows = frame("n;word\n1;one\n2;\n", copy="DELIMITER ';' SKIP 1").orderBy("n").collect()
    assert [tuple(row) for row in rows] == [(1, "one"), (2, None)]


def test_a_frame_keeps_rejects_as_a_column(frame: Any) -> None:
    described = st.StructType.fromDDL(
        "file STRING, record BIGINT, offset BIGINT, data BINARY, reason STRING, column STRING"
    )
    schema = st.StructType([*SCHEMA.fields, st.StructField(REJECTED_COLUMN, described)])
    data = "1|one\nx|two\n3|three\n"
    rows = frame(data, schema).collect()
    good = [row for row in rows if row[REJECTED_COLUMN] is None]
    assert [(row.n, row.word) for row in good] == [(1, "one"), (3, "three")]
    [bad] = [row[REJECTED_COLUMN] for row in rows if row[REJECTED_COLUMN] is not None]
    assert (bad.record, bad.offset, bytes(bad.data)) == (2, 6, b"x|two")
    assert "column 1" in bad.reason


def test_a_frame_keeps_rejects_in_a_folder_once(
    frame: Any, spark: SparkSession, copying: Copying
) -> None:
    folder = str(copying.folder / "rejects")
    found = frame("1|one\nx|two\n", rejects=folder)
    assert found.count() == found.count() == 1
    [row] = spark.read.parquet(folder).collect()
    assert row.REJECTED_DATA == "x|two"


def test_a_frame_loses_no_reject_without_a_word(frame: Any) -> None:
    with pytest.raises(Exception, match="record 2 of the portion"):
        frame("1|one\nx|two\n").collect()
    assert frame("1|one\nx|two\n", ignore_rejects="true").count() == 1
