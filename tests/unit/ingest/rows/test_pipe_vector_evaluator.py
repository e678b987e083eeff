"""What a pipe computes by columns is what it computes row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.catalog.sql.pipe_copy import PipeCopy, parse_pipe_copy
from snowmelt.clock import SystemClock
from snowmelt.ingest.rows import pipe_vector_evaluator
from snowmelt.ingest.rows.columnar_reader import read_field_columns
from snowmelt.ingest.rows.field_names import BodyField
from snowmelt.ingest.rows.line_reader import read_scalar_lines
from snowmelt.ingest.rows.row_converter import ConvertedRows, ConverterPool
from snowmelt.schema.types import Column, Compatibility, LogicalType, TableSchema

SCHEMA = TableSchema(
    1,
    (
        Column("N", LogicalType.FIXED, 1, precision=38, scale=9),
        Column("T", LogicalType.TEXT, 2, length=400, byte_length=1600),
        Column("R", LogicalType.REAL, 3),
        Column("B", LogicalType.BOOLEAN, 4),
        Column("D", LogicalType.DATE, 5),
        Column("V", LogicalType.VARIANT, 6),
    ),
)
TABLE: Any = SimpleNamespace(table_id=1, schema=SCHEMA, schema_evolution=False, error_table_id=None)
ROW = {
    "i": 7,
    "j": 3,
    "f": 2.5,
    "t": " Ada ",
    "d": "12.50",
    "b": True,
    "day": "2026-11-21",
    "who": {"name": "x", "age": 3, "rate": 0.5},
}
ZONE = ZoneInfo("UTC")
CONVERSIONS = ConverterPool(ZONE, SystemClock())
EXPRESSIONS = {
    "N": [
        *("$1:i", "$1:i + $1:j", "$1:i - 1", "-$1:i", "$1:i * $1:d", "$1:d::number(10,1)", "$1:b"),
        *("$1:d * 2 - $1:i", "$1:i / $1:j", "$1:d::number(9,3) / $1:j", "1 / 3", "$1:f * $1:i"),
        *("ROUND($1:d, 1)", "ROUND($1:i, -1)", "CEIL($1:d)", "FLOOR($1:d::number(9,2))"),
        *("CEIL($1:f)", "FLOOR($1:f)", "ROUND($1:f, 1)", "ABS($1:i)", "ABS($1:d)", "ABS($1:f)"),
        *("LENGTH($1:t)", "COALESCE($1:i, $1:j, 0)", "NULLIF($1:i, $1:j)", "NULLIF($1:i, 3)"),
        *("$1:who.age + 1", "$1:who.rate * 2", "$1:i::number + 1", "$1:t::number", "1.50 * $1:i"),
        *("$1:f::number(12,2) * $1:i::number(5,0)", "NULL", "$1:none", "IFNULL($1:none, $1:i)"),
    ],
    "T": [
        *("$1:t", "UPPER(TRIM($1:t))", "LOWER($1:t)", "LTRIM($1:t) || RTRIM($1:t)", "$1:who.name"),
        *("CONCAT($1:t, '-', $1:i, $1:b)", "SUBSTR($1:t, 2)", "SUBSTRING($1:t, 0, 2)", "$1:f"),
        *("SUBSTR($1:t, -2)", "REPLACE($1:t, 'a', 'bc')", "REPLACE($1:t, ' ', '')", "$1:d * 2"),
        *("$1:t::varchar(3)", "$1:i::varchar", "$1:f::varchar", "$1:d::number(9,2)::varchar"),
        *("NVL($1:t, 'none')", "NULLIF($1:t, ' Ada ')", "$1:day::date", "$1:who", "$1", "'x'"),
        *("$1:i::number(5)::varchar || 'x'", "$1:t || NULL", "REPLACE($1:t, '', 'x')", "$1:who.no"),
    ],
    "R": ["$1:f", "$1:i", "$1:f / $1:i", "$1:d::float", "$1:i * $1:j", "$1:f - 0.5", "$1:who.rate"],
    "B": ["$1:b", "$1:t::boolean", "$1:i::boolean", "TRUE"],
    "D": ["$1:day", "$1:day::date", "$1:t"],
    "V": ["$1:t", "$1:i", "$1:f", "$1:who", "$1:d::variant", "$1:i + 1"],
}
# What columns can do, so that the property says something of them.
SURELY = {
    *("$1:i + $1:j", "$1:i * $1:d", "$1:d::number(10,1)", "$1:i / $1:j", "ROUND($1:d, 1)"),
    *("$1:who.age + 1", "UPPER(TRIM($1:t))", "CONCAT($1:t, '-', $1:i, $1:b)", "SUBSTR($1:t, 2)"),
    *("NVL($1:t, 'none')", "$1:day::date", "$1:f / $1:i", "COALESCE($1:i, $1:j, 0)"),
}

numbers = st.integers(-9, 9) | st.integers(-(10**17), 10**17) | st.none()
texts = st.sampled_from(
    ["", " a ", "ada", "Ä ß", "12", "-0", "1e3", "true", "x" * 9, "nul\0", "ﬁ", "\N{GRINNING FACE}"]
)
values = {
    "i": numbers,
    "j": numbers,
    "f": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-3, 3) | st.none(),
    "t": texts | st.none(),
    "d": st.sampled_from(["1", "-1.25", "1.255", "0.00", "-0", "1e3", " 2", "x", "", None]),
    "b": st.booleans() | st.none(),
    "day": st.sampled_from(
        ["2024-02-29", "2024-02-29T01:02:03Z", "1709168523123", "0800-01-01", None, "today"]
    ),
    "who": st.fixed_dictionaries({"name": texts, "age": numbers, "rate": st.floats(0, 2)})
    | st.none(),
}


def pipe_of(column: str, expression: str) -> PipeCopy:
    return parse_pipe_copy(
        f"COPY INTO t FROM (SELECT {expression} AS {column}"
        " FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING'))) MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
    )


PIPES = {
    expression: pipe_of(column, expression)
    for column, expressions in EXPRESSIONS.items()
    for expression in expressions
}


def body_of(rows: list[Any]) -> bytes:
    return b"\n".join(map(msgspec.json.encode, [ROW] * 20 + rows)) + b"\n"


def by_columns(
    body: bytes, copy: PipeCopy, plain: Callable[[bytes, Sequence[BodyField]], Any] | None
) -> Any:
    return CONVERSIONS._evaluate_pipe_by_columns(
        body, SCHEMA, copy, CONVERSIONS._get_converter(TABLE, Compatibility.STRICT), plain
    )


def by_rows(body: bytes, copy: PipeCopy) -> ConvertedRows:
    return CONVERSIONS._convert_by_rows(
        body, TABLE, copy, CONVERSIONS._get_converter(TABLE, Compatibility.STRICT)
    )


@pytest.mark.slow
@settings(max_examples=8)
@given(rows=st.lists(st.fixed_dictionaries(values), max_size=3))
@pytest.mark.parametrize("plain", [None, read_scalar_lines])
def test_columns_hold_what_rows_hold(
    rows: list[Any], plain: Callable[[bytes, Sequence[BodyField]], Any] | None
) -> None:
    body = body_of(rows)
    for expression, copy in PIPES.items():
        found = by_columns(body, copy, plain)
        if found is not None:
            one_by_one = by_rows(body, copy)
            assert one_by_one.rejected_count == 0, expression
            assert str(found.to_pydict()) == str(one_by_one.table.to_pydict()), expression


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("'2026-11-21T10:00:00'::date", "2026-11-21"),
        ("$1:b::number + 1", "2"),
        ("REPLACE('abc', '', 'x')", "abc"),
        ("LENGTH(CURRENT_TIMESTAMP) * 0", "0"),
        ("ROUND(1.5, 400)", "a number is too large"),
    ],
)
def test_what_an_expression_is(expression: str, expected: str) -> None:
    made = by_rows(msgspec.json.encode(ROW), pipe_of("T", expression))
    if made.rejected:
        assert made.rejected[0].reason.endswith(expected)
    else:
        (text,) = made.table.column("T").to_pylist()
        assert text == expected


def test_what_columns_can_do_they_do() -> None:
    body = body_of([{**ROW, "i": 2, "f": 0.25}, {**ROW, "t": None, "d": None}])
    done = {each for each, copy in PIPES.items() if by_columns(body, copy, None) is not None}
    assert done >= SURELY


def test_rows_in_doubt_are_computed_one_by_one_in_their_place() -> None:
    copy = pipe_of("T", "UPPER($1:t)")
    body = body_of([{**ROW, "t": "straße"}, {**ROW, "t": "b"}])
    made = pipe_vector_evaluator.VectorPipeEvaluator(copy, SCHEMA, ZONE, SystemClock()).evaluate(
        read_field_columns(body)
    )
    assert made is not None
    assert np.flatnonzero(made.fallback_rows).tolist() == [20]
    assert by_columns(body, copy, None)["T"].to_pylist()[19:] == [" ADA ", "STRASSE", "B"]


def test_a_row_without_a_value_leaves_all_to_the_row_by_row_way() -> None:
    copy = pipe_of("N", "10 / $1:i")
    body = body_of([{**ROW, "i": 0}])
    assert by_columns(body, copy, None) is None
    found = CONVERSIONS.convert(body, TABLE, copy)
    assert (found.parsed_count, found.rejected_count) == (21, 1)
    assert found.rejected[0].reason.endswith("Division by zero")
    assert found.table["N"].to_pylist()[0] == Decimal("1.428571000")


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("ABS($1:a) || 'x'", "'1e999999999' has an exponent outside of -1000 to 1000"),
        ("$1:a * 2", "'1e999999999' has an exponent outside of -1000 to 1000"),
        ("SUBSTR('abc', 1, $1:a)", "'1e999999999' has an exponent outside of -1000 to 1000"),
        ("ROUND(1.5, '-1e999999999')", "'-1e999999999' has an exponent outside of -1000 to 1000"),
        ("SUBSTR('abc', 'NaN'::float)", "nan is not a valid count"),
        ("SUBSTR('abc', 1, 'inf'::float)", "inf is not a valid count"),
    ],
)
def test_numbers_without_end_refuse_their_row_at_once(expression: str, reason: str) -> None:
    made = by_rows(b'{"a":"1e999999999"}', pipe_of("T", expression))
    assert [refused.reason.rpartition(": ")[2] for refused in made.rejected] == [reason]
