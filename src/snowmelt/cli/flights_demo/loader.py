"""The demo's loading process: it streams the flights at a fixed rate and may be killed.

It keeps no state: it resumes from the committed offset tokens. For each batch it writes origin,
offset token and the monotonic time before the call to a journal file, from which another process
measures the latency.
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

_TICK_INTERVAL_S = 0.1


@dataclass
class _OriginStream:
    """One airport: its rows, its channel, and how far it has got."""

    origin: str
    rows: list[dict[str, Any]]
    channel: Channel
    inserted_rows: int
    fractional_rows: float = 0.0

    def insert_due_rows(self, rows_per_tick: float, now_s: float, journal: TextIO) -> None:
        """Insert what is due in this tick; its token is the number of rows inserted so far."""
        self.fractional_rows += rows_per_tick
        batch = self.rows[self.inserted_rows : self.inserted_rows + int(self.fractional_rows)]
        self.fractional_rows -= int(self.fractional_rows)
        if not batch:
            return
        self.inserted_rows += len(batch)
        self.channel.insert_rows(batch, offset_token=str(self.inserted_rows))
        journal.write(json.dumps([self.origin, self.inserted_rows, now_s]) + "\n")


def stream_flights(client: Client, *, rows_per_s: float, journal: TextIO) -> None:
    """Stream every flight that is not committed yet at a paced rate, then wait for the commits."""
    clock = SystemClock()
    flights = dataset.load_flights()
    streams = []
    for origin in dataset.ORIGINS:
        channel = client.open_channel(origin, table=dataset.TABLE, on_error="abort")
        done = int(channel.latest_committed_offset_token() or 0)
        journal.write(json.dumps([origin, done, None]) + "\n")
        streams.append(
            _OriginStream(origin, dataset.select_origin_rows(flights, origin), channel, done)
        )
    total = sum(len(item.rows) for item in streams)
    due = clock.monotonic()
    while any(item.inserted_rows < len(item.rows) for item in streams):
        for item in streams:
            share = rows_per_s * _TICK_INTERVAL_S * len(item.rows) / total
            item.insert_due_rows(share, clock.monotonic(), journal)
        journal.flush()
        due += _TICK_INTERVAL_S
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
        stream_flights(client, rows_per_s=options.rows_per_s, journal=journal)


if __name__ == "__main__":
    main()
