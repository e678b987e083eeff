"""Statements that begin before another one commits have the outcome of some order of both.

SQLite runs writers one after another. On PostgreSQL, a statement can find an object that another
transaction has dropped, replaced or renamed by the time the lock is granted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import pytest

from fixtures.catalog import NAME, Client, World
from snowmelt.catalog.objects import namespaces, tables
from snowmelt.catalog.objects.failover_groups import GroupConflict
from snowmelt.catalog.objects.renames_and_evolution import (
    EvolutionResult,
    evolve_table,
    make_column,
)
from snowmelt.catalog.statements.statement_context import StatementResult
from snowmelt.errors import (
    DatabaseNotFound,
    NotFound,
    PrivilegeMissing,
    SchemaNotFound,
    SnowmeltError,
    TableNotFound,
)
from snowmelt.schema.types import TableName
from support.interleaving import begin_beside, execute_inside, run_after, run_beside

pytestmark = pytest.mark.postgres

OTHER = TableName("DB", "OTHER", "T")
RENAMED = TableName("DB", "PUBLIC", "U")


@pytest.fixture
def world(postgres_world: World) -> World:
    return postgres_world


def read_owner(world: World, name: TableName) -> str:
    with world.database.reading() as connection:
        return tables.find_table(connection, name).owner


def test_only_the_owner_replaces_a_table_that_was_created_meanwhile(
    world: World, run: Callable[..., StatementResult]
) -> None:
    run("GRANT CREATE TABLE ON SCHEMA db.public TO ROLE writer")
    with pytest.raises(PrivilegeMissing):
        run_beside(
            world,
            "CREATE TABLE u (x INT)",
            partial(run, "CREATE OR REPLACE TABLE u (y INT)", role="WRITER"),
        )
    assert read_owner(world, RENAMED) == "ACCOUNTADMIN"


def test_if_not_exists_changes_nothing_of_a_table_that_was_created_meanwhile(
    world: World, run: Callable[..., StatementResult]
) -> None:
    done = run_beside(
        world,
        "CREATE TABLE u (x INT) COMMENT = 'first'",
        partial(run, "CREATE TABLE IF NOT EXISTS u (x INT) COMMENT = 'second'"),
    )
    assert done.message == "Table DB.PUBLIC.U already exists; nothing was done."
    assert world.table(RENAMED).comment == "first"


@pytest.mark.parametrize(
    "statement", ["DROP TABLE t", "TRUNCATE TABLE t", "ALTER TABLE t RENAME TO w"]
)
def test_a_table_that_was_renamed_meanwhile_is_missing(
    world: World,
    client: Client,
    run: Callable[..., StatementResult],
    statement: str,
) -> None:
    table = world.table()
    with pytest.raises(TableNotFound):
        run_beside(world, "ALTER TABLE t RENAME TO u", partial(run, statement))
    assert world.table(RENAMED).table_id == table.table_id
    assert client.open("C", name=RENAMED).record.offset_token == "10"
    with pytest.raises(TableNotFound):
        world.table()


@pytest.mark.parametrize(
    "statement", ["DROP SCHEMA db.public", "CREATE OR REPLACE TABLE t (x INT)"]
)
def test_a_table_that_was_moved_to_another_schema_meanwhile_stays(
    world: World,
    run: Callable[..., StatementResult],
    statement: str,
) -> None:
    run("CREATE SCHEMA db.other")
    table = world.table()
    run_beside(world, "ALTER TABLE t RENAME TO db.other.t", partial(run, statement))
    assert world.table(OTHER).table_id == table.table_id


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        ("ALTER SCHEMA db.s RENAME TO db.kept", "DROP SCHEMA db.s", SchemaNotFound),
        ("ALTER SCHEMA db.s RENAME TO db.kept", "ALTER SCHEMA db.s RENAME TO db.x", SchemaNotFound),
        ("DROP SCHEMA db.s", "ALTER SCHEMA db.s RENAME TO db.x", SchemaNotFound),
        ("ALTER DATABASE other RENAME TO kept", "DROP DATABASE other", DatabaseNotFound),
        ("DROP DATABASE other", "ALTER DATABASE other RENAME TO x", DatabaseNotFound),
        ("DROP DATABASE other", "ALTER SCHEMA db.s RENAME TO other.s", DatabaseNotFound),
        ("ALTER SCHEMA db.s RENAME TO other.s", "ALTER SCHEMA db.s RENAME TO db.x", SchemaNotFound),
    ],
)
def test_a_namespace_that_was_dropped_or_renamed_meanwhile_is_missing(
    world: World,
    run: Callable[..., StatementResult],
    first: str,
    second: str,
    error: type[SnowmeltError],
) -> None:
    run("CREATE DATABASE other")
    run("CREATE SCHEMA db.s")

    def list_schemas() -> list[tuple[str, str]]:
        with world.database.reading() as connection:
            return [(each.database, each.name) for each in namespaces.list_schemas(connection)]

    with pytest.raises(error):
        run_beside(world, first, partial(run, second))
    places = {
        "ALTER SCHEMA db.s RENAME TO db.kept": ("DB", "KEPT"),
        "ALTER SCHEMA db.s RENAME TO other.s": ("OTHER", "S"),
        "DROP DATABASE other": ("DB", "S"),
        "ALTER DATABASE other RENAME TO kept": ("KEPT", "PUBLIC"),
    }
    if first in places:
        assert places[first] in list_schemas()
    else:
        run("UNDROP SCHEMA db.s")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("CREATE OR REPLACE SCHEMA db.s", "CREATE TABLE db.s.u (x INT)"),
        ("CREATE OR REPLACE SCHEMA db.s", "DROP SCHEMA db.s"),
        ("CREATE OR REPLACE DATABASE other", "CREATE SCHEMA other.s"),
        ("CREATE OR REPLACE DATABASE other", "DROP DATABASE other"),
    ],
)
def test_a_namespace_that_was_replaced_meanwhile_is_found(
    world: World, run: Callable[..., StatementResult], first: str, second: str
) -> None:
    run("CREATE DATABASE other")
    run("CREATE SCHEMA db.s")
    run_beside(world, first, partial(run, second))
    with world.database.reading() as connection:
        places = [(each.database, each.name) for each in namespaces.list_schemas(connection)]
        found = [each.name for each in tables.list_tables(connection)]
    assert (("DB", "S") in places) == (second != "DROP SCHEMA db.s")
    assert (("OTHER", "S") in places) == (second == "CREATE SCHEMA other.s")
    assert (("OTHER", "PUBLIC") in places) == (second != "DROP DATABASE other")
    assert (TableName("DB", "S", "U") in found) == (second == "CREATE TABLE db.s.u (x INT)")


@pytest.fixture
def function(run: Callable[..., StatementResult]) -> str:
    """The statement that creates or replaces function F."""
    run(
        "CREATE API INTEGRATION api API_PROVIDER = http"
        " API_ALLOWED_PREFIXES = ('http://127.0.0.1/') ENABLED = TRUE"
    )
    creation = (
        "CREATE OR REPLACE EXTERNAL FUNCTION f(x NUMBER) RETURNS NUMBER API_INTEGRATION = api"
        " AS 'http://127.0.0.1/f'"
    )
    run(creation)
    return creation


def test_a_function_that_was_replaced_meanwhile_is_replaced_again(
    world: World, run: Callable[..., StatementResult], function: str
) -> None:
    done = run_beside(world, function, partial(run, function))
    assert done.message == "Function DB.PUBLIC.F(NUMBER) replaced."


@pytest.mark.usefixtures("function")
def test_a_function_that_was_renamed_meanwhile_is_missing(
    world: World, run: Callable[..., StatementResult]
) -> None:
    with pytest.raises(NotFound):
        run_beside(
            world, "ALTER FUNCTION f(NUMBER) RENAME TO g", partial(run, "DROP FUNCTION f(NUMBER)")
        )
    run("DROP FUNCTION g(NUMBER)")


def test_an_integration_that_was_replaced_meanwhile_is_altered(
    world: World, run: Callable[..., StatementResult]
) -> None:
    replacement = (
        "CREATE OR REPLACE API INTEGRATION api API_PROVIDER = http"
        " API_ALLOWED_PREFIXES = ('http://127.0.0.1/') ENABLED = TRUE"
    )
    run(replacement)
    run_beside(world, replacement, partial(run, "ALTER INTEGRATION api SET ENABLED = FALSE"))
    assert ("ENABLED", False) in run("DESCRIBE INTEGRATION api").rows


API = (
    "CREATE OR REPLACE API INTEGRATION api API_PROVIDER = http"
    " API_ALLOWED_PREFIXES = ('http://127.0.0.1/') ENABLED = TRUE"
)


@pytest.mark.parametrize("statement", [API, "ALTER INTEGRATION api SET ENABLED = FALSE"])
def test_only_the_owner_changes_an_integration_that_was_replaced_meanwhile(
    world: World, run: Callable[..., StatementResult], statement: str
) -> None:
    run("GRANT CREATE INTEGRATION ON ACCOUNT TO ROLE writer")
    run(API, role="WRITER")

    def replace() -> None:
        run(API)
        run("GRANT USAGE ON INTEGRATION api TO ROLE writer")

    with world.database.writing() as connection:
        # After the first look at the integration.
        run_after(connection, "FROM api_integrations", replace)
        with pytest.raises(PrivilegeMissing):
            execute_inside(connection, statement, world.clock, role="WRITER")
        connection.rollback()
    assert ("ENABLED", True) in run("DESCRIBE INTEGRATION api").rows
    assert [row[-1] for row in run("SHOW INTEGRATIONS").rows] == ["ACCOUNTADMIN"]


def test_an_integration_that_was_dropped_meanwhile_is_created(
    world: World, run: Callable[..., StatementResult]
) -> None:
    run(API)
    done = run_beside(world, "DROP INTEGRATION api", partial(run, API))
    assert done.message == "API integration API created."


def test_only_the_owner_alters_a_function_that_was_replaced_meanwhile(
    world: World, run: Callable[..., StatementResult], function: str
) -> None:
    for grant in (
        "USAGE ON DATABASE db",
        "USAGE ON SCHEMA db.public",
        "OWNERSHIP ON FUNCTION f(NUMBER)",
    ):
        run(f"GRANT {grant} TO ROLE writer")

    def replace() -> None:
        run(function)
        run("GRANT USAGE ON FUNCTION f(NUMBER) TO ROLE writer")

    with world.database.writing() as connection:
        run_after(connection, "FROM external_functions", replace)
        statement = "ALTER FUNCTION f(NUMBER) SET COMMENT = 'mine'"
        with pytest.raises(PrivilegeMissing):
            execute_inside(connection, statement, world.clock, role="WRITER")
        connection.rollback()


@pytest.mark.parametrize("name", ["first", "second"])
def test_only_one_failover_group_is_created(
    world: World, run: Callable[..., StatementResult], name: str
) -> None:
    creation = "CREATE FAILOVER GROUP IF NOT EXISTS {} ALLOWED_ACCOUNTS = other"
    beside = partial(begin_beside, world.database, partial(run, creation.format(name)))
    begun: list[Future[StatementResult]] = []
    with world.database.writing() as connection:
        # After it has found no group.
        run_after(connection, "FROM failover_groups", lambda: begun.append(beside()))
        execute_inside(connection, creation.format("first"), world.clock)
    if name == "first":
        done = begun[0].result(60)
        assert done.message == "Failover group FIRST already exists; nothing was done."
    else:
        with pytest.raises(GroupConflict):
            begun[0].result(60)
    assert [row[1] for row in run("SHOW FAILOVER GROUPS").rows] == ["FIRST"]


@pytest.mark.usefixtures("function")
def test_a_translator_that_was_replaced_meanwhile_is_used(
    world: World, run: Callable[..., StatementResult]
) -> None:
    translator = (
        "CREATE OR REPLACE FUNCTION tr(event OBJECT) RETURNS OBJECT LANGUAGE JAVASCRIPT AS "
        "'return event'"
    )
    run(translator)
    run("CREATE SCHEMA db.other")
    for statement in (
        (
            "CREATE EXTERNAL FUNCTION db.other.g(x NUMBER) RETURNS NUMBER API_INTEGRATION = api"
            " REQUEST_TRANSLATOR = db.public.tr AS 'http://127.0.0.1/f'"
        ),
        "ALTER FUNCTION db.other.g(NUMBER) SET RESPONSE_TRANSLATOR = db.public.tr",
    ):
        run_beside(world, translator, partial(run, statement))
    with pytest.raises(NotFound):
        run_beside(
            world,
            "DROP FUNCTION f(NUMBER)",
            partial(run, "ALTER FUNCTION f(NUMBER) SET REQUEST_TRANSLATOR = tr"),
        )


def test_a_table_that_was_replaced_meanwhile_is_altered(
    world: World, run: Callable[..., StatementResult]
) -> None:
    run("ALTER TABLE t SET ENABLE_SCHEMA_EVOLUTION = TRUE")

    def evolve() -> EvolutionResult:
        with world.database.writing() as connection:
            return evolve_table(
                connection,
                NAME,
                new_columns=[make_column("D", "DATE")],
                role="ACCOUNTADMIN",
                now=world.now,
            )

    run_beside(world, "TRUNCATE TABLE t", partial(run, "ALTER TABLE t ADD COLUMN c DATE"))
    assert run_beside(world, "TRUNCATE TABLE t", evolve).added_columns == ("D",)
    assert [column.name for column in world.table().schema.columns] == ["A", "B", "C", "D"]


def test_rejected_rows_go_to_the_table_that_replaced_the_error_table_meanwhile(
    world: World, run: Callable[..., StatementResult]
) -> None:
    run("CREATE TABLE u (x INT) ERROR_TABLE = bad")
    run_beside(world, "TRUNCATE TABLE bad", partial(run, "ALTER TABLE t SET ERROR_TABLE = bad"))
    bad = world.table(TableName("DB", "PUBLIC", "BAD"))
    assert world.table().error_table_id == bad.table_id


@pytest.mark.parametrize("mode", ["IF NOT EXISTS", "OR REPLACE"])
def test_a_schema_that_was_created_meanwhile_is_not_changed_without_a_privilege(
    world: World,
    run: Callable[..., StatementResult],
    mode: str,
) -> None:
    run("GRANT CREATE SCHEMA ON DATABASE db TO ROLE writer")
    replace, keep = ("OR REPLACE", "") if mode == "OR REPLACE" else ("", "IF NOT EXISTS")
    statement = f"CREATE {replace} SCHEMA {keep} db.s COMMENT = 'second'"
    refused = pytest.raises(PrivilegeMissing) if replace else contextlib.nullcontext()
    with refused:
        run_beside(
            world, "CREATE SCHEMA db.s COMMENT = 'first'", partial(run, statement, role="WRITER")
        )
    with world.database.reading() as connection:
        assert namespaces.find_schema(connection, "DB", "S").comment == "first"
