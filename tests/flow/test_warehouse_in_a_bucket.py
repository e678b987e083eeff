"""Native tables in a bucket, and PyIceberg's access to them."""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fixtures.chunks import NUMBERS, Lakehouse
from fixtures.s3 import Seaweed
from snowmelt.errors import AlreadyExists
from snowmelt.table.compaction import compact
from snowmelt.table.file_io import StoreFileIO, make_file_io
from snowmelt.table.file_replacement_run import MaintenanceSettings
from snowmelt.table.iceberg import list_native_files, load_native_table
from snowmelt.table.native_file import is_local_location
from snowmelt.table.warehouse_paths import open_cached_store, open_warehouse

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
