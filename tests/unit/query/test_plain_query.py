"""Which queries are plain, and their form for DuckDB."""

from __future__ import annotations

import pytest

from snowmelt.errors import StatementError
from snowmelt.query.plain_query import (
    PlainQuery,
    QueryColumnMissing,
    QueryNotPlain,
    parse_plain_query,
)
from snowmelt.schema.types import Column, LogicalType, TableName, TableSchema
from support.typed_rows import TYPED

SCHEMA = TableSchema(1, tuple(column for column in TYPED if column.name not in {"V", "text"}))


def analyze(text: str, namespace: tuple[()] = ()) -> PlainQuery:
    return parse_plain_query(text, namespace).analyze(SCHEMA)


@pytest.mark.parametrize(
    ("text", "sql", "names"),
    [
        ("SELECT id FROM d.s.t", 'SELECT "ID" FROM "ROWS"', ("id",)),
        (
            "SELECT a.`text` AS x, count(*) FROM d.s.t AS a WHERE num >= -1.5 GROUP BY 1 ORDER BY x DESC",
            (
                'SELECT "TEXT", count(*) FROM "ROWS" WHERE ("NUM" >= -1.5) GROUP BY "TEXT" '
                "ORDER BY 1 DESC NULLS LAST"
            ),
            ("x", "count(1)"),
        ),
        (
            "SELECT DISTINCT day FROM d.s.t WHERE NOT (text LIKE 'a\\'%' OR flag) ORDER BY 1 LIMIT 5",
            (
                'SELECT DISTINCT "DAY" FROM "ROWS" WHERE (NOT (("TEXT" LIKE \'a\'\'%\') OR "FLAG")) '
                "ORDER BY 1 ASC NULLS FIRST LIMIT 5"
            ),
            ("day",),
        ),
        (
            r"""SELECT id FROM d.s.t WHERE text IN ('it''s', "a""'b", 'c''\\1\'''') -- 'x""",
            r"""SELECT "ID" FROM "ROWS" WHERE ("TEXT" IN ('it''s', 'a"''b', 'c''\1'''''))""",
            ("id",),
        ),
        (
            "SELECT count(DISTINCT text), sum(Num) FROM d.s.t WHERE day = DATE '2020-02-30'",
            'SELECT count(DISTINCT "TEXT"), sum("NUM") FROM "ROWS" WHERE ("DAY" = DATE \'2020-02-30\')',
            ("count(DISTINCT text)", "sum(Num)"),
        ),
    ],
)
def test_a_plain_query_is_written_for_duckdb(text: str, sql: str, names: tuple[str, ...]) -> None:
    query = analyze(text)
    assert (query.sql, query.output_names) == (sql, names)


def test_names_are_completed_by_the_namespace() -> None:
    parsed = parse_plain_query('SELECT 1 AS "x" FROM t'.replace('1 AS "x"', "*"), ("D", "S"))
    assert parsed.table == TableName("D", "S", "T")
    assert parse_plain_query("SELECT * FROM s2.t", ("D", "S")).table == TableName("D", "S2", "T")
    assert parse_plain_query("SELECT * FROM d.s.`t`").table == TableName("D", "S", "t")


