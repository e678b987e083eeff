"""A chunk is read as it was registered, or not at all."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from fixtures.chunks import NUMBERS, Lakehouse
from snowmelt.catalog.security import access_control
from snowmelt.errors import BlobCorrupt, ObjectMissing, TableNotFound
from snowmelt.schema.iceberg_table_form import native_schema
from snowmelt.schema.types import TableName
from snowmelt.table.chunk_reader import ChunkReadTask, run_chunk_read_task
from snowmelt.table.snapshot import TableSnapshot, take_snapshots
from snowmelt.table.table_reader import make_chunk_read_tasks


def tasks(house: Lakehouse) -> list[ChunkReadTask]:
    [snapshot] = take_snapshots(house.database, [NUMBERS], clock=house.clock)
    schema = snapshot.table.schema
    return make_chunk_read_tasks(
        house.database, house.keyring, house.stage.url, snapshot.chunks, schema
    )


def test_a_task_needs_nothing_but_itself(numbers_table: Lakehouse) -> None:
    numbers_table.put_numbers(0, 10)
    [task] = tasks(numbers_table)
    again = pickle.loads(pickle.dumps(task))
    assert run_chunk_read_task(again, ["N"])["N"].to_pylist() == list(range(10))
    assert task.chunk_key.hex() not in repr(task)
    assert repr(task.chunk_key) not in repr(task)


def test_columns_come_in_the_order_asked_for(numbers_table: Lakehouse) -> None:
    numbers_table.put_numbers(0, 10)
    [task] = tasks(numbers_table)
    assert run_chunk_read_task(task, ["WORD", "N"]).column_names == ["WORD", "N"]
    assert run_chunk_read_task(task, []).num_rows == 10
    assert run_chunk_read_task(task).schema.equals(native_schema(task.schema), check_metadata=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: data[:-20],
        lambda data: b"",
        lambda data: bytes(len(data)),
    ],
    ids=["one bit", "cut short", "empty", "zeros"],
)
def test_a_changed_blob_is_named_and_nothing_is_read(
    numbers_table: Lakehouse, change: Callable[[Any], Any] | Callable[[Any], bytes]
) -> None:
    numbers_table.is_damaged = True
    path = numbers_table.put_numbers(0, 10)
    numbers_table.stage.put(path, change(numbers_table.stage.get(path)))
    with pytest.raises(BlobCorrupt) as caught:
        numbers_table.read()
    assert path.endswith(str(caught.value.fields["path"]))


def test_a_missing_blob_is_missing(numbers_table: Lakehouse) -> None:
    numbers_table.is_damaged = True
    numbers_table.stage.delete(numbers_table.put_numbers(0, 10))
    with pytest.raises(ObjectMissing):
        numbers_table.read()


def test_an_empty_table_has_columns_and_no_rows(numbers_table: Lakehouse) -> None:
    found = numbers_table.read()
    assert found.num_rows == 0
    assert found.column_names == ["N", "WORD"]
    assert isinstance(found, pa.Table)


def test_a_table_or_column_that_does_not_exist_is_said(numbers_table: Lakehouse) -> None:
    with pytest.raises(TableNotFound):
        numbers_table.read(TableName("DEMO", "PUBLIC", "NONE"))
    with pytest.raises(KeyError):
        numbers_table.read(columns=["NONE"])


@pytest.mark.slow
def test_a_role_reads_what_it_may_select_from(numbers_table: Lakehouse) -> None:
    numbers_table.put_numbers(0, 3)
    house = numbers_table
    with house.database.writing() as connection:
        access_control.create_role(connection, "READER", now=house.clock.now())
        table = house.table()
        access_control.grant_privilege(connection, "USAGE", "DATABASE", table.database_id, "READER")
        access_control.grant_privilege(connection, "USAGE", "SCHEMA", table.schema_id, "READER")
        access_control.grant_privilege(connection, "INSERT", "TABLE", table.table_id, "READER")

    def read() -> list[TableSnapshot]:
        return take_snapshots(house.database, [NUMBERS], clock=house.clock, role="READER")

    with pytest.raises(TableNotFound):
        read()
    with house.database.writing() as connection:
        access_control.grant_privilege(connection, "SELECT", "TABLE", table.table_id, "READER")
    assert [chunk.rows for each in read() for chunk in each.chunks] == [3]
