"""DELETE, UPDATE and MERGE in `Snowmelt.sql`: exact, in one commit, while rows stream in."""

from __future__ import annotations

import random
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import duckdb
import pytest

from fixtures.chunks import Lakehouse
from snowmelt.errors import (
    ColumnNotFound,
    LoadRefused,
    StatementError,
    TableNotFound,
)
from snowmelt.schema.types import TableName
from snowmelt.spark.row_changes import RowChangeRunner, parse_row_change

pytestmark = [pytest.mark.spark, pytest.mark.slow]
NAME = TableName("DEMO", "PUBLIC", "T")


@pytest.fixture
def table(lakehouse: Lakehouse, lake: Any) -> str:
    lake.sql("CREATE DATABASE IF NOT EXISTS demo")
    lake.sql(
        "CREATE TABLE demo.public.t (id NUMBER(9,0) NOT NULL, name VARCHAR(9), at TIMESTAMP_NTZ(9), "
        "doc VARIANT, price NUMBER(10,2))"
    )
    return "demo.public.t"


def fill(lake: Any, first: int, count: int) -> None:
    lake.sql(
        f"INSERT INTO demo.public.t (id, name, at, doc, price) SELECT id, concat('n', id), "
        "timestamp_ntz'2026-01-01 00:00:00.123456', parse_json(concat('{\"k\": ', id, '}')), id / 4 "
        f"FROM range({first}, {first + count})"
    )


def rows(lake: Any) -> dict[int, tuple[str | None, Decimal | None]]:
    found = lake.sql("SELECT id, name, price FROM demo.public.t").collect()
    return {int(row[0]): (row[1], row[2]) for row in found}


def expected(ids: Iterable[int]) -> dict[int, tuple[str | None, Decimal | None]]:
    return {each: (f"n{each}", Decimal(each) / 4) for each in ids}


def counts(frame: Any) -> tuple[int, ...]:
    return tuple(frame.collect()[0])


def test_a_delete_removes_the_rows_of_its_condition_and_no_others(lake: Any, table: str) -> None:
    fill(lake, 0, 10)
    fill(lake, 10, 10)
    done = lake.sql("DELETE FROM demo.public.t WHERE id % 4 = 1 OR name = 'n2'")
    assert counts(done) == (0, 0, 6)
    assert done.columns == [f"number of rows {each}" for each in ("inserted", "updated", "deleted")]
    assert rows(lake) == expected(each for each in range(20) if each % 4 != 1 and each != 2)
    assert counts(lake.sql("DELETE FROM demo.public.t AS x WHERE x.id > 1000")) == (0, 0, 0)
    assert counts(lake.sql("DELETE FROM demo.public.t")) == (0, 0, 14)
    assert rows(lake) == {}
    assert counts(lake.sql("DELETE FROM demo.public.t")) == (0, 0, 0)


def test_a_condition_that_is_unknown_changes_nothing(lake: Any, table: str) -> None:
    fill(lake, 0, 3)
    lake.sql("UPDATE demo.public.t SET name = NULL WHERE id = 1")
    lake.sql("CREATE TABLE demo.public.whole (n NUMBER)")
    lake.sql("INSERT INTO demo.public.whole VALUES (1), (2)")
    assert counts(lake.sql("DELETE FROM demo.public.whole WHERE n = 1.5")) == (0, 0, 0)
    assert counts(lake.sql("DELETE FROM demo.public.t WHERE name <> 'n0'")) == (0, 0, 1)
    assert set(rows(lake)) == {0, 1}


def test_an_update_sets_columns_from_the_row(lake: Any, table: str) -> None:
    fill(lake, 0, 10)
    done = lake.sql(
        "UPDATE demo.public.t AS x SET price = x.price * 2 + 0.015, name = CASE WHEN id = 3 THEN 'three' "
        "ELSE upper(name) END WHERE id IN (3, 4)"
    )
    assert counts(done) == (0, 2, 0)
    found = rows(lake)
    assert found.pop(3) == ("three", Decimal("1.52"))
    assert found.pop(4) == ("N4", Decimal("2.02"))
    assert found == expected(each for each in range(10) if each not in (3, 4))


