"""Conditions from which files and chunks can be left out; no Spark is started here."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any, cast

import pytest

from snowmelt.schema.types import Column, LogicalType
from snowmelt.spark.sql.predicates import extract_predicates
from snowmelt.spark.sql.table_references import TableReference, parse_query
from snowmelt.table.pruning import And, Comparison, InList, IsNull, Or, Predicate, StartsWith

COLUMNS = {
    "n": Column("N", LogicalType.FIXED, 1, precision=18, scale=2),
    "wide": Column("WIDE", LogicalType.FIXED, 2, precision=38, scale=10),
    "r": Column("R", LogicalType.REAL, 3),
    "s": Column("S", LogicalType.TEXT, 4),
    "b": Column("B", LogicalType.BOOLEAN, 5),
    "d": Column("D", LogicalType.DATE, 6),
    "t": Column("T", LogicalType.TIME, 7, scale=9),
    "ntz": Column("NTZ", LogicalType.TIMESTAMP_NTZ, 8, scale=9),
    "ltz": Column("LTZ", LogicalType.TIMESTAMP_LTZ, 9, scale=9),
    "v": Column("V", LogicalType.VARIANT, 10),
    "ltz$ns": None,
}
OTHER = {"n": COLUMNS["n"], "k": COLUMNS["n"]}


def found(text: str, *, utc: bool = True, index: int = 0) -> list[Predicate]:
    query = parse_query(text)

    def columns_of(reference: TableReference) -> dict[str, Column | None] | None:
        return {"T": COLUMNS, "U": OTHER}.get(reference.parts[-1])

    return extract_predicates(query, query.references[index], columns_of, is_utc=utc)


def where(condition: str, **options: bool) -> list[Predicate]:
    return found(f"SELECT 1 FROM a.b.t WHERE {condition}", **options)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("n = 5", Comparison("N", "=", 5)),
        ("n = -5.25", Comparison("N", "=", Decimal("-5.25"))),
        ("5 < n", Comparison("N", ">", 5)),
        ("n <> 5", Comparison("N", "<>", 5)),
        ("n != 5", Comparison("N", "<>", 5)),
        ("n <=> 5", Comparison("N", "<=>", 5)),
        ("n BETWEEN 1 AND 2", And((Comparison("N", ">=", 1), Comparison("N", "<=", 2)))),
        ("n IN (1, 2, NULL)", InList("N", (1, 2))),
        # Spark compares all of them as doubles, in which 2**53 + 1 is 2**53.
        ("n IN (9007199254740993, 5e-1)", InList("N", (9007199254740992.0, 0.5))),
        ("n IS NULL", IsNull("N")),
        ("n IS NOT NULL", IsNull("N", negated=True)),
        ("NOT n IS NULL", IsNull("N", negated=True)),
        ("(n = 1 OR n > 7)", Or((Comparison("N", "=", 1), Comparison("N", ">", 7)))),
        ("r > 1e3", Comparison("R", ">", 1000.0)),
        ("s = 'x'", Comparison("S", "=", "x")),
        ("s LIKE 'ab%'", StartsWith("S", "ab")),
        ("b = true", Comparison("B", "=", True)),
        ("d >= DATE '2013-01-31'", Comparison("D", ">=", dt.date(2013, 1, 31))),
        ("d >= '2013-01-31'", Comparison("D", ">=", dt.date(2013, 1, 31))),
        ("t < TIME '10:00:00.5'", Comparison("T", "<", dt.time(10, 0, 0, 500_000))),
        (
            "ntz = TIMESTAMP_NTZ '2013-01-31 10:00:00'",
            Comparison("NTZ", "=", dt.datetime(2013, 1, 31, 10)),
        ),
        (
            "ltz = TIMESTAMP '2013-01-31 10:00:00'",
            Comparison("LTZ", "=", dt.datetime(2013, 1, 31, 10, tzinfo=dt.UTC)),
        ),
        (
            "ltz > DATE '2013-01-31'",
            Comparison("LTZ", ">", dt.datetime(2013, 1, 31, tzinfo=dt.UTC)),
        ),
        ("T.n = 5", Comparison("N", "=", 5)),
    ],
)
def test_a_plain_condition_prunes(condition: str, expected: Any) -> None:
    assert where(condition) == [expected]


@pytest.mark.parametrize(
    "condition",
    [
        "n + 1 = 5",
        "n = r",
        "n = '5'",
        "n = 5L",
        "NOT n = 5",
        "n NOT IN (1, 2)",
        "n IN (SELECT 1)",
        # The common type of both has too few digits: Spark rounds the first to 5.
        "n IN (4.99999999999999999999, 123456789012345678901234567890)",
        "n = 5 OR v IS NULL",
        "v IS NULL",
        "wide = 0.123456789012345",
        "s = 'a\\nb'",
        's = "x"',
        "s LIKE '%ab'",
        "s LIKE 'ab'",
        "upper(s) = 'X'",
        "d = '31.1.2013'",
        "d = TIMESTAMP '2013-01-31 00:00:00'",
        "d = '2013-02-31'",
        "ntz = '2013-01-31 10:00:00+02:00'",
        "`ltz$ns` = 5",
        "x.n = 5",
        "b",
        "d = :day",
        "n = (SELECT 5)",
    ],
)
def test_a_condition_that_is_not_certain_prunes_nothing(condition: str) -> None:
    assert where(condition) == []


def test_conditions_are_taken_one_by_one() -> None:
    assert where("n = 5 AND upper(s) = 'X' AND r < 2") == [
        Comparison("N", "=", 5),
        Comparison("R", "<", 2),
    ]


def test_instants_prune_only_where_the_session_is_in_utc() -> None:
    assert where("ltz > TIMESTAMP '2013-01-31 10:00:00'", utc=False) == []
    assert where("d > DATE '2013-01-31'", utc=False) != []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1 FROM a.b.t JOIN a.b.u ON t.n = 5 AND r = 1", ["N", "R"]),
        ("SELECT 1 FROM a.b.t JOIN a.b.u WHERE n = 5 AND r = 1", ["R"]),
        ("SELECT 1 FROM a.b.t JOIN elsewhere WHERE r = 1 AND t.n = 5", ["N"]),
        ("SELECT 1 FROM a.b.t LEFT JOIN a.b.u ON t.n = 5", []),
        ("SELECT 1 FROM a.b.t LEFT JOIN a.b.u ON k = 1 WHERE t.n = 5", ["N"]),
        ("SELECT 1 FROM a.b.t LEFT JOIN a.b.u ON k = 1 WHERE t.n IS NULL", []),
        ("SELECT 1 FROM a.b.t LEFT ANTI JOIN a.b.u ON t.n = 5", []),
        ("SELECT 1 FROM a.b.t ANTI JOIN a.b.u ON t.n = 5", []),
        ("SELECT 1 FROM a.b.t FULL JOIN a.b.u ON t.n = 5", []),
        ("SELECT 1 FROM a.b.t TABLESAMPLE (5 ROWS) WHERE n = 5", []),
        ("SELECT 1 FROM a.b.t LATERAL VIEW explode(array(1)) x AS r WHERE r = 5", []),
        ("SELECT 1 FROM a.b.t HAVING n = 5", []),
        ("FROM a.b.t |> WHERE n = 5", []),
        ("SELECT 1 FROM a.b.t x(n, r) WHERE n = 5", []),
        ("SELECT * FROM (SELECT * FROM a.b.t) WHERE n = 5", []),
        ("SELECT 1 FROM a.b.t WHERE EXISTS (SELECT 1 FROM a.b.u WHERE t.r = 5)", []),
    ],
)
def test_joins_and_scopes_are_respected(text: str, expected: list[str]) -> None:
    assert [cast("Comparison", each).column for each in found(text)] == expected


def test_a_left_joined_table_is_pruned_by_its_own_condition() -> None:
    text = "SELECT 1 FROM a.b.t LEFT JOIN a.b.u ON t.n = u.n AND u.k = 5"
    assert found(text, index=1) == [Comparison("N", "=", 5)]


def test_columns_with_names_of_an_alias_are_pruned_by_position() -> None:
    names = ", ".join(["n", "x", *(f"c{at}" for at in range(9))])
    text = f"SELECT 1 FROM a.b.t AS q({names}) WHERE n = 1 AND x = 2 AND c0 = 'a' AND r = 3"
    expected = [Comparison("N", "=", 1), Comparison("WIDE", "=", 2), Comparison("R", "=", 3)]
    assert found(text.replace("c0 = 'a' AND r", "c0")) == expected
    assert found(text)[:2] == expected[:2]
    assert found(text.replace("AS q(n, ", "q(")) == []
    assert found("SELECT 1 FROM a.b.t JOIN a.b.u AS q(x, n) WHERE n = 1 AND x = 2", index=1) == [
        Comparison("N", "=", 2)
    ]
