"""Refused rows as rows of an error table: bounded, and readable whatever they were."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from decimal import Decimal
from typing import Any, cast

import pytest

from snowmelt.schema import error_table
from snowmelt.schema.error_table import (
    ERROR_SCHEMA,
    TRUNCATED_CODE,
    ErrorRow,
    ErrorRowOrigin,
    convert_error_table_rows,
    find_missing_error_columns,
    make_error_table_rows,
)
from snowmelt.schema.types import TableSchema

AT = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
ORIGIN = ErrorRowOrigin("DB.S.T", "sdk", "C", AT, "1", "2")


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
def test_rows_are_json_and_what_json_does_not_know_is_as_python_shows_it(
    row: Any, shown: dict[str, float | int | None] | dict[str, str] | list[int]
) -> None:
    [made] = make_error_table_rows(ORIGIN, [ErrorRow(0, "why", row)])
    assert json.loads(cast("str", made["ROW_DATA"])) == shown
    assert convert_error_table_rows(ERROR_SCHEMA, [made]).row_count == 1


def test_what_no_text_column_takes_is_told_as_python_shows_it() -> None:
    [made] = make_error_table_rows(
        ORIGIN, [ErrorRow(0, "no \ud800", {"\ud800": 1}, column="\ud800" * 5_000_000)]
    )
    [kept] = convert_error_table_rows(ERROR_SCHEMA, [made]).table.to_pylist()
    assert kept["REASON"] == "no \\ud800"
    assert kept["COLUMN_NAME"].startswith("\\ud800")
    assert kept["ROW_DATA"] == r'{"\\ud800":1}'


def test_lines_are_kept_as_they_came() -> None:
    rows = list(
        make_error_table_rows(ORIGIN, [ErrorRow(0, "why", "no json"), ErrorRow(1, "why", None)])
    )
    assert [row["ROW_DATA"] for row in rows] == ["no json", None]
    assert len({row["REFUSAL_ID"] for row in rows}) == 2


def test_what_is_too_long_is_cut_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_table, "MAX_ROW_CHARACTERS", 10)
    monkeypatch.setattr(error_table, "MAX_CALL_CHARACTERS", 15)
    refusals = [ErrorRow(n, "w" * 5000, "x" * 11, "code") for n in range(3)]
    rows = list(make_error_table_rows(ORIGIN, [*refusals, ErrorRow(3, "", "", "code")]))
    assert [len(cast("str", row["ROW_DATA"] or "")) for row in rows] == [10, 5, 0, 0]
    assert [row["CODE"] for row in rows] == [TRUNCATED_CODE, TRUNCATED_CODE, TRUNCATED_CODE, "code"]
    assert len(cast("str", rows[0]["REASON"])) < 5000


def test_a_table_needs_the_columns_and_may_have_more() -> None:
    assert find_missing_error_columns(ERROR_SCHEMA) == []
    more = replace(ERROR_SCHEMA.columns[0], name="MORE", ordinal=99)
    assert find_missing_error_columns(TableSchema(2, (*ERROR_SCHEMA.columns, more))) == []
    required = replace(more, nullable=False)
    assert find_missing_error_columns(TableSchema(2, (*ERROR_SCHEMA.columns[1:], required))) == [
        "REFUSAL_ID VARCHAR(4194304)",
        "MORE NULL",
    ]
    [made] = make_error_table_rows(ORIGIN, [ErrorRow(0, "why", {})])
    assert convert_error_table_rows(TableSchema(2, ERROR_SCHEMA.columns[1:]), [made]).row_count == 1
