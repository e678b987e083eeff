"""Columns of a DataFrame become columns of a table, or an error that names the column."""

from __future__ import annotations

import pyarrow as pa
import pytest

from snowmelt.errors import LoadRefused
from snowmelt.schema.types import Column, LogicalType, TableSchema
from snowmelt.spark.datasource.write_task import (
    decode_variant_columns,
    match_columns,
    name_values_by_position,
)

NUMBER = Column("N", LogicalType.FIXED, 1, nullable=False, precision=5, scale=2)
TEXT = Column("T", LogicalType.TEXT, 2, length=3, byte_length=12)
INSTANT = Column("AT", LogicalType.TIMESTAMP_TZ, 3, scale=9)
SCHEMA = TableSchema(1, (NUMBER, TEXT, INSTANT))


def test_columns_are_found_by_name_and_misfits_are_named() -> None:
    assert match_columns(SCHEMA, ["t", "N"], "X") == (1, 0, None, None, None)
    assert match_columns(SCHEMA, ["n", "at", "at$tz"], "X") == (0, None, 1, None, 2)
    pair = TableSchema(
        1, (Column("T", LogicalType.BOOLEAN, 1), Column("t", LogicalType.BOOLEAN, 2))
    )
    assert match_columns(pair, ["t"], "X") == (None, 0)
    assert match_columns(pair, ["t", "T"], "X") == (1, 0)
    assert match_columns(pair, ["T", "t_2"], "X") == (0, 1)
    for names, why in (
        (["t"], "no value for N"),
        (["n", "N"], "two columns match N"),
        (["n", "q"], "Column q: table X has no such column; it has N, T, AT"),
        (["n", "at$ns"], "it is a companion of AT"),
    ):
        with pytest.raises(LoadRefused, match=why):
            match_columns(SCHEMA, names, "X")
    assert name_values_by_position(SCHEMA, ("at", "n"), 2, "X") == ["AT", "N"]
    with pytest.raises(LoadRefused, match="expected 3 values for the columns N, T, AT, got 2"):
        name_values_by_position(SCHEMA, None, 2, "X")


def test_a_variant_keeps_all_38_digits_of_its_numbers() -> None:
    from pyspark.sql.types import VariantVal

    number = "9" * 37 + "8"
    value = VariantVal.parseJson(f"[{number}, 0.{number}]")
    kind = pa.struct([pa.field("value", pa.binary()), pa.field("metadata", pa.binary())])
    given = pa.array([{"value": bytes(value.value), "metadata": bytes(value.metadata)}], kind)
    found = decode_variant_columns(pa.record_batch({"v": given}))
    assert found.column("v").to_pylist() == [f"[{number},0.{number}]"]
