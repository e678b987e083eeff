"""What Spark does with a stream's writer: tasks write by one, the commit is another's, made later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from pyspark.sql.types import DecimalType, StructField, StructType

from fixtures.chunks import Lakehouse, numbers
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.errors import LoadOvertaken
from snowmelt.spark.datasource.catalog_connection import LakeConnection
from snowmelt.spark.datasource.writer import TableStreamWriter, WriteTaskMessage

SCHEMA = StructType([StructField("N", DecimalType(18, 0))])


@pytest.fixture
def writer(numbers_table: Lakehouse) -> Callable[[], TableStreamWriter]:
    """Makes a writer as each of Spark's processes does."""
    lake = LakeConnection(
        catalog=numbers_table.database.url,
        stage=numbers_table.stage.url,
        warehouse=numbers_table.warehouse.url,
        keys=numbers_table.folder / "keys",
    )
    return lambda: TableStreamWriter(
        lake, {"table": "demo.public.numbers"}, SCHEMA, overwrite=False
    )


def written(by: TableStreamWriter) -> WriteTaskMessage:
    [batch] = numbers(0, 10).select(["N"]).to_batches()
    # Which query it is Spark tells its tasks only.
    return replace(by.write(iter([batch])), query_id="some query")


def test_rows_written_for_a_table_that_was_dropped_are_not_committed_to_the_next(
    numbers_table: Lakehouse, writer: Callable[[], TableStreamWriter]
) -> None:
    outcome = written(writer())
    numbers_table.create(replace=True)
    with pytest.raises(LoadOvertaken, match="dropped"):
        writer().commit([outcome], 0)
    assert numbers_table.read_numbers() == []
    writer().commit([written(writer())], 0)
    assert sorted(numbers_table.read_numbers()) == list(range(10))


def test_rows_written_before_the_table_was_altered_are_committed_as_what_they_are(
    numbers_table: Lakehouse, writer: Callable[[], TableStreamWriter]
) -> None:
    outcome = written(writer())
    execute_statement(
        numbers_table.database, "ALTER TABLE demo.public.numbers ADD COLUMN later INT"
    )
    for _ in range(2):
        writer().commit([outcome], 0)
    assert sorted(numbers_table.read_numbers()) == list(range(10))
