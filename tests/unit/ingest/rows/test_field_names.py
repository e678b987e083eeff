"""Fields of rows name columns whatever their letters, where that is clear; or letter by letter."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import pytest

from snowmelt.catalog.sql.pipe_copy import parse_pipe_copy
from snowmelt.ingest.rows.field_names import quote_field_names, resolve_field_case
from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.types import Column, LogicalType, TableSchema

SCHEMA = TableSchema(
    1,
    tuple(
        Column(name, LogicalType.TEXT, place, length=10, byte_length=40)
        for place, name in enumerate(("ID", "city", 'odd "Name', "BOTH", "both"), 1)
    ),
)
CONVERTER = RowConverter(SCHEMA, zone=ZoneInfo("UTC"))


def stored(row, how):
    """Return what is stored of a row, or the refused row's fields that are no columns."""
    found = CONVERTER.convert(how([row]))
    if found.errors:
        return found.errors[0].extra_columns
    (only,) = found.table.to_pylist()
    return {name: value for name, value in only.items() if value is not None}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"id": "1", "city": "x"}, {"ID": "1", "city": "x"}),
        ({"CITY": "x", 'ODD "name': "y"}, {"city": "x", 'odd "Name': "y"}),
        ({"City": "w", '"city"': "x"}, {"city": "x"}),
        ({"town": "x"}, ("town",)),
        ({"both": "x", '"both"': "y"}, {"BOTH": "x", "both": "y"}),
    ],
)
def test_letters_do_not_matter_where_one_column_has_them(row, expected):
    assert stored(row, lambda rows: resolve_field_case(rows, SCHEMA)) == expected


def test_rows_that_are_none_stay_what_they_are():
    rows: list[Any] = [None, [1]]
    unchanged: list[Any] = [None, [1]]
    assert resolve_field_case(rows, SCHEMA) == quote_field_names(rows) == unchanged


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"ID": "1", "city": "x", 'odd "Name': "y"}, {"ID": "1", "city": "x", 'odd "Name': "y"}),
        ({"both": "x"}, {"both": "x"}),
        ({"id": "1"}, ('"id"',)),
    ],
)
def test_letter_by_letter(row, expected):
    assert stored(row, quote_field_names) == expected


def test_a_pipe_says_which():
    copy = "COPY INTO t FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING')) MATCH_BY_COLUMN_NAME = CASE_"
    assert parse_pipe_copy(copy + "SENSITIVE").case_sensitive
    assert not parse_pipe_copy(copy + "INSENSITIVE").case_sensitive
