"""INSERT in `lake.sql`: by position, checked and counted. Other changes are rejected."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from fixtures.chunks import Lakehouse, numbers
from snowmelt.errors import (
    LoadRefused,
    PrivilegeMissing,
    SnowmeltError,
    StatementError,
    TableNotFound,
    Unsupported,
)
from snowmelt.spark import Snowmelt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark


def rows(lake: Snowmelt, where: str = "true") -> list[Any]:
    found = lake.sql(f"SELECT * FROM demo.public.numbers WHERE {where} ORDER BY n").collect()
    return [tuple(row) for row in found]


def test_values_and_queries_are_inserted_and_counted(lakehouse: Lakehouse, lake: Snowmelt) -> None:
    lakehouse.create()
    lakehouse.put(numbers(100, 2))
    first = lake.sql("INSERT INTO demo.public.numbers VALUES (1, 'one'), (2, NULL), (2.5, DEFAULT)")
    assert [tuple(row) for row in first.collect()] == [(3,)]
    assert first.columns == ["number of rows inserted"]
    lake.sql(
        "insert into numbers (word, n) select upper(word), n + 10 from numbers where n = 1;",
        database="demo",
    )
    lake.sql("INSERT INTO demo.public.numbers (n) SELECT max(n) FROM demo.public.numbers")

    assert rows(lake, "n < 100") == [(1, "one"), (2, None), (3, None), (11, "ONE")]
    assert [row[0] for row in rows(lake, "n >= 100")] == [100, 101, 101]
    history = lake.sql(
        "SELECT statement, row_count FROM LOAD_HISTORY ORDER BY start_time"
    ).collect()
    assert [row.row_count for row in history] == [3, 1, 1]
    assert history[0].statement.startswith("INSERT INTO demo.public.numbers VALUES (1")


COMPANIONS = ("at", "`at$ns`", "tz", "`tz$ns`", "`tz$tz`", "t", "`t$ns`")


@pytest.mark.parametrize(
    "insert",
    [
        "SELECT id + 1, at, tz, t FROM demo.public.fine",
        "SELECT ALL id + 1, at, tz, t FROM demo.public.fine",
        "SELECT at, tz, t, id IS DISTINCT FROM 2 FROM demo.public.fine",
        # The position in ORDER BY is that of the statement. The other row has no nanoseconds.
        (
            "SELECT at, tz, t, id FROM (SELECT * FROM demo.public.fine UNION ALL SELECT id + 1, at, "
            "0, tz, 0, `tz$tz`, t, 0 FROM demo.public.fine) ORDER BY 4 LIMIT 1"
        ),
        "SELECT * FROM demo.public.fine",
        f"SELECT DISTINCT id + 1, {', '.join(COMPANIONS)} FROM demo.public.fine",
        "SELECT f.id + 1, F.at AS a, `f`.`tz` b, f.t FROM demo.public.fine f JOIN (SELECT 1 AS x)",
    ],
)
def test_copied_columns_keep_their_nanoseconds_and_offsets(
    lakehouse: Lakehouse, lake: Snowmelt, insert: str
) -> None:
    lakehouse.create()
    lake.sql(
        "CREATE TABLE demo.public.fine (id VARCHAR, at TIMESTAMP_NTZ, tz TIMESTAMP_TZ, t TIME(9))"
    )
    lake.sql(
        "INSERT INTO demo.public.fine VALUES (1, '1969-12-31 23:59:59.123456789', "
        "'2026-01-31 12:00:00.000000001 +05:30', '00:00:00.123456789')"
    )
    columns = "(at, tz, t, id)" if insert.startswith("SELECT at") else ""
    lake.sql(f"INSERT INTO demo.public.fine {columns} {insert}")
    # An expression, and a column of another relation, have microseconds.
    lake.sql(
        "INSERT INTO demo.public.fine (id, at, t) SELECT 'z', at + INTERVAL 0 SECONDS, s.t FROM "
        "demo.public.fine JOIN (SELECT TIME '00:00:00.123456' AS t) AS s WHERE id = '1' LIMIT 1"
    )
    query = f"SELECT {', '.join(COMPANIONS)} FROM demo.public.fine ORDER BY id"
    first, second, *computed = lake.sql(query).collect()
    assert (first["at$ns"], first["tz$ns"], first["tz$tz"], first["t$ns"]) == (789, 1, 330, 789)
    assert second == first
    assert [(row["at$ns"], row["t$ns"]) for row in computed] == [(0, 0)]


def test_each_row_of_values_has_its_own_types(lake: Snowmelt, lakehouse: Lakehouse) -> None:
    lakehouse.create()
    lake.sql("CREATE TABLE demo.public.exact (id INT, n NUMBER, k NUMBER(38,37), word VARCHAR)")
    done = lake.sql(
        "INSERT INTO demo.public.exact VALUES (1, 9007199254740993, 0.0000000000000000000000000000000000001, '01'), "
        "(2, 1e0, 1, 2), (3, DEFAULT, NULL, true), (4, 4, 4, '${x} ${spark.app.name}')"
    )
    assert done.collect()[0][0] == 4
    found = lake.sql("SELECT n, k, word FROM demo.public.exact ORDER BY id").collect()
    assert [tuple(row) for row in found] == [
        (9007199254740993, Decimal(1).scaleb(-37), "01"),
        (1, 1, "2"),
        (None, None, "true"),
        (4, 4, "${x} ${spark.app.name}"),
    ]


def test_documents_and_offsets_go_in_as_they_are_read(lake: Snowmelt, lakehouse: Lakehouse) -> None:
    lakehouse.create()
    lake.sql("CREATE TABLE demo.public.docs (id INT, doc VARIANT, list ARRAY, at TIMESTAMP_TZ)")
    lake.sql(
        "INSERT INTO demo.public.docs SELECT 1, parse_json('{\"a\": [1, 2]}'), array(1, 2), "
        "'2026-01-01 10:00:00 +0200'"
    )
    [row] = lake.sql(
        "SELECT doc:a[1]::int, list:[0]::int, at, `at$tz` FROM demo.public.docs"
    ).collect()
    assert (row[0], row[1], row[2].hour, row[3]) == (2, 1, 8, 120)


def test_a_table_is_made_of_a_query(lakehouse: Lakehouse, lake: Snowmelt) -> None:
    lakehouse.create()
    lakehouse.put(numbers(0, 3))
    lake.sql(
        "CREATE TABLE demo.public.made AS SELECT n, word AS w, n / 2 AS half, parse_json('[1]') AS doc"
        " FROM demo.public.numbers"
    )
    found = lake.sql("SELECT n, half, doc:[0]::int FROM demo.public.made ORDER BY n").collect()
    assert [(int(n), float(half), doc) for n, half, doc in found] == [
        (0, 0, 1),
        (1, 0.5, 1),
        (2, 1, 1),
    ]
    with pytest.raises(SnowmeltError, match="already exists"):
        lake.sql("CREATE TABLE demo.public.made AS SELECT 1 AS n")
    with pytest.raises(Unsupported, match="omit the words"):
        lake.sql("CREATE OR REPLACE TABLE demo.public.made AS SELECT 1 AS n")
    with pytest.raises(LoadRefused, match="Column T"):
        lake.sql(f"CREATE TABLE demo.public.other AS SELECT repeat('x', {17 * 1024 * 1024}) AS t")
    with pytest.raises(TableNotFound):
        lake.sql("SELECT * FROM demo.public.other")


def test_what_does_not_fit_inserts_nothing_and_is_named(
    lakehouse: Lakehouse, lake: Snowmelt
) -> None:
    lakehouse.create()
    for statement, error, why in (
        (
            "INSERT INTO demo.public.numbers VALUES (1)",
            LoadRefused,
            "expected 2 values for the columns .*, got 1",
        ),
        (
            "INSERT INTO demo.public.numbers (word) VALUES ('a')",
            LoadRefused,
            "no value for N",
        ),
        ("INSERT INTO demo.public.numbers (n, x) VALUES (1, 2)", LoadRefused, "Column X"),
        ("INSERT INTO demo.public.numbers VALUES (NULL, 'a')", LoadRefused, "a value is NULL"),
        ("INSERT INTO demo.public.numbers VALUES ('a', 'a')", LoadRefused, "Not a valid number"),
        ("INSERT INTO demo.public.none VALUES (1)", TableNotFound, "NONE"),
        ("INSERT OVERWRITE demo.public.numbers SELECT 1, 'a'", Unsupported, "INSERT OVERWRITE"),
        ("INSERT INTO numbers VALUES (1, 'a')", StatementError, "Write the full name"),
    ):
        with pytest.raises(error, match=why):
            lake.sql(statement)
    assert rows(lake) == []


def test_only_roles_that_may_insert_do(
    lakehouse: Lakehouse, lake: Snowmelt, spark: SparkSession
) -> None:
    lakehouse.create()
    lake.sql("CREATE ROLE reader")
    lake.sql("GRANT USAGE ON DATABASE demo TO ROLE reader")
    lake.sql("GRANT USAGE ON SCHEMA demo.public TO ROLE reader")
    lake.sql("GRANT SELECT ON TABLE demo.public.numbers TO ROLE reader")
    reader = Snowmelt(
        spark,
        catalog=lakehouse.database,
        stage=lakehouse.stage.url,
        warehouse=lakehouse.warehouse.url,
        keys=lakehouse.keyring,
        role="READER",
    )
    with pytest.raises((PrivilegeMissing, SnowmeltError)):
        reader.sql("INSERT INTO demo.public.numbers VALUES (1, 'a')")
    assert rows(lake) == []


def test_what_is_only_explained_is_not_done(lakehouse: Lakehouse, lake: Snowmelt) -> None:
    lakehouse.create()
    with pytest.raises(Unsupported):
        lake.sql("EXPLAIN INSERT INTO demo.public.numbers SELECT 1, 'x'")
    with pytest.raises(TableNotFound):
        lake.sql("EXPLAIN CREATE TABLE demo.public.made AS SELECT 1 AS n")
    assert rows(lake) == []
    with pytest.raises(TableNotFound):
        lake.sql("SELECT * FROM demo.public.made")


def test_short_names_are_tables_where_no_with_clause_has_them_in_scope(
    lake: Snowmelt, lakehouse: Lakehouse
) -> None:
    lakehouse.create()
    lakehouse.put(numbers(0, 5))
    inner = "(WITH numbers AS (SELECT 9 AS n) SELECT * FROM numbers) x"
    for query, expected in (
        ("WITH numbers AS (SELECT n FROM numbers) SELECT count(*) FROM numbers", (5,)),
        (f"SELECT x.n, max(numbers.n) FROM {inner} JOIN numbers GROUP BY 1", (9, 4)),
        ("SELECT max(a), max(x.a) FROM numbers AS x(a, b) WHERE a < 3", (2, 2)),
        (
            "SELECT \"it\\\"s\", 'it''s' /* /* ' */ ' */ -- '\\\n , '\n FROM numbers",
            ('it"s', "it's"),
        ),
    ):
        assert tuple(lake.sql(query, database="demo").collect()[0]) == expected
