"""Back-pressure for one table, with too many chunks before migration, does not delay other tables."""

from __future__ import annotations

import contextlib
import datetime as dt
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fixtures.sdk import QUICK
from snowmelt import testing
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.sql.cursor import parse_table_name
from snowmelt.client.client import Client
from snowmelt.errors import BufferFull, CommitTimeout, ServiceUnavailable, SnowmeltError
from snowmelt.server import background_work
from support.sdk_table import LATE, SOON

AT_ONCE = dt.timedelta(0)


@pytest.fixture(scope="module")
def local() -> Iterator[testing.LocalService]:
    """A service in this process that reads its tables' backlogs once and finds none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(background_work, "_BACK_PRESSURE_INTERVAL_S", 3600.0)
        with testing.LocalService(backlog_max_chunks=1_000_000) as service:
            yield service


@pytest.fixture
def tables(local: testing.LocalService, request: pytest.FixtureRequest) -> list[Any]:
    """Two tables for one test."""
    names = [f'd.s."{request.node.name} {number}"' for number in range(2)]
    return [local.create_table(name, "id INT") for name in names]


@pytest.fixture
def full(local: testing.LocalService) -> Iterator[Callable[..., None]]:
    """Set the tables for which the service applies back-pressure."""
    service = local.embedded.service

    def fill(*names: Any) -> None:
        with service.database.reading() as connection:
            found = [find_table(connection, parse_table_name(name)) for name in names]
        service.back_pressure.throttled_table_ids = frozenset(table.table_id for table in found)

    yield fill
    fill()


def numbers(first: int, last: int) -> list[Any]:
    return [{"id": number} for number in range(first, last)]


def ids(local: testing.LocalService, table: Any) -> list[Any]:
    return [int(str(row["ID"])) for row in local.rows(table)]


def until_it_waits(client: Client) -> None:
    waiting = threading.Event()
    for _ in range(20_000):
        if client.status().trouble is not None:
            return
        waiting.wait(0.01)
    raise AssertionError("the service takes everything")


def test_rows_of_other_tables_are_committed_meanwhile(
    local: testing.LocalService, tables: Any, full: Any
) -> None:
    told: list[Any] = []
    client = local.client(max_client_lag=LATE, on_problem=told.append)
    busy = [client.open_channel(name, table=tables[0]) for name in "ab"]
    other = client.open_channel("a", table=tables[1])
    full(tables[0])
    for number, channel in enumerate(busy):
        channel.insert_rows(numbers(number * 100, number * 100 + 10), "first")
    with pytest.raises(CommitTimeout):
        client.flush(AT_ONCE)
    until_it_waits(client)
    blobs = len(list(local.folder.rglob("*.bdec")))
    for turn in range(5):
        busy[0].insert_rows(numbers(10 + turn, 11 + turn), str(turn))
        other.insert_rows(numbers(turn, turn + 1), str(turn))
        other.flush(SOON)
        assert other.latest_committed_offset_token() == str(turn)
    with pytest.raises(CommitTimeout, match="migration backlog"):
        busy[0].flush(AT_ONCE)
    with pytest.raises(CommitTimeout):
        client.flush(QUICK)
    assert busy[0].status().waiting_rows == 15
    assert [type(error) for error in told] == [ServiceUnavailable]
    assert ids(local, tables[0]) == []
    full()
    client.flush(SOON)
    # Rows that arrived meanwhile were not encoded one flush at a time.
    assert len(list(local.folder.rglob("*.bdec"))) == blobs + 5 + 1
    assert client.status().trouble is None
    assert [channel.latest_committed_offset_token() for channel in busy] == ["4", "first"]
    assert sorted(ids(local, tables[0])) == [*range(15), *range(100, 110)]
    assert ids(local, tables[1]) == list(range(5))
    client.close(SOON)


def test_what_waits_leaves_room_in_memory_for_others(
    local: testing.LocalService, tables: Any, full: Any
) -> None:
    client = local.client(max_client_lag=QUICK, max_memory=16_000, when_full="raise")
    busy, other = (client.open_channel("c", table=table) for table in tables)
    full(tables[0])
    busy.insert_rows(numbers(0, 10))
    until_it_waits(client)
    count = 10
    with contextlib.suppress(BufferFull):
        while count < 10_000:
            busy.insert_rows(numbers(count, count + 10), str(count))
            count += 10
    with pytest.raises(BufferFull, match="migration backlog"):
        busy.insert_rows(numbers(count, count + 10))
    assert busy.status().waiting_bytes <= client.status().max_waiting_bytes // 2
    for turn in range(20):
        other.insert_rows(numbers(turn * 10, turn * 10 + 10))
        other.flush(SOON)
    full()
    client.close(SOON)
    assert ids(local, tables[0]) == list(range(count))
    assert ids(local, tables[1]) == list(range(200))


def test_a_client_that_ends_meanwhile_says_what_is_not_committed(
    local: testing.LocalService, tables: Any, full: Any
) -> None:
    client = local.client(max_client_lag=LATE)
    busy, other = (client.open_channel("c", table=table) for table in tables)
    full(tables[0])
    for channel in (busy, other):
        channel.insert_rows(numbers(0, 10), "9")
    with pytest.raises(CommitTimeout):
        client.flush(dt.timedelta(seconds=0.5))
    other.wait_for_commit("9", SOON)
    with pytest.raises(CommitTimeout):
        client.close(AT_ONCE)
    full()
    again = local.client().open_channel("c", table=tables[0])
    assert (again.resume(), ids(local, tables[0])) == (None, [])


@pytest.mark.parametrize("seed", [1])
def test_each_row_is_there_once_however_tables_take_turns(
    local: testing.LocalService, tables: Any, full: Any, seed: int
) -> None:
    chance = random.Random(seed)
    last = 60
    done = False
    while not done:
        client = local.client(max_client_lag=QUICK)
        places = [(name, table) for table in tables for name in "ab"]
        channels = [client.open_channel(name, table=table) for name, table in places]
        at = [int(channel.resume() or 0) for channel in channels]
        done = all(position == last for position in at)
        for _ in range(25):
            if chance.random() < 0.2:
                full(*chance.sample(tables, chance.randrange(3)))
            number = chance.randrange(len(channels))
            first = at[number]
            at[number] = min(first + chance.randrange(1, 10), last)
            if first < last:
                base = 1000 * number
                rows = numbers(base + first, base + at[number])
                channels[number].insert_rows(rows, str(at[number]))
            if chance.random() < 0.2:
                with contextlib.suppress(CommitTimeout):
                    client.flush(QUICK)
        if chance.random() < 0.5:
            full()
        with contextlib.suppress(SnowmeltError):
            client.close(dt.timedelta(seconds=chance.random() / 4))
    for place, table in enumerate(tables):
        expected = [
            1000 * number + each for number in (2 * place, 2 * place + 1) for each in range(last)
        ]
        assert sorted(ids(local, table)) == expected
