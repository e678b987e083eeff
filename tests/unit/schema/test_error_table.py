"""Refused rows as rows of an error table: bounded, and readable whatever they were."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from decimal import Decimal

import pytest

from snowmelt.schema import error_table
from snowmelt.schema.error_table import (
    CUT,
    ERROR_SCHEMA,
    Origin,
    Refusal,
    converted,
    lacking,
    rows_of,
)
from snowmelt.schema.types import TableSchema

AT = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
ORIGIN = Origin("DB.S.T", "sdk", "C", AT, "1", "2")


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ({"a": 1, "b": Decimal("1.50"), "c": None}, {"a": 1, "b": 1.5, "c": None}),
        ({"at": AT, "raw": b"\x00\xff"}, {"at": "2026-11-21T00:00Z", "raw": "00ff"}),
        ({"x": {1: 2}, "y": "\ud800"}, {"x": "{1: 2}", "y": "'\\ud800'"}),
        ({7: float("nan")}, {"7": "NaN"}),
        ({"o": Odd()}, {"o": "<Odd>"}),
        ([1, 2], [1, 2]),
    ],
)
def test_rows_are_json_and_what_json_does_not_know_is_as_python_shows_it(row, shown):
    [made] = rows_of(ORIGIN, [Refusal(0, "why", row)])
    assert json.loads(made["ROW_DATA"]) == shown
    assert converted(ERROR_SCHEMA, [made]).row_count == 1


def test_what_no_text_column_takes_is_told_as_python_shows_it():
    [made] = rows_of(ORIGIN, [Refusal(0, "no \ud800", {"\ud800": 1}, column="\ud800" * 5_000_000)])
    [kept] = converted(ERROR_SCHEMA, [made]).table.to_pylist()
    assert kept["REASON"] == "no \\ud800"
    assert kept["COLUMN_NAME"].startswith("\\ud800")
    assert kept["ROW_DATA"] == r'{"\\ud800":1}'


def test_lines_are_kept_as_they_came():
    rows = list(rows_of(ORIGIN, [Refusal(0, "why", "no json"), Refusal(1, "why", None)]))
    assert [row["ROW_DATA"] for row in rows] == ["no json", None]
    assert len({row["REFUSAL_ID"] for row in rows}) == 2


def test_what_is_too_long_is_cut_and_told(monkeypatch):
    monkeypatch.setattr(error_table, "MAX_ROW_CHARACTERS", 10)
    monkeypatch.setattr(error_table, "MAX_CALL_CHARACTERS", 15)
    refusals = [Refusal(n, "w" * 5000, "x" * 11, "code") for n in range(3)]
    rows = list(rows_of(ORIGIN, [*refusals, Refusal(3, "", "", "code")]))
    assert [len(row["ROW_DATA"] or "") for row in rows] == [10, 5, 0, 0]
    assert [row["CODE"] for row in rows] == [CUT, CUT, CUT, "code"]
    assert len(rows[0]["REASON"]) < 5000


def test_a_table_needs_the_columns_and_may_have_more():
    assert lacking(ERROR_SCHEMA) == []
    more = replace(ERROR_SCHEMA.columns[0], name="MORE", ordinal=99)
    assert lacking(TableSchema(2, (*ERROR_SCHEMA.columns, more))) == []
    required = replace(more, nullable=False)
    assert lacking(TableSchema(2, (*ERROR_SCHEMA.columns[1:], required))) == [
        "REFUSAL_ID VARCHAR(4194304)",
        "MORE NULL",
    ]
    [made] = rows_of(ORIGIN, [Refusal(0, "why", {})])
    assert converted(TableSchema(2, ERROR_SCHEMA.columns[1:]), [made]).row_count == 1