def test_counting_reads_one_column() -> None:
    assert analyze("SELECT count(*) FROM d.s.t").columns == ("ID",)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SHOW TABLES", "not a single SELECT"),
        ("SELECT 1; SELECT 2", "not a single SELECT"),
        ("SELECT id FROM d.s.t UNION SELECT id FROM d.s.t", "not a single SELECT"),
        ("SELECT 1", "does not read a table"),
        ("SELECT id FROM t", "not named as database.schema.table"),
        ("SELECT * FROM d.information_schema.tables", "it reads a view"),
        ("SELECT id FROM (SELECT * FROM d.s.t)", "does not read a table"),
        ("SELECT * EXCEPT (id) FROM d.s.t", "EXCEPT"),
        ("SELECT t.* EXCEPT (id) FROM d.s.t", "EXCEPT"),
        ("SELECT t.* REPLACE (1 AS id) FROM d.s.t", "REPLACE"),
        ("SELECT id FROM d.s.t JOIN d.s.u", "JOINS"),
        ("SELECT id FROM d.s.t, d.s.u", "JOINS"),
        ("WITH x AS (SELECT 1) SELECT id FROM d.s.t", "WITH"),
        ("SELECT id FROM d.s.t VERSION AS OF 1", "VERSION"),
        ("SELECT id FROM d.s.t TABLESAMPLE (5 ROWS)", "SAMPLE"),
        ("SELECT id FROM d.s.t HAVING id > 1", "HAVING"),
        ("SELECT id FROM d.s.t LIMIT 5 OFFSET 2", "OFFSET"),
        ("SELECT id FROM d.s.t LIMIT ALL", "LIMIT|not an integer"),
        ("SELECT id + 1 FROM d.s.t", r"selects id \+ 1"),
        ("SELECT avg(id) FROM d.s.t", "selects AVG"),
        ("SELECT upper(text) FROM d.s.t", "selects UPPER"),
        ("SELECT row_number() OVER (ORDER BY id) FROM d.s.t", "selects ROW_NUMBER"),
        ("SELECT sum(real) FROM d.s.t", "sums"),
        ("SELECT min(real) FROM d.s.t", "FLOAT"),
        ("SELECT count(id, num) FROM d.s.t", "EXPRESSIONS"),
        ("SELECT count(*) FILTER (WHERE id > 1) FROM d.s.t", "selects"),
        ("SELECT real FROM d.s.t GROUP BY real", "FLOAT"),
        ("SELECT DISTINCT real FROM d.s.t", "FLOAT"),
        ("SELECT id, count(*) FROM d.s.t", "neither grouped nor aggregated"),
        ("SELECT id, num FROM d.s.t GROUP BY id", "neither grouped nor aggregated"),
        ("SELECT id FROM d.s.t GROUP BY ALL", "ALL|groups"),
        ("SELECT text AS id FROM d.s.t", "two meanings"),
        ("SELECT text AS x, id AS x FROM d.s.t", "two meanings"),
        ("SELECT clock3 FROM d.s.t", "TIME"),
        ("SELECT ntz9 FROM d.s.t", "nanoseconds"),
        ("SELECT * FROM d.s.t", "TIME"),
        ("SELECT u.id FROM d.s.t", "no table u"),
        ("SELECT d.s.t.id FROM d.s.t", "DB|CATALOG"),
        ("SELECT id FROM d.s.t WHERE id = '5'", "compares a number"),
        ("SELECT id FROM d.s.t WHERE text = 5", "compares"),
        ("SELECT id FROM d.s.t WHERE id = 1e3", "compares a number"),
        ("SELECT id FROM d.s.t WHERE id = 1234567890123456789", "compares a number"),
        ("SELECT id FROM d.s.t WHERE day = '2020-01-01'", "compares a date or time"),
        ("SELECT id FROM d.s.t WHERE day = DATE '2020-1-1'", "compares a date or time"),
        ("SELECT id FROM d.s.t WHERE ntz > TIMESTAMP '2020-01-01 24:00:00'", "compares a date"),
        ("SELECT id FROM d.s.t WHERE num = id", "different scales"),
        ("SELECT id FROM d.s.t WHERE id = real", "compares"),
        ("SELECT id FROM d.s.t WHERE text LIKE '\\\\_'", "backslash"),
        ("SELECT id FROM d.s.t WHERE text LIKE 'a' ESCAPE '!'", "ESCAPE|condition"),
        ("SELECT id FROM d.s.t WHERE text ILIKE 'a'", "condition"),
        ("SELECT id FROM d.s.t WHERE id IN (SELECT 1)", "QUERY|SUBQUERY"),
        ("SELECT id FROM d.s.t WHERE id", "not a condition"),
        ("SELECT id FROM d.s.t WHERE id = NULL", "compares a number"),
        ("SELECT id FROM d.s.t ORDER BY id + 1", "orders by"),
        ("SELECT id FROM d.s.t ORDER BY 2", "position that does not exist"),
        ("SELECT DISTINCT id FROM d.s.t ORDER BY num", "not selected"),
        ("SELECT id FROM d.s.t SORT BY id", "SORT"),
        ("SELECT /*+ BROADCAST(t) */ id FROM d.s.t", "HINT"),
    ],
)
def test_anything_else_is_left_to_spark(text: str, reason: str) -> None:
    with pytest.raises(QueryNotPlain, match=reason):
        analyze(text)


@pytest.mark.parametrize("query", ["SELECT nope FROM d.s.t", "SELECT id FROM d.s.t WHERE nope > 1"])
def test_a_column_that_spark_would_not_find_either_is_named(query: str) -> None:
    with pytest.raises(QueryColumnMissing, match=r"Column nope does not exist. Columns: ID, "):
        analyze(query)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id AS nope, nope FROM d.s.t",
        "SELECT user FROM d.s.t",
        "SELECT _metadata FROM d.s.t",
        "SELECT `clock9$ns` FROM d.s.t",
        "SELECT id FROM d.s.t WHERE `TZ9$TZ` = 60",
    ],
)
def test_names_that_spark_may_resolve_are_left_to_it(query: str) -> None:
    with pytest.raises(QueryNotPlain) as raised:
        analyze(query)
    assert not isinstance(raised.value, QueryColumnMissing)


def test_a_column_that_spark_takes_for_a_companion_is_left_to_it() -> None:
    columns = (
        Column("T", LogicalType.TIME, 1, scale=9),
        Column("T$NS", LogicalType.FIXED, 2, precision=9, scale=0),
    )
    with pytest.raises(QueryNotPlain, match="two columns are called"):
        parse_plain_query("SELECT `t$ns` FROM d.s.t").analyze(TableSchema(1, columns))


def test_comments_and_names_are_those_of_spark() -> None:
    for text in (
        "SELECT n -- c\\\n WHERE n = 1\nFROM d.s.t",
        "SELECT n /* /* */ WHERE n = 1 */ FROM d.s.t",
    ):
        parsed = parse_plain_query(text)
        assert parsed.select.args.get("where") is None
        assert parsed.table == TableName("D", "S", "T")
    with pytest.raises(StatementError, match="in backticks"):
        parse_plain_query("SELECT * FROM d.s.t$x")
