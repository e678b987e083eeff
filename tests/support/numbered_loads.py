"""Loads of numbers into the lakehouse's table, from fictitious input files."""

from __future__ import annotations

from typing import Any

from fixtures.chunks import Lakehouse
from snowmelt.catalog.jobs.load_history import LoadFileRecord, LoadFileState, LoadTotals
from snowmelt.schema.iceberg_table_form import native_schema, to_native_table
from snowmelt.schema.types import TableName, TableSchema
from snowmelt.table.load_commit import LoadRequest, LoadResult, OpenLoad, begin_load, commit_load
from snowmelt.table.native_file_writer import NativeWriter, WrittenFile
from snowmelt.table.rejects import RejectedRow, RejectOrigin, to_reject_table

from fixtures.chunks import COLUMNS, NUMBERS, ROLE, numbers  # isort: skip


def begin(
    house: Lakehouse,
    name: TableName = NUMBERS,
    *,
    rejects: TableName | None = None,
    stream: str | None = None,
    lease_s: float = 60.0,
) -> OpenLoad:
    """Start a load."""
    return begin_load(
        house.database,
        LoadRequest(name, "COPY …", ROLE, rejects, stream),
        warehouse_url=house.warehouse.url,
        clock=house.clock,
        lease_s=lease_s,
    )


def written(house: Lakehouse, load: OpenLoad, start: int, count: int) -> WrittenFile:
    """Write numbers to one file of a load, in row groups of ten."""
    schema = TableSchema(1, COLUMNS)
    writer = NativeWriter(
        house.warehouse.store, f"{load.folder}/{start}.parquet", native_schema(schema)
    )
    rows = to_native_table(numbers(start, count), schema)
    for at in range(0, count, 10):
        writer.write_row_group(rows.slice(at, 10))
    return writer.finish()


def rejected(house: Lakehouse, load: OpenLoad, *texts: bytes) -> WrittenFile:
    """Write rejects of a load to one file."""
    rows = to_reject_table(
        RejectOrigin(load.load_id, "node", "some.csv", 0),
        [RejectedRow(number, 0, text, "bad") for number, text in enumerate(texts, 1)],
    )
    writer = NativeWriter(
        house.warehouse.store, f"{load.reject_folder}/rejects.parquet", rows.schema
    )
    writer.write_row_group(rows)
    return writer.finish()


def result(
    files: list[WrittenFile], *paths: str, offsets: list[Any] | tuple[()] = (), force: bool = False
) -> LoadResult:
    """Return the result of a load with inputs of these paths."""
    rows = sum(file.rows for file in files)
    inputs = [
        LoadFileRecord(number, path, 10, "tag", LoadFileState.LOADED, rows, 0, 10)
        for number, path in enumerate(paths)
    ]
    return LoadResult(files, inputs, LoadTotals(len(paths), rows, 0, 10), offsets, force)


def load_numbers(
    house: Lakehouse, start: int, count: int, *paths: str, name: TableName = NUMBERS
) -> OpenLoad:
    """Load numbers in one load. Return the load."""
    load = begin(house, name)
    files = [written(house, load, start, count)]
    commit_load(house.database, load, result(files, *paths), clock=house.clock)
    return load
