"""Columns computed from parsed ones."""

from __future__ import annotations

import contextlib
import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.errors import LoadFailed, LoadRefused
from snowmelt.load.phase_protocols import ParsedBatch, ParseReject, ParseTarget
from snowmelt.load.portion import InputFile
from snowmelt.load.projection import ColumnProjector
from snowmelt.load.task import ComputedExpression, LoadStep, StackPlan
from snowmelt.schema.iceberg_table_form import native_schema
from snowmelt.schema.types import Column, LogicalType, TableSchema

NUMBER = {"kind": LogicalType.FIXED, "precision": 38, "scale": 0}
TEXT = {"kind": LogicalType.TEXT, "length": 100, "byte_length": 400}
PARSED = (("S", TEXT), ("N", NUMBER), ("M", {**NUMBER, "precision": 9}))
ROWS: dict[str, list[Any]] = {"S": ["ab", "2024-02-03", None], "N": [1, 2, None], "M": [4, 5, 6]}
STARTED = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def schema_of(*columns: tuple[str, dict[str, Any]]) -> TableSchema:
    return TableSchema(
        1, tuple(Column(name, ordinal=n, **kind) for n, (name, kind) in enumerate(columns, 1))
    )


def shaper(sql: str, column: dict[str, Any], *, enforce: bool = False) -> ColumnProjector:
    parsed = schema_of(*PARSED)
    return ColumnProjector(
        StackPlan(
            source=LoadStep("source", "s"),
            filters=(),
            parser=LoadStep("parser", "p"),
            target=ParseTarget(parsed, enforce_length=enforce),
            table=schema_of(("X", column)),
            computed=(ComputedExpression("X", sql),),
            started_at=STARTED,
        )
    )


def block(rejects: tuple[ParseReject, ...] = ()) -> ParsedBatch:
    schema = native_schema(schema_of(*PARSED))
    rows = pa.table(
        [pa.array(ROWS[field.name], pa.string()).cast(field.type) if pa.types.is_string(field.type)
         else pa.array([None if v is None else Decimal(v) for v in ROWS[field.name]], field.type)
         for field in schema],
        schema=schema,
    )  # fmt: skip
    return ParsedBatch(rows, rejects, rows.num_rows + len(rejects))


def computed(sql: str, column: dict[str, Any], **options: bool) -> list[Any]:
    shaped = shaper(sql, column, **options).project(block(), 0, InputFile("a.csv"))
    found: list[Any] = shaped.rows.column("X").to_pylist()
    return found


@pytest.mark.parametrize(
    ("sql", "column", "values"),
    [
        ("n + 1", NUMBER, [2, 3, None]),
        ("n / 2", {"kind": LogicalType.REAL}, [0.5, 1.0, None]),
        ("s || '-' || m", TEXT, ["ab-4", "2024-02-03-5", None]),
        ("substr('abcdefgh', m, 2)", TEXT, ["de", "ef", "fg"]),
        ("NVL(s, E'\\t')", TEXT, ["ab", "2024-02-03", "\t"]),
        ("'\\t'", TEXT, ["\\t"] * 3),
        ("CASE WHEN s = 'ab' THEN NULL ELSE s END", TEXT, [None, "2024-02-03", None]),
        ("s::!DATE", {"kind": LogicalType.DATE}, [None, dt.date(2024, 2, 3), None]),
        ("TO_DATE('03.02.2024', 'DD.MM.YYYY')", {"kind": LogicalType.DATE}, [dt.date(2024, 2, 3)] * 3),
        ("m > 4", {"kind": LogicalType.BOOLEAN}, [False, True, True]),
        ("n::varchar", TEXT, ["1", "2", None]),
        ("upper(\"S\")", TEXT, ["AB", "2024-02-03", None]),
        ("NULLIF(s, 'ab')", TEXT, [None, "2024-02-03", None]),
        ("current_date", {"kind": LogicalType.DATE}, [dt.date(2026, 3, 1)] * 3),
        ("now()", {"kind": LogicalType.TIMESTAMP_LTZ, "scale": 6}, [STARTED] * 3),
        ("s", TEXT, ["ab", "2024-02-03", None]),
        ("DECODE(m, 4, 'four', 'other')", TEXT, ["four", "other", "other"]),
        ("CASE WHEN m > 5 THEN 'x' ELSE 'y' END", TEXT, ["y", "y", "x"]),
        ("[n, m]", {"kind": LogicalType.ARRAY}, ["[1,4]", "[2,5]", "[null,6]"]),
    ],
)  # fmt: skip
def test_an_expression_is_computed_and_converted_to_its_column(
    sql: str, column: dict[str, Any], values: list[Any]
) -> None:
    assert computed(sql, column) == values


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("(SELECT 1)", "only the columns of its row"),
        ("s FROM t", "not one expression"),
        ("s, n", "not one expression"),
        ("s; DROP TABLE x", "not one expression"),
        ("sum(n)", "only the columns of its row"),
        ("row_number() OVER ()", "only the columns of its row"),
        ("unnest([1, 2])", "only the columns of its row|not available"),
        ("nothing", "unknown parsed column NOTHING; valid columns: S, N, M"),
        ("other.s", "column names have one part"),
        ("current_setting('memory_limit')", "not available"),
        ("getenv('HOME')", "not available"),
        ("read_text('/etc/passwd')", "read_text"),
        ("no_such_function(s)", "no_such_function"),
        ("upper(", "invalid syntax"),
        ("*", "only the columns of its row"),
        ("(" * 5000 + "s" + ")" * 5000, "nested too deeply"),
    ],
)
def test_an_expression_of_more_than_its_row_is_refused(sql: str, reason: str) -> None:
    with pytest.raises(LoadRefused, match=reason) as refused:
        shaper(sql, TEXT)
    assert f"column X AS {sql}" in str(refused.value)


