"""Channels that nobody writes to expire, on every database the catalog runs on."""

from __future__ import annotations

import datetime as dt

import pytest

from fixtures.catalog import NAME, World, advance
from snowmelt.catalog.streaming import channels
from snowmelt.errors import TooManyChannels
from snowmelt.table.garbage_collection import expire_idle_channels

DAY_S = 86_400.0
IDLE_S = 30 * DAY_S


def expire(world: World) -> int:
    return expire_idle_channels(world.database, world.clock, idle_s=IDLE_S)


def events(world: World, channel: str) -> list[str]:
    with world.database.reading() as connection:
        return [
            line.event
            for line in channels.list_channel_history(connection, world.table().table_id, channel)
        ]


def test_a_channel_expires_a_month_after_its_last_rows(world: World) -> None:
    client = world.client()
    for name in ("IDLE", "BUSY"):
        client.open(name)
    assert world.codes(client.offer(advance("IDLE", 0, 1, "7"))) == [[0]]
    world.clock.advance(IDLE_S)
    assert world.codes(client.offer(advance("BUSY", 0, 1, "1"))) == [[0]]
    assert expire(world) == 0
    world.clock.advance(1)
    late = client.offer(advance("IDLE", 0, 2, "8"))
    assert expire(world) == 1
    assert events(world, "IDLE") == ["expired", "opened"]
    [[verdict]] = world.register(late)
    assert verdict.code == 25
    assert verdict.message is not None
    assert "it expired after the idle time" in verdict.message
    again = client.open("IDLE").record
    assert (again.offset_token, again.client_sequencer, again.row_sequencer) == (None, 1, 0)
    assert world.codes(late) == [[20]]
    assert world.codes(client.offer(advance("IDLE", 1, 1, "7"))) == [[0]]
    assert expire(world) == 0


def test_opening_counts_and_zero_keeps_all(world: World) -> None:
    client = world.client()
    client.open("C")
    world.clock.advance(IDLE_S + 1)
    assert expire_idle_channels(world.database, world.clock, idle_s=0) == 0
    client.open("C")
    assert expire(world) == 0


def test_what_has_expired_makes_room_for_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "MAX_CHANNELS_PER_TABLE", 2)
    client = world.client()
    for name in ("A", "B"):
        client.open(name)
    with pytest.raises(TooManyChannels, match=f"Too many channels on table {NAME}: the limit is 2"):
        client.open("C")
    world.clock.advance(IDLE_S + 1)
    client.open("A")
    assert expire(world) == 1
    client.open("C")


def test_rows_that_come_while_a_channel_expires_decide(world: World) -> None:
    """Whoever has the table's lock first: never both, and never a row of a channel that is gone."""
    client = world.client()
    client.open("C")
    world.clock.advance(IDLE_S + 1)
    before = world.now - dt.timedelta(seconds=IDLE_S)
    assert world.codes(client.offer(advance("C", 0, 1, "1"))) == [[0]]
    with world.database.writing() as connection:
        assert channels.expire_idle_channels(connection, before, world.now) == 0
