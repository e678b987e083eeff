"""The demo's application: a process of its own that streams the flights and may be killed.

It keeps no state: where to go on comes from the committed offset tokens. Each batch is noted in
a file (origin, offset token, monotonic instant before the call) so that freshness can be told
from outside.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from snowmelt.cli.flights_demo import dataset
from snowmelt.client.client import Client
from snowmelt.clock import SystemClock

if TYPE_CHECKING:
    from snowmelt.client.channel import Channel

_TICK_S = 0.1


@dataclass
class _Stream:
    """One airport: its rows, its channel, and how far it has got."""

    origin: str
    rows: list[dict[str, Any]]
    channel: Channel
    done: int
    carried: float = 0.0

    def insert(self, rows_per_tick: float, now: float, journal: TextIO) -> None:
        """Insert what is due in this tick; its token is the number of rows inserted so far."""
        self.carried += rows_per_tick
        batch = self.rows[self.done : self.done + int(self.carried)]
        self.carried -= int(self.carried)
        if not batch:
            return
        self.done += len(batch)
        self.channel.insert_rows(batch, offset_token=str(self.done))
        journal.write(json.dumps([self.origin, self.done, now]) + "\n")


def stream(client: Client, *, rows_per_s: float, journal: TextIO) -> None:
    """Stream every flight that is not committed yet at a paced rate, then wait for the commits."""
    clock = SystemClock()
    flights = dataset.load()
    streams = []
    for origin in dataset.ORIGINS:
        channel = client.open_channel(origin, table=dataset.TABLE, on_error="abort")
        done = int(channel.latest_committed_offset_token() or 0)
        journal.write(json.dumps([origin, done, None]) + "\n")
        streams.append(_Stream(origin, dataset.rows_from(flights, origin), channel, done))
    total = sum(len(item.rows) for item in streams)
    due = clock.monotonic()
    while any(item.done < len(item.rows) for item in streams):
        for item in streams:
            share = rows_per_s * _TICK_S * len(item.rows) / total
            item.insert(share, clock.monotonic(), journal)
        journal.flush()
        due += _TICK_S
        clock.sleep(due - clock.monotonic())
    for item in streams:
        item.channel.wait_for_commit(str(len(item.rows)), timeout=dt.timedelta(seconds=60))


def main() -> None:
    """Run the loader from the command line."""
    parser = argparse.ArgumentParser(prog="flights loader")
    parser.add_argument("url")
    parser.add_argument("user")
    parser.add_argument("key", type=Path)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--rows-per-s", type=float, default=6000.0)
    options = parser.parse_args()
    client = Client(options.url, user=options.user, private_key=options.key.read_text())
    with client, options.journal.open("a") as journal:
        stream(client, rows_per_s=options.rows_per_s, journal=journal)


if __name__ == "__main__":
    main()
