"""Registration against a plain model: any order of open, register, repeat, drop and clean-up."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from fixtures.catalog import START, World, advance
from snowmelt.catalog.objects import tables
from snowmelt.catalog.streaming import channels, chunks
from snowmelt.schema.types import TableName

if TYPE_CHECKING:
    from snowmelt.catalog.streaming.commit_rules import ChunkOffer


_tables = itertools.count()
_CHANNELS = ("A", "B", "C")
_clients = st.integers(0, 2)
_names = st.sampled_from(_CHANNELS)
# Steps that throw everything away would otherwise leave little to look at.
_rarely = st.sampled_from([True, False, False, False])


@dataclass
class _Channel:
    epoch: int
    user: str
    row: int = 0
    token: str | None = None


@dataclass
class _Model:
    """What a table is, in so many words."""

    incarnation: int = 0
    channels: dict[str, _Channel] = field(default_factory=dict)
    highest_epoch: dict[str, int] = field(default_factory=dict)
    accepted: list[int] = field(default_factory=list)

    def takes(self, offer: ChunkOffer, incarnation: int) -> bool:
        """Tell whether a chunk that was never accepted is to be taken now."""
        if incarnation != self.incarnation:
            return False
        for each in offer.channels:
            channel = self.channels.get(each.name)
            if channel is None or (channel.epoch, channel.user, channel.row + 1) != (
                each.client_sequencer,
                offer.user,
                each.row_sequencer,
            ):
                return False
        return True

    def take(self, number: int, offer: ChunkOffer) -> None:
        """Move on by a chunk."""
        self.accepted.append(number)
        for each in offer.channels:
            channel = self.channels[each.name]
            channel.row, channel.token = each.row_sequencer, each.end_offset_token


class _Registrations(RuleBasedStateMachine):
    world: World

    @initialize()
    def begin(self) -> None:
        self.name = TableName("DB", "PUBLIC", f"T{next(_tables)}")
        self.world.clock.set_wall(START)
        self.world.create_table(self.name)
        self.clients = [self.world.client("LOADER"), self.world.client("LOADER")]
        self.clients.append(self.world.client("OTHER"))
        # What each client believes: channel → (epoch, last row sequencer sent).
        self.beliefs: list[dict[str, tuple[int, int]]] = [{} for _ in self.clients]
        self.offers: list[tuple[ChunkOffer, int]] = []
        self.requests: list[tuple[int, str, str, int]] = []
        self.model = _Model()
        self.taken: set[int] = set()
        self.forgotten = 0

    @rule(which=_clients, channel=_names)
    def open(self, which: int, channel: str) -> None:
        request = f"request-{len(self.requests)}"
        record = self.clients[which].open(channel, name=self.name, request_id=request).record
        before = self.model.channels.get(channel)
        assert record.client_sequencer == self.model.highest_epoch.get(channel, -1) + 1
        assert record.row_sequencer == (before.row if before else 0)
        assert record.offset_token == (before.token if before else None)
        self.model.highest_epoch[channel] = record.client_sequencer
        self.model.channels[channel] = _Channel(
            record.client_sequencer,
            self.clients[which].user,
            record.row_sequencer,
            record.offset_token,
        )
        self.beliefs[which][channel] = (record.client_sequencer, record.row_sequencer)
        self.requests.append((which, channel, request, record.client_sequencer))

    @rule(pick=st.integers(0))
    def open_again(self, pick: int) -> None:
        """The answer to an open was lost, or the network delivers it twice."""
        if self.requests:
            which, channel, request, epoch = self.requests[pick % len(self.requests)]
            opened = self.clients[which].open(channel, name=self.name, request_id=request)
            assert (opened.is_replayed, opened.record.client_sequencer) == (True, epoch)

    def _new_offer(self, which: int, names: list[str], step: int) -> int | None:
        client, belief = self.clients[which], self.beliefs[which]
        advances = []
        for name in names:
            if name in belief:
                epoch, row = belief[name]
                belief[name] = (epoch, max(row, row + step))
                advances.append(advance(name, epoch, row + step, f"{row + step:04}"))
        if not advances:
            return None
        key_id = self.world.key_id(client.user, self.name)
        offer = client.offer(*advances, table=self.name, key_id=key_id)
        self.offers.append((offer, self.model.incarnation))
        return len(self.offers) - 1

    @rule(
        fresh=st.lists(
            st.tuples(
                _clients,
                st.lists(_names, min_size=1, max_size=3, unique=True),
                st.sampled_from([1, 1, 1, 1, 2, 0, -1]),
            ),
            min_size=1,
            max_size=6,
        ),
        again=st.lists(st.integers(0), max_size=3),
        order=st.randoms(use_true_random=False),
    )
    def register(self, fresh: list[Any], again: list[Any], order: random.Random) -> None:
        """A group of registrations, new ones and repeated ones, in any order."""
        made = [self._new_offer(*each) for each in fresh]
        numbers = [number for number in made if number is not None]
        numbers += [pick % len(self.offers) for pick in again if self.offers]
        order.shuffle(numbers)
        answers = self.world.codes(*(self.offers[number][0] for number in numbers))
        for number, codes in zip(numbers, answers, strict=True):
            self._compare(number, codes)

    def _compare(self, number: int, codes: list[int]) -> None:
        offer, incarnation = self.offers[number]
        assert len(set(codes)) == 1 or 0 not in codes
        accepted = codes[0] == 0
        if number in self.taken:
            known = number in self.model.accepted[self.forgotten :]
            last = [c.row for c in self.model.channels.values()]
            if incarnation != self.model.incarnation:
                assert not accepted
            elif known:
                assert accepted, (codes, last)
            return
        assert accepted == self.model.takes(offer, incarnation), codes
        if accepted:
            self.taken.add(number)
            self.model.take(number, offer)

    @rule(which=_clients, channel=_names, steps=st.integers(1, 4))
    def write(self, which: int, channel: str, steps: int) -> None:
        """A client that behaves: opens the channel unless it still has it, then goes on."""
        current = self.model.channels.get(channel)
        epoch, row = self.beliefs[which].get(channel, (-1, 0))
        is_mine = current is not None and current.user == self.clients[which].user
        if not is_mine or current is None or (current.epoch, current.row) != (epoch, row):
            self.open(which, channel)
        made = [self._new_offer(which, [channel], 1) for _ in range(steps)]
        numbers = [number for number in made if number is not None]
        for number, codes in zip(
            numbers, self.world.codes(*(self.offers[n][0] for n in numbers)), strict=True
        ):
            assert codes == [0]
            self._compare(number, codes)

    @rule(channel=_names, chance=_rarely)
    def drop_channel(self, channel: str, chance: bool) -> None:
        if chance and channel in self.model.channels:
            with self.world.database.writing() as connection:
                table = tables.find_table(connection, self.name)
                channels.drop_channel(connection, table, channel, now=self.world.now)
            del self.model.channels[channel]

    @rule(chance=_rarely)
    def create_again(self, chance: bool) -> None:
        if not chance:
            return
        self.world.create_table(self.name, replace=True)
        self.model.incarnation += 1
        self.model.channels.clear()
        self.model.accepted.clear()
        self.requests.clear()
        self.forgotten = 0

    @rule()
    def clean_up(self) -> None:
        """All chunks are migrated, their blobs deleted, their rows removed."""
        with self.world.database.writing() as connection:
            table = tables.find_table(connection, self.name)
            chunks.retire_chunks(connection, table.table_id, table.last_seq, self.world.now)
            chunks.replace_with_tombstones(
                connection, chunks.list_deletable_blobs(connection), self.world.now
            )
        self.forgotten = len(self.model.accepted)

    @rule(minutes=st.integers(-20, 20))
    def move_the_clock(self, minutes: int) -> None:
        self.world.clock.set_wall(START + dt.timedelta(minutes=minutes))

    @invariant()
    def the_catalog_is_as_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        with self.world.database.reading() as connection:
            table = tables.find_table(connection, self.name)
            kept = chunks.list_chunks(connection, table.table_id, 0, 1 << 60)
            found = channels.list_channels(connection, [table.table_id])
        accepted = self.model.accepted
        assert table.last_seq == len(accepted)
        expected = [self.offers[number][0] for number in accepted[self.forgotten :]]
        assert [chunk.seq for chunk in kept] == list(range(self.forgotten + 1, len(accepted) + 1))
        assert [(chunk.path, chunk.md5) for chunk in kept] == [(o.path, o.md5) for o in expected]
        assert {
            each.name: _Channel(
                each.client_sequencer, each.owner_user, each.row_sequencer, each.offset_token
            )
            for each in found
        } == self.model.channels


def test_registration_is_as_its_model_says(world: World) -> None:
    class Machine(_Registrations):
        pass

    Machine.world = world
    on_sqlite = world.database.dialect == "sqlite"
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=24 if on_sqlite else 8,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
