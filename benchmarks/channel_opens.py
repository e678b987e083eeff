"""Benchmark of commit delays while many other channels are opened, dropped and queried.

uv run python benchmarks/channel_opens.py [--writers 50] [--opens 500] [--reopened 0] [--postgres]

`--writers` channels receive a row every `--pause-ms` and flush each second. Meanwhile, other
processes open `--opens` channels at the same time, request their status, drop them, and then run
DDL statements on eight connections. With `--reopened 10000`, the service is then restarted, and
that many channels are reopened while the writers continue. The delay of a commit is the delay of
its oldest row.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import datetime as dt
import multiprocessing
import threading
import time
from typing import TYPE_CHECKING

import httpx
from growth import catalog
from harness import Running
from report import Report
from thousand_channels import Freshness
from workload import DDL, rows

from snowmelt.errors import SnowmeltError

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.synchronize import Event

WRITTEN = "bench.public.written"
OPENED = "bench.public.opened"
LAG_S = 1.0
GOAL_S = 2.0


def write(running: Running, options: argparse.Namespace, opened: Event, stop: Event) -> None:
    """Insert a row into each channel per pause. The offset token is the monotonic time in ns."""
    row = rows(1)[0]
    with running.client(max_client_lag=dt.timedelta(seconds=LAG_S)) as client:
        channels = [
            client.open_channel(f"w{number}", table=WRITTEN) for number in range(options.writers)
        ]
        opened.set()
        while not stop.is_set():
            began = time.monotonic()
            for channel in channels:
                with contextlib.suppress(SnowmeltError):
                    channel.insert_row(row, offset_token=str(time.monotonic_ns()))
            time.sleep(max(began + options.pause_ms / 1000 - time.monotonic(), 0))


def act(running: Running, what: str, share: range) -> None:
    """Open, query or drop a share of the channels concurrently."""
    with running.client(request_timeout=dt.timedelta(seconds=300)) as client:
        names = [f"c{number}" for number in share]
        # One concurrent request per channel, up to the capacity of one process.
        with concurrent.futures.ThreadPoolExecutor(min(len(names), 250)) as pool:
            opening = pool.map(lambda name: client.open_channel(name, table=OPENED), names)
            channels = list(opening)
            if what == "status":
                list(pool.map(lambda channel: channel.latest_committed_offset_token(), channels))
            elif what == "drop":
                list(pool.map(lambda channel: channel.close(drop=True), channels))


def ddl(running: Running) -> float:
    """Run DDL in eight threads. Return the elapsed seconds."""
    began = time.monotonic()

    def some(number: int) -> None:
        name = f"bench.public.ddl_{number}"
        for _ in range(10):
            running.execute(
                f"CREATE OR REPLACE TABLE {name} ({DDL})",
                f"ALTER TABLE {name} ADD COLUMN more VARCHAR",
                f"DROP TABLE {name}",
            )

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(some, range(8)))
    return time.monotonic() - began


def at_once(running: Running, what: str, count: int) -> float:
    """Run one kind of action on many channels in two processes. Return the elapsed seconds."""
    forking = multiprocessing.get_context("fork")
    halves = [range(0, count, 2), range(1, count, 2)]
    processes = [forking.Process(target=act, args=(running, what, share)) for share in halves]
    began = time.monotonic()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise SystemExit(f"{what} failed")
    return time.monotonic() - began


def failures(running: Running) -> int:
    """Return the number of 5xx responses since the service started."""
    page = httpx.get(f"{running.url}/metrics").text.splitlines()
    counted = [line for line in page if 'status="5' in line and "_total{" in line]
    return int(sum(float(line.rpartition(" ")[2]) for line in counted))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writers", type=int, default=50)
    parser.add_argument("--opens", type=int, default=500)
    parser.add_argument("--reopened", type=int, default=0)
    parser.add_argument("--pause-ms", type=int, default=250)
    parser.add_argument("--quiet-s", type=float, default=10)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--no-report", dest="report", action="store_false")
    options = parser.parse_args()
    columns = ("beside the writers", "took s", "commits", "p50 s", "p99 s", "worst s", "kept")
    report = Report("channel_opens", "Channels opened at once beside channels that write", columns)
    forking = multiprocessing.get_context("fork")
    with catalog(postgres=options.postgres) as url, Running(catalog_url=url) as running:
        running.execute(f"CREATE TABLE {WRITTEN} ({DDL})", f"CREATE TABLE {OPENED} ({DDL})")
        opened, stop = forking.Event(), forking.Event()
        writer = forking.Process(target=write, args=(running, options, opened, stop))
        writer.start()
        opened.wait(60)

        def measured(what: str, action: Callable[[], object], *, has_goal: bool = True) -> None:
            watch = Freshness(running.settings.catalog_url, options.pause_ms / 1000)
            watch.start()
            time.sleep(1)
            began = time.monotonic()
            action()
            took_s = time.monotonic() - began
            # Wait for the commits that the action delayed.
            time.sleep(3 * LAG_S)
            watch.stopping.set()
            watch.join()
            report.add(
                what,
                f"{took_s:.1f}",
                f"{len(watch.delays):,}",
                *(f"{watch.quantile(part):.2f}" for part in (0.5, 0.99, 1.0)),
                ("yes" if watch.quantile(0.99) <= GOAL_S else "no") if has_goal else "",
            )

        quiet = threading.Event()
        measured("nothing", lambda: quiet.wait(options.quiet_s))
        count = options.opens
        measured(f"{count:,} opens", lambda: at_once(running, "open", count))
        measured(f"{count:,} opens and statuses", lambda: at_once(running, "status", count))
        measured(f"{count:,} opens and drops", lambda: at_once(running, "drop", count))
        measured("240 DDL statements", lambda: ddl(running))
        if options.reopened:
            at_once(running, "open", options.reopened)
            running.stop()
            running.start()
            measured(
                f"{options.reopened:,} opens after a restart",
                lambda: at_once(running, "open", options.reopened),
                has_goal=False,
            )
            report.remark("The longest delays after a restart are those of the restart itself.")
            report.remark(f"Answers with a status of 500 or more since: {failures(running)}.")
        stop.set()
        writer.join()
    report.remark(
        f"{options.writers} channels with a row each {options.pause_ms} ms, max_client_lag"
        f" {LAG_S:g} s; catalog in {'PostgreSQL' if options.postgres else 'SQLite'}; the goal is"
        f" p99 <= {GOAL_S:g} s. Actions come from two processes with up to 250 threads each."
    )
    if options.report:
        report.keep()


if __name__ == "__main__":
    main()
