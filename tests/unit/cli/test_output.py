"""How values and rows are printed."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow.csv
import pytest

from snowmelt.cli.output import (
    MAX_TABLE_ROWS,
    format_age,
    format_cell,
    print_message,
    print_rows,
    to_json_text,
)

DAY = dt.datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (Decimal("1E+3"), "1000"),
        (Decimal("0E-9"), "0.000000000"),
        (b"\x00\xff", "00FF"),
        (DAY, "2026-03-04 05:06:07.000089+00:00"),
        (DAY.date(), "2026-03-04"),
        (DAY.time(), "05:06:07.000089"),
        ([1, None], "[1, null]"),
        ({"a": b"\x01"}, '{"a": "01"}'),
    ],
)
def test_cells_read_well(value: Any, text: str) -> None:
    assert format_cell(value) == text


def test_json_keeps_every_digit() -> None:
    digits = "12345678901234567890.123456789012345678"
    assert to_json_text(Decimal(digits)) == digits
    assert to_json_text(2**80) == str(2**80)


def test_json_is_json_for_numbers_that_json_does_not_have() -> None:
    values = [float("nan"), float("-inf"), Decimal("NaN"), 'a"\n']
    assert json.loads(to_json_text(values)) == ["nan", "-inf", "NaN", 'a"\n']


def test_a_table_escapes_what_would_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(("a", "n"), [("\x1b[2Jx\n[red]", 1), (None, 22)], "table")
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert r"\x1b[2Jx\n[red]" in shown
    assert "NULL" in shown
    assert shown.endswith("2 rows\n")


def test_a_table_says_that_there_are_more_rows(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(("n",), ((n,) for n in range(MAX_TABLE_ROWS + 1)), "table")
    assert capsys.readouterr().out.endswith("first 1,000 rows; --format csv or json gives all\n")


def test_long_rows_are_not_folded_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(("a",), [("x" * 5000,)], "table")
    assert "x" * 5000 in capsys.readouterr().out


def test_csv_and_json_are_written_as_rows_come(capsys: pytest.CaptureFixture[str]) -> None:
    def rows() -> Iterator[tuple[str]]:
        yield ("x" * 70_000,)
        assert len(capsys.readouterr().out) > 70_000
        yield ("y",)

    print_rows(("a",), rows(), "csv")
    assert capsys.readouterr().out == "y\n"


def test_csv_keeps_null_empty_texts_and_line_ends_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts = [None, "", "a\rb", "a\nb", 'a"b', "a,b", " a "]
    print_rows(("n", "a,b"), [(number, text) for number, text in enumerate(texts)], "csv")
    shown = capsys.readouterr().out
    read = pyarrow.csv.read_csv(
        io.BytesIO(shown.encode()),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )
    assert read["a,b"].to_pylist() == texts
    print_rows(("a",), [(None,), ("",)], "csv")
    assert capsys.readouterr().out == 'a\n""\n""\n'


def test_empty_results_have_a_form_too(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(("a",), [], "json")
    print_rows(("a",), [], "csv")
    assert capsys.readouterr().out == "[]\na\n"


def test_messages_are_rows_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    print_message("Done.", "table")
    print_message("Done.", "json")
    assert capsys.readouterr().out == 'Done.\n[\n {"status": "Done."}\n]\n'


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 s ago"),
        (3, "3 s ago"),
        (90, "1 min ago"),
        (7200, "2 h ago"),
        (90 * 86_400, "90 d ago"),
    ],
)
def test_an_age_has_one_unit(seconds: int, text: str) -> None:
    assert format_age(DAY - dt.timedelta(seconds=seconds), DAY) == text


def test_a_table_that_is_wider_than_the_terminal_is_printed_by_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    columns = [f"column_{number}" for number in range(8)]
    print_rows(columns, [("a\x1b[2J", None, *range(6))], "table")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("── row 1 ")
    assert lines[1:4] == ["column_0  a\\x1b[2J", "column_1  NULL", "column_2  0"]
    assert lines[-1] == "1 row"
    print_rows(columns[:2], [("a", 1)], "table")
    assert "── row" not in capsys.readouterr().out
