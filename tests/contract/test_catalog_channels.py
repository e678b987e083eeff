from __future__ import annotations

import datetime as dt
import random
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from fixtures.catalog import NAME, START, World, advance
from snowmelt.catalog import model
from snowmelt.catalog.objects import namespaces, tables
from snowmelt.catalog.streaming import channels
from snowmelt.errors import ChannelFenced, ChannelNotFound, TableNotFound, TooManyChannels
from snowmelt.schema.types import TableName


def _drop(world: World, channel: str = "C", **options: Any) -> channels.ChannelRecord:
    with world.database.writing() as connection:
        table = tables.find_table(connection, NAME)
        return channels.drop_channel(connection, table, channel, now=world.now, **options)


def test_the_first_open_starts_at_nothing(world: World) -> None:
    opened = world.client().open("C")
    assert (opened.previous_owner, opened.is_replayed) == (None, False)
    record = opened.record
    assert (record.client_sequencer, record.row_sequencer, record.offset_token) == (0, 0, None)
    assert (record.owner_user, record.opened_at, record.rows) == ("LOADER", START, 0)


def test_a_reopen_carries_on_and_names_who_had_it(world: World) -> None:
    first, second = world.client(), world.client("OTHER")
    first.open("C")
    offer = first.offer(advance("C", 0, 1, "7"))
    world.register(offer)
    opened = second.open("C")
    record = opened.record
    assert (record.client_sequencer, record.row_sequencer, record.offset_token) == (1, 1, "7")
    assert (record.last_path, record.last_chunk_offset) == (offer.path, 0)
    assert (opened.previous_owner, record.owner_user) == (first.prefix, "OTHER")


def test_an_open_may_set_the_token(world: World) -> None:
    client = world.client()
    assert client.open("C", offset_token="100").record.offset_token == "100"
    assert client.open("C").record.offset_token == "100"
    assert client.open("C", offset_token="").record.offset_token == ""


def test_the_same_request_again_gets_the_same_sequencer(world: World) -> None:
    first, second = world.client(), world.client()
    second.open("C")
    opened = first.open("C", request_id="x")
    again = first.open("C", request_id="x")
    assert again.is_replayed
    assert (again.record, again.previous_owner) == (opened.record, second.prefix)
    world.register(first.offer(advance("C", 1, 1)))
    assert first.open("C", request_id="x").record.row_sequencer == 1


def test_a_late_request_does_not_fence_the_next_owner(world: World) -> None:
    first, second = world.client(), world.client()
    first.open("C", request_id="x")
    current = second.open("C").record.client_sequencer
    late = first.open("C", request_id="x")
    assert (late.is_replayed, late.record.client_sequencer) == (True, current - 1)
    assert world.codes(second.offer(advance("C", current, 1))) == [[0]]


def test_the_same_request_id_of_another_client_is_another_request(world: World) -> None:
    assert world.client().open("C", request_id="x").record.client_sequencer == 0
    assert world.client().open("C", request_id="x").record.client_sequencer == 1


def test_requests_without_an_id_are_each_their_own(world: World) -> None:
    client = world.client()
    assert [client.open("C", request_id=None).record.client_sequencer for _ in "ab"] == [0, 1]


def test_a_dropped_channel_goes_on_counting_but_forgets_its_token(world: World) -> None:
    client = world.client()
    client.open("C", offset_token="5")
    assert _drop(world).offset_token == "5"
    assert client.open("C").record.client_sequencer == 1
    _drop(world)
    record = client.open("C").record
    assert (record.client_sequencer, record.row_sequencer, record.offset_token) == (2, 0, None)


def test_sequencers_never_fall_through_table_and_database_of_the_same_name(world: World) -> None:
    client = world.client()
    for _ in range(3):
        client.open("C")
    world.create_table(replace=True)
    assert client.open("C").record.client_sequencer == 3
    with world.database.writing() as connection:
        namespaces.drop_database(connection, "DB", world.now)
        namespaces.create_database(connection, "DB", owner="ACCOUNTADMIN", now=world.now)
    world.create_table()
    assert client.open("C").record.client_sequencer == 4


def test_a_drop_of_one_epoch_spares_the_next(world: World) -> None:
    client = world.client()
    client.open("C")
    client.open("C")
    with pytest.raises(ChannelFenced):
        _drop(world, client_sequencer=0)
    _drop(world, client_sequencer=1)
    with pytest.raises(ChannelNotFound):
        _drop(world)


def test_opening_on_a_table_that_was_dropped_meanwhile_fails(world: World) -> None:
    table = world.table()
    with world.database.writing() as connection:
        tables.drop_table(connection, NAME, world.now)
        with pytest.raises(TableNotFound):
            channels.open_channel(
                connection,
                table,
                "C",
                user="LOADER",
                client_prefix=None,
                request_id=None,
                now=world.now,
            )


def test_a_table_has_ten_thousand_channels_at_most(world: World) -> None:
    client = world.client()
    table_id = world.table().table_id
    with world.database.writing() as connection:
        connection.execute(
            sa.insert(model.channels),
            [
                {
                    "table_id": table_id,
                    "name": f"C{number}",
                    "client_sequencer": 0,
                    "row_sequencer": 0,
                    "owner_user": "LOADER",
                    "opened_at": START,
                }
                for number in range(10_000)
            ],
        )
    with pytest.raises(TooManyChannels, match="10,000"):
        client.open("ONE_MORE")
    assert client.open("C17").record.client_sequencer == 1
    _drop(world, "C17")
    client.open("ONE_MORE")


