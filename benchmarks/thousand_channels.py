"""Benchmark of a thousand channels that flush each second: memory, freshness, processor time.

uv run python benchmarks/thousand_channels.py [--minutes 10] [--channels 1000] [--clients 20]
    [--processes 4] [--postgres] [--no-migrate]

The channels are distributed over clients in a few processes, which simulate many machines. Each
channel receives a row every `--pause-ms`. The delay of a row ends when the catalog shows its
channel's position, which is read ten times a second. Memory is the service's resident set. Its
growth is the slope of a line through the second half.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import datetime as dt
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import sqlalchemy as sa
from growth import catalog
from harness import Running
from report import Report
from workload import DDL, rows

from snowmelt.catalog import model
from snowmelt.catalog.db.database import open_and_upgrade_database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.synchronize import Event

    from snowmelt.client.channel import Channel

TABLE = "bench.public.thousand"
LAG_S = 1.0
GOAL_S = LAG_S + 1.0
_TICK = os.sysconf("SC_CLK_TCK")


class Loader:
    """Processes with clients. Each process repeatedly inserts into its share of the channels."""

    def __init__(self, running: Running, options: argparse.Namespace) -> None:
        # Exclude Arrow's import of pandas at the first conversion, which takes a second.
        pa.array([], pa.int64())
        forking = multiprocessing.get_context("fork")
        self._go = forking.Event()
        self._opened = [forking.Event() for _ in range(options.processes)]
        self._processes = [
            forking.Process(target=load, args=(running, options, share, opened, self._go))
            for share, opened in enumerate(self._opened)
        ]

    def open(self) -> float:
        """Start the processes. Return the seconds until all channels are open."""
        began = time.monotonic()
        for process in self._processes:
            process.start()
        for opened in self._opened:
            while not opened.wait(1):
                if not all(process.is_alive() for process in self._processes):
                    raise SystemExit("the channels could not be opened")
        return time.monotonic() - began

    def go(self) -> None:
        """Start the inserts."""
        self._go.set()

    def used_s(self) -> float:
        """Return the processor seconds of the processes."""
        return sum(used(process.pid)[0] for process in self._processes if process.pid)

    def join(self) -> None:
        """Wait until the processes end."""
        for process in self._processes:
            process.join()


def load(
    running: Running, options: argparse.Namespace, share: int, opened_all: Event, go: Event
) -> None:
    """Insert rows into each channel of a share. The offset token is the monotonic time in ns."""
    row = rows(1)[0]
    with contextlib.ExitStack() as opened:
        clients = range(share, options.clients, options.processes)

        def connect(client: int) -> list[Channel]:
            connected = opened.enter_context(
                running.client(max_client_lag=dt.timedelta(seconds=LAG_S))
            )
            return [
                connected.open_channel(f"c{number}", table=TABLE)
                for number in range(client, options.channels, options.clients)
            ]

        # Use a thread per client: clients on different machines do not wait for each other.
        with ThreadPoolExecutor(len(clients)) as threads:
            channels = [channel for each in threads.map(connect, clients) for channel in each]
        opened_all.set()
        go.wait()
        until = time.monotonic() + options.minutes * 60
        while time.monotonic() < until:
            began = time.monotonic()
            for channel in channels:
                channel.insert_row(row, offset_token=str(time.monotonic_ns()))
            time.sleep(max(began + options.pause_ms / 1000 - time.monotonic(), 0))


class Freshness(threading.Thread):
    """Reader of channel positions in the catalog. Records the delay of each commit's oldest row."""

    def __init__(self, catalog_url: str, pause_s: float) -> None:
        super().__init__(daemon=True)
        self.delays: list[float] = []
        self.stopping = threading.Event()
        self._database = open_and_upgrade_database(catalog_url)
        self._pause_s = pause_s

    def run(self) -> None:
        at: dict[str, int] = {}
        columns = model.channels.c
        query = sa.select(columns.name, columns.offset_token)
        while not self.stopping.wait(0.1):
            with self._database.reading() as connection:
                found = connection.execute(query).all()
            now = time.monotonic_ns()
            for name, token in found:
                if token is None or at.get(name) == int(token):
                    continue
                before, at[name] = at.get(name), int(token)
                if before is not None:
                    # The oldest row was inserted one pause after the previous commit's last row.
                    bisect.insort(self.delays, (now - before) / 1e9 - self._pause_s)
        self._database.close()

    def quantile(self, part: float) -> float:
        return self.delays[int(part * (len(self.delays) - 1))] if self.delays else float("nan")


