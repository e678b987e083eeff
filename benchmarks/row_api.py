"""Benchmark of the official SDK with Snowmelt, compared with a server that only responds.

Measures rows/s until commit, in both modes of the SDK: the default, and rows inline. Client and
service share the machine, which should be idle. `--fresh SECONDS` instead measures freshness at a
steady rate.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import row_api_fresh
from harness import Secure
from sdk_speed import INLINE, Nothing, cpu_of, write
from workload import DDL

BATCHES = {1: ("row", 1), 100: ("rows", 100), 1_000: ("rows", 1_000), 10_000: ("rows", 10_000)}
PIPE = (
    "CREATE PIPE bench.public.p AS COPY INTO t FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING'))"
    " MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
)


def main() -> None:
    """Measure. Print one line of JSON for each mode and batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, nargs="*", default=list(BATCHES))
    parser.add_argument("--fresh", type=float, default=0, metavar="SECONDS")
    parser.add_argument("--rate", type=int, default=50_000, help="rows a second, of all channels")
    parser.add_argument("--channels", type=int, nargs="*", default=[4, 1_000])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="snowmelt-bench-") as name:
        folder = Path(name)
        if options.fresh:
            freshness(folder, options)
            return
        with Secure(folder / "service") as running, Nothing(folder / "nothing") as nothing:
            running.execute(f"CREATE TABLE bench.public.t ({DDL})", PIPE)
            for label, properties in (("default", dict[str, str]()), ("inline", INLINE)):
                for batch in options.batches:
                    measure(running, nothing, folder, label, properties, batch, options.rows)


def freshness(folder: Path, options: argparse.Namespace) -> None:
    """Measure freshness. Print one line of JSON for each number of channels."""
    for channels in options.channels:
        place = folder / str(channels)
        place.mkdir()
        with Secure(place / "service") as running:
            running.execute(f"CREATE TABLE bench.public.t ({DDL})", PIPE)
            pace = {"seconds": options.fresh, "rate": options.rate, "channels": channels}
            print(json.dumps(row_api_fresh.measure(running, place, **pace)), flush=True)


def measure(
    running: Secure,
    nothing: Nothing,
    folder: Path,
    label: str,
    properties: dict[str, str],
    batch: int,
    count: int,
) -> None:
    how, size = BATCHES[batch]
    told: dict[str, Any] = {
        "who": "official",
        "how": how,
        "rows": count,
        "batch": size,
        "properties": properties,
    }
    told["private_key"] = running.private_key
    ceiling = write(told | {"url": nothing.url}, folder, nothing.ca)
    before = cpu_of(running.started)
    ours = write(told | {"url": running.url}, folder, running.ca)
    found = {
        "way": label,
        "batch": batch,
        "rows_per_s": round(count / ours["seconds"]),
        "ceiling_rows_per_s": round(count / ceiling["seconds"]),
        "ratio": round(ceiling["seconds"] / ours["seconds"], 3),
        "service_cpu_us": round((cpu_of(running.started) - before) / count * 1e6, 2),
        "client_cpu_us": round(ours["cpu_s"] / count * 1e6, 2),
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
