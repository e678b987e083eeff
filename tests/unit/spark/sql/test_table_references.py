"""What a query reads; no Spark is started here."""

from __future__ import annotations

from typing import Any

import pytest

from snowmelt.errors import Unsupported
from snowmelt.spark.sql.table_references import (
    list_needed_columns,
    parse_dotted_name,
    parse_query,
    qualify_reference,
    replace_references,
)

COLUMNS = ["ORIGIN", "DEST", "DAY", "V", "AT", "AT$ns", "USER"]


def tables(text: str) -> list[Any]:
    return [".".join(reference.parts) for reference in parse_query(text).references]


def needed(text: str, index: int = 0) -> list[str]:
    query = parse_query(text)
    return list_needed_columns(query, query.references[index], COLUMNS)


def rewritten(text: str) -> str:
    query = parse_query(text)
    ours = [i for i, reference in enumerate(query.references) if len(reference.parts) == 3]
    return replace_references(query, {index: f"{{t{index}}}" for index in ours})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1 FROM demo.public.flights", ["DEMO.PUBLIC.FLIGHTS"]),
        ("select 1 from `demo`.Public.`Fl ights`", ["demo.PUBLIC.Fl ights"]),
        ("WITH c AS (SELECT * FROM a.b.c) SELECT * FROM c", ["A.B.C", "C"]),
        ("SELECT * FROM a.b.c x JOIN a.b.d y ON x.i = y.i", ["A.B.C", "A.B.D"]),
        ("SELECT (SELECT max(i) FROM a.b.c) FROM a.b.d", ["A.B.C", "A.B.D"]),
        ("SELECT 1 WHERE EXISTS (SELECT 1 FROM a.b.c)", ["A.B.C"]),
        ("EXPLAIN EXTENDED SELECT 1 FROM a.b.c", ["A.B.C"]),
        ("FROM a.b.c |> WHERE i > 1 |> SELECT i", ["A.B.C"]),
        ("SELECT 'a.b.c', \"a.b.d\" FROM range(3) -- a.b.e", []),
        ("SELECT a.b.c FROM t", ["T"]),
    ],
)
def test_tables_are_found_wherever_they_stand(text: str, expected: list[str]) -> None:
    assert tables(text) == expected


def test_tables_are_found_in_what_sqlglot_cannot_parse() -> None:
    query = parse_query("SELECT ~~ ??? FROM a.b.c JOIN a.b.d USING (i)")
    assert query.tree is None
    assert [reference.parts for reference in query.references] == [
        ("A", "B", "C"),
        ("A", "B", "D"),
    ]
    assert list_needed_columns(query, query.references[0], COLUMNS) == COLUMNS


def test_a_table_handed_to_a_function_is_found() -> None:
    assert tables("SELECT * FROM f(TABLE(a.b.c))")[-1:] == ["A.B.C"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT origin FROM a.b.c WHERE Day > 1", ["ORIGIN", "DAY"]),
        ("SELECT count(*) FROM a.b.c", []),
        ("SELECT count(*), max(dest) FROM a.b.c", ["DEST"]),
        ("SELECT * FROM a.b.c", COLUMNS),
        ("SELECT c.* FROM a.b.c", COLUMNS),
        ("SELECT x.* FROM a.b.c, (SELECT 1) x", []),
        ("SELECT * EXCEPT (day) FROM a.b.c", COLUMNS),
        ("SELECT struct(*) FROM a.b.c", COLUMNS),
        ("SELECT * FROM (SELECT origin FROM a.b.c)", ["ORIGIN"]),
        ("SELECT v:city::string FROM a.b.c", ["V"]),
        ("SELECT user FROM a.b.c", ["USER"]),
        ("SELECT `at$ns` FROM a.b.c", ["AT$ns"]),
        ("SELECT i FROM a.b.c AS x(i, j)", COLUMNS),
        ("SELECT 1 FROM a.b.c NATURAL JOIN d", COLUMNS),
        ("SELECT 1 FROM d JOIN a.b.c USING (day)", ["DAY"]),
        ("SELECT `(day)?+.+` FROM a.b.c", COLUMNS),
        ("SELECT IDENTIFIER('d' || 'ay') FROM a.b.c", COLUMNS),
        ("SELECT * FROM a.b.c PIVOT (sum(day) FOR dest IN ('x'))", COLUMNS),
        ("FROM a.b.c |> WHERE day > 1", COLUMNS),
        ("SELECT 1 FROM d WHERE EXISTS (SELECT * FROM a.b.c WHERE day = d.i)", ["DAY"]),
    ],
)
def test_only_columns_that_may_be_needed_are_taken(text: str, expected: list[str]) -> None:
    query = parse_query(text)
    index = next(i for i, each in enumerate(query.references) if len(each.parts) == 3)
    assert needed(text, index) == expected


def test_the_text_around_a_table_stays_as_it_is() -> None:
    text = "SELECT  origin /* {x} */ FROM demo.public.flights WHERE day > DATE '2013-01-01'"
    assert rewritten(text) == (
        "SELECT  origin /* {{x}} */ FROM ({t0} AS `FLIGHTS`) WHERE day > DATE '2013-01-01'"
    )


def test_an_alias_is_kept() -> None:
    assert rewritten("SELECT f.day FROM a.b.c f") == "SELECT f.day FROM {t0} f"
    assert rewritten("SELECT f.day FROM a.b.c AS f") == "SELECT f.day FROM {t0} AS f"


def test_a_sample_follows_the_table_with_its_name() -> None:
    assert rewritten("SELECT * FROM a.b.c TABLESAMPLE (10 ROWS)") == (
        "SELECT * FROM ({t0} AS `C`) TABLESAMPLE (10 ROWS)"
    )


def test_columns_lose_database_and_schema() -> None:
    assert rewritten("SELECT a.b.c.day, b.c.dest, c.v FROM a.b.c") == (
        "SELECT c.day, c.dest, c.v FROM ({t0} AS `C`)"
    )


def test_a_query_that_would_change_a_table_is_refused() -> None:
    with pytest.raises(Unsupported, match="as a statement of its own"):
        parse_query("INSERT INTO a.b.c SELECT 1")


def test_a_dotted_name_is_folded_unless_quoted() -> None:
    assert parse_dotted_name("demo.Public.flights") == ("DEMO", "PUBLIC", "FLIGHTS")
    assert parse_dotted_name('demo."Public".`fl ights`') == ("DEMO", "Public", "fl ights")
    assert parse_dotted_name("demo public") == ()
    assert parse_dotted_name("") == ()


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("SELECT * FROM t", ("D", "S", "T")),
        ("SELECT * FROM other.t", ("D", "OTHER", "T")),
        ("SELECT * FROM a.b.t", ("A", "B", "T")),
        ("SELECT * FROM `low`", ("D", "S", "low")),
        ("WITH t AS (SELECT 1) SELECT * FROM t", ("T",)),
    ],
)
def test_short_names_are_completed(text: str, full: tuple[str, ...]) -> None:
    query = parse_query(text)
    assert qualify_reference(query, query.references[-1], ("D", "S")) == full
    assert qualify_reference(query, query.references[-1], ()) == query.references[-1].parts
