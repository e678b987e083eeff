"""Whatever order of openings, inserts, flushes, deaths, migrations and drops: rows once, in order.

A real service, real clients over loopback, the real catalog and real native files are driven beside
a model that is a list of committed numbers per channel.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from snowmelt import failpoints
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.streaming.channels import find_channel
from snowmelt.client.client import Client
from snowmelt.clock import ManualClock
from snowmelt.embedded import EmbeddedService
from snowmelt.errors import ChannelFenced, ChannelInvalid
from snowmelt.failpoints import Failpoint
from snowmelt.schema.types import TableName
from snowmelt.table.garbage_collection import collect_garbage
from snowmelt.table.migration import MigrationSettings, migrate_table
from snowmelt.table.table_reader import read_table
from snowmelt.table.warehouse_paths import open_warehouse
from support.ports import free_port

if TYPE_CHECKING:
    from snowmelt.catalog.streaming.channels import ChannelRecord


pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CHANNELS = ("alpha", "beta", "gamma")
SLOTS = (0, 1)
LAG = dt.timedelta(minutes=10)  # nothing is flushed but by a rule
SOON = dt.timedelta(seconds=200)
COLUMNS = "channel VARCHAR(16) NOT NULL, number NUMBER(9,0) NOT NULL"
IN_FLIGHT = (
    Failpoint.BLOB_BUILT,
    Failpoint.STAGE_WRITE,
    Failpoint.BLOB_STAGED,
    Failpoint.REGISTERED,
)
MIGRATION = tuple(point for point in Failpoint if point.value.startswith("migration."))
CLEANUP = (Failpoint.CLEANUP_MARKED, Failpoint.CLEANUP_DELETED)
EXAMPLES, STEPS = 24, 130


class Killed(BaseException):
    """Ends a thread; whoever cleans up after errors does not catch it."""


class Death:
    """Arms a fault point so that the thread which reaches it dies there."""

    def __init__(self, point: Failpoint) -> None:
        self.happened = threading.Event()
        failpoints.arm(point, self._die)

    def _die(self) -> None:
        self.happened.set()
        raise Killed


class House:
    """One service for all examples, each of which has tables of its own; it counts the steps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.numbers = itertools.count()
        self.steps = 0
        self.begin()
        self.embedded.sql("CREATE DATABASE model")

    def begin(self) -> None:
        self.embedded = EmbeddedService(self.folder, port=self.port)
        self.service = self.embedded.service

    def restart(self) -> None:
        self.embedded.close()
        self.begin()


@dataclass
class Writer:
    """A channel object in some client, and the numbers that it has inserted but not flushed."""

    channel: Any
    last: int
    seen: int
    buffered: int = 0
    fenced: bool = False
    dropped: bool = False

    @property
    def lost(self) -> bool:
        return self.fenced or self.dropped


@dataclass
class Model:
    """What must be there: the last number committed per channel, and who owns it."""

    committed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CHANNELS, 0))
    writers: dict[tuple[int, str], Writer] = field(default_factory=dict)