def test_columns_that_are_not_set_stay_exactly_as_they_are(
    lakehouse: Lakehouse, lake: Any, table: str
) -> None:
    text = '{"z":1.0,"a":[1e5,null],"long":12345678901234567890.123}'
    lake.sql(
        f"INSERT INTO demo.public.t (id, doc) SELECT 1, parse_json('{text}') UNION ALL "
        f"SELECT 2, parse_json('{text}')"
    )
    before = lakehouse.read(NAME).sort_by("ID").column("DOC").to_pylist()
    lake.sql("UPDATE demo.public.t SET name = 'x' WHERE id = 1")
    lake.sql("DELETE FROM demo.public.t WHERE id = 3")
    assert lakehouse.read(NAME).sort_by("ID").column("DOC").to_pylist() == before


def test_a_merge_updates_deletes_and_inserts(lake: Any, table: str) -> None:
    fill(lake, 0, 6)
    lake.spark.createDataFrame(
        [(1, "one", 1.5), (2, "gone", None), (7, "seven", 7.0), (8, None, 8.0)],
        "k INT, v STRING, p DOUBLE",
    ).createOrReplaceTempView("changes")
    done = lake.sql(
        "MERGE INTO demo.public.t AS t USING changes AS c ON t.id = c.k "
        "WHEN MATCHED AND c.v = 'gone' THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET name = c.v, price = t.price + c.p "
        "WHEN NOT MATCHED AND c.v IS NOT NULL THEN INSERT (id, name) VALUES (c.k, c.v) "
        "WHEN NOT MATCHED THEN INSERT (id, price) VALUES (c.k, c.p)"
    )
    assert counts(done) == (2, 1, 1)
    assert rows(lake) == {
        **expected([0, 3, 4, 5]),
        1: ("one", Decimal("1.75")),
        7: ("seven", None),
        8: (None, Decimal("8.00")),
    }


