"""Loading process of the demo: streams the flights at a fixed rate and may be killed.

    python -m snowmelt.cli.flights_demo.loader URL KEY_FILE JOURNAL ROWS_PER_S

It is stateless and resumes from the committed offset tokens. For each batch, it writes origin,
offset token and the monotonic time before the call to a journal file. Another process computes the
latency from the journal.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
from pathlib import Path
from typing import TextIO

from snowmelt.cli.flights_demo import dataset
from snowmelt.client.client import Client
from snowmelt.clock import SystemClock
from snowmelt.embedded import EMBEDDED_USER

_TICK_INTERVAL_S = 0.1


def stream_flights(client: Client, *, rows_per_s: float, journal: TextIO) -> None:
    """Stream all uncommitted flights at a fixed rate, then wait for the commits."""
    clock = SystemClock()
    flights = dataset.load_flights()
    rows = {origin: dataset.select_origin_rows(flights, origin) for origin in dataset.ORIGINS}
    channels, inserted, due_rows = {}, {}, dict.fromkeys(rows, 0.0)
    for origin in rows:
        channels[origin] = client.open_channel(origin, table=dataset.TABLE, on_error="abort")
        inserted[origin] = int(channels[origin].latest_committed_offset_token() or 0)
        journal.write(json.dumps([origin, inserted[origin], None]) + "\n")
    due_at = clock.monotonic()
    while any(inserted[origin] < len(rows[origin]) for origin in rows):
        for origin, channel in channels.items():
            share = len(rows[origin]) / flights.num_rows
            due_rows[origin] += rows_per_s * _TICK_INTERVAL_S * share
            count, done = int(due_rows[origin]), inserted[origin]
            due_rows[origin] -= count
            if batch := rows[origin][done : done + count]:
                # The token is the number of rows inserted so far.
                inserted[origin] += len(batch)
                now = clock.monotonic()
                channel.insert_rows(batch, offset_token=str(inserted[origin]))
                journal.write(json.dumps([origin, inserted[origin], now]) + "\n")
        journal.flush()
        due_at += _TICK_INTERVAL_S
        clock.sleep(due_at - clock.monotonic())
    for origin, channel in channels.items():
        channel.wait_for_commit(str(len(rows[origin])), timeout=dt.timedelta(seconds=60))


if __name__ == "__main__":
    _, url, key_file, journal_file, rows_per_s = sys.argv
    key = Path(key_file).read_text()
    with Client(url, user=EMBEDDED_USER, private_key=key) as client, open(journal_file, "a") as out:  # noqa: PTH123
        stream_flights(client, rows_per_s=float(rows_per_s), journal=out)
