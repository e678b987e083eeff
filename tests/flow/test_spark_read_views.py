"""History views and INFORMATION_SCHEMA, restricted to objects visible to the role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fixtures.chunks import Lakehouse, numbers
from snowmelt.errors import DatabaseNotFound
from snowmelt.spark import Snowmelt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark


def rows(lake: Snowmelt, query: str) -> list[Any]:
    return [tuple(row) for row in lake.sql(query).collect()]


def test_the_information_schema_shows_what_a_role_may_see(
    lakehouse: Lakehouse, lake: Snowmelt, spark: SparkSession
) -> None:
    lakehouse.create()
    lake.sql("CREATE TABLE demo.public.hidden (id INT NOT NULL, at TIMESTAMP_NTZ(3), t VARCHAR(5))")
    lakehouse.put(numbers(0, 3))
    lakehouse.migrate()
    lakehouse.put(numbers(3, 2))

    tables = (
        "SELECT table_name, table_type, row_count, bytes > 0 FROM demo.information_schema.tables"
    )
    assert rows(lake, tables) == [
        ("HIDDEN", "BASE TABLE", 0, False),
        ("NUMBERS", "BASE TABLE", 5, True),
    ]
    columns = (
        "SELECT column_name, ordinal_position, is_nullable, data_type, character_maximum_length, "
        "numeric_precision, numeric_scale, datetime_precision FROM demo.INFORMATION_SCHEMA.COLUMNS "
        "WHERE table_name = 'HIDDEN' ORDER BY ordinal_position"
    )
    assert rows(lake, columns) == [
        ("ID", 1, "NO", "NUMBER", None, 38, 0, None),
        ("AT", 2, "YES", "TIMESTAMP_NTZ", None, None, None, 3),
        ("T", 3, "YES", "TEXT", 5, None, None, None),
    ]
    assert rows(lake, "SELECT schema_name FROM demo.information_schema.schemata") == [("PUBLIC",)]
    short = lake.sql("SELECT database_name FROM information_schema.databases", database="demo")
    assert [tuple(row) for row in short.collect()] == [("DEMO",)]

    lake.sql("CREATE ROLE reader")
    with pytest.raises(DatabaseNotFound):
        seen_by(lakehouse, spark).sql("SELECT * FROM demo.information_schema.tables")
    lake.sql("GRANT USAGE ON DATABASE demo TO ROLE reader")
    lake.sql("GRANT USAGE ON SCHEMA demo.public TO ROLE reader")
    lake.sql("GRANT SELECT ON TABLE demo.public.numbers TO ROLE reader")
    seen = "SELECT table_name FROM demo.information_schema.tables"
    assert rows(seen_by(lakehouse, spark), seen) == [("NUMBERS",)]


def test_the_history_of_channels_names_who_opened_them(
    lakehouse: Lakehouse, lake: Snowmelt, spark: SparkSession
) -> None:
    lakehouse.create()
    lakehouse.put(numbers(0, 3), channel="first")
    view = "SELECT table_name, channel_name, event_type, user_name FROM {}SNOWPIPE_STREAMING_CHANNEL_HISTORY"
    assert rows(lake, view.format("")) == [("NUMBERS", "first", "opened", "LOADER")]
    assert len(rows(lake, view.format("snowmelt.account_usage."))) == 1
    lake.sql("CREATE ROLE reader")
    assert rows(seen_by(lakehouse, spark), view.format("account_usage.")) == []


def test_partitions_of_kafka_have_their_lag(
    lakehouse: Lakehouse, lake: Snowmelt, spark: SparkSession
) -> None:
    lakehouse.create()
    for channel, token in (
        ("clicks:P0", "41"),
        ("clicks:P0:end", "50"),
        ("clicks:P1:end", "7"),
        ("clicks:source", "cluster=a topic=b"),
        ("logs:P0", "3"),
    ):
        lakehouse.put(numbers(0, 1), channel=channel, token=token)
    view = (
        "SELECT table_name, topic, partition, committed_offset, end_offset, lag,"
        " last_commit_on IS NULL FROM demo.information_schema.kafka_partitions ORDER BY partition"
    )
    assert rows(lake, view) == [
        ("NUMBERS", "clicks", 0, 41, 50, 8, False),
        ("NUMBERS", "clicks", 1, None, 7, 7, True),
    ]
    lake.sql("CREATE ROLE reader")
    lake.sql("GRANT USAGE ON DATABASE demo TO ROLE reader")
    lake.sql("GRANT USAGE ON SCHEMA demo.public TO ROLE reader")
    lake.sql("GRANT INSERT ON TABLE demo.public.numbers TO ROLE reader")
    assert rows(seen_by(lakehouse, spark), view) == []


def seen_by(lakehouse: Lakehouse, spark: SparkSession, role: str = "READER") -> Snowmelt:
    return Snowmelt(
        spark,
        catalog=lakehouse.database,
        stage=lakehouse.stage.url,
        warehouse=lakehouse.warehouse.url,
        keys=lakehouse.keyring,
        role=role,
    )
