from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.select.errors import SelectError
from snowmelt.select.scalar.evaluator import EvaluationContext, evaluate
from snowmelt.select.values import INT_MAX, INT_MIN, format_value, parse_number_text
from support.reference_select import (
    ALL,
    AWS,
    CEPH,
    CEPH_2020,
    NOW,
    Fields,
    query_of,
    refusal,
    value,
)

if TYPE_CHECKING:
    from snowmelt.select.dialect import Dialect


class Counting(Fields):
    """A record that counts how often it is looked at."""

    looks = 0

    def field(self, column: Any) -> Any:
        self.looks += 1
        return super().field(column)


@pytest.mark.parametrize("dialect", ALL)
def test_alias_is_evaluated_once_for_each_row(dialect: Dialect) -> None:
    query = query_of("select int(_1) as a, a+a+a as b, b+a as c from stdin", dialect)
    scope = EvaluationContext(query, NOW)
    for text, expected in (("2", [2, 6, 8]), ("5", [5, 15, 20])):
        row = Counting([text], dialect)
        scope.begin_row()
        uses = [output.expression for output in query.outputs[1:]]
        assert [evaluate(each, row, scope) for each in uses] == expected[1:]
        assert row.looks == 1
        scope.begin_row()
        assert evaluate(query.outputs[0].expression, row, scope) == expected[0]


def test_now_is_one_instant_for_the_whole_query() -> None:
    assert value("utcnow() = utcnow()") is True
    assert value("utcnow()") is NOW


def test_aggregate_has_no_value_in_a_single_record() -> None:
    query = query_of("select count(*) from stdin")
    with pytest.raises(SelectError):
        evaluate(query.outputs[0].expression, Fields([], AWS), EvaluationContext(query, NOW))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1),
        (" +12\r", 12),
        ("-0", 0),
        ("1.50", Decimal("1.50")),
        (".5", Decimal("0.5")),
        ("1.", Decimal(1)),
        ("1e2", 100.0),
        ("9223372036854775807", INT_MAX),
        ("9223372036854775808", Decimal(INT_MAX + 1)),
        ("1" * 40, float("1" * 40)),
        ("0.1" + "0" * 40, 0.1),
        ("", None),
        (" ", None),
        ("1 2", None),
        ("1e", None),
        ("0x10", None),
        ("nan", None),
        ("inf", None),
        ("1e999", None),
        ("١", None),
        ("1_000", None),
        ("5" * 100_000, None),
    ],
)
def test_text_is_read_as_the_number_it_shows(text: str, number: Decimal | float | None) -> None:
    found = parse_number_text(text)
    assert found == number
    assert type(found) is type(number)


@given(st.integers(INT_MIN, INT_MAX), st.integers(INT_MIN, INT_MAX), st.sampled_from("+-*"))
def test_integers_are_exact_or_refused(left: int, right: int, sign: Any) -> None:
    exact = {"+": left + right, "-": left - right, "*": left * right}[sign]
    expression = f"{left} {sign} {right}"
    for dialect in ALL:
        if INT_MIN <= exact <= INT_MAX:
            assert value(expression, dialect) == exact
        else:
            assert refusal(f"select {expression} from stdin", dialect) == "IntegerOverflow"


@pytest.mark.slow
@given(st.integers(-INT_MAX, INT_MAX), st.integers(INT_MIN, INT_MAX).filter(bool))
def test_division_and_remainder_belong_together(left: int, right: int) -> None:
    quotient, rest = value(f"{left} / {right}", CEPH), value(f"{left} % {right}", CEPH)
    assert quotient * right + rest == left
    assert abs(rest) < abs(right)
    assert rest == 0 or (rest < 0) == (left < 0)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_float_prints_so_that_it_reads_back(number: float) -> None:
    assert float(format_value(number, AWS)) == number
    assert float(format_value(number, CEPH)) == number


def test_not_a_number_is_equal_to_nothing() -> None:
    for dialect in (CEPH, CEPH_2020):
        assert value("nan = nan", dialect) is False
        assert value("nan <> nan", dialect) is True
        assert math.isnan(value("nan + 1", dialect))


