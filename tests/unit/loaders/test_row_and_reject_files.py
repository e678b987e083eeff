"""Rows and rejects into native files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from snowmelt.load.copy_ast import RejectOptions
from snowmelt.load.phase_protocols import ParseReject
from snowmelt.loaders import row_and_reject_files
from snowmelt.loaders.load_task_execution import PortionResult
from snowmelt.loaders.reject_publisher import renumber_reject_files, write_reject_files
from snowmelt.loaders.row_and_reject_files import (
    FileSpool,
    RejectSpool,
    RowSpool,
    open_reject_spool,
)
from snowmelt.schema.iceberg_table_form import native_schema
from snowmelt.schema.types import Column, LogicalType, TableSchema
from snowmelt.table.rejects import RejectOrigin
from support.native_bounds import find_bounds

SCHEMA = TableSchema(
    1,
    (Column("D", LogicalType.DATE, 1), Column("T", LogicalType.TEXT, 2, length=9, byte_length=36)),
)


def rows(days: list[Any], texts: list[Any]) -> Any:
    schema = native_schema(SCHEMA)
    return pa.table([pa.array(days, pa.date32()), pa.array(texts, pa.string())], schema=schema)


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    return str(tmp_path / "warehouse")


def made(warehouse: str, prefix: str = "0", schema: TableSchema = SCHEMA) -> FileSpool:
    return FileSpool(warehouse, "t/data/load", prefix, native_schema(schema))


def test_row_groups_have_the_bounds_of_the_whole(
    warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_and_reject_files, "_GROUP_ROWS", 2)
    found = RowSpool(made(warehouse), SCHEMA, ("T",))
    parts = [
        rows([3, None], ["b", None]),
        rows([None, None], [None, None]),
        rows([9, 1], ["c", "a"]),
    ]
    for part in parts:
        assert found.add(part)
    [file] = found.finish()
    whole = pa.concat_tables(parts)
    assert file.rows == 6
    assert file.bounds == {
        1: find_bounds(whole["D"]),
        2: find_bounds(whole["T"]),
    }
    read = pq.ParquetFile(f"{warehouse}/{file.path}")
    assert read.metadata.num_row_groups == 3
    # Sorted as far as a row group goes, NULL last.
    assert read.read()["T"].to_pylist() == ["b", None, None, None, "a", "c"]
    assert file.split_offsets[0] == 4


def test_a_file_ends_when_it_is_large_enough(
    warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_and_reject_files, "_FILE_BYTES", 1)
    files = made(warehouse)
    files.write(rows([1], ["a"]))
    files.write(rows([2], ["b"]))
    files.write(rows([], []))
    assert [file.rows for file in files.finish()] == [1, 1]
    assert made(warehouse).finish() == ()


def test_an_aborted_file_was_never_there(warehouse: str, tmp_path: Path) -> None:
    files = made(warehouse)
    files.write(rows([1], ["a"]))
    files.abort_current_file()
    assert [path for path in (tmp_path / "warehouse").rglob("*") if path.is_file()] == []


def test_rejects_of_later_portions_are_numbered_anew(warehouse: str, tmp_path: Path) -> None:
    portions = []
    for number, rejected in enumerate(
        ([ParseReject(2, 5, b"x", "bad", "D")], [ParseReject(1, 0, b"\xfe", "worse")])
    ):
        files = open_reject_spool(warehouse, "t/data/load", str(number))
        found = RejectSpool(files, RejectOrigin("0" * 32, "node", "a.csv", number))
        found.add(rejected, lambda record: None)
        portions.append(PortionResult(number, reject_files=found.finish()))
    numbered = renumber_reject_files(
        portions, {0: 1, 1: 8}, warehouse_url=warehouse, folder="t/data/load"
    )
    data, reasons = tmp_path / "data", tmp_path / "reasons"
    write_reject_files(
        numbered, warehouse_url=warehouse, options=RejectOptions(str(data), str(reasons))
    )
    assert data.read_bytes() == b"x\n\xfe\n"
    assert reasons.read_text() == (
        "COPY: Record 2 of a.csv was rejected: bad\nCOPY: Record 8 of a.csv was rejected: worse\n"
    )
    unknown = renumber_reject_files(portions, {}, warehouse_url=warehouse, folder="t/data/load")
    read = [pq.read_table(f"{warehouse}/{file.path}") for file in unknown]
    assert [table["ROW_NUMBER"].to_pylist() for table in read] == [[None], [None]]
