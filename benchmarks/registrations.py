"""How many registrations a second does one service take, and how long does one take?

    uv run python benchmarks/registrations.py [--seconds 10] [--per-s 5000] [--only sqlite]

Each of 64 connections owns a channel and registers one chunk after another, paced. "metadata" asks
the service not to look at the stage (`verify=off`, a setting for this benchmark alone); "blobs"
has real blobs on the stage, verified as shipped. Then the time of one registration on a table with
10³ and with 10⁶ chunks already there. Processor time is that of the service and of the load, for
each registration; on PostgreSQL that of its server comes on top.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import itertools
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from harness import Running
from registering_load import STATISTICS, TABLE, Measured, drive
from report import Report

from snowmelt.catalog import model
from snowmelt.catalog.database import open_database
from snowmelt.catalog.tables import find_table
from snowmelt.schema.types import TableName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TICKS = os.sysconf("SC_CLK_TCK")
# What a run does not measure itself: profiles and attempts, written down by hand.
_REMARKS = (
    (
        "Service and load share the two cores; the load takes 25 µs of one for each registration, "
        "more when it mostly waits. The service's processor time includes opening 64 channels for "
        "each row of the table (20 µs for each registration at 5,000/s, 100 at 1,000/s). Goal: "
        "metadata at 5,000/s, p99 < 20 ms."
    ),
    (
        "Against the version before, in turns on a machine shared with other test runs: SQLite "
        "2,130 → 2,570/s, service 370 → 270 µs each, at 1,000/s p99 50 → 20 ms; PostgreSQL 1,190 "
        "→ 1,750/s, 430 → 270 µs, at 1,000/s p99 62 → 33 ms."
    ),
    (
        "Profile at saturation on SQLite, µs each by thread: HTTP 105 (of which decoding, checks "
        "and answer 13 when measured alone), two verifying threads 60 (25 alone), the writer 130 "
        "(53 alone). Alone, a group of 64 costs the writer 3.4 ms: inserting 0.4, other "
        "statements 0.5, SQLAlchemy around the eleven of them 0.9, verdicts and rows the most of "
        "the rest; before it was 9.1 ms (PostgreSQL 17.4 → 4.9)."
    ),
    (
        "Tried and kept: statements built once with each set as one JSON parameter (writer − 57 "
        "%); what never changes read once (two statements less); requests past uvicorn's tasks "
        "and messages (bare 61 → 25 µs); work handed on by one wake-up for all that waits (2,900 "
        "→ 3,400/s)."
    ),
    (
        "Tried and left: SQLite inserting from JSON (170 µs in the writer against 120); blocks of "
        "VALUES instead of executemany (within the noise); one verifying thread, 1 ms of pause, "
        "the interpreter switching threads each 0.5 ms instead of 5 (all within the noise); "
        "PostgreSQL's generic plans (made while a table is empty, kept while it grows)."
    ),
    (
        "What bounds it on SQLite: one interpreter. Four threads take turns at its lock, a core "
        "is full at 300 µs each, and the same code costs twice as much there as alone in a loop; "
        "5,000/s needs 200. With 64 connections that wait for their answers, 5,000/s also leaves "
        "12.8 ms for a turn, of which a COMMIT with fsync takes 3 to 5 here. The writer in a "
        "process of its own would be the next step; it was left for the crashes it adds."
    ),
    (
        "What bounds it on PostgreSQL: a group of 64 waits 10 ms for ten statements one after the "
        "other (4 of them to insert, with indexes and a foreign key checked for each row) and "
        "then for its COMMIT; its server takes its part of the same two cores."
    ),
    (
        "With real blobs: reading, MD5, decryption and the footer come on top, 250 to 350 µs "
        "each, and the syncfs of a group waits for the blobs that the load has just written, all "
        "of them: p99 is the disk's."
    ),
)


def _grow(running: Running, chunks: int) -> None:
    """Put chunk rows beneath the table, as if registered and not yet migrated, up to `chunks`."""
    database = open_database(running.settings.catalog_url)
    name = TableName("BENCH", "PUBLIC", "REGISTRATIONS")
    statistics = msgspec.json.encode(STATISTICS)
    now = dt.datetime.now(dt.UTC)
    with database.writing() as connection:
        table = find_table(connection, name)
        for first in range(table.last_seq + 1, chunks + 1, 50_000):
            last = min(first + 50_000, chunks + 1)
            rows = [
                {
                    "table_id": table.table_id,
                    "seq": seq,
                    "prefix": "grown",
                    "path": f"2026/1/1/0/0/{seq}_grown_0_1_{seq}.bdec",
                    "offset": 0,
                    "length": 2000,
                    "md5": hashlib.md5(str(seq).encode()).hexdigest(),
                    "key_id": 1,
                    "rows": 100,
                    "schema_version": 1,
                    "first_insert_ms": 1,
                    "last_insert_ms": 1,
                    "registered_at": now,
                    "channels": "[]",
                    "statistics": statistics,
                }
                for seq in range(first, last)
            ]
            connection.execute(model.chunks.insert(), rows)
        connection.execute(
            model.tables.update()
            .where(model.tables.c.table_id == table.table_id)
            .values(last_seq=max(chunks, table.last_seq))
        )
    database.close()


def _processor_s(process_id: int) -> float:
    """Return the processor time that a process has used so far, in seconds."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def _postgres() -> Iterator[Callable[[], dict[str, object]]]:
    """A PostgreSQL of its own with shipped durability; yields what makes settings of a new database."""
    import psycopg
    from postgres_server import running_postgres

    with running_postgres() as url:
        numbers = itertools.count()

        def settings() -> dict[str, object]:
            name = f"bench_{next(numbers)}"
            with psycopg.connect(url, autocommit=True) as admin:
                admin.execute(f"CREATE DATABASE {name}")
            return {"catalog_url": f"{url.rpartition('/')[0]}/{name}"}

        yield settings


