"""Rows come back in the order that Arrow gives them, whatever fits into memory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from snowmelt.schema.types import Column, LogicalType, TableSchema
from snowmelt.table.external_sort import ExternalSorter, make_sort_keys

KEYS = [("A", "ascending"), ("B", "ascending")]
ROWS = 20_000


@pytest.fixture
def rows() -> Any:
    pick = np.random.default_rng(1)
    return pa.table(
        {
            "A": pa.array(pick.integers(0, 20, ROWS), mask=pick.random(ROWS) < 0.1),
            "B": pa.array([f"word {number}" for number in pick.integers(0, 500, ROWS)]),
            "C": np.arange(ROWS),
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize("memory_bytes", [1 << 30, 1 << 20, 1 << 18])
def test_all_rows_come_once_and_in_order(
    rows: Any, memory_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sorter = ExternalSorter(rows.schema, KEYS, memory_bytes=memory_bytes)
    for start in range(0, ROWS, 700):
        sorter.add_rows(rows.slice(start, 700))
    spilled = any(Path(tmp_path).iterdir())
    assert spilled == (memory_bytes < 1 << 30)
    found = pa.concat_tables(sorter.drain_sorted_rows())
    expected = rows.take(pc.sort_indices(rows, sort_keys=KEYS))
    assert found.select(["A", "B"]).equals(expected.select(["A", "B"]))
    assert sorted(found["C"].to_pylist()) == list(range(ROWS))
    assert list(Path(tmp_path).iterdir()) == []


def test_what_was_spilled_is_deleted_when_nobody_wants_it(
    rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sorter = ExternalSorter(rows.schema, KEYS, memory_bytes=1 << 18)
    sorter.add_rows(rows)
    assert list(Path(tmp_path).iterdir()) != []
    sorter.close()
    assert list(Path(tmp_path).iterdir()) == []


def test_no_rows_are_no_rows(rows: Any) -> None:
    assert list(ExternalSorter(rows.schema, KEYS, memory_bytes=1 << 20).drain_sorted_rows()) == []


def test_companions_are_keys_and_columns_that_are_gone_are_none() -> None:
    columns = (
        Column("AT", LogicalType.TIMESTAMP_TZ, 1, scale=9),
        Column("N", LogicalType.FIXED, 2, precision=9, scale=0),
    )
    keys = make_sort_keys(TableSchema(1, columns), ("AT", "GONE", "N"))
    assert [name for name, _ in keys] == ["AT", "AT$ns", "AT$tz", "N"]