def test_a_merge_takes_all_columns_of_a_table(lake: Any, table: str) -> None:
    fill(lake, 0, 2)
    lake.sql(
        "CREATE TABLE demo.public.s (id NUMBER(9,0), name VARCHAR, at TIMESTAMP_NTZ(9), "
        "doc VARIANT, price NUMBER(10,2))"
    )
    lake.sql("INSERT INTO demo.public.s (id, name) VALUES (1, 'one'), (2, 'two')")
    lake.sql(
        "MERGE INTO demo.public.t USING demo.public.s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    assert rows(lake) == {**expected([0]), 1: ("one", None), 2: ("two", None)}


def test_names_that_differ_only_in_case_are_columns_of_their_own(lake: Any, table: str) -> None:
    for name, columns in (("one", 'id INT, "a" INT, A INT'), ("two", 'id INT, "a" INT, A INT')):
        lake.sql(f"CREATE TABLE demo.public.{name} ({columns})")
    lake.sql("INSERT INTO demo.public.one VALUES (1, 10, 20)")
    lake.sql("INSERT INTO demo.public.two VALUES (1, 30, 40), (2, 50, 60)")
    lake.sql(
        "MERGE INTO demo.public.one USING demo.public.two AS s ON one.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    lake.sql("UPDATE demo.public.one SET A = A_3 + 1 WHERE `a` = 50 AND A_3 = 60")
    found = lake.sql("SELECT * FROM demo.public.one ORDER BY id").collect()
    assert list(map(tuple, found)) == [(1, 30, 40), (2, 50, 61)]
    for text, message in (
        ("UPDATE demo.public.one AS o SET id = o.A", "write `A_3` for A"),
        (
            (
                "MERGE INTO demo.public.one USING (SELECT 1 AS id, 2 AS a) AS s ON one.id = s.id "
                "WHEN MATCHED THEN UPDATE SET *"
            ),
            "no column A",
        ),
    ):
        with pytest.raises(StatementError, match=message):
            lake.sql(text)


def test_a_condition_is_evaluated_once_for_each_row(lake: Any, table: str) -> None:
    fill(lake, 0, 64)
    [(_, updated, _)] = lake.sql(
        "UPDATE demo.public.t SET name = 'x', price = 1 WHERE rand() < 0.5"
    ).collect()
    found, changed = rows(lake), ("x", Decimal(1))
    assert sum(row == changed for row in found.values()) == updated
    for at, row in found.items():
        assert row in (changed, expected([at])[at])


def test_a_condition_of_a_merge_is_evaluated_once_for_all_insertions(lake: Any, table: str) -> None:
    done = lake.sql(
        "MERGE INTO demo.public.t USING (SELECT id AS k FROM range(400)) AS s ON t.id = s.k "
        "WHEN NOT MATCHED AND rand() < 0.5 THEN INSERT (id, name) VALUES (s.k, 'a') "
        "WHEN NOT MATCHED AND s.k < 300 THEN INSERT (price, id, doc) VALUES (2, s.k, parse_json('[1]')) "
        "WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.k, NULL)"
    )
    assert counts(done) == (400, 0, 0)
    found = rows(lake)
    assert set(found) == set(range(400))
    for at, row in found.items():
        assert row in (("a", None), (None, Decimal(2)) if at < 300 else (None, None))
    assert 100 < sum(row == ("a", None) for row in found.values()) < 300


@pytest.mark.parametrize("count", [1, 2])
def test_insertions_of_a_merge_may_have_nested_queries(lake: Any, table: str, count: int) -> None:
    fill(lake, 0, 3)
    other = "" if count == 1 else "WHEN NOT MATCHED AND s.k = 9 THEN INSERT (id) VALUES (s.k) "
    lake.sql(
        f"MERGE INTO demo.public.t USING (SELECT id AS k FROM range(10)) AS s ON t.id = s.k {other}"
        "WHEN NOT MATCHED AND (EXISTS (SELECT 1 FROM demo.public.t AS x WHERE x.id = s.k - 3) OR s.k IN "
        "(SELECT max(id) + 5 FROM demo.public.t)) AND k <> 4 THEN INSERT (id, name) VALUES (s.k, "
        "(SELECT max(name) FROM demo.public.t))"
    )
    found = {at: name for at, (name, _) in rows(lake).items() if at > 2}
    assert found == {3: "n2", 5: "n2", 7: "n2", **({9: None} if count == 2 else {})}


def test_an_insertion_of_a_merge_calls_python_only_for_its_rows(lake: Any, table: str) -> None:
    lake.spark.udf.register("reciprocal", lambda number: str(1 // number), "string")
    lake.sql(
        "MERGE INTO demo.public.t USING (SELECT id AS k FROM range(3)) AS s ON t.id = s.k "
        "WHEN NOT MATCHED AND s.k > 0 THEN INSERT (id, name) VALUES (s.k, reciprocal(s.k))"
    )
    assert {at: name for at, (name, _) in rows(lake).items()} == {1: "1", 2: "0"}


def test_rows_that_arrive_during_a_merge_are_in_none_of_its_relations(
    lakehouse: Lakehouse, lake: Any, table: str
) -> None:
    class Streaming(RowChangeRunner):
        """Commits a row of the table before each query of a statement."""

        def _run(self, *arguments: Any) -> Any:
            fill(lake, len(rows(lake)), 1)
            return super()._run(*arguments)

    fill(lake, 0, 3)
    change = parse_row_change(
        "MERGE INTO demo.public.t USING demo.public.t AS s ON t.id = s.id "
        "WHEN MATCHED AND s.id > 1 THEN UPDATE SET name = 'x' WHEN NOT MATCHED THEN INSERT *",
        (),
    )
    assert change is not None
    runner = lake._make_row_change_runner(())
    runner.__class__ = Streaming
    assert runner.run(change) == (0, 1, 0)
    found = lake.sql("SELECT id FROM demo.public.t ORDER BY id").collect()
    assert [int(row[0]) for row in found] == list(range(len(found)))


def test_values_of_columns_keep_nanoseconds_and_offsets(lake: Any, table: str) -> None:
    columns = "(id INT, n TIMESTAMP_NTZ(9), z TIMESTAMP_TZ(9), t TIME(9))"
    for name in ("origin", "copy"):
        lake.sql(f"CREATE TABLE demo.public.{name} {columns}")
    lake.sql(
        "INSERT INTO demo.public.origin VALUES (1, '2020-06-01T00:00:00.123456789', "
        "'2020-01-01T00:00:00.123456789+05:30', '01:02:03.123456789'), (2, NULL, NULL, NULL)"
    )
    lake.sql("INSERT INTO demo.public.copy (id) VALUES (1)")

    def read(name: str) -> list[tuple[Any, ...]]:
        return list(map(tuple, lake.sql(f"SELECT * FROM demo.public.{name} ORDER BY id").collect()))

    expected = read("origin")
    assert expected[0][2] == expected[0][4] == expected[0][7] == 789
    assert expected[0][5] == 330
    lake.sql("UPDATE demo.public.origin AS o SET n = n, z = o.z, t = `T`")
    assert read("origin") == expected
    lake.sql(
        "MERGE INTO demo.public.copy AS c USING demo.public.origin AS o ON c.id = o.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    assert read("copy") == expected
    lake.sql(
        "MERGE INTO demo.public.copy AS c USING demo.public.origin AS o ON c.id = o.id + 10 "
        "WHEN NOT MATCHED THEN INSERT (id, n, z) VALUES (o.id + 10, o.n, o.z)"
    )
    assert read("copy")[2] == (11, *expected[0][1:6], None, None)
    lake.sql("UPDATE demo.public.copy SET n = TIMESTAMP_NTZ'2026-01-01 00:00:00', z = NULL")
    assert read("copy")[0][2:6] == (0, None, None, None)
    for text in ("coalesce(n, n)", "n + INTERVAL 1 DAY"):
        with pytest.raises(
            StatementError, match="computed from n, which would lose its nanoseconds"
        ):
            lake.sql(f"UPDATE demo.public.copy SET n = {text}")


def test_nanoseconds_are_kept_if_column_names_differ_only_in_case(lake: Any, table: str) -> None:
    for name in ("origin", "copy"):
        lake.sql(
            f'CREATE TABLE demo.public.{name} (id INT, "a" TIMESTAMP_NTZ(9), A TIMESTAMP_NTZ(9), b TIME(9))'
        )
    times = "'2020-01-01T00:00:00.123456001', '2020-01-01T00:00:00.123456002', NULL"
    lake.sql(f"INSERT INTO demo.public.origin VALUES (1, {times}), (2, {times})")
    lake.sql("INSERT INTO demo.public.copy (id) VALUES (1)")

    def read(name: str) -> list[tuple[Any, ...]]:
        return list(map(tuple, lake.sql(f"SELECT * FROM demo.public.{name} ORDER BY id").collect()))

    expected = read("origin")
    assert expected[0][2:6:2] == (1, 2)
    lake.sql(
        "MERGE INTO demo.public.copy AS c USING demo.public.origin AS o ON c.id = o.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    assert read("copy") == expected
    lake.sql("INSERT INTO demo.public.copy SELECT id + 2, o.a, A_3, b FROM demo.public.origin AS o")
    assert [row[1:] for row in read("copy")] == [row[1:] for row in expected * 2]
    lake.sql("UPDATE demo.public.copy SET `a` = A_3 WHERE id = 1")
    lake.sql("UPDATE demo.public.copy AS c SET A = c.`a` WHERE id = 2")
    assert [row[2:6:2] for row in read("copy")[:2]] == [(2, 2), (1, 1)]
    lake.sql("CREATE TABLE demo.public.other (id INT, c TIMESTAMP_NTZ(9))")
    lake.sql("INSERT INTO demo.public.other SELECT id, A_3 AS c FROM demo.public.origin")
    assert {row[2] for row in read("other")} == {2}


def test_columns_may_be_named_with_their_database_and_schema(lake: Any, table: str) -> None:
    fill(lake, 0, 6)
    lake.sql("CREATE TABLE demo.public.s (id INT, name VARCHAR)")
    lake.sql("INSERT INTO demo.public.s VALUES (1, 'one'), (9, 'nine')")
    assert counts(lake.sql("DELETE FROM demo.public.t WHERE demo.public.t.id = 0")) == (0, 0, 1)
    lake.sql(
        "UPDATE demo.public.t SET demo.public.t.name = upper(Demo.`PUBLIC`.t.name) WHERE public.t.id = 5 AND EXISTS "
        "(SELECT 1 FROM demo.public.s WHERE demo.public.s.id = demo.public.t.id - 4)"
    )
    assert rows(lake).pop(5)[0] == "N5"
    done = lake.sql(
        "MERGE INTO demo.public.t USING demo.public.s ON demo.public.t.id = demo.public.s.id "
        "WHEN MATCHED THEN UPDATE SET name = demo.public.s.name "
        "WHEN NOT MATCHED THEN INSERT (id, name) VALUES (demo.public.s.id, s.name)"
    )
    assert counts(done) == (1, 1, 0)
    assert {at: name for at, (name, _) in rows(lake).items()} == {
        1: "one",
        **{at: f"n{at}" for at in (2, 3, 4)},
        5: "N5",
        9: "nine",
    }
    with pytest.raises(ColumnNotFound):
        lake.sql("DELETE FROM demo.public.t AS x WHERE demo.public.t.id = 1")


def test_default_sets_a_column_to_its_default(lake: Any, table: str) -> None:
    lake.sql(
        "CREATE TABLE demo.public.d (id INT, n INT NOT NULL DEFAULT 7, at TIMESTAMP_TZ(9) DEFAULT "
        "'2020-01-01 00:00:00.000000009 +02:00', now TIMESTAMP_LTZ DEFAULT CURRENT_TIMESTAMP, v VARCHAR)"
    )
    lake.sql("INSERT INTO demo.public.d (id, n, v) VALUES (1, 1, 'x'), (2, 2, 'y')")
    lake.sql("UPDATE demo.public.d SET n = DEFAULT, at = default, v = DEFAULT WHERE id = 1")
    lake.sql("UPDATE demo.public.d SET at = NULL, now = NULL WHERE id = 2")
    lake.sql(
        "MERGE INTO demo.public.d USING (SELECT * FROM VALUES (2, 'm'), (3, 'n') AS v(k, w)) AS s ON d.id = s.k "
        "WHEN MATCHED THEN UPDATE SET n = DEFAULT, v = s.w, now = DEFAULT "
        "WHEN NOT MATCHED THEN INSERT VALUES (s.k, DEFAULT, DEFAULT, NULL, DEFAULT)"
    )
    read = "SELECT id, n, cast(at AS STRING), `at$ns`, `at$tz`, now IS NULL, v FROM demo.public.d ORDER BY id"
    default = ("2019-12-31 22:00:00", 9, 120)
    assert list(map(tuple, lake.sql(read).collect())) == [
        (1, 7, *default, False, None),
        (2, 7, None, None, None, False, "m"),
        (3, 7, *default, True, None),
    ]
    fill(lake, 0, 1)
    with pytest.raises(LoadRefused, match="NOT NULL"):
        lake.sql("UPDATE demo.public.t SET id = DEFAULT")


def test_a_nested_query_may_have_window_functions(lake: Any, table: str) -> None:
    fill(lake, 0, 4)
    lake.sql(
        "DELETE FROM demo.public.t WHERE id IN (SELECT id FROM (SELECT id, row_number() OVER (ORDER BY id DESC) AS n "
        "FROM demo.public.t) AS x WHERE n > 1)"
    )
    assert rows(lake) == expected([3])


def test_a_row_that_matches_twice_is_refused(lake: Any, table: str) -> None:
    fill(lake, 0, 2)
    with pytest.raises(LoadRefused, match="matches more than one row of the source"):
        lake.sql(
            "MERGE INTO demo.public.t USING (SELECT * FROM VALUES (1, 'a'), (1, 'b') AS v(k, w)) AS s "
            "ON t.id = s.k WHEN MATCHED THEN UPDATE SET name = s.w"
        )
    assert rows(lake) == expected([0, 1])


@pytest.mark.parametrize(
    ("statement", "error", "message"),
    [
        ("UPDATE demo.public.t SET name = 'much too long' WHERE id = 1", LoadRefused, "NAME"),
        ("UPDATE demo.public.t SET id = NULL WHERE id = 1", LoadRefused, "NOT NULL"),
        ("UPDATE demo.public.t SET nothing = 1", StatementError, "NOTHING does not exist"),
        ("UPDATE demo.public.t SET name = 'a', name = 'b'", StatementError, "set twice"),
        ("UPDATE demo.public.t WHERE id = 1", StatementError, "Expected SET"),
        ("DELETE demo.public.t", StatementError, "Expected FROM"),
        ("DELETE FROM t", StatementError, "Write the full name"),
        ("DELETE FROM demo.public.t WHERE ident = 1", ColumnNotFound, "Columns: ID, PRICE, AT"),
        (
            "DELETE FROM demo.public.t WHERE coalesce(*) IS NULL",
            StatementError,
            "write the columns",
        ),
        ("UPDATE demo.public.t SET id = hash(1, t.*)", StatementError, "write the columns"),
        (
            "UPDATE demo.public.t SET price = row_number() OVER (ORDER BY id) WHERE id = 1",
            StatementError,
            "A window function in an expression",
        ),
        (
            "DELETE FROM demo.public.t WHERE lag(id) IGNORE NULLS OVER (ORDER BY id) = 0",
            StatementError,
            "A window function in an expression",
        ),
        (
            (
                "MERGE INTO demo.public.t USING (SELECT 9 AS k) AS s ON t.id = s.k "
                "WHEN NOT MATCHED THEN INSERT (id) VALUES (explode(array(7, 8)))"
            ),
            StatementError,
            "explode returns several rows",
        ),
        ("UPDATE demo.public.t SET price = max(id)", StatementError, "An aggregate function"),
        (
            (
                "MERGE INTO demo.public.t USING (SELECT * FROM VALUES (8), (9) AS v(k)) AS s ON t.id = s.k "
                "WHEN NOT MATCHED THEN INSERT (id, price) VALUES (7, count(*))"
            ),
            StatementError,
            "An aggregate function",
        ),
        ("DELETE FROM demo.public.t WHERE", StatementError, "An expression is missing"),
        ("DELETE FROM demo.public.nothing", TableNotFound, "NOTHING"),
        (
            "MERGE INTO demo.public.t USING demo.public.t AS s ON true",
            StatementError,
            "WHEN MATCHED",
        ),
    ],
)
def test_a_statement_that_cannot_be_run_names_its_place(
    lake: Any, table: str, statement: str, error: type[Exception], message: str
) -> None:
    fill(lake, 0, 2)
    with pytest.raises(error, match=message):
        lake.sql(statement)
    assert rows(lake) == expected([0, 1])


def test_the_role_needs_the_privileges_of_the_statement(
    lakehouse: Lakehouse, lake: Any, table: str, spark: Any
) -> None:
    from snowmelt.spark import Snowmelt

    for statement in (
        "CREATE ROLE changing",
        "GRANT USAGE ON DATABASE demo TO ROLE changing",
        "GRANT USAGE ON SCHEMA demo.public TO ROLE changing",
        "GRANT SELECT, DELETE ON TABLE demo.public.t TO ROLE changing",
    ):
        lake.sql(statement)
    fill(lake, 0, 2)
    other = Snowmelt(
        spark,
        catalog=lakehouse.database,
        stage=lakehouse.stage.url,
        warehouse=lakehouse.warehouse.url,
        keys=lakehouse.keyring,
        role="CHANGING",
    )
    with pytest.raises(TableNotFound):
        other.sql("UPDATE demo.public.t SET name = 'x'")
    assert counts(other.sql("DELETE FROM demo.public.t WHERE id = 0")) == (0, 0, 1)
    assert rows(lake) == expected([1])


@pytest.mark.parametrize("seed", range(2))
def test_random_changes_are_those_of_another_database(lake: Any, table: str, seed: int) -> None:
    chance = random.Random(seed)
    model = duckdb.connect()
    model.execute("CREATE TABLE t (id INT NOT NULL, name VARCHAR, price DECIMAL(10, 2))")
    following = 0
    for _ in range(12):
        kind = chance.choice(["insert", "delete", "update", "merge"])
        low, high = sorted(chance.choices(range(60), k=2))
        if kind == "insert" or not following:
            fill(lake, following, 8)
            model.execute(
                f"INSERT INTO t SELECT i, concat('n', i), i / 4 FROM range({following}, {following + 8}) r(i)"
            )
            following += 8
            continue
        text = {
            "delete": f"DELETE FROM {{}} WHERE id BETWEEN {low} AND {high} AND id % 3 = 0",
            "update": f"UPDATE {{}} SET name = concat('u', id), price = id + 0.5 WHERE id >= {low} "
            f"AND id < {high} AND (price > 3 OR name LIKE 'n1%')",
            "merge": f"MERGE INTO {{}} USING (SELECT id + 2 AS k FROM (VALUES ({low}), ({high + 60})) "
            "AS v(id)) AS s ON t.id = s.k WHEN MATCHED THEN UPDATE SET name = 'm' "
            "WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.k, 'new')",
        }[kind]
        lake.sql(text.format("demo.public.t"))
        model.execute(text.format("t"))
    found = lake.sql("SELECT id, name, price FROM demo.public.t").collect()
    wanted = model.execute("SELECT id, name, price FROM t").fetchall()
    assert sorted(map(str, ((int(row[0]), *row[1:]) for row in found))) == sorted(map(str, wanted))
