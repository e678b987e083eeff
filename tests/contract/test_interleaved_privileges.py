"""Privileges beside statements that change their objects: none is lost, and none stays.

SQLite runs writers one after another. On PostgreSQL, a statement can find an object that another
transaction has replaced by the time the lock is granted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from fixtures.catalog import NAME, World
from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.objects import tables
from snowmelt.catalog.security import access_control
from snowmelt.catalog.statements.statement_context import StatementResult
from snowmelt.schema.types import TableName
from support.interleaving import begin_beside, run_beside

pytestmark = pytest.mark.postgres

RENAMED = TableName("DB", "PUBLIC", "U")


@pytest.fixture
def world(postgres_world: World) -> World:
    return postgres_world


def has_privilege(world: World, privilege: str, table: TableRecord) -> bool:
    with world.database.reading() as connection:
        return access_control.has_privilege(
            connection, "WRITER", "TABLE", table.table_id, privilege
        )


def read_owner(world: World, name: TableName) -> str:
    with world.database.reading() as connection:
        return tables.find_table(connection, name).owner


def test_grants_and_revocations_beside_truncate_hold_on_the_new_table(
    world: World, run: Callable[..., StatementResult]
) -> None:
    run_beside(world, "TRUNCATE TABLE t", partial(run, "REVOKE INSERT ON TABLE t FROM ROLE writer"))
    assert not has_privilege(world, "INSERT", world.table())
    run_beside(world, "TRUNCATE TABLE t", partial(run, "GRANT SELECT ON TABLE t TO ROLE writer"))
    assert has_privilege(world, "SELECT", world.table())
    revocation = "REVOKE SELECT ON ALL TABLES IN SCHEMA db.public FROM ROLE writer"
    run_beside(world, "TRUNCATE TABLE t", partial(run, revocation))
    assert not has_privilege(world, "SELECT", world.table())


@pytest.mark.parametrize("scope", ["SCHEMA db.public", "DATABASE db"])
def test_what_is_revoked_from_all_and_future_tables_a_new_table_does_not_have(
    world: World,
    run: Callable[..., StatementResult],
    scope: str,
) -> None:
    run(f"GRANT SELECT ON FUTURE TABLES IN {scope} TO ROLE writer")

    def revoke() -> None:
        for which in ("FUTURE", "ALL"):
            run(f"REVOKE SELECT ON {which} TABLES IN {scope} FROM ROLE writer")

    run_beside(world, "CREATE TABLE u (x INT)", revoke)
    assert not has_privilege(world, "SELECT", world.table(RENAMED))


def test_a_dropped_role_owns_nothing_that_was_created_meanwhile(
    world: World, run: Callable[..., StatementResult]
) -> None:
    run("CREATE ROLE maker")
    for privileges in ("USAGE ON DATABASE db", "USAGE, CREATE TABLE ON SCHEMA db.public"):
        run(f"GRANT {privileges} TO ROLE maker")
    with world.database.writing() as connection:
        tables.find_namespace_ids(connection, "DB", "PUBLIC", lock=True)
        creation = begin_beside(
            world.database, partial(run, "CREATE TABLE u (x INT)", role="MAKER")
        )
        drop = begin_beside(world.database, partial(run, "DROP ROLE maker"))
    creation.result(60)
    drop.result(60)
    assert read_owner(world, RENAMED) == "ACCOUNTADMIN"


def test_a_dropped_role_owns_nothing_that_was_granted_meanwhile(
    world: World, run: Callable[..., StatementResult]
) -> None:
    run("CREATE ROLE maker")
    run_beside(world, "GRANT OWNERSHIP ON TABLE t TO ROLE maker", partial(run, "DROP ROLE maker"))
    assert read_owner(world, NAME) == "ACCOUNTADMIN"
