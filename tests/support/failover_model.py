"""Model of the protocol between two sites, for hundreds of thousands of random schedules.

A site is a list of commits per channel. Clients send numbered rows, and delete rows up to a
reported token. Sites follow, are promoted, crash, lose connections and rejoin. `Protocol` disables
single rules, so that a test can show which violations each rule prevents.

One transaction of the real code is one step of the model. `tests/unit/replication` and
`tests/fault/test_failover.py` test that the real code uses one transaction.
"""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import dataclass, field

CHANNELS = ("A", "B")
SEQUENCERS_PER_EPOCH = 1_000_000


@dataclass(frozen=True)
class Protocol:
    """Rules of the protocol. Snowmelt applies all of them."""

    protects_tokens: bool = True
    raises_the_floor: bool = True
    fences_old_states: bool = True
    open_waits: bool = True
    copies_objects_first: bool = True
    is_done_when_reported: bool = True
    requires_a_safe_state: bool = True
    clients_remember_epochs: bool = True


@dataclass
class Channel:
    """Channel of a site: sequencers, offset token and committed rows."""

    client_sequencer: int = 0
    row_sequencer: int = 0
    token: int = 0
    rows: list[int] = field(default_factory=list)


@dataclass
class State:
    """Replicated part of a site."""

    epoch: int
    channels: dict[str, Channel]


@dataclass
class Site:
    """Site with its role, its replicated state, and its replication progress."""

    name: int
    state: State
    role: str
    point: int = 0
    is_up: bool = True
    # Primary: tokens that the follower has confirmed. None: the primary reports committed tokens.
    reported: dict[str, int] | None = None
    confirmed: int = -1
    # Follower: first state that allows a promotion.
    promotable_from: int | None = None
    has_state: bool = True
    # True if objects of the applied state are not copied yet.
    missing: bool = False

    def report(self, channel: str) -> int:
        """Return the token that a primary reports."""
        if self.reported is None:
            return self.state.channels[channel].token
        return self.reported.get(channel, 0)


@dataclass
class Client:
    """Source of the numbers 1 … `last` in one channel, with its handle on a site."""

    channel: str
    last: int
    site: int | None = None
    client_sequencer: int = 0
    row_sequencer: int = 0
    sent: int = 0
    answered: int = 0
    forgotten: int = 0
    epoch: int = 0

    def close(self) -> None:
        self.site = None


@dataclass
class Violation(Exception):
    """Violation of a guarantee by a schedule."""

    what: str