def test_channels_are_found_and_listed(world: World) -> None:
    client = world.client()
    for name in ("B", "A"):
        client.open(name)
    table = world.table()
    with world.database.reading() as connection:
        assert [each.name for each in channels.list_channels(connection)] == ["A", "B"]
        assert channels.list_channels(connection, [table.table_id + 1]) == []
        found = channels.find_channels(connection, [(table.table_id, "A"), (table.table_id, "X")])
        assert list(found) == [(table.table_id, "A")]
        assert channels.find_channel(connection, table, "X") is None


def test_history_tells_who_took_a_channel_from_whom(world: World) -> None:
    first, second = world.client(), world.client("OTHER")
    first.open("C")
    world.clock.advance(5)
    second.open("C")
    _drop(world, user="OTHER")
    with world.database.reading() as connection:
        table_id = tables.find_table(connection, NAME).table_id
        dropped, taken, opened = channels.list_channel_history(connection, table_id, "C")
        assert channels.list_channel_history(connection, table_id, "X") == []
    assert (dropped.event, dropped.user, dropped.client_sequencer) == ("dropped", "OTHER", 1)
    assert (taken.event, taken.user, taken.previous_user) == ("opened", "OTHER", "LOADER")
    assert (taken.previous_owner, taken.client_prefix) == (first.prefix, second.prefix)
    assert taken.at - opened.at == dt.timedelta(seconds=5)


def _read_stored(
    world: World, table: sa.Table, table_id: int, *order: sa.Column[Any]
) -> list[tuple[Any, ...]]:
    """Return a table's channels, or their history, without the numbers that the catalog gave."""
    kept = [each for each in table.c if each.name not in {"channel_id", "history_id", "table_id"}]
    with world.database.reading() as connection:
        query = sa.select(*kept).where(table.c.table_id == table_id).order_by(*order)
        return [tuple(row) for row in connection.execute(query)]


@pytest.mark.parametrize("seed", range(8))
def test_opens_in_one_call_end_like_the_same_ones_one_after_the_other(
    world: World, seed: int
) -> None:
    """Random opens and repetitions of few channels, some of which are dropped in between."""
    chance = random.Random(seed)
    together = world.table()
    single = world.create_table(TableName("DB", "PUBLIC", "OTHER"))
    for _ in range(6):
        requests = [
            channels.ChannelOpen(
                f"C{chance.randrange(6)}",
                chance.choice(("LOADER", "OTHER")),
                chance.choice(("p1", "p2", None)),
                None,
                chance.choice((None, None, "", "7")),
            )
            for _ in range(chance.randrange(1, 12))
        ]
        requests = [
            # An id of its user's own, as the service sees to.
            replace(each, request_id=f"{each.user}{chance.randrange(40)}")
            if chance.random() < 0.8
            else each
            for each in requests
        ]
        with world.database.writing() as connection:
            found: list[Any] = channels.open_channels(connection, together, requests, now=world.now)
        expected: list[Any] = []
        for request in requests:
            with world.database.writing() as connection:
                expected += channels.open_channels(connection, single, [request], now=world.now)
        assert [replace(each.record, table_id=0) for each in found] == [
            replace(each.record, table_id=0) for each in expected
        ]
        assert [(each.previous_owner, each.is_replayed) for each in found] == [
            (each.previous_owner, each.is_replayed) for each in expected
        ]
        gone = f"C{chance.randrange(6)}"
        with world.database.writing() as connection:
            for table in (together, single):
                if channels.find_channel(connection, table, gone) is not None:
                    channels.drop_channel(connection, table, gone, now=world.now)
        world.clock.sleep(1)
    for stored, order in (
        (model.channels, model.channels.c.name),
        (model.channel_history, model.channel_history.c.history_id),
    ):
        assert _read_stored(world, stored, together.table_id, order) == _read_stored(
            world, stored, single.table_id, order
        )


def test_opens_in_one_call_fill_a_table_in_their_order(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "MAX_CHANNELS_PER_TABLE", 2)
    requests = [channels.ChannelOpen(name, "LOADER") for name in ("A", "B", "C", "A", "D")]
    with world.database.writing() as connection:
        found = channels.open_channels(connection, world.table(), requests, now=world.now)
    assert [isinstance(each, TooManyChannels) for each in found] == [
        False,
        False,
        True,
        False,
        True,
    ]
    assert not isinstance(found[3], TooManyChannels)
    assert found[3].record.client_sequencer == 1


def test_old_history_is_trimmed_from_its_oldest_line_on(world: World) -> None:
    client = world.client()
    for _ in range(3):
        client.open("C")
        world.clock.advance(60)
    with world.database.writing() as connection:
        before = world.now - dt.timedelta(seconds=100)
        assert channels.prune_channel_history(connection, before, limit=1) == 1
        assert [channels.prune_channel_history(connection, before) for _ in "ab"] == [1, 0]
        left = channels.list_channel_history(connection, world.table().table_id)
    assert [line.client_sequencer for line in left] == [2]
