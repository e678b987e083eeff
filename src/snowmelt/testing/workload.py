"""Loading process for crash tests. Inserts numbered rows, and resumes from its offset token.

    python -m snowmelt.testing.workload URL USER KEY TABLE CHANNEL --stop FILE

Rows have the columns `CHANNEL` and `NUMBER` (1, 2, 3 …). The offset token of a batch is its last
number. When the stop file exists and all rows are committed, the process prints the last number and
ends. A failpoint armed by `SNOWMELT_FAULT` ends it earlier.
"""

from __future__ import annotations

import argparse
import datetime as dt
from pathlib import Path

from snowmelt.client.client import Client
from snowmelt.clock import SystemClock

COLUMNS_DDL = "channel VARCHAR(32) NOT NULL, number NUMBER(18,0) NOT NULL, text VARCHAR(64)"
_ROWS_PER_BATCH = 20
_BATCHES_PER_FLUSH = 5


def stream_numbered_rows(
    client: Client, table: str, channel_name: str, *, stop_file: Path, batch_interval_s: float
) -> int:
    """Insert a batch of numbered rows every `batch_interval_s` seconds until `stop_file` exists.

    Returns:
        The last committed number.
    """
    clock = SystemClock()
    channel = client.open_channel(channel_name, table=table, on_error="abort")
    number = int(channel.latest_committed_offset_token() or 0)
    while True:
        ending = stop_file.exists()
        rows = [
            {"channel": channel_name, "number": each, "text": f"row {each} of {channel_name}"}
            for each in range(number + 1, number + _ROWS_PER_BATCH + 1)
        ]
        number += _ROWS_PER_BATCH
        channel.insert_rows(rows, offset_token=str(number))
        if ending:
            break
        clock.sleep(batch_interval_s)
    channel.wait_for_commit(str(number), timeout=dt.timedelta(seconds=300))
    return number


def main() -> int:
    """Run from the command line. If all rows are committed, print the last number and return 0."""
    parser = argparse.ArgumentParser(prog="loader")
    for argument in ("url", "user", "key", "table", "channel"):
        parser.add_argument(argument)
    parser.add_argument("--stop", type=Path, required=True)
    parser.add_argument("--lag-ms", type=int, default=100)
    options = parser.parse_args()
    lag = dt.timedelta(milliseconds=options.lag_ms)
    pause_s = lag.total_seconds() / _BATCHES_PER_FLUSH
    key = Path(options.key).read_text()
    with Client(options.url, user=options.user, private_key=key, max_client_lag=lag) as client:
        number = stream_numbered_rows(
            client, options.table, options.channel, stop_file=options.stop, batch_interval_s=pause_s
        )
    print(number, flush=True)  # noqa: T201 - the result
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
