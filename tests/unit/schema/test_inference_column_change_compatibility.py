"""Columns grow; what was written for older ones is taken as long as every value has its place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from snowmelt.schema.inference import (
    find_schema_conflict,
    next_ordinal,
    widen_column_type,
)
from snowmelt.schema.types import Column, LogicalType, TableSchema

NUMBER = Column("N", LogicalType.FIXED, 1, precision=5, scale=2)
TEXT = Column("T", LogicalType.TEXT, 2, length=10, byte_length=40)
BYTES = Column("B", LogicalType.BINARY, 3, byte_length=10)
TIME = Column("C", LogicalType.TIME, 4, scale=6)


def schema(*columns: Column) -> TableSchema:
    return TableSchema(1, columns)


def test_an_ordinal_is_not_used_again_after_its_column_is_dropped() -> None:
    assert next_ordinal([]) == 1
    assert next_ordinal([schema(NUMBER, TIME), schema(NUMBER)]) == 5


@pytest.mark.parametrize(
    ("column", "grown"),
    [
        (NUMBER, replace(NUMBER, precision=38)),
        (NUMBER, NUMBER),
        (TEXT, replace(TEXT, length=11, byte_length=44)),
        (BYTES, replace(BYTES, byte_length=20)),
        (TIME, TIME),
    ],
)
def test_a_type_may_grow_and_the_column_stays(column: Column, grown: Column) -> None:
    wanted = replace(grown, name="OTHER", ordinal=0)
    assert widen_column_type(column, wanted) == grown


@pytest.mark.parametrize(
    ("column", "wanted", "reason"),
    [
        (NUMBER, replace(NUMBER, precision=4), "the precision is at least 5"),
        (NUMBER, replace(NUMBER, precision=9, scale=3), "its scale stays 2"),
        (NUMBER, TEXT, r"it is NUMBER\(5,2\) and stays NUMBER"),
        (TEXT, replace(TEXT, length=9, byte_length=36), "the length is at least 10"),
        (BYTES, replace(BYTES, byte_length=9), "the length is at least 10"),
        (TIME, replace(TIME, scale=9), "its scale stays 6"),
    ],
)
def test_a_type_that_would_change_values_is_not_taken(
    column: Column, wanted: Column, reason: str
) -> None:
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(widen_column_type(column, wanted))


@pytest.mark.parametrize(
    "current",
    [
        (NUMBER, TEXT),
        (NUMBER, TEXT, BYTES),
        (replace(NUMBER, precision=9), TEXT),
        (NUMBER, replace(TEXT, length=11, byte_length=44)),
    ],
)
def test_rows_fit_where_each_value_has_its_column_and_what_they_lack_may_be_null(
    current: tuple[Column, ...],
) -> None:
    assert find_schema_conflict(schema(NUMBER, TEXT), schema(*current)) is None


def test_rows_without_nulls_fit_a_column_that_may_be_null_now() -> None:
    older = schema(replace(NUMBER, nullable=False))
    assert find_schema_conflict(older, schema(NUMBER)) is None


@pytest.mark.parametrize(
    ("current", "reason", "is_missing"),
    [
        ((NUMBER, TEXT, replace(BYTES, nullable=False)), "it has the column B, which", True),
        ((NUMBER, replace(TEXT, name="U")), "its column T is called U", True),
        ((NUMBER,), "column T was dropped", False),
        ((NUMBER, replace(TEXT, ordinal=3)), "column T was dropped", False),
        ((replace(NUMBER, nullable=False), TEXT), r"N is NUMBER\(5,2\) NOT NULL", False),
        ((replace(NUMBER, precision=4), TEXT), r"N is NUMBER\(4,2\)$", False),
    ],
)
def test_rows_do_not_fit_where_a_value_has_no_place(
    current: tuple[Column, ...], reason: str, is_missing: bool
) -> None:
    found = find_schema_conflict(schema(NUMBER, TEXT), schema(*current))
    assert found is not None
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(found.reason)
    assert found.is_missing is is_missing
