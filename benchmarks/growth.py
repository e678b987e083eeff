"""Benchmark of opens, registrations, snapshots and plans as chunks and channels increase.

uv run python benchmarks/growth.py [--chunks 100,10000,1000000] [--channels 10,1000,10000] [--postgres]

Each cell is the processor time of one process that contains service and client, as the median of
several turns. It excludes the time of a PostgreSQL server. The exponent is the growth in the last
step: 0 is no growth, 1 is proportional growth.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from report import Report
from workload import DDL, rows

from snowmelt.catalog import model
from snowmelt.embedded import EmbeddedService
from snowmelt.schema.types import TableName
from snowmelt.table.migration import MigrationSettings, abort_migration, plan_migration
from snowmelt.table.pruning import Comparison, prune_chunks
from snowmelt.table.snapshot import TableSnapshot, take_snapshots
from snowmelt.wire.streaming import OpenChannelRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TURNS = 9
SEEDED = 50
# Cache size. SQLite reads a negative number as KiB.
_GROWING = -2_000_000
NAME = TableName("BENCH", "PUBLIC", "GROWN")


def _timed(work: Callable[[], object], turns: int = TURNS) -> float:
    """Return the median processor time per turn in milliseconds."""
    took = []
    for _ in range(turns):
        began = time.process_time()
        work()
        took.append((time.process_time() - began) * 1000)
    return statistics.median(took)


class Grown:
    """Service with a table that can grow to a number of chunks and channels."""

    def __init__(self, embedded: EmbeddedService) -> None:
        self.embedded = embedded
        self.service = embedded.service
        embedded.sql("CREATE DATABASE bench")
        embedded.sql(f"CREATE TABLE {NAME} ({DDL})")
        self.client = embedded.client(max_client_lag=dt.timedelta(minutes=10))
        self.channel = self.client.open_channel("seed", table=str(NAME))
        self._row = rows(1)[0]
        for _ in range(SEEDED):
            self.register()
        self._opened = 0

    def register(self) -> None:
        """Insert one row and wait for its commit."""
        self.channel.insert_row(self._row)
        self.channel.flush()

    def open(self) -> None:
        """Open a new channel."""
        self._opened += 1
        request = OpenChannelRequest(
            database=NAME.database,
            schema=NAME.schema,
            table=NAME.table,
            channel=f"channel{self._opened}",
            role="ACCOUNTADMIN",
        )
        self.service.channel_service.open_channel(request, "EMBEDDED").result()

    def snapshot(self) -> TableSnapshot:
        """Take a snapshot of the table."""
        return take_snapshots(self.service.database, [NAME], clock=self.service.clock)[0]

    def prune(self) -> None:
        """Prune the chunks for a query of one row. Excludes the snapshot."""
        schema = self.taken.table.schema
        prune_chunks(self.taken.chunks, schema, self.taken.schemas, [Comparison("ID", "=", -1)])

    def plan(self) -> None:
        """Plan and abort a migration."""
        service, settings = self.service, self.embedded.settings
        chosen = MigrationSettings(settings.stage_url, settings.warehouse_url)
        plan = plan_migration(service.database, service.keyring, NAME, chosen, clock=service.clock)
        if plan is None:
            raise SystemExit("nothing to plan")
        abort_migration(service.database, plan, "measured", clock=service.clock)

    def grow_chunks(self, count: int) -> None:
        """Duplicate registered chunks in the catalog, without blobs, up to a number."""
        with self._large_cache():
            self._double_chunks(count)

    def _double_chunks(self, count: int) -> None:
        chunks, tables = model.chunks, model.tables
        names = [column.name for column in chunks.columns]
        while True:
            with self.service.database.writing() as connection:
                where = (tables.c.name == NAME.table, tables.c.dropped_at.is_(None))
                found = sa.select(tables.c.table_id, tables.c.last_seq).where(*where)
                table_id, last = connection.execute(found).one()
                if last >= count:
                    return
                path = chunks.c.path + f"-{last}"
                changed = {"seq": chunks.c.seq + last, "path": path}
                copied = sa.select(*(changed.get(name, chunks.c[name]) for name in names)).where(
                    chunks.c.table_id == table_id, chunks.c.seq <= count - last
                )
                connection.execute(sa.insert(chunks).from_select(names, copied))
                last = min(2 * last, count)
                print(f"{last:,} chunks", file=sys.stderr, flush=True)
                connection.execute(sa.update(tables).where(*where).values(last_seq=last))

    @contextlib.contextmanager
    def _large_cache(self) -> Iterator[None]:
        """Give SQLite a large page cache inside the block, while chunks are created."""
        ask = "PRAGMA cache_size"
        if self.service.database.dialect != "sqlite":
            yield
            return
        with self.service.database.writing() as connection:
            usual = connection.exec_driver_sql(ask).scalar_one()
            connection.exec_driver_sql(f"{ask}={_GROWING}")
        yield
        with self.service.database.writing() as connection:
            connection.exec_driver_sql(f"{ask}={usual}")

    def grow_channels(self, count: int) -> None:
        """Open channels up to a number, including those that the measurement opens."""
        while self._opened + 1 < count - TURNS:
            self.open()

    def measure(self) -> dict[str, float]:
        """Return the time of each operation in milliseconds."""
        costs = {"open": _timed(self.open), "register": _timed(self.register)}
        turns = 3
        costs["snapshot"] = _timed(self.snapshot, turns)
        self.taken: Any = self.snapshot()
        costs["find chunks"] = _timed(self.prune, turns)
        costs["plan"] = _timed(self.plan, turns)
        self.taken = None
        return costs


def _added(report: Report, what: str, measured: dict[int, dict[str, float]]) -> None:
    *_, before, last = measured
    for name in measured[last]:
        ratio = max(measured[last][name], 1e-3) / max(measured[before][name], 1e-3)
        exponent = math.log(ratio) / math.log(last / before)
        cells = (f"{measured[count][name]:,.2f}" for count in measured)
        report.add(f"{name}, {what}", *cells, f"{exponent:.2f}")


@contextlib.contextmanager
def catalog(*, postgres: bool) -> Iterator[str | None]:
    if not postgres:
        yield None
        return
    from postgres_server import running_postgres

    with running_postgres() as url:
        yield url


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=_numbers, default=[100, 10_000, 1_000_000])
    parser.add_argument("--channels", type=_numbers, default=[10, 1_000, 10_000])
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    columns = ("ms of processor time", "few", "many", "very many", "exponent of the last step")
    subject = "growth_postgres" if options.postgres else "growth"
    report = Report(subject, "What grows with chunks and channels?", columns)
    for what, counts in (("chunks", options.chunks), ("channels", options.channels)):
        with (
            tempfile.TemporaryDirectory(prefix="snowmelt-bench-") as folder,
            catalog(postgres=options.postgres) as url,
            EmbeddedService(Path(folder), catalog_url=url) as embedded,
        ):
            grown = Grown(embedded)
            grow = grown.grow_chunks if what == "chunks" else grown.grow_channels
            measured = {}
            for count in counts:
                grow(count)
                measured[count] = grown.measure()
                print(f"{count:,} {what}: {measured[count]}", file=sys.stderr, flush=True)
            _added(report, what, measured)
            grown.client.close()
        report.remark(f"{what.capitalize()}: {', '.join(f'{count:,}' for count in counts)}.")
    report.remark(
        "A registration is that of one row, from the insert to the answer, client and service"
        " together; a plan is that of a migration, which takes 500 chunks."
    )
    report.keep()


if __name__ == "__main__":
    main()
