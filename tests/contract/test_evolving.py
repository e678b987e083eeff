"""Columns that follow their rows, on every database the catalog runs on."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from fixtures.catalog import NAME, World, advance
from snowmelt.catalog.objects.renames_and_evolution import (
    MAX_NEW_COLUMNS,
    EvolutionResult,
    evolve_table,
    make_column,
)
from snowmelt.catalog.security import access_control
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.errors import (
    EvolutionRefused,
    NotFound,
    PrivilegeMissing,
    StatementError,
    TableNotFound,
)
from snowmelt.schema.types import TableName


@pytest.fixture
def evolve(world: World) -> Callable[..., EvolutionResult]:
    execute_statement(world.database, f"ALTER TABLE {NAME} SET ENABLE_SCHEMA_EVOLUTION = TRUE")

    def call(
        *columns: tuple[str, str], free: tuple[str, ...] = (), role: str = "ACCOUNTADMIN"
    ) -> EvolutionResult:
        with world.database.writing() as connection:
            return evolve_table(
                connection,
                NAME,
                new_columns=[make_column(*each) for each in columns],
                no_longer_required=free,
                role=role,
                now=world.now,
            )

    return call


def test_columns_are_added_behind_as_nullable_and_once(
    world: World, evolve: Callable[..., EvolutionResult]
) -> None:
    done = evolve(("C", "DATE"), ("B", "FLOAT"), ("d e", "NUMBER(10,2)"), free=("A",))
    assert (done.added_columns, done.relaxed_columns) == (("C", "d e"), ("A",))
    assert [(c.name, c.sql_type, c.nullable, c.ordinal) for c in done.table.schema.columns] == [
        ("A", "NUMBER(38,0)", True, 1),
        ("B", "VARCHAR(16)", True, 2),
        ("C", "DATE", True, 3),
        ("d e", "NUMBER(10,2)", True, 4),
    ]
    assert done.table.schema.version == 2
    again = evolve(("C", "FLOAT"), free=("A",))
    assert (again.added_columns, again.relaxed_columns) == ((), ())
    assert again.table.schema == world.table().schema == done.table.schema


def test_open_channels_go_on(world: World, evolve: Callable[..., EvolutionResult]) -> None:
    client = world.client()
    client.open("C")
    evolve(("C", "DATE"))
    assert world.codes(client.offer(advance("C", 0, 1), schema_version=1)) == [[0]]
    assert world.codes(client.offer(advance("C", 0, 2), schema_version=2)) == [[0]]


def test_two_that_add_the_same_at_once_both_get_it_and_it_is_there_once(
    world: World, evolve: Callable[..., EvolutionResult]
) -> None:
    count = 6
    start = threading.Barrier(count)
    found: list[EvolutionResult] = []

    def work(number: int) -> None:
        start.wait()
        found.append(evolve(("SAME", "VARCHAR"), (f"OWN{number}", "INT")))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    names = [column.name for column in world.table().schema.columns]
    assert sorted(names) == ["A", "B", *(f"OWN{number}" for number in range(count)), "SAME"]
    ordinals = [column.ordinal for column in world.table().schema.columns]
    assert ordinals == list(range(1, len(names) + 1))
    assert [done.added_columns.count("SAME") for done in found].count(1) == 1
    assert all(done.table.schema.column("SAME") for done in found)


def test_it_takes_the_setting_and_the_privilege(
    world: World, evolve: Callable[..., EvolutionResult]
) -> None:
    with pytest.raises(PrivilegeMissing, match="Role WRITER lacks EVOLVE SCHEMA on table DB"):
        evolve(("C", "DATE"), role="WRITER")
    with world.database.writing() as connection:
        access_control.grant_privilege(
            connection, "EVOLVE SCHEMA", "TABLE", world.table().table_id, "WRITER"
        )
        access_control.create_role(connection, "STRANGER", now=world.now)
    assert evolve(("C", "DATE"), role="WRITER").added_columns == ("C",)
    with pytest.raises(Exception, match="does not exist, or this role may not use it"):
        evolve(("D", "DATE"), role="STRANGER")
    execute_statement(world.database, f"ALTER TABLE {NAME} SET ENABLE_SCHEMA_EVOLUTION = FALSE")
    with pytest.raises(EvolutionRefused, match="SET ENABLE_SCHEMA_EVOLUTION = TRUE, or ADD COLUMN"):
        evolve(("D", "DATE"))


def test_what_cannot_be_right_is_refused(
    world: World, evolve: Callable[..., EvolutionResult]
) -> None:
    with pytest.raises(StatementError, match="is not a type"):
        evolve(("C", "NONSENSE"))
    with pytest.raises(NotFound, match="Column X does not exist"):
        evolve(free=("X",))
    with pytest.raises(EvolutionRefused, match="101 columns are new, expected at most 100"):
        evolve(*((f"C{number}", "INT") for number in range(MAX_NEW_COLUMNS + 1)))
    assert world.table().schema.version == 1
    with world.database.writing() as connection, pytest.raises(TableNotFound):
        evolve_table(
            connection, TableName("DB", "PUBLIC", "NONE"), role="ACCOUNTADMIN", now=world.now
        )
