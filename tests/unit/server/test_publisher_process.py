"""The publisher publishes tables in demand, and leaves most of the processor to others."""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import TYPE_CHECKING

import pytest

from fixtures.chunks import Lakehouse
from snowmelt.catalog.objects.published_snapshots import list_publications, record_demand
from snowmelt.clock import ManualClock
from snowmelt.server.publisher_process import PublishingLoop
from snowmelt.table.snapshot_publication import PublicationSettings, SnapshotPublisher

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Publishing:
    """A lakehouse with the rounds of a publisher. Each call of `cpu_s` costs `round_cpu_s`."""

    def __init__(self, lakehouse: Lakehouse, clock: ManualClock) -> None:
        self.lakehouse, self.clock = lakehouse, clock
        self.round_cpu_s = 0.02
        self._cpu_s = 0.0
        places = PublicationSettings(lakehouse.stage.url, lakehouse.warehouse.url)
        publisher = SnapshotPublisher(lakehouse.database, lakehouse.keyring, places, clock)
        self.loop = PublishingLoop(lakehouse.database, publisher, clock, self._get_cpu_s)

    def _get_cpu_s(self) -> float:
        self._cpu_s += self.round_cpu_s
        return self._cpu_s

    def run_round(self, after_s: float) -> int:
        """Add a chunk and run a round. Return the last published commit sequence."""
        self.lakehouse.put_numbers(0, 1)
        self.clock.advance(after_s)
        table_id = self.lakehouse.table().table_id
        with self.lakehouse.database.writing() as connection:
            record_demand(connection, table_id, native_only=False, now=self.clock.now())
        assert self.loop.run_round()
        with self.lakehouse.database.reading() as connection:
            [last] = list_publications(connection, table_id, native_only=False, limit=1)
        return last.up_to_seq


@pytest.fixture
def publishing(tmp_path: Path) -> Iterator[Publishing]:
    clock = ManualClock(dt.datetime.now(dt.UTC))
    with contextlib.closing(Lakehouse(tmp_path, clock)) as lakehouse:
        lakehouse.create()
        yield Publishing(lakehouse, clock)


def test_cheap_rounds_are_published_five_times_a_second(publishing: Publishing) -> None:
    assert [publishing.run_round(0.2) for _ in range(3)] == [1, 2, 3]


def test_an_expensive_round_alone_delays_nothing(publishing: Publishing) -> None:
    publishing.round_cpu_s = 0.9
    assert publishing.run_round(0.2) == 1
    publishing.round_cpu_s = 0.02
    assert [publishing.run_round(0.2) for _ in range(3)] == [2, 3, 4]


def test_a_table_that_exceeds_its_share_is_published_after_a_pause(publishing: Publishing) -> None:
    publishing.round_cpu_s = 1.09
    published = [publishing.run_round(0.2) for _ in range(6)]
    # 0.09 s too much, at an eighth of a processor, are 0.72 s.
    assert published == [1, 1, 1, 1, 5, 5]


def test_a_pause_ends_after_four_seconds(publishing: Publishing) -> None:
    publishing.round_cpu_s = 60.0
    assert [publishing.run_round(2.1) for _ in range(3)] == [1, 1, 3]


def test_later_rounds_are_small_enough_for_their_pauses(publishing: Publishing) -> None:
    publishing.round_cpu_s = 0.0
    assert publishing.run_round(0.2) == 1
    # A row counts as 32 bytes, so a round takes two of these chunks.
    for _ in range(3):
        publishing.lakehouse.put_numbers(0, 200_000)
        publishing.clock.advance(1)
    assert [publishing.run_round(1) for _ in range(2)] == [3, 6]


def test_a_backlog_of_before_the_first_load_is_published_without_pauses(
    publishing: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each round takes one chunk.
    monkeypatch.setattr("snowmelt.table.snapshot_publication.MAX_ROUND_BYTES", 1)
    publishing.round_cpu_s = 60.0
    for number in range(3):
        publishing.lakehouse.put_numbers(number, 1)
        publishing.clock.advance(0.2)
    assert [publishing.run_round(0.2) for _ in range(3)] == [1, 2, 3]
