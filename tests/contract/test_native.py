"""Native tables are Iceberg tables with our field ids, which other engines read as they are."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable

from fixtures.chunks import Lakehouse
from snowmelt.errors import CommitLost, TableInconsistent
from snowmelt.schema.chunk_types import FIELD_ID, chunk_arrow_schema
from snowmelt.schema.iceberg_table_form import native_schema
from snowmelt.schema.types import Column, LogicalType, TableName, TableSchema
from snowmelt.table.iceberg import (
    IcebergAppend,
    IcebergSummary,
    commit_append,
    list_native_files,
    load_native_table,
    to_iceberg_schema,
)
from snowmelt.table.native_file_writer import write_native_file
from snowmelt.table.snapshot import take_snapshots
from snowmelt.table.warehouse_paths import open_warehouse
from support.chunk_data import chunk_column, every_type

TYPES = TableName("DEMO", "PUBLIC", "TYPES")
COLUMNS = (
    Column("ID", LogicalType.FIXED, 1, nullable=False, precision=38, scale=0),
    Column("AMOUNT", LogicalType.FIXED, 2, precision=12, scale=2),
    Column("REAL", LogicalType.REAL, 3),
    Column("FLAG", LogicalType.BOOLEAN, 4),
    Column("WORD", LogicalType.TEXT, 5, length=100, byte_length=400),
    Column("BYTES", LogicalType.BINARY, 6, byte_length=100),
    Column("DAY", LogicalType.DATE, 7),
    Column("AT", LogicalType.TIME, 8, scale=9),
    Column("NTZ", LogicalType.TIMESTAMP_NTZ, 9, scale=9),
    Column("LTZ", LogicalType.TIMESTAMP_LTZ, 10, scale=6),
    Column("TZ", LogicalType.TIMESTAMP_TZ, 12, scale=9),
    Column("any thing", LogicalType.VARIANT, 13),
)
STORED: dict[str, list[Any]] = {
    "ID": [10**37, -1, 3],
    "AMOUNT": [150, None, -1],
    "REAL": [1.5, None, math.inf],
    "FLAG": [True, None, False],
    "WORD": ["é" * 40, None, ""],
    "BYTES": [b"\xff\xfe", None, b""],
    "DAY": [19000, None, -719162],
    "AT": [3_600_000_000_007, None, 0],
    "NTZ": [1_000_000_001, None, -1],
    "LTZ": [1_000_001, None, -1],
    "TZ": [(1_000_000_001 << 14) + 1440 + 60, None, (-1 << 14) + 1440],
    "any thing": ['{"a":1}', None, "[]"],
}


def rows() -> pa.Table:
    schema = TableSchema(1, COLUMNS)
    arrays = [chunk_column(column, STORED[column.name]) for column in COLUMNS]
    return pa.Table.from_arrays(arrays, schema=chunk_arrow_schema(schema))


@pytest.fixture
def migrated(lakehouse: Lakehouse) -> Lakehouse:
    """A table of every kind whose rows are native."""
    lakehouse.create(TYPES, COLUMNS)
    lakehouse.put(rows(), TYPES)
    lakehouse.migrate(TYPES)
    return lakehouse


def pointer(lakehouse: Lakehouse) -> str:
    return cast("str", lakehouse.table(TYPES).pointer)


def test_native_rows_are_the_rows_of_the_chunks(lakehouse: Lakehouse) -> None:
    lakehouse.create(TYPES, COLUMNS)
    lakehouse.put(rows(), TYPES)
    before = lakehouse.read(TYPES)
    lakehouse.migrate(TYPES)
    assert lakehouse.read(TYPES).equals(before)
    assert lakehouse.read(TYPES, ["WORD", "TZ"]).column_names == ["WORD", "TZ", "TZ$ns", "TZ$tz"]
    assert lakehouse.read(TYPES, []).num_rows == 3


def test_pyiceberg_reads_native_rows(migrated: Lakehouse) -> None:
    found = StaticTable.from_metadata(pointer(migrated)).scan().to_arrow()
    ours = migrated.read(TYPES)
    assert found.column_names == ours.column_names
    assert found.cast(pa.schema(ours.schema)).to_pylist() == ours.to_pylist()


def test_pyiceberg_prunes_by_our_bounds(migrated: Lakehouse) -> None:
    table = StaticTable.from_metadata(pointer(migrated))
    assert len(list(table.scan(row_filter="WORD >= 'é'").plan_files())) == 1
    assert list(table.scan(row_filter="WORD > 'f' and WORD < 'g'").plan_files()) != []
    assert list(table.scan(row_filter="DAY > '2100-01-01'").plan_files()) == []
    assert list(table.scan(row_filter="NTZ > '2000-01-01T00:00:00'").plan_files()) == []


@pytest.mark.filterwarnings("ignore:Iceberg scan planning")
def test_polars_reads_native_rows(migrated: Lakehouse) -> None:
    found = pl.scan_iceberg(pointer(migrated)).collect()
    ours = migrated.read(TYPES)
    assert found.height == 3
    for name in ("ID", "AMOUNT", "WORD", "BYTES", "DAY", "NTZ", "TZ$tz", "any thing"):
        assert found[name].to_list() == ours[name].to_pylist(), name


def test_duckdb_reads_native_files(migrated: Lakehouse) -> None:
    [snapshot] = take_snapshots(migrated.database, [TYPES], clock=migrated.clock)
    paths = [file.path.removeprefix("file://") for file in snapshot.list_native_files()]
    found = duckdb.read_parquet(paths).order("ID").fetchall()
    ours = sorted(migrated.read(TYPES).to_pylist(), key=lambda row: row["ID"])
    assert [int(row[0]) for row in found] == [int(row["ID"]) for row in ours]
    assert [row[1:7] for row in found] == [tuple(row.values())[1:7] for row in ours]


def test_every_native_column_carries_its_field_id(migrated: Lakehouse) -> None:
    [snapshot] = take_snapshots(migrated.database, [TYPES], clock=migrated.clock)
    [file] = snapshot.list_native_files()
    fields = pq.ParquetFile(file.path.removeprefix("file://")).schema_arrow
    ids = [int(field.metadata[FIELD_ID]) for field in fields]
    assert ids == [
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        1_000_008,
        9,
        1_000_009,
        10,
        12,
        1_000_012,
        2_000_012,
        13,
    ]
    assert snapshot.native is not None
    assert [field.field_id for field in snapshot.native.metadata.schema().fields] == ids
    assert sorted(file.nulls) == sorted(ids)


def test_every_type_has_an_iceberg_type() -> None:
    schema = every_type()
    assert len(to_iceberg_schema(schema).fields) == len(native_schema(schema))


class Pointers:
    """A pointer that commits swap, and what they need."""

    def __init__(self, folder: Path) -> None:
        self.warehouse = open_warehouse(str(folder / "ware house"))
        self.incarnation = uuid.uuid4().hex
        self.folder = f"D/S/T/{self.incarnation}"
        self.native: Any = None

    def append(self, watermark: int, **changes: Any) -> IcebergAppend:
        schema = TableSchema(1, (COLUMNS[0],))
        run_id = str(uuid.uuid4())
        rows = pa.table(
            [pa.array([Decimal(1)], pa.decimal128(38, 0))], schema=native_schema(schema)
        )
        file = write_native_file(
            self.warehouse.store, f"{self.folder}/data/{run_id}/0.parquet", rows
        )
        total = 1 + (self.native.facts.total_rows if self.native else 0)
        facts = IcebergSummary(self.incarnation, watermark, run_id, watermark, 1, total, "x")
        base = changes.pop("base", self.native)
        return IcebergAppend(
            self.warehouse, self.folder, base, schema, [file], facts, 1000, **changes
        )

    def commit(self, append: IcebergAppend) -> None:
        commit_append(append, lambda location, _: self.accept(location))

    def accept(self, location: str) -> None:
        self.native = load_native_table(location, self.incarnation)


def test_facts_are_in_properties_and_summary_of_the_same_commit(tmp_path: Path) -> None:
    table = Pointers(tmp_path)
    table.commit(table.append(5))
    metadata = table.native.metadata
    summary = metadata.current_snapshot().summary.additional_properties
    for name, value in table.native.facts.to_properties().items():
        assert metadata.properties[name] == summary[name] == value
    assert metadata.properties["commit.retry.num-retries"] == "0"


def test_a_lost_swap_is_not_tried_again(tmp_path: Path) -> None:
    table = Pointers(tmp_path)
    table.commit(table.append(1))
    tries = []

    def lose(location: str, _: int) -> None:
        tries.append(location)
        raise CommitLost(table="T", reason="test")

    with pytest.raises(CommitLost):
        commit_append(table.append(2), lose)
    assert len(tries) == 1
    assert len(list_native_files(table.native)) == 1


def test_metadata_of_another_incarnation_is_refused(tmp_path: Path) -> None:
    table = Pointers(tmp_path)
    table.commit(table.append(1))
    with pytest.raises(TableInconsistent, match="incarnation"):
        load_native_table(table.native.location, uuid.uuid4().hex)


def rewritten(table: Pointers, change: Callable[[Any], Any] | Callable[[Any], None]) -> str:
    """Write the metadata anew with a change, as another tool might."""
    path = table.warehouse.to_path(table.native.location)
    metadata = json.loads(table.warehouse.store.get(path))
    change(metadata)
    other = path.replace(".metadata.json", "-x.metadata.json")
    table.warehouse.store.put(other, json.dumps(metadata).encode())
    return table.warehouse.to_address(other)


def test_a_missing_watermark_is_never_zero(tmp_path: Path) -> None:
    table = Pointers(tmp_path)
    table.commit(table.append(1))
    location = rewritten(table, lambda metadata: metadata["properties"].pop("snowmelt.watermark"))
    with pytest.raises(TableInconsistent, match="watermark"):
        load_native_table(location, table.incarnation)


def test_a_watermark_that_a_rollback_has_left_behind_is_refused(tmp_path: Path) -> None:
    table = Pointers(tmp_path)
    table.commit(table.append(1))
    table.commit(table.append(2))

    def roll_back(metadata: Any) -> None:
        first = metadata["snapshots"][0]["snapshot-id"]
        metadata["current-snapshot-id"] = first
        metadata["refs"]["main"]["snapshot-id"] = first

    location = rewritten(table, roll_back)
    with pytest.raises(TableInconsistent, match="watermark 2"):
        load_native_table(location, table.incarnation)


def test_a_clock_that_goes_back_does_not_take_the_history_back(tmp_path: Path) -> None:
    table = Pointers(tmp_path)
    table.commit(table.append(1))
    table.commit(dataclasses.replace(table.append(2), now_ms=5))
    times = [entry.timestamp_ms for entry in table.native.metadata.snapshot_log]
    assert times == sorted(times)
    assert dt.datetime.fromtimestamp(times[-1] / 1000, dt.UTC).year == 1970


def test_a_new_version_of_the_columns_comes_with_the_next_commit(tmp_path: Path) -> None:
    table = Pointers(tmp_path)
    table.commit(table.append(1))
    wider = TableSchema(2, (COLUMNS[0], COLUMNS[8]))
    table.commit(dataclasses.replace(table.append(2), schema=wider))
    metadata = table.native.metadata
    assert [schema.schema_id for schema in metadata.schemas] == [1, 2]
    assert metadata.current_schema_id == 2
    found = StaticTable.from_metadata(table.native.location).scan().to_arrow()
    assert found.column_names == ["ID", "NTZ", "NTZ$ns"]
