"""Chunks of writers that know older columns, or newer ones than this service has seen so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from snowmelt.blob.parquet_footer import ChunkFooter, FooterField
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.catalog.streaming.chunks import list_chunks
from snowmelt.catalog.streaming.registration import register_chunks
from snowmelt.ingest.chunk_content_check import find_newest_matching_schema, find_written_schema
from snowmelt.ingest.registration_verifier import Registrant, VerificationDepth
from snowmelt.schema.types import Column, LogicalType, TableName, TableSchema

if TYPE_CHECKING:
    from unit.ingest.conftest import World


SENDER = Registrant("LOADER", None)
A, B = Column("A", LogicalType.REAL, 1), Column("B", LogicalType.REAL, 2)


def footer(*fields: tuple[int | None, str]) -> ChunkFooter:
    return ChunkFooter(
        1, tuple(FooterField(ordinal, name, "DOUBLE", None, True) for ordinal, name in fields)
    )


def written(given: ChunkFooter, schemas: dict[int, TableSchema]) -> int:
    found = find_written_schema(given, schemas)
    assert found is not None
    return found.version


def versions(*schemas: tuple[Column, ...]) -> dict[int, TableSchema]:
    return {number: TableSchema(number, each) for number, each in enumerate(schemas, 1)}


def test_a_chunk_was_written_for_the_version_with_its_very_columns() -> None:
    schemas = versions((A,), (A, B), (A, replace(B, name="C")), (A,))
    assert written(footer((1, "A"), (2, "B")), schemas) == 2
    assert written(footer((1, "A"), (2, "C")), schemas) == 3
    assert written(footer((1, "A")), schemas) == 4
    assert find_written_schema(footer((2, "B")), schemas) is None
    assert written(footer((None, "A"), (None, "B")), schemas) == 2


def test_a_writer_that_leaves_columns_out_gets_the_newest_version_that_lets_it() -> None:
    schemas = versions((A, B), (A, B, replace(A, name="D", ordinal=3, nullable=False)))
    found = find_newest_matching_schema(footer((2, "B")), schemas)
    assert isinstance(found, TableSchema)
    assert found.version == 1
    found = find_newest_matching_schema(footer((4, "X")), schemas)
    assert isinstance(found, str)
    assert "D is missing and not nullable" in found


@pytest.fixture
def verdict(world: World) -> Callable[..., tuple[int, str | None]]:
    """Check a blob as the service does, register it, and return code and message."""

    def verdict_on(
        blob: Any, depth: VerificationDepth = VerificationDepth.FULL
    ) -> tuple[int, str | None]:
        offer = world.offer(blob, depth)
        with world.database.writing() as connection:
            [[found]] = register_chunks(connection, [offer], now=world.clock.now())
        return int(found.code), found.message

    return verdict_on


ROWS = [{"id": 1, "x": 2.5, "name": "one"}, {"id": 2, "x": None, "name": None}]


def alter(world: World, text: str) -> None:
    execute_statement(world.database, f"ALTER TABLE demo.public.t {text}", clock=world.clock)


def chunk_versions(world: World) -> list[int]:
    with world.database.reading() as connection:
        table = find_table(connection, TableName("DEMO", "PUBLIC", "T"))
        found = list_chunks(connection, table.table_id, 0, table.last_seq)
    return [chunk.schema_version for chunk in found]


@pytest.mark.parametrize("depth", [VerificationDepth.FULL, VerificationDepth.FOOTER])
@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ("ADD COLUMN c INT", 0, None),
        ("ALTER COLUMN id DROP NOT NULL", 0, None),
        ("ALTER COLUMN id TYPE NUMBER(38)", 0, None),
        ("RENAME COLUMN x TO y", 40, "its column X is called Y. Open the channel again"),
        ("DROP COLUMN x", 36, "column X was dropped. Open the channel again"),
        ("ADD COLUMN c INT NOT NULL", 40, "it has the column C, which is NOT NULL"),
        ("RENAME TO u", 36, "Table DEMO.PUBLIC.T was renamed to DEMO.PUBLIC.U"),
    ],
)
def test_a_channel_that_is_open_while_its_table_changes(
    world: World, verdict: Any, text: str, code: int, reason: str | None, depth: VerificationDepth
) -> None:
    opened = world.open()
    alter(world, text)
    found, message = verdict(world.blob(opened, 1, ROWS), depth)
    assert found == code
    assert reason is None or reason in message


@pytest.mark.parametrize("depth", [VerificationDepth.FULL, VerificationDepth.FOOTER])
@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("ADD COLUMN c INT", {"id": 1, "c": 3}),
        ("DROP COLUMN x", {"id": 1, "name": "n"}),
        ("RENAME COLUMN x TO y", {"id": 1, "y": 2.5}),
        ("ALTER COLUMN id TYPE NUMBER(38)", {"id": 10**30}),
        ("ALTER COLUMN id DROP NOT NULL", {"id": None}),
    ],
)
def test_a_channel_opened_after_the_change_writes_what_the_service_has_not_seen_yet(
    world: World, verdict: Any, text: str, row: Any, depth: VerificationDepth
) -> None:
    # Another service on the same catalog may have opened the channel: this one knows version 1.
    assert verdict(world.blob(world.open("OTHER"), 1, ROWS)) == (0, None)
    alter(world, text)
    assert verdict(world.blob(world.open(), 1, [row]), depth) == (0, None)


def test_a_chunk_is_kept_with_the_version_it_was_written_for(world: World, verdict: Any) -> None:
    opened = world.open()
    alter(world, "ADD COLUMN c INT")
    assert verdict(world.blob(opened, 1, ROWS)) == (0, None)
    assert chunk_versions(world) == [1]


def test_rows_of_a_dropped_column_do_not_come_in_through_one_of_its_name(
    world: World, verdict: Any
) -> None:
    opened = world.open()
    alter(world, "DROP COLUMN name")
    alter(world, "ADD COLUMN name VARCHAR")
    code, message = verdict(world.blob(opened, 1, ROWS))
    assert code == 36
    assert "column NAME was dropped" in message
