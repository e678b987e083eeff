"""Benchmark of a pipe that loads small files as they arrive.

uv run python benchmarks/arriving_files.py [--files 5000] [--minutes 1] [--rows 50]

A service loads a folder with its default settings. This process moves files into the folder at an
even rate, and reads the history of loads at the end.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

from harness import Running, list_findings
from report import Report

from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.jobs.load_history import list_file_history
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.loaders.file_pipe_check import check_file_copy
from snowmelt.schema.types import TableName
from snowmelt.table.snapshot import load_current_native_table

COLUMNS = ("what", "value")
_TICKS = os.sysconf("SC_CLK_TCK")
_GIVE_UP_S = 300.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=5000, help="per minute")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--rows", type=int, default=50, help="per file")
    options = parser.parse_args()
    count = round(options.files * options.minutes)
    report = Report("arriving_files", "Small files that arrive", COLUMNS)
    with Running() as service:
        folder, parts = service.folder / "in", service.folder / "parts"
        for each in (folder, parts):
            each.mkdir()
        database = open_and_upgrade_database(service.settings.catalog_url)
        for text in (
            "CREATE DATABASE demo",
            "CREATE TABLE demo.public.t (n INT, word VARCHAR, at TIMESTAMP_NTZ(6))",
            f"CREATE PIPE demo.public.p AUTO_INGEST = TRUE AS COPY t FROM '{folder}/*.csv' DELIMITER ','",
        ):
            execute_statement(database, text, user=None, check_file_copy=check_file_copy)
        names = write_parts(parts, count, options.rows)
        cpu_before, began = read_cpu_s(service.started.pid), time.time()
        arrived: dict[str, float] = {}
        for number, name in enumerate(names):
            time.sleep(max(began + number * 60 / options.files - time.time(), 0))
            (parts / name).rename(folder / name)
            arrived[str(folder / name)] = time.time()
        sent_s = time.time() - began
        give_up_at = time.time() + _GIVE_UP_S
        while True:
            with database.reading() as connection:
                found = list_file_history(connection)
            if len(found) >= count or time.time() > give_up_at:
                break
            time.sleep(0.2)
        cpu_s = read_cpu_s(service.started.pid) - cpu_before
        with database.reading() as connection:
            table = find_table(connection, TableName("DEMO", "PUBLIC", "T"))
        native = load_current_native_table(table)
        database.close()
        assert native is not None
        delays = sorted(
            each.load.ended_at.timestamp() - arrived[each.file.path]
            for each in found
            if each.load.ended_at is not None
        )
        rows = sum(each.file.rows for each in found)
        loads = {each.load.load_id for each in found}
        snapshot = native.metadata.current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        report.add("files sent", f"{count:,} in {sent_s:.1f} s")
        report.add(
            "files loaded, rows", f"{len(found):,}, {rows:,} (wanted {count * options.rows:,})"
        )
        report.add("loads", f"{len(loads):,}")
        report.add(
            "native files", snapshot.summary.additional_properties.get("total-data-files", "?")
        )
        report.add("arrival to commit, p50", f"{delays[len(delays) // 2]:.2f} s")
        report.add("arrival to commit, p99", f"{delays[len(delays) * 99 // 100]:.2f} s")
        report.add("last file to its commit", f"{delays[-1]:.2f} s at most")
        report.add("CPU of the service and its processes", f"{cpu_s:.1f} s")
        report.add("CPU per file", f"{cpu_s / count * 1000:.2f} ms")
        data_dir = service.folder
        findings = list_findings(data_dir)
    report.add("findings of snowmelt check --deep", str(len(findings)))
    report.remark(f"{options.rows} rows a file, moved into the folder at an even rate.")
    report.keep()
    return int(rows != count * options.rows or bool(findings))


def write_parts(folder: Path, count: int, rows: int) -> list[str]:
    """Write the files beside the folder of the pipe. Return their names."""
    names = []
    for number in range(count):
        names.append(f"{number:07d}.csv")
        lines = (
            f"{number * rows + row},word {row},2026-01-31 08:00:{row % 60:02d}\n"
            for row in range(rows)
        )
        (folder / names[-1]).write_text("".join(lines))
    return names


def read_cpu_s(process: int) -> float:
    """Return the CPU time of a process and its descendants, in seconds."""
    total = 0.0
    for each in list_descendants(process):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / _TICKS
    return total


def list_descendants(process: int) -> Iterator[int]:
    yield process
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from list_descendants(int(child))


if __name__ == "__main__":
    raise SystemExit(main())
