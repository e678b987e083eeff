"""Registrations, opens and drops of channels beside a statement that replaces their table.

SQLite runs writers one after another. On PostgreSQL, a writer can find a table that another transaction
has replaced by the time the lock is granted.
"""

from __future__ import annotations

import contextlib
from functools import partial

import pytest

from fixtures.catalog import NAME, Client, World, advance
from snowmelt.catalog.objects import tables
from snowmelt.catalog.streaming import channels
from snowmelt.clock import SystemClock
from snowmelt.ingest.channel_write_batcher import WriteBatcher
from support.interleaving import run_beside

pytestmark = pytest.mark.postgres


@pytest.fixture
def world(postgres_world: World) -> World:
    return postgres_world


@pytest.mark.parametrize(
    "replacement",
    ["TRUNCATE TABLE t", "CREATE OR REPLACE TABLE t (a NUMBER(38,0) NOT NULL, b VARCHAR(16))"],
)
def test_a_registration_beside_a_replacement_is_told_to_open_the_channel_again(
    world: World, client: Client, replacement: str
) -> None:
    late = client.offer(advance("C", 0, 2, "20"))
    assert run_beside(world, replacement, partial(world.codes, late)) == [[36]]


def test_a_channel_opened_beside_truncate_is_one_of_the_new_table(
    world: World, client: Client
) -> None:
    def open_channel() -> channels.OpenChannelResult:
        with contextlib.closing(WriteBatcher(world.database, SystemClock())) as writes:
            return writes.submit(
                lambda connection: channels.open_channel(
                    connection,
                    tables.find_table(connection, NAME),
                    "C",
                    user="LOADER",
                    client_prefix=client.prefix,
                    request_id="again",
                    now=world.now,
                ),
                group_key=NAME,
            ).result(60)

    opened = run_beside(world, "TRUNCATE TABLE t", open_channel).record
    assert opened.table_id == world.table().table_id
    assert (opened.offset_token, opened.client_sequencer) == ("10", 2)


@pytest.mark.usefixtures("client")
def test_a_channel_dropped_beside_truncate_is_gone_from_the_new_table(world: World) -> None:
    def drop_channel() -> None:
        with contextlib.closing(WriteBatcher(world.database, SystemClock())) as writes:
            writes.submit(
                lambda connection: channels.drop_channel(
                    connection, tables.find_table(connection, NAME), "C", now=world.now
                ),
                group_key=NAME,
            ).result(60)

    run_beside(world, "TRUNCATE TABLE t", drop_channel)
    with world.database.reading() as connection:
        assert channels.find_channel(connection, world.table(), "C") is None
