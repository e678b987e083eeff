"""Chunks and native files of older columns are read as the table is now, by field id."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable

from fixtures.chunks import COLUMNS, NUMBERS, Lakehouse, numbers
from snowmelt.blob.chunk_table_reader import read_chunk
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.schema.chunk_types import chunk_arrow_schema
from snowmelt.schema.types import Column, LogicalType, TableName, TableSchema
from snowmelt.table.pruning import Comparison, IsNull, prune_chunks, prune_files
from snowmelt.table.snapshot import take_snapshots


def alter(house: Lakehouse, *changes: str, name: str = "demo.public.numbers") -> None:
    for change in changes:
        execute_statement(house.database, f"ALTER TABLE {name} {change}", clock=house.clock)


def put(house: Lakehouse, **values: list[object]) -> None:
    """Register rows for the table's columns as they are now."""
    schema = chunk_arrow_schema(house.table().schema)
    rows = len(next(iter(values.values())))
    arrays = [pa.array(values.get(field.name, [None] * rows), field.type) for field in schema]
    house.put(pa.table(arrays, schema=schema))


@pytest.fixture(params=["chunks", "native", "both"])
def settle(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Leave rows in chunks, or migrate them: at once, or with what comes after the change."""

    def settled(house: Any, *, last: bool = False) -> None:
        if request.param == "native" or (request.param == "both" and last):
            house.migrate()

    return settled


@pytest.mark.slow
def test_an_added_column_is_null_in_older_rows(numbers_table: Lakehouse, settle: Any) -> None:
    numbers_table.put_numbers(0, 2)
    settle(numbers_table)
    alter(numbers_table, "ADD COLUMN at TIMESTAMP_TZ(9), flag BOOLEAN")
    put(numbers_table, N=[Decimal(2)], WORD=["w"], FLAG=[True])
    settle(numbers_table, last=True)
    found = numbers_table.read()
    assert found.column_names == ["N", "WORD", "AT", "AT$ns", "AT$tz", "FLAG"]
    assert sorted(zip(found["N"].to_pylist(), found["FLAG"].to_pylist(), strict=True)) == [
        (0, None),
        (1, None),
        (2, True),
    ]
    # Only columns that the older files have not got.
    assert sorted(map(str, numbers_table.read(columns=["FLAG"])["FLAG"].to_pylist())) == [
        "None",
        "None",
        "True",
    ]
    assert numbers_table.read(columns=[]).num_rows == 3


def test_a_dropped_column_is_gone_and_one_of_its_name_does_not_bring_it_back(
    numbers_table: Lakehouse, settle: Any
) -> None:
    numbers_table.put_numbers(1, 2)
    settle(numbers_table)
    alter(numbers_table, "DROP COLUMN word", "ADD COLUMN word VARCHAR")
    put(numbers_table, N=[Decimal(3)], WORD=["new"])
    settle(numbers_table, last=True)
    found = numbers_table.read()
    assert dict(zip(map(int, found["N"].to_pylist()), found["WORD"].to_pylist(), strict=True)) == {
        1: None,
        2: None,
        3: "new",
    }


def test_a_renamed_column_keeps_its_values_even_when_names_are_exchanged(
    numbers_table: Lakehouse, settle: Any
) -> None:
    numbers_table.put_numbers(1, 1)
    alter(numbers_table, "ADD COLUMN other VARCHAR")
    put(numbers_table, N=[Decimal(2)], WORD=["w"], OTHER=["o"])
    settle(numbers_table)
    alter(
        numbers_table,
        "RENAME COLUMN word TO x",
        "RENAME COLUMN other TO word",
        "RENAME COLUMN x TO other",
    )
    put(numbers_table, N=[Decimal(3)], OTHER=["third"])
    settle(numbers_table, last=True)
    rows = numbers_table.read(columns=["N", "OTHER", "WORD"]).to_pylist()
    assert sorted(rows, key=lambda row: row["N"]) == [
        {"N": 1, "OTHER": "word 1", "WORD": None},
        {"N": 2, "OTHER": "w", "WORD": "o"},
        {"N": 3, "OTHER": "third", "WORD": None},
    ]


def test_a_widened_column_holds_old_and_new_values(numbers_table: Lakehouse, settle: Any) -> None:
    numbers_table.put_numbers(7, 1)
    settle(numbers_table)
    alter(numbers_table, "ALTER COLUMN n TYPE NUMBER(38), word TYPE VARCHAR(200)")
    put(numbers_table, N=[Decimal(10**37)], WORD=["w" * 200])
    settle(numbers_table, last=True)
    found = numbers_table.read()
    assert found.schema.field("N").type == pa.decimal128(38, 0)
    assert sorted(found["N"].to_pylist()) == [7, 10**37]


@pytest.mark.slow
def test_not_null_is_lifted_for_rows_to_come(numbers_table: Lakehouse, settle: Any) -> None:
    numbers_table.put_numbers(1, 1)
    settle(numbers_table)
    alter(numbers_table, "ALTER COLUMN n DROP NOT NULL")
    put(numbers_table, N=[None], WORD=["w"])
    settle(numbers_table, last=True)
    assert sorted(map(str, numbers_table.read()["N"].to_pylist())) == ["1", "None"]


def test_no_row_is_left_out_by_statistics_of_older_columns(numbers_table: Lakehouse) -> None:
    numbers_table.put_numbers(1, 3)
    numbers_table.migrate()
    numbers_table.put_numbers(4, 3)
    alter(
        numbers_table,
        "ALTER COLUMN n TYPE NUMBER(30)",
        "RENAME COLUMN word TO text",
        "ADD COLUMN word VARCHAR",
    )
    [snapshot] = take_snapshots(numbers_table.database, [NUMBERS], clock=numbers_table.clock)
    schema, files = snapshot.table.schema, snapshot.list_native_files()

    def kept(predicate: Comparison | IsNull) -> tuple[int, int]:
        chunks = prune_chunks(snapshot.chunks, schema, snapshot.schemas, [predicate])
        return len(prune_files(files, schema, [predicate])), len(chunks)

    assert kept(IsNull("WORD")) == (1, 1)
    assert kept(Comparison("TEXT", "=", "word 2")) == (1, 0)
    assert kept(Comparison("N", "=", 5)) == (0, 1)
    assert kept(Comparison("N", "=", 10**20)) == (0, 0)


def test_open_table_metadata_follows_with_our_field_ids(numbers_table: Lakehouse) -> None:
    numbers_table.put_numbers(0, 2)
    numbers_table.migrate()
    alter(numbers_table, "RENAME COLUMN word TO text", "ADD COLUMN word DATE")
    put(numbers_table, N=[Decimal(2)], TEXT=["two"])
    numbers_table.migrate()
    pointer = numbers_table.table().pointer
    assert pointer is not None
    native = StaticTable.from_metadata(pointer)
    fields = {field.field_id: field.name for field in native.schema().fields}
    assert fields == {1: "N", 2: "TEXT", 3: "WORD"}
    assert sorted(native.schemas()) == [1, 3]
    rows = native.scan().to_arrow().to_pylist()
    assert sorted(rows, key=lambda row: row["N"]) == [
        {"N": 0, "TEXT": None, "WORD": None},
        {"N": 1, "TEXT": "word 1", "WORD": None},
        {"N": 2, "TEXT": "two", "WORD": None},
    ]


@pytest.mark.slow
def test_a_table_that_is_renamed_keeps_its_files_and_its_folder(numbers_table: Lakehouse) -> None:
    numbers_table.put_numbers(0, 2)
    numbers_table.migrate()
    before = numbers_table.data_files()
    alter(numbers_table, "RENAME TO counts")
    renamed = TableName("DEMO", "PUBLIC", "COUNTS")
    numbers_table.put(numbers(2, 2, COLUMNS), renamed)
    assert sorted(numbers_table.read_numbers(renamed)) == [0, 1, 2, 3]
    numbers_table.migrate(renamed)
    numbers_table.collect(retention_s=0)
    assert sorted(numbers_table.read_numbers(renamed)) == [0, 1, 2, 3]
    after = numbers_table.data_files()
    assert before < after
    folder = numbers_table.warehouse.table_folder(numbers_table.table(renamed))
    assert all(path.startswith(folder) for path in after)


@pytest.mark.slow
def test_a_table_that_is_renamed_before_its_first_file_keeps_its_folder(
    numbers_table: Lakehouse,
) -> None:
    """Fresh files, and files of loads that began before the rename, lie in the former folder."""
    numbers_table.put_numbers(0, 2)
    folder = numbers_table.warehouse.table_folder(numbers_table.table())
    alter(numbers_table, "RENAME TO counts")
    for statement in (
        "ALTER SCHEMA demo.public RENAME TO demo.other",
        "ALTER DATABASE demo RENAME TO later",
        "ALTER TABLE later.other.counts RENAME TO later.other.sums",
    ):
        execute_statement(numbers_table.database, statement, clock=numbers_table.clock)
    renamed = TableName("LATER", "OTHER", "SUMS")
    assert numbers_table.warehouse.table_folder(numbers_table.table(renamed)) == folder
    numbers_table.migrate(renamed)
    assert all(path.startswith(folder) for path in numbers_table.data_files())
    assert numbers_table.warehouse.table_folder(numbers_table.table(renamed)) == folder
    assert sorted(numbers_table.read_numbers(renamed)) == [0, 1]


def test_files_are_sorted_by_the_columns_of_now(numbers_table: Lakehouse) -> None:
    alter(numbers_table, "CLUSTER BY (word)")
    alter(numbers_table, "RENAME COLUMN word TO text")
    put(numbers_table, N=[Decimal(1), Decimal(2), Decimal(3)], TEXT=["b", "c", "a"])
    numbers_table.migrate()
    assert numbers_table.read()["TEXT"].to_pylist() == ["a", "b", "c"]


def test_a_chunk_with_names_alone_is_read_by_the_names_of_its_time() -> None:
    older = TableSchema(1, (Column("A", LogicalType.REAL, 1), Column("B", LogicalType.REAL, 2)))
    now = TableSchema(3, (Column("B", LogicalType.REAL, 1), Column("A", LogicalType.REAL, 3)))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"A": [1.0], "B": [2.0]}), sink)
    found = read_chunk(sink.getvalue(), now, written_schema=older)
    assert found.to_pylist() == [{"B": 1.0, "A": None}]
