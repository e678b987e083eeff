"""Native tables in a bucket, and PyIceberg's access to them."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import DecimalType, StructField, StructType

from fixtures.chunks import NUMBERS, Lakehouse
from fixtures.s3 import Seaweed
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.clock import ManualClock
from snowmelt.errors import AlreadyExists
from snowmelt.spark.tables.partition import ReadShape, plan_partitions, read_partition
from snowmelt.table.compaction import compact
from snowmelt.table.file_io import StoreFileIO, make_file_io
from snowmelt.table.file_replacement_run import MaintenanceSettings
from snowmelt.table.fresh_files import describe_fresh_file
from snowmelt.table.iceberg import list_native_files, load_native_table
from snowmelt.table.native_file import is_local_location
from snowmelt.table.pruning import Comparison, prune_files
from snowmelt.table.snapshot import take_snapshots
from snowmelt.table.warehouse_paths import open_cached_store, open_warehouse
from support.published_tables import PublishedLakehouse

pytestmark = pytest.mark.slow


@pytest.fixture
def place(seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A new address in a bucket for the test."""
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    yield f"s3://behind/warehouse-{uuid.uuid4().hex[:8]}"
    open_cached_store.cache_clear()


def test_only_what_is_not_on_a_disk_goes_through_our_stores(place: str) -> None:
    assert isinstance(make_file_io(place), StoreFileIO)
    for address in ("file:///a/b", "/a/b"):
        assert is_local_location(address)
        assert not isinstance(make_file_io(address), StoreFileIO)


def test_a_file_is_written_whole_or_not_at_all(place: str) -> None:
    files = StoreFileIO()
    output = files.new_output(place)
    with output.create() as stream:
        stream.write(b"first")
        assert not output.exists()
    assert (len(output), output.to_input_file().open().read()) == (5, b"first")
    with pytest.raises(AlreadyExists), output.create() as stream:
        stream.write(b"second")
    with pytest.raises(TypeError), output.create(overwrite=True) as stream:
        stream.writelines([b"half", cast("bytes", None)])
    assert files.new_input(place).open().read() == b"first"
    with output.create(overwrite=True) as stream:
        stream.write(b"third")
    assert files.new_input(place).open().read() == b"third"
    files.delete(place)
    files.delete(output)
    assert not output.exists()
    for refused in (files.new_input(place).open, lambda: len(files.new_input(place))):
        with pytest.raises(FileNotFoundError):
            refused()


def test_a_large_file_is_read_in_parts(place: str) -> None:
    table = pa.table({"n": range(2_000_000)})
    with StoreFileIO().new_output(place).create() as stream:
        pq.write_table(table, stream, compression="none", use_dictionary=False)
    opened = StoreFileIO().new_input(place).open()
    assert isinstance(opened, io.BufferedReader)
    assert pq.read_table(opened).equals(table)


def test_a_native_table_lives_in_a_bucket(place: str, numbers_table: Lakehouse) -> None:
    house = numbers_table
    house.warehouse = open_warehouse(place)
    for first in (0, 50, 100):
        house.put_numbers(first, 50)
        house.migrate()
    assert cast("str", house.table(NUMBERS).pointer).startswith(place)
    assert sorted(house.read_numbers()) == list(range(150))
    settings = MaintenanceSettings(place, min_files=2)
    assert compact(house.database, NUMBERS, settings, clock=house.clock) is not None
    assert (
        len(list_native_files(load_native_table(house.table().pointer, house.table().incarnation)))
        == 1
    )
    assert sorted(house.read_numbers()) == list(range(150))


def test_a_partition_of_fresh_files_in_a_bucket(place: str, tmp_path: Path) -> None:
    """Spark reads files through this source if it has no file system for the bucket."""
    clock = ManualClock(dt.datetime.now(dt.UTC))
    with contextlib.closing(PublishedLakehouse(tmp_path, clock)) as house:
        house.warehouse = open_warehouse(place)
        house.start_publisher()
        house.create()
        house.put_numbers(0, 10)
        house.migrate()
        for first in (10, 20):
            house.put_numbers(first, 10)
            house.publish()
        change = f"ALTER TABLE {NUMBERS} ALTER COLUMN n SET DATA TYPE NUMBER(30,0)"
        execute_statement(house.database, change, clock=house.clock)
        [snapshot] = take_snapshots(
            house.database, [NUMBERS], clock=house.clock, with_fresh_files=True
        )
        schema = snapshot.table.schema
        files = snapshot.list_native_files()
        files += [describe_fresh_file(file, house.warehouse) for file in snapshot.fresh]
        assert [file.path.startswith(place) for file in files] == [True] * 3
        kept = prune_files(files, schema, [Comparison("N", ">=", 15)])
        shape = ReadShape(str(NUMBERS), schema, ("N",), ("N",), (), snapshot.deadline)
        fields = StructType([StructField("N", DecimalType(30, 0))])
        batches = [
            batch
            for partition in plan_partitions(shape, kept, (), cores=2)
            for batch in read_partition(partition, fields)
        ]
        found = pa.Table.from_batches(batches)["N"].to_pylist()
        assert sorted(map(int, found)) == list(range(10, 30))