PIECES = ("s", "n", "(", ")", ",", "'", "''", "+", "::", "int", "SELECT", "FROM", "CASE WHEN", "END",
          "AS", "NULL", "cast(", "E'\\", "$$", "--", "/*", ".", "*", "[", "]", "1e9", "OVER", ";", "{", "\0",
          "interval", "date_trunc", "->", "?", ":x", "@", "ORDER BY", "lambda", "x ->", "unnest(")  # fmt: skip


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 4)
@given(st.lists(st.sampled_from(PIECES), max_size=8))
def test_any_text_is_an_expression_or_refused(pieces: list[str]) -> None:
    with contextlib.suppress(LoadRefused):
        shaper(" ".join(pieces), TEXT)


def test_a_failing_expression_names_itself_and_the_record() -> None:
    rejects = (ParseReject(12, 0, b"", "bad"),)
    with pytest.raises(LoadFailed) as failed:
        shaper("CAST(NULLIF(s, 'ab') AS INT)", NUMBER).project(
            block(rejects), 10, InputFile("a.csv")
        )
    text = str(failed.value)
    assert text.startswith("a.csv, column X AS CAST(NULLIF(s, 'ab') AS INT), record 13: ")
    assert "2024-02-03" in text


def test_a_template_rejects_the_year_0_in_any_block() -> None:
    for blanks in ("", " "):
        sql = "TO_CHAR(TO_DATE(CASE WHEN m = 6 THEN '{0}' ELSE '{1}{0}' END, '{2}'), '{2}')"
        year_1 = sql.format("0001-05-05", blanks, "YYYY-MM-DD")
        assert computed(year_1, TEXT) == ["0001-05-05"] * 3
        with pytest.raises(LoadFailed, match="there is no year 0"):
            computed(sql.format("0000-05-05", blanks, "YYYY-MM-DD"), TEXT)


def test_a_value_that_its_column_does_not_take_names_the_record() -> None:
    with pytest.raises(LoadFailed, match=r"a\.csv, column X AS s, record 1: .*'ab'"):
        shaper("s", NUMBER).project(block(), 0, InputFile("a.csv"))


def test_a_computed_null_where_it_may_not_be_rejects_the_record() -> None:
    shaped = shaper("upper(s)", {**TEXT, "nullable": False}).project(block(), 5, InputFile("a.csv"))
    assert shaped.rows.column("X").to_pylist() == ["AB", "2024-02-03"]
    (reject,) = shaped.rejects
    assert (reject.record, reject.column, reject.data) == (8, "X", b"||6")
    assert "NOT NULL" in reject.reason
    assert shaped.records == shaped.rows.num_rows + len(shaped.rejects)


def test_a_computed_text_that_is_too_long_is_cut_or_rejected() -> None:
    short = {"kind": LogicalType.TEXT, "length": 4, "byte_length": 16}
    assert computed("s || ''", short) == ["ab", "2024", None]
    shaped = shaper("s || ''", short, enforce=True).project(block(), 0, InputFile("a.csv"))
    assert shaped.rows.column("X").to_pylist() == ["ab", None]
    assert [reject.record for reject in shaped.rejects] == [2]