class World:
    """Two sites, two clients, and a random schedule."""

    def __init__(self, seed: int, protocol: Protocol) -> None:
        self.random = random.Random(seed)
        self.protocol = protocol
        channels = {name: Channel() for name in CHANNELS}
        self.sites = [
            Site(0, State(0, channels), "primary"),
            Site(
                1, State(-1, {name: Channel() for name in CHANNELS}), "secondary", has_state=False
            ),
        ]
        self.clients = [Client(name, self.random.randint(20, 60)) for name in CHANNELS]
        self.link_is_up = True
        # Sent commits, which may arrive late.
        self.in_flight: list[tuple[int, str, int, int, int, int]] = []
        # State that a follower has received, and may apply late.
        self.received: tuple[int, int, int, State, int | None, int | None] | None = None

    def run(self, steps: int = 250) -> None:
        """Run a schedule, repair all faults, and compare both sites with the sources."""
        actions = (
            *[self.send] * 8,
            *[self.deliver] * 8,
            *[self.ask] * 5,
            *[self.pull] * 8,
            *[self.apply] * 8,
            *[self.gossip] * 2,
            self.cut_or_heal,
            self.crash_or_start,
            self.promote,
            self.switch,
            self.reopen,
            self.copy_objects,
        )
        for _ in range(steps):
            self.random.choice(actions)()
        self.heal()
        for site in self.sites:
            for client in self.clients:
                rows = site.state.channels[client.channel].rows
                if rows != list(range(1, client.last + 1)):
                    raise Violation(f"site {site.name} has {rows} of {client.channel}")

    # --- Clients

    def send(self) -> None:
        client = self.random.choice(self.clients)
        if client.site is None:
            self.open(client)
            return
        if client.sent < client.last:
            count = min(self.random.randint(1, 5), client.last - client.sent)
            client.row_sequencer += 1
            client.sent += count
            self.in_flight.append(
                (
                    client.site,
                    client.channel,
                    client.client_sequencer,
                    client.row_sequencer,
                    client.sent - count,
                    client.sent,
                )
            )

    def open(self, client: Client) -> None:
        site = self.random.choice(self.sites)
        if not site.is_up or site.role != "primary":
            return
        if self.protocol.clients_remember_epochs and site.state.epoch < client.epoch:
            return
        channel = site.state.channels[client.channel]
        if self.protocol.open_waits:
            if site.report(client.channel) != channel.token:
                return
            token = channel.token
        else:
            token = site.report(client.channel)
        channel.client_sequencer += 1
        if token < client.forgotten:
            raise Violation(f"{client.forgotten} was reported, and site {site.name} has {token}")
        client.site = site.name
        client.epoch = site.state.epoch
        client.client_sequencer = channel.client_sequencer
        client.row_sequencer = channel.row_sequencer
        client.sent = client.answered = token

    def deliver(self) -> None:
        if not self.in_flight:
            return
        at = 0 if self.random.random() < 0.7 else self.random.randrange(len(self.in_flight))
        # A commit may arrive twice.
        message = self.in_flight[at] if self.random.random() < 0.1 else self.in_flight.pop(at)
        number, name, client_sequencer, row_sequencer, start, end = message
        site = self.sites[number]
        if not site.is_up or site.role != "primary":
            return
        channel = site.state.channels[name]
        if (
            client_sequencer != channel.client_sequencer
            or row_sequencer != channel.row_sequencer + 1
        ):
            return
        channel.row_sequencer = row_sequencer
        channel.token = end
        channel.rows.extend(range(start + 1, end + 1))
        for client in self.clients:
            if client.channel == name and client.client_sequencer == client_sequencer:
                client.answered = max(client.answered, end)

    def ask(self) -> None:
        client = self.random.choice(self.clients)
        if client.site is None:
            return
        site = self.sites[client.site]
        if site.is_up and site.role == "primary":
            channel = site.state.channels[client.channel]
            if channel.client_sequencer != client.client_sequencer:
                client.close()
            else:
                client.forgotten = max(client.forgotten, site.report(client.channel))
        elif self.random.random() < 0.5:
            client.close()

    def reopen(self) -> None:
        self.random.choice(self.clients).close()

    # --- Sites

    def pull(self) -> None:
        follower, primary = self._pair()
        if follower is None or primary is None or not self.link_is_up or follower.missing:
            return
        if not (follower.is_up and primary.is_up) or follower.state.epoch > primary.state.epoch:
            return
        is_same_line = follower.has_state and follower.state.epoch == primary.state.epoch
        if is_same_line and primary.reported is not None:
            primary.reported = {
                name: max(primary.reported.get(name, 0), channel.token)
                for name, channel in follower.state.channels.items()
            }
        primary.point += 1
        promotable = None
        if is_same_line:
            if primary.reported is None and self.protocol.protects_tokens:
                # This state contains all tokens that were reported before.
                channels = primary.state.channels
                primary.reported = {name: channel.token for name, channel in channels.items()}
            promotable = follower.promotable_from
            if promotable is None:
                promotable = primary.point
        since = follower.point if is_same_line else None
        state = deepcopy(primary.state)
        number = follower.name
        self.received = (number, primary.point, primary.state.epoch, state, since, promotable)

    def apply(self) -> None:
        if self.received is None:
            return
        number, point, epoch, state, since, promotable = self.received
        follower = self.sites[number]
        if not follower.is_up:
            return
        if self.protocol.fences_old_states:
            is_follower = follower.role in {"secondary", "fenced"}
            if not is_follower or follower.state.epoch > epoch:
                return
            if since is not None and follower.point != since:
                return
        self.received = None
        follower.state = state
        follower.point = point
        follower.has_state = True
        follower.role = "secondary"
        follower.reported = None
        follower.promotable_from = promotable
        follower.missing = not self.protocol.copies_objects_first and self.random.random() < 0.3

    def copy_objects(self) -> None:
        for site in self.sites:
            site.missing = False

    def promote(self) -> None:
        site = next((site for site in self.sites if site.role == "secondary"), None)
        if site is None or not site.is_up or not site.has_state or self.random.random() < 0.5:
            return
        is_safe = site.promotable_from is not None and site.point >= site.promotable_from
        if self.protocol.requires_a_safe_state and not is_safe:
            return
        if site.missing:
            raise Violation(f"site {site.name} was promoted without its objects")
        self._begin_epoch(site)

    def switch(self) -> None:
        """Switch in order: the primary commits nothing between the last state and the promotion."""
        follower, primary = self._pair()
        if (
            follower is None
            or primary is None
            or not (follower.is_up and primary.is_up and self.link_is_up)
            or follower.missing
            or not follower.has_state
            or follower.state.epoch != primary.state.epoch
        ):
            return
        self.received = None
        follower.state = deepcopy(primary.state)
        primary.role = "fenced"
        # If the follower crashes before its promotion, it is promoted at its next start.
        self._begin_epoch(follower)

    def gossip(self) -> None:
        """Fence a primary that sees a primary with a higher epoch."""
        if not self.link_is_up:
            return
        first, second = self.sites
        if first.role == second.role == "primary" and first.is_up and second.is_up:
            old = min(self.sites, key=lambda site: site.state.epoch)
            old.role = "fenced"
            old.reported = None

    def crash_or_start(self) -> None:
        site = self.random.choice(self.sites)
        site.is_up = not site.is_up
        if site.is_up:
            self.received = None
            # A started primary checks the epoch of the other site before it accepts rows.
            self.gossip()

    def cut_or_heal(self) -> None:
        self.link_is_up = not self.link_is_up

    def heal(self) -> None:
        """Repair all faults, and run until the sources are finished and both sites are equal."""
        self.link_is_up = True
        for site in self.sites:
            site.is_up = True
        for _ in range(3):
            self.gossip()
        for _ in range(400):
            if not any(site.role == "primary" for site in self.sites):
                self._begin_epoch(max(self.sites, key=lambda site: site.state.epoch))
            self.copy_objects()
            while self.in_flight:
                self.deliver()
            for client in self.clients:
                opened = None if client.site is None else self.sites[client.site]
                done = client.forgotten if self.protocol.is_done_when_reported else client.answered
                if done >= client.last:
                    continue
                if opened is None or self._must_reopen(client, opened):
                    client.close()
                    self.open(client)
                elif client.sent < client.last:
                    self.send()
                else:
                    client.forgotten = max(client.forgotten, opened.report(client.channel))
            self.received = None
            self.pull()
            self.apply()
            if all(each.forgotten >= each.last for each in self.clients) and self._is_equal():
                return
            if not self.protocol.is_done_when_reported and self._is_equal():
                answered = all(each.answered >= each.last for each in self.clients)
                if answered:
                    return

    def _must_reopen(self, client: Client, site: Site) -> bool:
        """Return True if the handle of a client is fenced, or its sent rows are lost."""
        channel = site.state.channels[client.channel]
        return (
            site.role != "primary"
            or channel.client_sequencer != client.client_sequencer
            or (client.sent >= client.last and channel.token < client.last)
        )

    def _is_equal(self) -> bool:
        first, second = (site.state for site in self.sites)
        return all(first.channels[name].rows == second.channels[name].rows for name in CHANNELS)

    def _pair(self) -> tuple[Site | None, Site | None]:
        """Return a follower, and the primary that it follows, or None."""
        follower = next((site for site in self.sites if site.role in {"secondary", "fenced"}), None)
        if follower is None:
            return None, None
        other = self.sites[1 - follower.name]
        return follower, other if other.role == "primary" else None

    def _begin_epoch(self, site: Site) -> None:
        epoch = site.state.epoch + 1
        site.state.epoch = epoch + (site.name - epoch) % 2
        site.role = "primary"
        site.reported = None
        site.promotable_from = None
        if self.protocol.raises_the_floor:
            for channel in site.state.channels.values():
                channel.client_sequencer = site.state.epoch * SEQUENCERS_PER_EPOCH


def count_violations(schedules: int, protocol: Protocol, *, first_seed: int = 0) -> int:
    """Return the number of schedules that violate a guarantee."""
    count = 0
    for seed in range(first_seed, first_seed + schedules):
        try:
            World(seed, protocol).run()
        except Violation:
            count += 1
    return count
