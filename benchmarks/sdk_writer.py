"""Client process of `sdk_speed.py`: writes rows in one mode and reports the cost.

The script's argument is a JSON object with `who` (ours, official), `how` (rows, row, arrow),
`rows`, `batch`, and the settings of the client. The result is JSON in the file `answer`.
"""

from __future__ import annotations

import datetime as dt
import gc
import json
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from workload import SCHEMA, rows

DISTINCT = 100_000


def _ours(told: dict[str, Any], work: dict[str, Any]) -> None:
    from snowmelt.client.client import Client

    with Client(told["url"], user="bench", private_key=told["private_key"]) as client:
        channel = client.open_channel("c", table=str(told["table"]))
        data, count, batch = work["data"], int(told["rows"]), int(told["batch"])
        work["began"]()
        if told["how"] == "row":
            insert = channel.insert_row
            for number in range(count):
                insert(data[number % DISTINCT])
        elif told["how"] == "arrow":
            for first in range(0, count, batch):
                channel.insert_arrow(work["table"].slice(first % DISTINCT, batch))
        else:
            for first in range(0, count, batch):
                start = first % DISTINCT
                channel.insert_rows(data[start : start + batch])
        channel.flush(dt.timedelta(minutes=2))
        work["ended"]()


def _official(told: dict[str, Any], work: dict[str, Any]) -> None:
    from snowflake.ingest.streaming import StreamingIngestClient

    properties = {
        "url": told["url"],
        "account": "local",
        "user": "bench",
        "private_key": told["private_key"],
        "enable_telemetry_reporting": "false",
        **told["properties"],
    }
    client = StreamingIngestClient("c", "BENCH", "PUBLIC", "P", properties=properties)
    channel, _ = client.open_channel("c")
    data, count, batch = work["data"], int(told["rows"]), int(told["batch"])
    work["began"]()
    if told["how"] == "row":
        for number in range(count):
            _patiently(channel.append_row, data[number % DISTINCT])
    else:
        for first in range(0, count, batch):
            start = first % DISTINCT
            _patiently(channel.append_rows, data[start : start + batch])
    client.wait_for_flush(120)
    work["ended"]()
    client.close()


def _patiently(append: Callable[[Any], object], rows: object) -> None:
    while True:
        try:
            append(rows)
        except Exception as error:
            if "Saturated" not in repr(error) + str(error):
                raise
            time.sleep(0.002)
        else:
            return


def _peak_while(stop: threading.Event, peak: list[int]) -> None:
    page = resource.getpagesize()
    while not stop.wait(0.02):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        peak[0] = max(peak[0], pages * page)


def main() -> None:
    told = json.loads(sys.argv[1])
    data = rows(DISTINCT)
    work: dict[str, object] = {"data": data}
    if told["how"] == "arrow":
        work["table"] = pa.Table.from_pylist(data, schema=SCHEMA)
        work["data"] = data = []
    # Exclude the rows from garbage collection: they are needed until the end.
    gc.collect()
    gc.freeze()
    marks: list[tuple[float, float, int]] = []
    stop, peak = threading.Event(), [0]
    watcher = threading.Thread(target=_peak_while, args=(stop, peak), daemon=True)

    def mark() -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        marks.append((time.perf_counter(), time.process_time(), pages * resource.getpagesize()))

    def began() -> None:
        watcher.start()
        mark()

    work["began"], work["ended"] = began, mark
    (_ours if told["who"] == "ours" else _official)(told, work)
    stop.set()
    (begin, cpu, held), (end, cpu_end, _) = marks
    answer = {
        "seconds": end - begin,
        "cpu_s": cpu_end - cpu,
        "held_bytes": held,
        "peak_bytes": peak[0],
    }
    Path(told["answer"]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