NUMBERS = st.integers(-50, 50).map(str) | st.decimals(-99, 99, places=2).map(str)
TEXTS = st.text("abZé%_ ", max_size=4).map(lambda text: "'" + text + "'")
NUMERIC = st.recursive(
    NUMBERS | st.just("null"),
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*"]), inner)
        | st.builds("coalesce({}, {})".format, inner, inner)
        | st.builds("case when {} > {} then {} end".format, inner, inner, inner)
    ),
    max_leaves=5,
)
TEXTUAL = st.recursive(
    TEXTS | st.just("null"),
    lambda inner: (
        st.builds("({} || {})".format, inner, inner)
        | st.builds("coalesce({}, {})".format, inner, inner)
        | st.builds("nullif({}, {})".format, inner, inner)
    ),
    max_leaves=4,
)
RELATIONS = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
CONDITIONS = st.recursive(
    st.builds("({} {} {})".format, NUMERIC, RELATIONS, NUMERIC)
    | st.builds("({} {} {})".format, TEXTUAL, RELATIONS, TEXTUAL)
    | st.builds("({} like {})".format, TEXTUAL, TEXTS)
    | st.builds("({} between {} and {})".format, NUMERIC, NUMERIC, NUMERIC)
    | st.builds("({} not in ({}, {}))".format, TEXTUAL, TEXTUAL, TEXTUAL)
    | st.builds("({} is null)".format, TEXTUAL),
    lambda inner: (
        st.builds("({} and {})".format, inner, inner)
        | st.builds("({} or {})".format, inner, inner)
        | st.builds("(not {})".format, inner)
    ),
    max_leaves=6,
)


@pytest.mark.slow
@given(CONDITIONS)
@settings(max_examples=settings().max_examples * 3 // 2, deadline=None)
def test_conditions_agree_with_duckdb(condition: str) -> None:
    # Precision is DuckDB's limit here, not ours.
    try:
        expected = cast("duckdb.DuckDBPyRelation", duckdb.sql(f"select {condition}")).fetchall()[0][
            0
        ]
    except duckdb.Error:
        return
    assert value(condition) is expected


@given(NUMERIC)
@settings(max_examples=settings().max_examples * 3 // 2, deadline=None)
def test_exact_arithmetic_agrees_with_duckdb(expression: str) -> None:
    try:
        expected = cast("duckdb.DuckDBPyRelation", duckdb.sql(f"select {expression}")).fetchall()[
            0
        ][0]
    except duckdb.Error:
        return
    assert value(expression) == expected


VALUES = st.sampled_from(
    [
        "null",
        "missing",
        "true",
        "1",
        "-3",
        "2.5",
        "1e2",
        "'x'",
        "'12'",
        "'2.5'",
        "'true'",
        "'2010-01-01'",
        "`2010T`",
        "_1",
        "_9",
        "[1,'a']",
    ]
)
EXPRESSIONS = st.recursive(
    VALUES,
    lambda inner: (
        st.builds(
            "({} {} {})".format,
            inner,
            st.sampled_from(
                [
                    "+",
                    "-",
                    "*",
                    "/",
                    "%",
                    "^",
                    "||",
                    "=",
                    "<>",
                    "<",
                    ">=",
                    "and",
                    "or",
                    "like",
                    "in",
                ]
            ),
            inner,
        )
        | st.builds(
            "{}({})".format,
            st.sampled_from(
                [
                    "int",
                    "float",
                    "string",
                    "to_bool",
                    "to_timestamp",
                    "lower",
                    "char_length",
                    "trim",
                    "timestamp",
                    "not",
                    "-",
                ]
            ),
            inner,
        )
        | st.builds("substring({}, {}, {})".format, inner, inner, inner)
        | st.builds("date_add(month, {}, {})".format, inner, inner)
        | st.builds("date_diff(day, {}, {})".format, inner, inner)
        | st.builds("to_string({}, {})".format, inner, inner)
        | st.builds("cast({} as decimal(5,2))".format, inner)
        | st.builds("case {} when {} then {} end".format, inner, inner, inner)
    ),
    max_leaves=6,
)


@given(EXPRESSIONS, st.sampled_from(ALL), st.text(max_size=5))
@settings(max_examples=settings().max_examples * 3, deadline=None)
def test_any_expression_has_a_value_that_prints_or_a_refusal(
    expression: str, dialect: Any, field: str
) -> None:
    try:
        found = value(expression, dialect, (field,))
    except SelectError as error:
        found = error.s3_code
    assert isinstance(format_value(found, dialect), str)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("(" * 98 + "1" + ")" * 98, 1),
        ("+".join(["1"] * 149), 149),
        ("lower(" * 98 + "'x'" + ")" * 98, "x"),
        ("case when true then " * 97 + "1" + " end" * 97, 1),
        ("not " * 97 + "true", False),
        (" or ".join(["false"] * 20_000 + ["true"]), True),
    ],
    ids=range(6),
)
def test_depth_within_the_limits_has_an_answer(expression: str, expected: int | str) -> None:
    assert value(expression) == expected
