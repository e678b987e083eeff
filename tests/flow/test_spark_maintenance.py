"""Spark reads compacted files, including files of older columns, and the maintenance history."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from fixtures.chunks import NUMBERS, Lakehouse
from snowmelt import failpoints
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.failpoints import Failpoint
from snowmelt.schema.chunk_types import chunk_arrow_schema
from snowmelt.schema.types import Column, LogicalType
from snowmelt.spark import Snowmelt
from snowmelt.table.compaction import compact
from snowmelt.table.file_replacement_run import MaintenanceSettings
from snowmelt.table.table_reader import read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


COLUMNS = (
    Column("ID", LogicalType.FIXED, 1, nullable=False, precision=5, scale=0),
    Column("COST", LogicalType.FIXED, 2, precision=12, scale=2),
    Column("WORD", LogicalType.TEXT, 3, length=10, byte_length=40),
    Column("GONE", LogicalType.REAL, 4),
)
TABLE = "demo.public.numbers"


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


def put(house: Lakehouse, **values: object) -> None:
    """Register one row for the table's current columns, and migrate it."""
    schema = chunk_arrow_schema(house.table().schema)
    arrays = [pa.array([values.get(field.name)], field.type) for field in schema]
    house.put(pa.table(arrays, schema=schema))
    house.migrate()


def alter(house: Lakehouse, change: str) -> None:
    execute_statement(house.database, f"ALTER TABLE {TABLE} {change}", user=None, clock=house.clock)


@pytest.fixture
def altered(lakehouse: Lakehouse) -> Lakehouse:
    """Two rows of old columns and one of new ones, compacted while another column was added."""
    lakehouse.create(columns=COLUMNS)
    put(lakehouse, ID=Decimal(1), COST=Decimal("1.25"), WORD="old", GONE=1.0)
    put(lakehouse, ID=Decimal(2), COST=Decimal("2.50"), WORD="old", GONE=None)
    alter(lakehouse, "ALTER COLUMN id TYPE NUMBER(12)")
    alter(lakehouse, "DROP COLUMN gone")
    alter(lakehouse, "RENAME COLUMN word TO name")
    alter(lakehouse, "ADD COLUMN gone VARCHAR")
    put(lakehouse, ID=Decimal(10**11), COST=Decimal("3.75"), NAME="new", GONE="here")
    failpoints.arm(
        Failpoint.COMPACTION_WRITTEN, lambda: alter(lakehouse, "ADD COLUMN late BOOLEAN")
    )
    settings = MaintenanceSettings(lakehouse.warehouse.url, min_files=2)
    done = compact(lakehouse.database, NUMBERS, settings, clock=lakehouse.clock)
    assert done is not None
    assert (done.rows, done.files_before, done.files_after) == (3, 3, 1)
    return lakehouse


def test_files_of_older_columns_are_joined_as_rows_of_the_table_as_it_is(
    altered: Lakehouse,
) -> None:
    put(altered, ID=Decimal(4), LATE=True)
    rows = read_table(altered.database, altered.keyring, altered.stage, NUMBERS)
    found = {int(row["ID"]): row for row in rows.to_pylist()}
    assert sorted(found) == [1, 2, 4, 10**11]
    assert [found[key]["NAME"] for key in (1, 2, 10**11)] == ["old", "old", "new"]
    assert [found[key]["GONE"] for key in (1, 2, 10**11)] == [None, None, "here"]
    assert [found[key]["LATE"] for key in (1, 4)] == [None, True]


@pytest.mark.spark
def test_spark_reads_joined_files_and_the_history_tells_of_them(
    altered: Lakehouse, spark: SparkSession, tmp_path: Path
) -> None:
    with Snowmelt.local(tmp_path, spark=spark, create=True) as lake:
        rows = lake.sql(f"SELECT id, cost, name, gone, late FROM {TABLE} ORDER BY id").collect()
        assert [tuple(row) for row in rows] == [
            (1, Decimal("1.25"), "old", None, None),
            (2, Decimal("2.50"), "old", None, None),
            (10**11, Decimal("3.75"), "new", "here", None),
        ]
        [run] = lake.sql(
            "SELECT kind, state, num_rows, files_before, files_after, table_name "
            "FROM ACCOUNT_USAGE.MAINTENANCE_HISTORY"
        ).collect()
    assert tuple(run) == ("compaction", "committed", 3, 3, 1, "NUMBERS")
