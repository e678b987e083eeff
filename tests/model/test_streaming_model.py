"""Whatever order of openings, inserts, flushes, crashes, migrations and restarts: rows once, in order.

A real service, real clients over loopback, the real catalog and real native files are driven beside
a model that is a list of committed numbers per channel.
"""

from __future__ import annotations

import datetime as dt
import socket
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from snowmelt.catalog.execution import execute
from snowmelt.catalog.tables import find_table
from snowmelt.clock import SystemClock
from snowmelt.embedded import Embedded
from snowmelt.errors import SnowmeltError
from snowmelt.schema.types import TableName
from snowmelt.table.migration import MigrationSettings, migrate_locally
from snowmelt.table.reading import read_table

NAME = TableName("MODEL", "PUBLIC", "T")
TABLE = "model.public.t"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


CHANNELS = ("alpha", "beta", "gamma")
SLOTS = (0, 1)
LAG = dt.timedelta(minutes=10)  # nothing is flushed but by a rule


@dataclass
class Writer:
    """A channel object in some client, and the numbers that it has inserted but not flushed."""

    channel: object
    last: int
    buffered: int = 0
    fenced: bool = False


@dataclass
class Model:
    """What must be there: the last number committed per channel, and who owns it."""

    committed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CHANNELS, 0))
    writers: dict[tuple[int, str], Writer] = field(default_factory=dict)


class Streaming(RuleBasedStateMachine):
    """The service and the model, side by side."""

    @initialize()
    def start(self):
        self.folder = tempfile.TemporaryDirectory(prefix="snowmelt-model-")
        self.port = free_port()
        self.begin_service()
        for statement in (
            "CREATE DATABASE model",
            f"CREATE TABLE {TABLE} (channel VARCHAR(16) NOT NULL, number NUMBER(9,0) NOT NULL)",
        ):
            self.run_sql(statement)
        self.clients = {slot: self.embedded.client(max_client_lag=LAG) for slot in SLOTS}
        self.model = Model()

    def begin_service(self):
        self.embedded = Embedded(Path(self.folder.name) / "data", port=self.port)
        self.service = self.embedded.service

    def run_sql(self, text):
        execute(self.service.database, text, user=None, clock=SystemClock())

    @rule(slot=st.sampled_from(SLOTS), name=st.sampled_from(CHANNELS))
    def open(self, slot, name):
        channel = self.clients[slot].open_channel(name, table=TABLE)
        committed = self.model.committed[name]
        assert int(channel.latest_committed_offset_token() or 0) == committed
        for (_, other), writer in self.model.writers.items():
            if other == name:
                writer.fenced = True
        self.model.writers[slot, name] = Writer(channel, committed)

    @precondition(lambda self: self.model.writers)
    @rule(data=st.data(), count=st.integers(1, 5))
    def insert(self, data, count):
        slot, name = data.draw(st.sampled_from(sorted(self.model.writers)))
        writer = self.model.writers[slot, name]
        first = writer.last + 1
        rows = [{"channel": name, "number": n} for n in range(first, first + count)]
        try:
            writer.channel.insert_rows(rows, offset_token=str(first + count - 1))
        except SnowmeltError:
            assert writer.fenced
            del self.model.writers[slot, name]
            return
        writer.last += count
        writer.buffered += count

    @precondition(lambda self: self.model.writers)
    @rule(data=st.data())
    def flush(self, data):
        slot, name = data.draw(st.sampled_from(sorted(self.model.writers)))
        writer = self.model.writers[slot, name]
        try:
            writer.channel.flush()
        except SnowmeltError:
            assert writer.fenced
            del self.model.writers[slot, name]
            return
        # A flush takes the whole client along: every owner in this slot has committed.
        for (other_slot, other), each in list(self.model.writers.items()):
            if other_slot == slot and each.buffered and not each.fenced:
                each.channel.wait_for_commit(str(each.last), timeout=dt.timedelta(seconds=20))
                self.model.committed[other] = each.last
                each.buffered = 0
        assert not (writer.fenced and writer.buffered)

    @rule(slot=st.sampled_from(SLOTS))
    def crash(self, slot):
        """The process is gone: nothing of its memory is ever flushed."""
        self.clients[slot]._flusher.stop()
        self.clients[slot] = self.embedded.client(max_client_lag=LAG)
        for key in [key for key in self.model.writers if key[0] == slot]:
            del self.model.writers[key]

    @rule()
    def migrate(self):
        service = self.service
        migrate_locally(
            service.database,
            service.keyring,
            NAME,
            MigrationSettings(service.settings.stage_url, service.settings.warehouse_url),
        )

    @rule(once_in=st.integers(0, 3))
    def restart(self, once_in):
        if once_in:  # a restart is dear, and rarely finds more than one of the other rules
            return
        self.embedded.close()
        self.begin_service()

    @invariant()
    def rows_are_there_once_and_in_order(self):
        if not hasattr(self, "model"):
            return
        rows = read_table(self.service.database, self.service.keyring, self.service.stage, NAME)
        seen: dict[str, list[int]] = {name: [] for name in CHANNELS}
        for row in rows.to_pylist():
            seen[row["CHANNEL"]].append(int(row["NUMBER"]))
        for name in CHANNELS:
            assert seen[name] == list(range(1, self.model.committed[name] + 1)), name

    @invariant()
    def watermark_never_passes_the_sequence(self):
        if not hasattr(self, "model"):
            return
        with self.service.database.reading() as connection:
            table = find_table(connection, NAME)
        assert 0 <= table.migrated_seq <= table.last_seq

    def teardown(self):
        for client in getattr(self, "clients", {}).values():
            client._flusher.stop()
        if hasattr(self, "embedded"):
            self.embedded.close()
            self.folder.cleanup()


Streaming.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestStreaming = pytest.mark.slow(Streaming.TestCase)
