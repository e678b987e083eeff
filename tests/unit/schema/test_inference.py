"""Types of new columns are inferred from all values of a call, and what rows lack is told."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest

from snowmelt.schema.inference import find_unfilled_columns, infer_new_columns
from snowmelt.schema.types import Column, LogicalType, TableSchema

SCHEMA = TableSchema(
    1,
    (
        Column("ID", LogicalType.REAL, 1, nullable=False),
        Column("Mixed", LogicalType.REAL, 2, nullable=False),
    ),
)
NOON = dt.datetime(2026, 1, 1, 12)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, np.int8(2), None], "NUMBER(38,0)"),
        ([True, None, np.bool_(False)], "BOOLEAN"),
        ([1, 2.5], "FLOAT"),
        ([Decimal("1.5"), 2], "NUMBER(38,9)"),
        ([Decimal("1.5"), Decimal("1e-12")], "NUMBER(38,12)"),
        ([Decimal(1), 2.5], "FLOAT"),
        (["x", uuid4()], "VARCHAR"),
        ([b"x"], "BINARY"),
        ([dt.date(2026, 1, 1), NOON], "TIMESTAMP_NTZ(9)"),
        ([NOON.replace(tzinfo=dt.UTC)], "TIMESTAMP_TZ(9)"),
        ([np.datetime64("2026-01-01T12:00")], "TIMESTAMP_NTZ(9)"),
        ([np.datetime64(1, "ns"), np.datetime64("2026-01-01")], "TIMESTAMP_NTZ(9)"),
        ([np.datetime64("NaT", "us"), np.datetime64("2026-01")], "DATE"),
        ([dt.time(12)], "TIME(9)"),
        ([{"a": 1}, [2]], "VARIANT"),
        ([1, "x"], "VARCHAR"),
        ([True, 2.5, "x"], "VARCHAR"),
        (["x", NOON.date()], "DATE"),
        (["x", b"x"], "BINARY"),
        (["x", [1]], "VARIANT"),
        (["x", 1, NOON], "VARIANT"),
        ([True, 1], "VARIANT"),
        ([None, float("nan"), None], "FLOAT"),
        ([None], "VARCHAR"),
    ],
)
def test_values_make_a_type(values: Any, expected: str) -> None:
    rows = [{"id": 1, "new": value} for value in values]
    assert infer_new_columns([*rows, "no row", {3: 4}], SCHEMA) == {"NEW": expected}
    assert infer_new_columns(rows[::-1], SCHEMA) == {"NEW": expected}


def test_arrow_types_make_types() -> None:
    table = pa.table(
        {
            "id": [1.0],
            "a": pa.array([1], pa.uint8()),
            "b": pa.array([Decimal("1.5")]),
            '"b"': pa.array(["x"]).dictionary_encode(),
            "c": [[1]],
            "d": pa.array([b"x"], pa.binary_view()),
            "e": pa.array([NOON], pa.timestamp("us", "UTC")),
            "f": pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array([1])),
            "g": pa.ExtensionArray.from_storage(
                pa.uuid(), pa.array([uuid4().bytes], pa.binary(16))
            ),
            "h": pa.ExtensionArray.from_storage(
                pa.opaque(pa.list_(pa.int8()), "points", "there"),
                pa.array([[1]], pa.list_(pa.int8())),
            ),
        }
    )
    assert infer_new_columns(table, SCHEMA) == {
        "A": "NUMBER(38,0)",
        "B": "NUMBER(38,1)",
        "b": "VARCHAR",
        "C": "VARIANT",
        "D": "BINARY",
        "E": "TIMESTAMP_TZ(9)",
        "F": "NUMBER(38,0)",
        "G": "VARCHAR",
        "H": "VARIANT",
    }
    assert find_unfilled_columns(table, SCHEMA) == ["Mixed"]
    nulls = pa.DictionaryArray.from_arrays(
        pa.array([0], pa.int8()), pa.array([None], pa.string_view())
    )
    assert find_unfilled_columns(table.set_column(0, "id", nulls), SCHEMA) == ["ID", "Mixed"]


def test_rows_that_leave_out_what_is_required() -> None:
    assert find_unfilled_columns([{"id": 1, '"Mixed"': 2}], SCHEMA) == []
    assert find_unfilled_columns([{"id": 1, '"Mixed"': 2}, {"id": None, '"Mixed"': 1}], SCHEMA) == [
        "ID"
    ]
    assert find_unfilled_columns([{"ID": 1, "mixed": 2}], SCHEMA) == ["Mixed"]