class Streaming(RuleBasedStateMachine):
    """The service and the model, side by side."""

    def __init__(self, house: House) -> None:
        super().__init__()
        self.house = house
        self.model = Model()
        self.checked: object = None
        # Migrations and clean-ups live in their own time: whoever died need not be waited for.
        self.clock = ManualClock(dt.datetime.now(dt.UTC))

    @initialize()
    def start(self) -> None:
        self.name = TableName("MODEL", "PUBLIC", f"T{next(self.house.numbers)}")
        self.house.embedded.sql(f"CREATE TABLE {self.name} ({COLUMNS})")
        self.clients = {slot: self.connect() for slot in SLOTS}

    def connect(self) -> Client:
        return self.house.embedded.client(max_client_lag=LAG)

    def writers_of(self, slot: Any) -> dict[Any, Any]:
        return {name: w for (each, name), w in self.model.writers.items() if each == slot}

    @rule(slot=st.sampled_from(SLOTS), name=st.sampled_from(CHANNELS))
    def open(self, slot: Any, name: Any) -> None:
        """Whoever had the channel before is fenced, in the same client too."""
        channel = self.clients[slot].open_channel(name, table=str(self.name))
        committed = self.model.committed[name]
        assert int(channel.latest_committed_offset_token() or 0) == committed
        for (_, other), writer in self.model.writers.items():
            if other == name:
                writer.fenced = True
        self.model.writers[slot, name] = Writer(channel, committed, committed)

    @precondition(lambda self: self.model.writers)
    @rule(data=st.data(), count=st.integers(1, 5))
    def insert(self, data: st.DataObject, count: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.model.writers)))
        writer = self.model.writers[key]
        first = writer.last + 1
        rows = [{"channel": key[1], "number": n} for n in range(first, first + count)]
        with self.unless_lost(key):
            writer.channel.insert_rows(rows, offset_token=str(first + count - 1))
            writer.last += count
            writer.buffered += count

    @precondition(lambda self: self.model.writers)
    @rule(data=st.data())
    def flush(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.model.writers)))
        writer = self.model.writers[key]
        with self.unless_lost(key):
            writer.channel.flush(SOON)
            assert not (writer.lost and writer.buffered)
        # A flush takes the whole client along, unless its channel was known to be lost: every
        # owner in this slot has committed.
        refused = key not in self.model.writers
        for other, each in self.writers_of(key[0]).items():
            if each.buffered and not each.lost:
                if refused:
                    each.channel.flush(SOON)
                each.channel.wait_for_commit(str(each.last), timeout=SOON)
                self.model.committed[other] = each.last
                each.buffered = 0
        # Rows of other lost channels may still be on their way: a thread of theirs must not reach the
        # point at which a later rule has another client die.
        assert not self.clients[key[0]]._flusher._pending_rows.drain(SOON.total_seconds())

    @precondition(lambda self: self.model.writers)
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        """What a client is told is what is committed, and never falls while it owns the channel."""
        key = data.draw(st.sampled_from(sorted(self.model.writers)))
        writer = self.model.writers[key]
        with self.unless_lost(key):
            token = int(writer.channel.latest_committed_offset_token() or 0)
            assert token >= writer.seen
            assert writer.lost or token == self.model.committed[key[1]]
            writer.seen = token

    @contextlib.contextmanager
    def unless_lost(self, key: tuple[int, str]) -> Iterator[None]:
        """Only who has lost the channel may be refused, and is told how it was lost."""
        refused = None
        try:
            yield
        except (ChannelFenced, ChannelInvalid) as error:
            refused = error
        if refused is not None:
            writer = self.model.writers.pop(key)
            if isinstance(refused, ChannelFenced):
                assert writer.fenced
            else:
                assert writer.dropped, refused
                # No such channel on the new table, or the key of the old one; or no such table: rows
                # of a lost channel that another's flush took along came between DROP and CREATE.
                assert any(f"(code {code})" in str(refused) for code in (4, 25, 36)), refused

    @rule(slot=st.sampled_from(SLOTS))
    def die(self, slot: Any) -> None:
        """The client's process is gone: nothing of its memory is ever flushed."""
        self.replace_client(slot)

    @rule(slot=st.sampled_from(SLOTS), point=st.sampled_from(IN_FLIGHT))
    def die_in_flight(self, slot: Any, point: Any) -> None:
        """The client's process dies while its rows are on their way."""
        waiting = {name: w for name, w in self.writers_of(slot).items() if w.buffered}
        owners = {name: w for name, w in waiting.items() if not w.lost}
        if not owners:
            return
        death = Death(point)
        self.clients[slot]._flusher.flush_now()
        assert death.happened.wait(SOON.total_seconds())
        self.replace_client(slot)
        before = dict(self.model.committed)
        for name, writer in owners.items():
            self.model.committed[name] = self.committed_token(name)
            assert self.model.committed[name] in {before[name], writer.last}
        if point is not Failpoint.REGISTERED:
            assert self.model.committed == before
        elif waiting == owners:
            assert all(self.model.committed[name] == w.last for name, w in owners.items())

    def replace_client(self, slot: Any) -> None:
        gone = self.clients[slot]._flusher
        # A thread that died in flight does not tell the one that registers to end.
        with contextlib.suppress(queue.Full):
            gone._flushes.put_nowait(None)
        gone.stop()
        self.clients[slot] = self.connect()
        for name in self.writers_of(slot):
            del self.model.writers[slot, name]

    def committed_token(self, name: Any) -> int:
        with self.house.service.database.reading() as connection:
            table = find_table(connection, self.name)
            return int(
                cast("ChannelRecord", find_channel(connection, table, name.upper())).offset_token
                or 0
            )

    @rule(replace=st.booleans())
    def drop_and_create(self, replace: bool) -> None:
        """All rows are gone, and nobody may write to the new table with a channel of the old."""
        if replace:
            self.house.embedded.sql(f"CREATE OR REPLACE TABLE {self.name} ({COLUMNS})")
        else:
            self.house.embedded.sql(f"DROP TABLE {self.name}")
            self.house.embedded.sql(f"CREATE TABLE {self.name} ({COLUMNS})")
        self.model.committed = dict.fromkeys(CHANNELS, 0)
        for writer in self.model.writers.values():
            writer.dropped = True

    @rule(point=st.none() | st.sampled_from(MIGRATION))
    def migrate(self, point: Any) -> None:
        """A migrator may die at some step: its lease runs out, and the next one may go on."""
        service = self.house.service
        where = MigrationSettings(service.settings.stage_url, service.settings.warehouse_url)
        with dying(point):
            migrate_table(service.database, service.keyring, self.name, where, clock=self.clock)
        self.clock.advance(120)

    @rule(point=st.none() | st.sampled_from(CLEANUP))
    def clean_up(self, point: Any) -> None:
        """It may die at some step; what it takes wrongly is missed by whoever reads next."""
        service = self.house.service
        self.checked = None
        self.clock.advance(7200)
        with dying(point):
            collect_garbage(
                service.database,
                service.stage,
                open_warehouse(service.settings.warehouse_url).store,
                clock=self.clock,
                retention_s=3600,
            )

    @rule(once_in=st.integers(0, 9))
    def restart(self, once_in: int) -> None:
        if once_in:  # a restart is dear, and rarely finds more than one of the other rules
            self.house.steps -= 1
            return
        self.house.restart()

    @invariant()
    def rows_are_there_once_and_in_order(self) -> None:
        self.house.steps += 1
        if not hasattr(self, "clients"):
            return
        service = self.house.service
        with service.database.reading() as connection:
            table = find_table(connection, self.name)
        assert 0 <= table.migrated_seq <= table.last_seq
        state = (table.incarnation, table.last_seq, table.pointer, dict(self.model.committed))
        if state == self.checked:  # the same chunks and files hold the same rows
            return
        rows = read_table(service.database, service.keyring, service.stage, self.name)
        seen: dict[str, list[int]] = {name: [] for name in CHANNELS}
        for row in rows.to_pylist():
            seen[row["CHANNEL"]].append(int(row["NUMBER"]))
        for name in CHANNELS:
            assert seen[name] == list(range(1, self.model.committed[name] + 1)), name
        self.checked = state

    def teardown(self) -> None:
        failpoints.disarm()
        for client in getattr(self, "clients", {}).values():
            client._flusher.stop()
        if hasattr(self, "name"):
            self.house.embedded.sql(f"DROP TABLE {self.name}")
            self.clock.advance(86400)
            self.clean_up(None)


@contextlib.contextmanager
def dying(point: Any) -> Iterator[None]:
    """Who reaches the point, if any is given, dies there; that nobody does is fine."""
    if point is not None:
        Death(point)
    with contextlib.suppress(Killed):
        yield
    failpoints.disarm()


@pytest.fixture
def silent_deaths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that are killed end without a word."""
    aloud = threading.excepthook

    def said(death: Any) -> None:
        if death.exc_type is not Killed:
            aloud(death)

    monkeypatch.setattr(threading, "excepthook", said)


@pytest.mark.usefixtures("silent_deaths")
def test_rows_are_there_once_and_in_order_whatever_happens(tmp_path: Path) -> None:
    house = House(tmp_path / "data")
    try:
        run_state_machine_as_test(
            cast("type[Streaming]", lambda: Streaming(house)),
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                phases=(Phase.explicit, Phase.reuse, Phase.generate),
            ),
        )
    finally:
        house.embedded.close()
    assert house.steps >= EXAMPLES * STEPS // 2
