"""Channels continue by themselves after the service is killed and their table is altered meanwhile."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

import snowmelt
from fixtures.service import ServiceProcess
from support.sdk_table import SOON

pytestmark = pytest.mark.slow

T = "demo.public.t"
CHANNELS = 4
ROUNDS = (
    ("service.after_registration=kill:3", "DROP COLUMN at"),
    ("service.answering=kill:9", "RENAME COLUMN name TO title"),
)


@pytest.fixture
def service(loading_service: ServiceProcess) -> ServiceProcess:
    return loading_service


def test_no_row_is_lost_or_doubled_and_no_channel_is_opened_twice(
    connect: Any, service: ServiceProcess, ids: Any
) -> None:
    problems: list[Any] = []
    inserted: Counter[Any] = Counter()
    stop = threading.Event()
    client = connect(on_problem=problems.append)
    channels = [client.open_channel(f"c{number}", table=T) for number in range(CHANNELS)]

    def insert(number: int) -> None:
        count = 0
        while not stop.is_set():
            first = number * 1_000_000 + count
            rows = [{"id": first + each, "name": "x"} for each in range(10)]
            try:
                channels[number].insert_rows(rows, str(count + 10))
            except snowmelt.errors.InvalidRow:
                break  # The column has been renamed.
            count += 10
            stop.wait(0.02)
        inserted[number] = count

    threads = [threading.Thread(target=insert, args=(number,)) for number in range(CHANNELS)]
    for thread in threads:
        thread.start()
    try:
        for fault, change in ROUNDS:
            assert service.stop() == 0
            service.start(fault=fault)
            service.wait_for_death()
            service.sql(f"ALTER TABLE {T} {change}")
            service.start()
            client.flush(3 * SOON)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    client.flush(3 * SOON)
    assert all(channel.is_valid for channel in channels)
    assert [channel.client_sequencer for channel in channels] == [0] * CHANNELS
    wanted = [n * 1_000_000 + each for n in range(CHANNELS) for each in range(inserted[n])]
    assert sorted(ids()) == wanted
    assert not [error for error in problems if isinstance(error, snowmelt.errors.ConflictError)]
    assert [channel.resume() for channel in channels] == [str(inserted[n]) for n in range(CHANNELS)]