def _driven(
    report: Report,
    names: tuple[str, str],
    running: Running,
    per_s: int,
    seconds: float,
    staged: bool,
) -> Measured:
    """Drive the load once and add a row about it."""
    before = _processor_s(running.process.pid)
    measured = drive(running, per_s, seconds, staged=staged)
    service_s = _processor_s(running.process.pid) - before
    report.add(
        *names,
        f"{per_s:,}",
        f"{measured.per_s:,.0f}",
        f"{measured.p50_ms:.1f}",
        f"{measured.p99_ms:.1f}",
        f"{measured.worst_ms:.1f}",
        f"{measured.late_ms:,.1f}",
        f"{service_s / max(per_s * seconds, 1) * 1e6:.0f} + {measured.load_us:.0f}",
    )
    return measured


def _measure(
    report: Report,
    name: str,
    options: argparse.Namespace,
    settings: Callable[[], dict[str, object]],
) -> None:
    create = f"CREATE OR REPLACE TABLE {TABLE} (id NUMBER(18,0) NOT NULL)"
    for kind, verify, rates in (
        ("metadata", "off", (*options.slower, options.per_s)),
        ("blobs, verified as shipped", "footer", (options.blobs_per_s,)),
    ):
        staged = verify != "off"
        with Running(verify=verify, **settings()) as running:
            running.execute(create)
            drive(running, 500, 2, staged=staged)
            for per_s in rates:
                _driven(report, (name, kind), running, per_s, options.seconds, staged)
    with Running(verify="off", **settings()) as running:
        running.execute(create)
        times = {}
        for chunks in (1_000, 1_000_000):
            _grow(running, chunks)
            drive(running, 300, 2, staged=False)
            kind = f"metadata, {chunks:,} chunks there"
            times[chunks] = _driven(report, (name, kind), running, 300, 5, False).p50_ms
        report.remark(
            f"{name}: one registration at 10⁶ chunks takes "
            f"{times[1_000_000] / times[1_000]:.2f} of the time at 10³ (goal ≤ 1.5)."
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--per-s", type=int, default=5_000)
    parser.add_argument("--slower", type=int, nargs="*", default=[1_000, 2_500])
    parser.add_argument("--blobs-per-s", type=int, default=1_000)
    parser.add_argument("--only", choices=("sqlite", "postgresql"))
    options = parser.parse_args()
    report = Report(
        "registrations",
        "Registrations per second through HTTP, 64 connections, paced",
        (
            *("catalog", "what", "asked /s", "reached /s"),
            *("p50 ms", "p99 ms", "worst ms", "p99 ms from when due", "processor µs"),
        ),
    )
    if options.only != "postgresql":
        _measure(report, "SQLite", options, dict)
    if options.only != "sqlite":
        with _postgres() as settings:
            _measure(report, "PostgreSQL", options, settings)
    for remark in _REMARKS:
        report.remark(remark)
    report.keep()


if __name__ == "__main__":
    main()
