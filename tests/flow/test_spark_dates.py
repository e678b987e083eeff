"""INSERT and `df.write`: dates and times in Snowflake's forms, with only the session's zone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from fixtures.chunks import Lakehouse
from snowmelt.errors import SnowmeltError
from snowmelt.spark.format import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from snowmelt.spark.snowmelt_session import Snowmelt


pytestmark = pytest.mark.spark
# In Los Angeles, the first time does not exist and the second occurs twice.
CLOCKS = ["2024-03-10 02:30:00", "2024-11-03 01:30:00", "2024-07-01 12:00:00.123456"]


@pytest.fixture
def in_los_angeles(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def micros(lake: Snowmelt, spark: SparkSession, table: str, column: str) -> list[Any]:
    """Return a column as microseconds, which do not depend on the reader's zone."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    frame = lake.sql(f"SELECT {column} AS c FROM {table}")
    return sorted(row.c for row in frame.collect())


def test_a_timestamp_without_zone_is_stored_as_inserted_whatever_the_sessions_zone(
    lakehouse: Lakehouse, lake: Snowmelt, in_los_angeles: SparkSession
) -> None:
    lakehouse.create()
    lake.sql("CREATE TABLE demo.public.clocks (at TIMESTAMP_NTZ)")
    register(in_los_angeles)
    expected = list(map(dt.datetime.fromisoformat, CLOCKS))
    for kind in ("", "TIMESTAMP_NTZ"):
        values = ", ".join(f"({kind}'{text}')" for text in CLOCKS)
        lake.sql(f"INSERT INTO demo.public.clocks VALUES {values}")
    for frame in (
        in_los_angeles.createDataFrame([(text,) for text in CLOCKS], "at string"),
        in_los_angeles.createDataFrame([(at,) for at in expected], "at timestamp_ntz"),
    ):
        writer = frame.write.format("snowmelt").mode("append")
        writer.option("data_dir", str(lakehouse.folder)).option(
            "table", "demo.public.clocks"
        ).save()
    assert micros(lake, in_los_angeles, "demo.public.clocks", "at") == sorted(expected * 4)


def test_values_without_a_zone_take_that_of_the_session(
    lakehouse: Lakehouse, lake: Snowmelt, in_los_angeles: SparkSession
) -> None:
    lakehouse.create()
    lake.sql("CREATE TABLE demo.public.zoned (a TIMESTAMP_LTZ, b TIMESTAMP_LTZ, c TIMESTAMP_LTZ)")
    register(in_los_angeles)
    noon = "2024-07-01 12:00:00"
    lake.sql(
        f"INSERT INTO demo.public.zoned VALUES ('{noon}', TIMESTAMP_NTZ'{noon}', TIMESTAMP'{noon}')"
    )
    frame = in_los_angeles.createDataFrame([(noon, noon, noon)], "a string, b string, c string")
    writer = frame.write.format("snowmelt").mode("append")
    writer.option("data_dir", str(lakehouse.folder)).option("table", "demo.public.zoned").save()
    stored = micros(lake, in_los_angeles, "demo.public.zoned", "array(a, b, c)")
    assert stored == [[dt.datetime(2024, 7, 1, 19)] * 3] * 2


def test_insert_reads_what_people_write_as_dates(lakehouse: Lakehouse, lake: Snowmelt) -> None:
    lakehouse.create()
    lake.sql("CREATE TABLE demo.public.dates (d DATE, at TIMESTAMP_NTZ)")
    lake.sql(
        "INSERT INTO demo.public.dates VALUES ('01/02/2024', '01/02/2024 03:04:05'), "
        "('02-Jan-2024', 'Tue, 02 Jan 2024 03:04:05 +0000'), "
        "('1704153600', '1704164645'), ('2024-01-02', '2024-01-02T03:04:05')"
    )
    found = {tuple(row) for row in lake.sql("SELECT d, at FROM demo.public.dates").collect()}
    assert found == {(dt.date(2024, 1, 2), dt.datetime(2024, 1, 2, 3, 4, 5))}
    with pytest.raises(SnowmeltError, match="Ambiguous digits"):
        lake.sql("INSERT INTO demo.public.dates (d) VALUES ('20240102')")


def test_conditions_find_days_that_the_julian_calendar_lacks(
    lakehouse: Lakehouse, lake: Snowmelt
) -> None:
    lakehouse.create()
    lake.sql("CREATE TABLE demo.public.days (d DATE, at TIMESTAMP_LTZ)")
    lake.sql("INSERT INTO demo.public.days VALUES ('1582-10-10', '1582-10-10 01:02:03')")
    assert lake.explain_files("SELECT d FROM demo.public.days")[0].native_files == 1
    conditions = (
        "d = DATE'1582-10-10'",
        "d IN (DATE'1582-10-10', DATE'1600-01-01')",
        "at >= TIMESTAMP_LTZ'1582-10-10 01:02:03Z'",
        "at = TIMESTAMP_LTZ'1582-10-10 01:02:03Z'",
    )
    parts = [f"SELECT d FROM demo.public.days WHERE {each}" for each in conditions]
    assert len(lake.sql(" UNION ALL ".join(parts)).collect()) == len(conditions)
