"""The chunks of one commit are registered together or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from fixtures.catalog import Client, World, advance
from snowmelt.catalog import model
from snowmelt.catalog.streaming import channels, chunks


@pytest.fixture
def client(world: World) -> Client:
    client = world.client()
    client.open("C")
    return client


def channel_of(world: World) -> channels.ChannelRecord | Any:
    with world.database.reading() as connection:
        return channels.find_channel(connection, world.table(), "C")


def chunks_of(world: World) -> list[chunks.ChunkRecord]:
    table_id = world.table().table_id
    with world.database.reading() as connection:
        return chunks.list_chunks(connection, table_id, 0, 1 << 60)


def parts(client: Client, *tokens: str | None) -> list[Any]:
    """Chunks that hold together the rows of one row sequencer."""
    return [
        client.offer(advance("C", 0, 1, token), commit_chunk_count=len(tokens)) for token in tokens
    ]


def test_the_parts_of_one_commit_are_taken_together(world: World, client: Client) -> None:
    first, last = parts(client, None, "a")
    assert world.codes(first, last, client.offer(advance("C", 0, 2, "b"))) == [[0], [0], [0]]
    assert (channel_of(world).row_sequencer, channel_of(world).offset_token) == (2, "b")
    assert [chunk.path for chunk in chunks_of(world)][:2] == [first.path, last.path]
    assert world.codes(first, last) == [[0], [0]], "it is not added again"
    assert len(chunks_of(world)) == 3


def test_a_part_that_is_refused_costs_the_others(world: World, client: Client) -> None:
    first, last = parts(client, None, "a")
    damaged = replace(last, rejection=(28, "It has another MD5."))
    assert world.codes(first, damaged) == [[22], [28]]
    assert world.codes(first) == world.codes(last) == [[12]]
    assert world.codes(first, first) == [[12], [12]]
    assert (channel_of(world).row_sequencer, channel_of(world).offset_token) == (0, None)
    assert chunks_of(world) == []
    assert world.codes(first, last) == [[0], [0]]


def test_parts_are_known_again_when_only_the_channel_remembers(
    world: World, client: Client
) -> None:
    first, last = parts(client, None, "a")
    world.register(first, last)
    with world.database.writing() as connection:
        connection.execute(sa.delete(model.chunks))
    assert world.codes(first, last) == [[0], [0]]
    assert world.codes(*parts(client, None, "a")) == [[21], [21]]
