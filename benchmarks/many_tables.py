"""Loop that kills a service and its client while they stream to 100 tables, and checks all of them.

uv run python benchmarks/many_tables.py [--seconds 600] [--tables 100] [--seed 1]

Migration, compaction and clean-up run all the time. `kill -9` strikes the service with
all of its children, one of its children, or the client. At the end each table must have exactly the
rows up to the committed offset token of its channel, and `snowmelt check --deep` must find nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import Running, list_findings
from report import Report

from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.catalog.streaming.channels import list_channels
from snowmelt.client.channel import Channel
from snowmelt.client.client import Client
from snowmelt.clock import SystemClock
from snowmelt.errors import SnowmeltError
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.table_reader import read_table

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

_SETTINGS: dict[str, Any] = {
    "migrate": True,
    "migrate_interval_s": 0.5,
    "migrate_max_age_s": 3,
    "compact_interval_s": 2,
    "compact_min_files": 2,
    "cleanup_interval_s": 2,
    "retention_s": 3001,
    "lease_s": 5,
}
_ROWS = 20
_START = dt.datetime(2026, 1, 1)


def _stream(url: str, private_key: str, tables: int) -> None:
    """Write rows with increasing numbers to one channel per table, from the committed tokens."""
    lag = dt.timedelta(milliseconds=500)
    while True:
        # The service may be down while the client opens its channels.
        with (
            contextlib.suppress(SnowmeltError),
            Client(url, user="bench", private_key=private_key, max_client_lag=lag) as client,
        ):
            names = [f"bench.public.t{number}" for number in range(tables)]
            channels = [client.open_channel("C", table=name) for name in names]
            numbers = [int(each.latest_committed_offset_token() or 0) for each in channels]
            while True:
                index = random.randrange(tables)
                numbers[index] = _write(channels[index], numbers[index])
                time.sleep(0.005)
        time.sleep(0.2)


def _write(channel: Channel, number: int) -> int:
    """Write the next rows. Return the last number, or the committed one after an error."""
    rows = [_make_row(number + each) for each in range(1, _ROWS + 1)]
    try:
        channel.insert_rows(rows, offset_token=str(number + _ROWS))
    except SnowmeltError:
        return int(channel.resume() or 0)
    return number + _ROWS


def _make_row(number: int) -> dict[str, object]:
    return {
        "id": number,
        "word": f"word {number}" if number % 7 else None,
        "at": _START + dt.timedelta(milliseconds=number),
        "document": {"number": number, "list": [number, None]},
    }


def _list_children(process_id: int) -> list[int]:
    found = [
        int(child)
        for task in Path(f"/proc/{process_id}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return found + [each for child in found for each in _list_children(child)]


class _Site:
    """The service and the client, which are started again after a kill."""

    def __init__(self, running: Running, tables: int, seed: int) -> None:
        self._running = running
        self._tables = tables
        self._choose = random.Random(seed)
        self._client: BaseProcess = self._start_client()
        self.kills = {"service": 0, "child": 0, "client": 0}

    def run_for(self, seconds: float) -> None:
        """Kill a process every few seconds, then let the last rows be committed."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(self._choose.uniform(2, 6))
            self._kill(self._choose.choice(["service", "child", "child", "child", "client"]))
        time.sleep(5)
        self._client.kill()
        self._client.join()

    def _kill(self, kind: str) -> None:
        process = self._running.started
        if kind == "client":
            self._client.kill()
            self._client.join()
            self._client = self._start_client()
        else:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                children = _list_children(process.pid)
                if kind == "child" and children:
                    os.kill(self._choose.choice(children), signal.SIGKILL)
                elif kind == "service":
                    for each in (process.pid, *children):
                        os.kill(each, signal.SIGKILL)
            if kind == "service":
                process.wait()
                self._running.start()
        self.kills[kind] += 1
        if not self._client.is_alive():
            self._client = self._start_client()

    def _start_client(self) -> BaseProcess:
        arguments = (self._running.url, self._running.private_key, self._tables)
        process = multiprocessing.get_context("spawn").Process(
            target=_stream, args=arguments, daemon=True
        )
        process.start()
        return process


def _compare(running: Running, tables: int) -> tuple[int, int, int]:
    """Return the numbers of rows, of lost and of doubled rows of all tables."""
    settings = running.settings
    database = open_and_upgrade_database(settings.catalog_url)
    keyring = KeyRing(load_master_key(settings.keys_dir))
    stage = open_store(settings.stage_url)
    total = lost = doubled = 0
    for number in range(tables):
        name = TableName("BENCH", "PUBLIC", f"T{number}")
        with database.reading() as connection:
            table = find_table(connection, name)
            channels = list_channels(connection, [table.table_id])
        token = max((int(channel.offset_token or 0) for channel in channels), default=0)
        rows = read_table(database, keyring, stage, name, ["ID"], clock=SystemClock())
        found = [int(each) for each in rows["ID"].to_pylist()]
        total += token
        lost += len(set(range(1, token + 1)) - set(found))
        doubled += len(found) - len(set(found) & set(range(1, token + 1)))
    database.close()
    return total, lost, doubled


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with Running(**_SETTINGS) as running:
        running.execute(
            *(
                f"CREATE TABLE bench.public.t{number} (id NUMBER(18,0) NOT NULL, word VARCHAR,"
                " at TIMESTAMP_NTZ, document VARIANT)"
                for number in range(options.tables)
            )
        )
        site = _Site(running, options.tables, options.seed)
        site.run_for(options.seconds)
        running.stop()
        rows, lost, doubled = _compare(running, options.tables)
        findings = list_findings(running.folder)
    report = Report(
        "many_tables",
        "Many tables after kills",
        ("seconds", "tables", "kills", "rows", "lost", "doubled", "findings"),
    )
    kills = ", ".join(f"{count} of the {kind}" for kind, count in site.kills.items())
    report.add(
        *(f"{options.seconds:g}", options.tables, kills, f"{rows:,}", lost, doubled),
        len(findings),
    )
    for finding in findings:
        report.remark(f"A check: {finding}")
    report.keep()
    print(
        f"{sum(site.kills.values())} kills, {lost} lost, {doubled} doubled, {len(findings)} findings"
    )
    return 1 if lost or doubled or findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
