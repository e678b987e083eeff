"""ERROR_TABLE of tables, on every database the catalog runs on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from fixtures.catalog import World
from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.objects import tables
from snowmelt.catalog.security import access_control
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.errors import PrivilegeMissing, StatementError
from snowmelt.schema.error_table import ERROR_SCHEMA


@pytest.fixture
def run(world: World) -> Callable[..., str]:
    def statement(text: str, **who: Any) -> str:
        return execute_statement(
            world.database, text, clock=world.clock, default_database="db", **who
        ).message

    return statement


def shown(world: World, table: str = "t") -> str:
    result = execute_statement(world.database, f"SHOW TABLES LIKE '{table}'")
    [row] = result.rows
    return cast("str", row[result.columns.index("error_table")])


def target(world: World) -> TableRecord | Any:
    with world.database.reading() as connection:
        return tables.find_error_table(connection, world.table())


def test_a_table_that_is_not_there_is_created_and_told(
    world: World, run: Callable[..., str]
) -> None:
    run("ALTER TABLE t SET ERROR_TABLE = bad")
    assert shown(world) == "DB.PUBLIC.BAD"
    assert target(world).schema.columns == ERROR_SCHEMA.columns
    run("CREATE TABLE u (a INT) ERROR_TABLE = db.public.bad COMMENT = 'two share one'")
    assert shown(world, "u") == "DB.PUBLIC.BAD"
    run("ALTER TABLE t UNSET ERROR_TABLE")
    assert (shown(world), target(world)) == ("", None)


def test_a_table_is_taken_only_if_refused_rows_go_into_it(
    world: World, run: Callable[..., str]
) -> None:
    run("CREATE TABLE other (a INT NOT NULL)")
    with pytest.raises(StatementError, match=r"REFUSAL_ID VARCHAR.*A NULL.*line 1, column 33"):
        run("ALTER TABLE t SET ERROR_TABLE = other")
    with pytest.raises(StatementError, match="cannot be its own ERROR_TABLE"):
        run("ALTER TABLE t SET ERROR_TABLE = t")
    assert shown(world) == ""


def test_it_follows_renames_and_is_gone_with_a_drop(world: World, run: Callable[..., str]) -> None:
    run("ALTER TABLE t SET ERROR_TABLE = bad")
    run("ALTER TABLE bad RENAME TO worse")
    assert shown(world) == "DB.PUBLIC.WORSE"
    run("TRUNCATE TABLE t")
    assert shown(world) == "DB.PUBLIC.WORSE"
    run("TRUNCATE TABLE worse")
    assert shown(world) == "DB.PUBLIC.WORSE"
    run("DROP TABLE worse")
    assert (shown(world), target(world)) == ("", None)
    run("UNDROP TABLE worse")
    assert shown(world) == "DB.PUBLIC.WORSE"


def test_who_may_name_one_and_who_may_feed_it(world: World, run: Callable[..., str]) -> None:
    run("CREATE ROLE loading")
    run("GRANT USAGE ON DATABASE db TO ROLE loading")
    run("GRANT USAGE ON SCHEMA db.public TO ROLE loading")
    run("ALTER TABLE t SET ERROR_TABLE = errors")
    run("CREATE USER someone DEFAULT_ROLE = loading")
    run("GRANT ROLE loading TO USER someone")
    run("GRANT SELECT ON TABLE t TO ROLE loading")
    with pytest.raises(PrivilegeMissing):
        run("ALTER TABLE t SET ERROR_TABLE = mine", user="SOMEONE")
    bad = target(world).table_id
    with world.database.reading() as connection:
        assert not tables.can_write_error_rows(connection, "LOADING", bad)
        assert not access_control.has_privilege(connection, "LOADING", "TABLE", bad, "INSERT")
    run("GRANT INSERT ON TABLE t TO ROLE loading")
    with world.database.reading() as connection:
        assert tables.can_write_error_rows(connection, "LOADING", bad)
        assert not access_control.has_privilege(connection, "LOADING", "TABLE", bad, "INSERT")
