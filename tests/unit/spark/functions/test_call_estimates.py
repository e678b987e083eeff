"""Plans are read for how often they call functions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from snowmelt.functions.definition import Volatility
from snowmelt.spark.functions.call_estimates import FunctionCallEstimate, estimate_calls

NAME = "snowmelt_f_0123456789abcdef"
NODE = "ArrowEvalPython [{name}(s#{n})#1{n}], [pythonUDF0#2{n}], 251, Statistics(sizeInBytes=9.0 B{rows})"


def node(n: int = 1, rows: str = "") -> str:
    return NODE.format(name=NAME, n=n, rows=rows)


def calls(
    plan: list[str],
    *,
    volatility: Volatility = Volatility.VOLATILE,
    text: str = "select 1",
    table_rows: int | None = None,
) -> FunctionCallEstimate:
    function = SimpleNamespace(max_batch_rows=100, volatility=volatility)
    registered = SimpleNamespace(
        private_name=NAME,
        public_name="DEMO.PUBLIC.F",
        definition=SimpleNamespace(function=function),
        use=SimpleNamespace(plan=SimpleNamespace(function=function)),
    )
    asked: Any = SimpleNamespace(text=text, functions=(registered,))
    whole = (
        "== Optimized Logical Plan ==\n" + "\n".join(plan) + "\n\n== Physical Plan ==\n" + node()
    )
    [found] = estimate_calls(asked, whole, table_rows=table_rows)
    return found


def test_rows_are_those_of_the_first_operator_beneath_that_knows() -> None:
    plan = [node(), "+- Project [s#1], Statistics(x)", "   +- Range, Statistics(rowCount=1.50E+3)"]
    found = calls(plan)
    assert (found.places, found.rows, found.calls, found.warnings) == (1, 1500, 15, ())


def test_rows_of_a_join_are_unknown_and_those_of_one_table_are_not() -> None:
    join = [node(), "+- Join Inner", "   :- A, Statistics(rowCount=2)", "   +- B"]
    assert calls(join, table_rows=7).rows is None
    table = [node(), "+- Project [s#1]", "   +- Union", "      :- Relation", "      +- Scan"]
    assert calls(table, table_rows=250).calls == 3
    assert calls(table).rows is None
    assert "an unknown number of rows" in str(calls(table))


def test_equal_calls_are_doubles_and_others_are_not() -> None:
    beneath = "      +- Range, Statistics(rowCount=10)"
    double = calls([node(1), "+- Filter pythonUDF0#2", f"   +- {node(3)}", beneath])
    assert (double.places, double.rows) == (2, 20)
    assert "more than once" in double.warnings[0]
    other = node(3).replace("(s#3)", "(t#3)")
    assert calls([node(1), f"+- {other}", "   +- Range, Statistics(rowCount=10)"]).warnings == ()


@pytest.mark.parametrize(
    ("above", "rows"),
    [
        (["Sort [v#1 ASC NULLS FIRST], true, Statistics(x)"], 20),
        (["Sort [v#1 ASC NULLS FIRST], true", "+- Project [v#1]"], 20),
        (["Sort [v#1 ASC NULLS FIRST], true", "+- Sort [w#1 ASC NULLS FIRST], true"], 20),
        (["RepartitionByExpression [v#1 ASC NULLS FIRST], Statistics(x)"], 20),
        (["Sort [v#1 ASC NULLS FIRST], false"], 10),
        (["GlobalLimit 5", "+- LocalLimit 5", "+- Sort [v#1 ASC NULLS FIRST], true"], 10),
        (["RepartitionByExpression [v#1], Statistics(x)"], 10),
    ],
)
def test_sorting_by_range_looks_at_a_sample_first(above: list[str], rows: int) -> None:
    lines = [*above, f"+- {node()}", "+- Range, Statistics(rowCount=10)"]
    found = calls([f"{' ' * 3 * at}{line}" for at, line in enumerate(lines)])
    assert (found.places, found.rows, found.calls) == (1, rows, rows // 10)
    assert ["ORDER BY" in text for text in found.warnings] == [True] * (rows == 20)


@pytest.mark.parametrize(
    ("volatility", "above", "warns"),
    [
        (Volatility.VOLATILE, "Filter (n#3 < 9)", True),
        (Volatility.IMMUTABLE, "Filter (n#3 < 9)", False),
        (Volatility.VOLATILE, "Filter (pythonUDF0#21 = x)", False),
    ],
)
def test_filters_that_wait_for_nothing_come_too_late(
    volatility: Volatility, above: str, warns: bool
) -> None:
    found = calls([above, "+- Project [n#3]", f"   +- {node()}"], volatility=volatility)
    assert bool(found.warnings) is warns


@pytest.mark.parametrize(
    ("text", "warns"),
    [
        (f"select case when a then {NAME}(b) end from t", True),
        (f"select coalesce(a, {NAME}(b)) from t", True),
        (f"select {NAME}(case when a then b end) from t", False),
    ],
)
def test_choices_of_sql_keep_no_rows_back(text: str, warns: bool) -> None:
    assert any("CASE" in said for said in calls([node()], text=text).warnings) is warns
