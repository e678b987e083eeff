"""Tables that were dropped and come back: native files, fresh chunks, and whoever was at work."""

from __future__ import annotations

import contextlib
import datetime as dt
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from fixtures.chunks import NUMBERS, Lakehouse
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.clock import ManualClock
from snowmelt.errors import NotRestorable
from snowmelt.table.compaction import compact
from snowmelt.table.file_replacement_run import MaintenanceSettings

HOUR = 3600.0
DAY = 24 * HOUR


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Lakehouse]:
    with contextlib.closing(Lakehouse(tmp_path, ManualClock(dt.datetime.now(dt.UTC)))) as found:
        found.create()
        yield found


def run(house: Lakehouse, text: str) -> None:
    execute_statement(house.database, text, clock=house.clock)


def test_native_files_and_fresh_chunks_come_back_after_many_clean_ups(house: Lakehouse) -> None:
    house.put_numbers(0, 20)
    house.migrate()
    house.put_numbers(20, 10)
    house.drop()
    for _ in range(5):
        house.clock.advance(DAY / 6)
        house.collect(HOUR)
    house.undrop()
    assert sorted(house.read_numbers()) == list(range(30))
    house.put_numbers(30, 5)
    house.migrate()
    house.clock.advance(2 * HOUR)
    house.collect(HOUR)
    assert sorted(house.read_numbers()) == list(range(35))


def test_a_replaced_table_comes_back_beside_its_successor(house: Lakehouse) -> None:
    house.put_numbers(0, 10)
    house.migrate()
    house.create(replace=True)
    house.put_numbers(100, 5)
    run(house, f"ALTER TABLE {NUMBERS} RENAME TO later")
    house.undrop()
    assert house.read_numbers() == list(range(10))


def test_a_truncated_table_is_empty_at_once_and_its_rows_are_kept(house: Lakehouse) -> None:
    house.put_numbers(0, 10)
    house.migrate()
    house.put_numbers(10, 10)
    run(house, f"TRUNCATE TABLE {NUMBERS}")
    assert house.read_numbers() == []
    house.put_numbers(50, 3)
    house.migrate()
    assert house.read_numbers() == [50, 51, 52]
    run(house, f"ALTER TABLE {NUMBERS} RENAME TO later")
    house.undrop()
    assert sorted(house.read_numbers()) == list(range(20))


class Machine(RuleBasedStateMachine):
    """Whatever is dropped, restored, truncated, migrated, joined and cleaned up, in any order.

    The model is what each table of the name must hold; one that is past its retention never
    comes back, one that is within it always does, whole.
    """

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        clock = ManualClock(dt.datetime.now(dt.UTC))
        self.house = Lakehouse(Path(self.folder.name), clock)
        self.house.create()
        self.live: list[int] | None = []
        self.dropped: list[tuple[float, list[int]]] = []
        self.next = 0
        self.now_s = 0.0

    def teardown(self) -> None:
        if hasattr(self, "house"):
            self.house.close()
            self.folder.cleanup()

    @precondition(lambda self: self.live is not None)
    @rule(count=st.integers(1, 5))
    def stream(self, count: int) -> None:
        self.house.put_numbers(self.next, count)
        assert self.live is not None
        self.live += range(self.next, self.next + count)
        self.next += count

    @precondition(lambda self: self.live is not None)
    @rule()
    def migrate(self) -> None:
        self.house.migrate()

    @precondition(lambda self: self.live is not None)
    @rule()
    def join(self) -> None:
        chosen = MaintenanceSettings(self.house.warehouse.url, min_files=2)
        compact(self.house.database, NUMBERS, chosen, clock=self.house.clock)

    @precondition(lambda self: self.live is not None)
    @rule()
    def drop(self) -> None:
        self.house.drop()
        assert self.live is not None
        self.dropped.append((self.now_s + DAY, self.live))
        self.live = None

    @precondition(lambda self: self.live is not None)
    @rule()
    def truncate(self) -> None:
        run(self.house, f"TRUNCATE TABLE {NUMBERS}")
        assert self.live is not None
        self.dropped.append((self.now_s + DAY, self.live))
        self.live = []

    @precondition(lambda self: self.live is None)
    @rule()
    def create(self) -> None:
        self.house.create(replace=True)
        self.live = []

    @precondition(lambda self: self.live is None)
    @rule()
    def undrop(self) -> None:
        self.dropped = [each for each in self.dropped if each[0] > self.now_s]
        try:
            self.house.undrop()
        except NotRestorable:
            assert not self.dropped
        else:
            _, self.live = self.dropped.pop()

    @rule(hours=st.sampled_from([1, 7, 13]))
    def time_passes(self, hours: Any) -> None:
        self.house.clock.advance(hours * HOUR + 1)
        self.now_s += hours * HOUR + 1

    @rule()
    def clean_up(self) -> None:
        assert self.house.collect(HOUR).problems == ()

    @invariant()
    def every_row_is_there_once(self) -> None:
        if getattr(self, "live", None) is not None:
            assert sorted(self.house.read_numbers()) == self.live


Machine.TestCase.settings = settings(
    max_examples=6,
    stateful_step_count=20,
    deadline=None,
    database=None,
    phases=[Phase.generate],
)
test_nothing_is_lost_or_comes_back_too_late = Machine.TestCase
