"""What a query reads; no Spark is started here."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.errors import StatementError, Unsupported
from snowmelt.spark.sql.table_references import (
    list_needed_columns,
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
    for alias in ("f", "AS f", "f(x, y)", "AS f(x, y)"):
        assert rewritten(f"SELECT 1 FROM a.b.c {alias}") == f"SELECT 1 FROM ({{t0}} AS `C`) {alias}"


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
    assert qualify_reference(query.references[-1], ("D", "S")) == full
    assert qualify_reference(query.references[-1], ()) == query.references[-1].parts


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("SELECT * FROM (WITH t AS (SELECT 1) SELECT * FROM t) x JOIN t", ["T", "D.S.T"]),
        ("SELECT * FROM t WHERE i IN (WITH t AS (SELECT 1 a) SELECT a FROM t)", ["D.S.T", "T"]),
        ("WITH t AS (SELECT 1) SELECT * FROM u WHERE i IN (SELECT * FROM t)", ["D.S.U", "T"]),
        ("WITH t AS (SELECT * FROM t) SELECT * FROM t", ["D.S.T", "T"]),
        ("WITH a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a, b", ["D.S.B", "A", "B"]),
        ("WITH a AS (SELECT 1), b AS (SELECT * FROM a) SELECT * FROM B", ["A", "B"]),
        (
            "WITH a AS (WITH b AS (SELECT * FROM b) SELECT * FROM b) SELECT * FROM a, b",
            ["D.S.B", "B", "A", "D.S.B"],
        ),
        ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n FROM t) SELECT * FROM t", ["T", "T"]),
        ("WITH t AS (SELECT 1) SELECT * FROM s.t, d.s.t, `t`", ["D.S.T", "D.S.T", "t"]),
        ("WITH t AS (SELECT 1) (SELECT * FROM t UNION SELECT * FROM v)", ["T", "D.S.V"]),
    ],
)
def test_names_of_with_are_those_in_scope(text: str, tables: list[str]) -> None:
    references = parse_query(text).references
    found = [".".join(qualify_reference(each, ("D", "S"))) for each in references]
    assert found == tables


def test_what_is_not_closed_is_refused() -> None:
    with pytest.raises(StatementError, match="not closed"):
        parse_query("SELECT 'x FROM a.b.c")


def test_a_table_as_of_a_time_is_refused_by_name() -> None:
    query = parse_query("SELECT * FROM a.b.c TIMESTAMP AS OF '2020-01-01'")
    assert replace_references(query, {}) == query.text
    with pytest.raises(Unsupported, match=r"AS OF for table A.B.C"):
        replace_references(query, {0: "{t}"})


# A query as a tree, and its text with strings, comments and quoted names that look like tables.

NOISE = st.sampled_from(
    [
        " ", "\n", " /* FROM x.y.z */ ", " /* /* ' */ FROM x.y.z \" */ ", " -- FROM x.y.z '\n", "\t",
    ]
)  # fmt: skip
LITERALS = st.sampled_from(
    [
        "'FROM x.y.z'", "'it''s FROM x.y.z'", r"'\' FROM x.y.z'", '"FROM x.y.z"',
        r'"\" FROM x.y.z"', r"r'FROM x.y.z\'", "`FROM x.y.z`", "`a``FROM x.y.z`", "1.5e3",
        "count(*)", "x.y.z.a",
    ]
)  # fmt: skip
WORDS = st.sampled_from(["a", "Tab", "1a", "größe", "t_1"])
QUOTED = st.text(st.sampled_from("aB.`'\"$ é-/*"), min_size=1, max_size=6)
PARTS = st.one_of(
    WORDS.map(lambda name: (name.upper(), name)),
    QUOTED.map(lambda name: (name, "`" + name.replace("`", "``") + "`")),
)


@st.composite
def selects(draw: st.DrawFn, depth: int = 2) -> tuple[list[str], list[tuple[str, ...]]]:
    """Draw a query: its tokens, and the full names of its tables in order."""
    tables: list[tuple[str, ...]] = []

    def table() -> list[str]:
        parts = draw(st.tuples(PARTS, PARTS, PARTS))
        tables.append(tuple(internal for internal, _ in parts))
        alias = draw(st.sampled_from([[], ["AS", "q"], ["q"]]))
        return [".".join(written for _, written in parts), *alias]

    def query(depth: int) -> list[str]:
        sources = [source(depth) for _ in range(draw(st.integers(1, 2)))]
        from_ = [*sources[0], *(["CROSS", "JOIN", *sources[1]] if len(sources) > 1 else [])]
        return ["SELECT", draw(LITERALS), ",", draw(LITERALS), "FROM", *from_, *condition(depth)]

    def source(depth: int) -> list[str]:
        if not depth or draw(st.booleans()):
            return table()
        return ["(", *query(depth - 1), ")", "AS", "p"]

    def condition(depth: int) -> list[str]:
        if not depth or draw(st.booleans()):
            return ["WHERE", draw(LITERALS), "=", draw(LITERALS)]
        return ["WHERE", "EXISTS", "(", *query(depth - 1), ")"]

    return query(depth), tables


@given(selects(), st.data())
def test_the_tables_of_any_query_are_found(
    query: tuple[list[str], list[tuple[str, ...]]], data: st.DataObject
) -> None:
    tokens, expected = query
    text = "".join(token + data.draw(NOISE) for token in tokens)
    references = parse_query(text).references
    assert [reference.parts for reference in references] == expected
    assert all(reference.node is not None for reference in references)