def used(pid: int) -> tuple[float, float]:
    """Return the processor seconds and resident MiB of a process."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    seconds = (int(stat[11]) + int(stat[12])) / _TICK
    return seconds, pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def slope(points: list[tuple[float, float]]) -> float:
    """Return the slope of a line through the points in MiB per minute."""
    middle = [sum(values) / len(points) for values in zip(*points, strict=True)]
    over = sum((at - middle[0]) * (size - middle[1]) for at, size in points)
    under = sum((at - middle[0]) ** 2 for at, _ in points)
    return over / under if under else 0.0


@contextlib.contextmanager
def migrating(running: Running, *, on: bool) -> Iterator[None]:
    """Run migrations inside the block, in a separate process without Spark."""
    if not on:
        yield
        return
    command = [sys.executable, "-m", "snowmelt", "migrate", "--loop", "--engine", "local"]
    with (running.folder / "migrate.log").open("wb") as log:
        child = subprocess.Popen(
            command, env=os.environ | running.settings.to_environment(), stdout=log, stderr=log
        )
        try:
            yield
        finally:
            child.terminate()
            child.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--channels", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--pause-ms", type=int, default=500)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--no-migrate", dest="migrate", action="store_false")
    options = parser.parse_args()
    columns = (
        *("minutes", "channels", "opened in s", "commits seen", "p50 s", "p99 s", "worst s"),
        *("service's processor", "clients' processor"),
        *("MiB after a tenth", "MiB at the end", "MiB a minute, second half", "p99 kept"),
    )
    report = Report("thousand_channels", "A thousand channels that flush each second", columns)
    with (
        catalog(postgres=options.postgres) as url,
        Running(catalog_url=url) as running,
    ):
        running.execute(f"CREATE TABLE {TABLE} ({DDL})")
        loader = Loader(running, options)
        opened_s = loader.open()
        watch = Freshness(running.settings.catalog_url, options.pause_ms / 1000)
        pid = running.started.pid
        with migrating(running, on=options.migrate):
            watch.start()
            loader.go()
            began, sizes = time.monotonic(), []
            until = began + options.minutes * 60
            (first_s, _), first_clients_s = used(pid), loader.used_s()
            while time.monotonic() < until:
                time.sleep(min(5.0, options.minutes * 3))
                sizes.append(((time.monotonic() - began) / 60, used(pid)[1]))
            spent_s = used(pid)[0] - first_s
            clients_s = loader.used_s() - first_clients_s
            elapsed_s = time.monotonic() - began
            watch.stopping.set()
            watch.join()
            loader.join()
    p99 = watch.quantile(0.99)
    report.add(
        f"{options.minutes:g}",
        f"{options.channels:,}",
        f"{opened_s:.1f}",
        f"{len(watch.delays):,}",
        *(f"{watch.quantile(part):.2f}" for part in (0.5, 0.99, 1.0)),
        f"{spent_s / elapsed_s:.0%} of one core",
        f"{clients_s / elapsed_s:.0%} of one core",
        f"{sizes[len(sizes) // 10][1]:,.0f}",
        f"{sizes[-1][1]:,.0f}",
        f"{slope(sizes[len(sizes) // 2 :]):+.2f}",
        "yes" if p99 <= GOAL_S else "no",
    )
    report.remark(
        f"{options.clients} clients in {options.processes} processes beside the service, a row"
        f" each {options.pause_ms} ms in each channel, max_client_lag {LAG_S:g} s; catalog in"
        f" {'PostgreSQL' if options.postgres else 'SQLite'}; the goal is p99 <= {GOAL_S:g} s."
    )
    report.remark(
        "The delay is that of the oldest row of each commit, so every other row's is less."
    )
    report.keep()


if __name__ == "__main__":
    main()
