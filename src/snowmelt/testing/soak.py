"""Soak test: COPY, migration, compaction, streaming and queries on one table under random kills.

A loader streams numbered rows. COPY loads new files of numbered rows; each file is in many COPY
statements. Migrations convert the streamed chunks. Maintenance compacts native files and collects
garbage. Other engines may add and delete batches of rows. All these processes are killed at random
times and restarted. Concurrent queries check that their results are consistent. At the end, each
job runs once without kills, and the rows are counted.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from snowmelt.catalog.jobs.load_history import list_loads
from snowmelt.catalog.jobs.run_history import RunState, list_maintenance_runs
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.errors import InternalError, PlanExpired
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.table_reader import read_table
from snowmelt.testing.crash_harness import CrashHarness
from snowmelt.testing.workload import COLUMNS_DDL

_READ_INTERVAL_S = 0.2


# Function that reads all rows of the table as pairs of CHANNEL and NUMBER, in one query.
RowReader: TypeAlias = Callable[[], Iterable[tuple[str, int]]]


# Prefix of the channel of batches that another engine writes.
BATCH_PREFIX = "batch-"


class BatchWriter(Protocol):
    """Interface of another engine that adds and deletes batches of rows, and can be killed.

    `present` are the channels of batches that must exist at the end. Batches in `uncertain` must
    exist completely or not at all, because the outcome of a commit is unknown.
    """

    present: set[str]
    uncertain: set[str]

    def start(self) -> None:
        """Start writing."""

    def kill(self) -> None:
        """Kill the engine. The harness starts it again."""

    def finish(self) -> None:
        """Stop after the current commit."""


class ConsistencyReader(threading.Thread):
    """Reads a table of numbered rows repeatedly. `violations` lists inconsistent results.

    Rows of `channel` must be numbered from 1 without gaps. All other rows must appear in groups of
    `rows_per_load`. Each batch of another engine has a separate channel, and is deleted completely.
    Errors of the types `expected_errors` are ignored; others are violations.
    """

    def __init__(
        self,
        read: RowReader,
        rows_per_load: int,
        *,
        name: str = "reader",
        expected_errors: tuple[type[Exception], ...] = (PlanExpired,),
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.queries = 0
        self.violations: list[str] = []
        self._read = read
        self._rows_per_load = rows_per_load
        self._expected_errors = expected_errors
        self._last_row_count = 0
        self._stopping = threading.Event()

    def run(self) -> None:
        """Run queries until stopped."""
        while not self._stopping.wait(_READ_INTERVAL_S):
            try:
                self.check_once()
            except self._expected_errors:
                continue
            except Exception as error:  # noqa: BLE001 - concurrent writers must not fail a query
                self._add_violation(f"{type(error).__name__}: {error}")

    def stop(self) -> None:
        """Stop after the current query."""
        self._stopping.set()
        self.join()

    def check_once(self) -> int:
        """Read once, record inconsistencies, and return the number of rows."""
        seen = Counter(self._read())
        batches = Counter(channel for channel, _ in seen if channel.startswith(BATCH_PREFIX))
        streamed = {number for channel, number in seen if channel == "channel"}
        self.queries += 1
        if max(seen.values(), default=1) > 1:
            self._add_violation("a row was present twice")
        if streamed != set(range(1, len(streamed) + 1)):
            self._add_violation("a row was missing before others of its channel")
        if (len(seen) - len(streamed)) % self._rows_per_load:
            self._add_violation("a load was partly visible")
        if any(count != self._rows_per_load for count in batches.values()):
            self._add_violation("a batch of another engine was partly visible")
        kept = len(seen) - batches.total()
        if kept < self._last_row_count:
            self._add_violation("rows were gone")
        self._last_row_count = kept
        return len(seen)

    def _add_violation(self, text: str) -> None:
        self.violations.append(f"{self.name}: {text}")


_TABLE_SQL = "crash.public.together"
TABLE_NAME = TableName("CRASH", "PUBLIC", "TOGETHER")
ROWS_PER_FILE = 500


@dataclass(frozen=True, slots=True)
class SoakResult:
    """Counts of kills, loads, compactions, queries, rows by origin, and lost and duplicate rows.

    `rejects` counts the rejects of committed loads, which are one per file. `compactions` counts
    committed compactions. `violations` lists inconsistent query results.
    """

    kills: int
    committed_loads: int
    lost_loads: int
    compactions: int
    streamed_rows: int
    copied_rows: int
    batch_rows: int
    rejects: int
    lost_rows: int
    duplicate_rows: int
    queries: int
    violations: tuple[str, ...]

    @property
    def is_exact(self) -> bool:
        """True if every row is present exactly once, and all query results were consistent."""
        return (
            not (self.lost_rows or self.duplicate_rows or self.violations)
            and self.rejects * ROWS_PER_FILE == self.copied_rows
        )


class SoakHarness(CrashHarness):
    """Crash harness with concurrent loads, migrations, compactions and a stream."""

    def __init__(self, folder: Path, *, seed: int = 1, s3_port: int = 0) -> None:
        super().__init__(folder, seed=seed, s3_port=s3_port)
        self._input_folder = folder / "inputs"
        self._file_count = 0
        self._kill_random = random.Random(seed)  # noqa: S311 - no cryptographic use

    def run_for(
        self,
        duration_s: float,
        *,
        kill_interval_s: float = 0.7,
        min_kills: int = 0,
        min_compactions: int = 0,
        more_readers: Sequence[ConsistencyReader] = (),
        writers: Sequence[BatchWriter] = (),
    ) -> SoakResult:
        """Run all processes for `duration_s`, and kill one every `kill_interval_s` on average.

        On a slow machine, the run continues until there were `min_kills` kills and `min_compactions`
        committed compactions. `more_readers` run in addition to Snowmelt's reader. `writers` write batches of `ROWS_PER_FILE` rows.

        Raises:
            InternalError: If a process fails without being killed.
        """
        self._execute_statements(f"CREATE TABLE {_TABLE_SQL} ({COLUMNS_DDL})")
        self._input_folder.mkdir()
        loader = self._start_loader(_TABLE_SQL)
        copier, migrator = self._start_copy(), self._start_migration(_TABLE_SQL, "local")
        maintainer = self._start_maintenance()
        readers = [ConsistencyReader(self._read_rows, ROWS_PER_FILE), *more_readers]
        for reader in readers:
            reader.start()
        for writer in writers:
            writer.start()
        kills, until = 0, self._clock.monotonic() + duration_s
        while (
            self._clock.monotonic() < until
            or kills < min_kills
            or self._count_compactions() < min_compactions
        ):
            self._clock.sleep(self._kill_random.uniform(0.2, 2 * kill_interval_s - 0.2))
            self._add_input_file()
            copier = copier if copier.poll() is None else self._start_copy()
            if migrator.poll() is not None:
                migrator = self._start_migration(_TABLE_SQL, "local")
            maintainer = maintainer if maintainer.poll() is None else self._start_maintenance()
            processes = ("copier", "copier", "migrator", "maintainer", "loader", "service")
            victims: tuple[str | BatchWriter, ...] = (*processes, *writers)
            victim = self._kill_random.choice(victims)
            kills += 1
            if not isinstance(victim, str):
                victim.kill()
            elif victim == "service":
                self._stop_service()
                self._start_service()
            elif victim == "loader":
                loader.kill()
                loader.wait()
                if loader.stdout is not None:
                    loader.stdout.close()
                loader = self._start_loader(_TABLE_SQL)
            else:
                {"copier": copier, "migrator": migrator, "maintainer": maintainer}[victim].kill()
        for writer in writers:
            writer.finish()
        for process in (copier, migrator, maintainer):
            process.kill()
            process.wait()
        # A migrator or maintainer exits silently while the lease of a killed one is valid.
        self._clock.sleep(self.settings.lease_s)
        self._wait_for_success(self._start_copy(), self._start_migration(_TABLE_SQL, "local"))
        self._wait_for_success(self._start_maintenance())
        streamed = self._finish_loader(loader)
        for reader in readers:
            reader.stop()
        return self._make_result(kills, streamed, readers, writers)

    def _read_rows(self) -> Iterable[tuple[str, int]]:
        rows = read_table(
            self._require_database,
            KeyRing(load_master_key(self.settings.keys_dir)),
            open_store(self.settings.stage_url),
            TABLE_NAME,
            columns=["CHANNEL", "NUMBER"],
        )
        numbers = map(int, rows["NUMBER"].to_pylist())
        return zip(rows["CHANNEL"].to_pylist(), numbers, strict=True)

    def _wait_for_success(self, *processes: subprocess.Popen[bytes]) -> None:
        for process in processes:
            if process.wait(120) != 0:
                raise InternalError(
                    f"The last load, migration or compaction failed: {self._read_log_tail()}"
                )

    def _make_result(
        self,
        kills: int,
        streamed_rows: int,
        readers: Sequence[ConsistencyReader],
        writers: Sequence[BatchWriter],
    ) -> SoakResult:
        seen = Counter(self._read_rows())
        there = {channel for channel, _ in seen}
        batches = {batch for each in writers for batch in each.present | each.uncertain & there}
        copied = self._file_count * ROWS_PER_FILE
        wanted = {("channel", number) for number in range(1, streamed_rows + 1)}
        wanted |= {("copied", number) for number in range(copied)}
        wanted |= {(batch, number) for batch in batches for number in range(ROWS_PER_FILE)}
        with self._require_database.reading() as connection:
            loads = list_loads(connection)
        done = [load for load in loads if load.state is RunState.COMMITTED]
        return SoakResult(
            kills=kills,
            committed_loads=len(done),
            lost_loads=len(loads) - len(done),
            compactions=self._count_compactions(),
            streamed_rows=streamed_rows,
            copied_rows=copied,
            batch_rows=len(batches) * ROWS_PER_FILE,
            rejects=sum(load.rejects or 0 for load in done),
            lost_rows=len(wanted - set(seen)),
            duplicate_rows=sum(seen.values()) - len(wanted & set(seen)),
            queries=sum(reader.queries for reader in readers),
            violations=tuple(each for reader in readers for each in reader.violations),
        )

    def _count_compactions(self) -> int:
        with self._require_database.reading() as connection:
            runs = list_maintenance_runs(connection)
        return sum(1 for run in runs if run.state is RunState.COMMITTED)

    def _add_input_file(self) -> None:
        first = self._file_count * ROWS_PER_FILE
        lines = [f"copied|{first + at}|from a file\n" for at in range(ROWS_PER_FILE)]
        unfinished = self._input_folder / "next"
        unfinished.write_text("".join([*lines, "copied|x|a reject\n"]))
        unfinished.rename(self._input_folder / f"{self._file_count:05d}.csv")
        self._file_count += 1

    def _start_copy(self) -> subprocess.Popen[bytes]:
        if not self._file_count:
            self._add_input_file()
        statement = f"COPY {_TABLE_SQL} FROM '{self._input_folder}/*.csv'"
        command = [sys.executable, "-m", "snowmelt", "--debug", "copy", statement]
        return self._start_process(command, self.settings.to_environment())

    def _start_maintenance(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "snowmelt", "--debug", "maintain", "--full"]
        return self._start_process(
            [*command, "--table", _TABLE_SQL], self.settings.to_environment()
        )
