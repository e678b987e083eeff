"""COPY, migration, compaction, streaming and queries on one table: is every row there once?

A loader streams numbered rows; files of numbered rows appear and are loaded by COPY, each file
named in many a COPY; migrations move what has streamed in, compactions join what they and the
loads have written, and clean up behind all. Every process is killed at any moment and started again. Meanwhile
queries look whether what they see is whole. At the end all is brought to an end in peace, and counted.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.catalog.jobs.loads import LoadState, list_loads
from snowmelt.catalog.jobs.maintenance import MaintenanceState, list_maintenance_runs
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.errors import InternalError, PlanExpired
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.table_reader import read_table
from snowmelt.testing.crash_harness import CrashSite
from snowmelt.testing.workload import DDL

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from snowmelt.catalog.db.database import Database

# --- Queries beside writers: does every one of them see whole commits, each row once, and no row go?

_PAUSE_S = 0.2


class Looking(threading.Thread):
    """Reads a table of numbered rows again and again until `stop`; `wrong` says what was not right.

    Rows of `channel` have the numbers from 1 without a gap; of all others so many at a time come.
    """

    def __init__(
        self, database: Database, keyring: KeyRing, stage_url: str, table: TableName, at_once: int
    ) -> None:
        super().__init__(name="looking", daemon=True)
        self.queries = 0
        self.wrong: list[str] = []
        self._source = (database, keyring, open_store(stage_url), table)
        self._at_once = at_once
        self._seen = 0
        self._stopping = threading.Event()

    def run(self) -> None:
        """Query until stopped."""
        while not self._stopping.wait(_PAUSE_S):
            try:
                self._look()
            except PlanExpired:
                # The machine was too slow for this one, and it was told so.
                continue
            except Exception as error:  # noqa: BLE001 - a query must not fail beside writers
                self.wrong.append(f"{type(error).__name__}: {error}")

    def stop(self) -> None:
        """End after the query under way."""
        self._stopping.set()
        self.join()

    def _look(self) -> None:
        rows = read_table(*self._source, columns=["CHANNEL", "NUMBER"])
        pairs = zip(rows["CHANNEL"].to_pylist(), rows["NUMBER"].to_pylist(), strict=True)
        seen = Counter((channel, int(number)) for channel, number in pairs)
        streamed = {number for channel, number in seen if channel == "channel"}
        self.queries += 1
        if max(seen.values(), default=1) > 1:
            self.wrong.append("a row was there twice")
        if streamed != set(range(1, len(streamed) + 1)):
            self.wrong.append("a row was missing before others of its channel")
        if (len(seen) - len(streamed)) % self._at_once:
            self.wrong.append("a part of a load was there")
        if len(seen) < self._seen:
            self.wrong.append("rows were gone")
        self._seen = len(seen)


_TABLE = "crash.public.together"
_NAME = TableName("CRASH", "PUBLIC", "TOGETHER")
_ROWS_A_FILE = 500


@dataclass(frozen=True, slots=True)
class Counted:
    """What came of it: processes killed, loads committed, rows streamed and copied, lost, doubled.

    `rejects` are those of committed loads, one in each file; `compactions` those that committed;
    `wrong` is what queries saw that was not right.
    """

    kills: int
    loads: int
    lost_loads: int
    compactions: int
    streamed: int
    copied: int
    rejects: int
    lost: int
    doubled: int
    queries: int
    wrong: tuple[str, ...]

    @property
    def is_exact(self) -> bool:
        """Whether every row is there once, and was for each query."""
        return (
            not (self.lost or self.doubled or self.wrong)
            and self.rejects * _ROWS_A_FILE == self.copied
        )


class Together(CrashSite):
    """A crash site where loads, migrations and a stream meet."""

    def __init__(self, folder: Path, *, seed: int = 1) -> None:
        super().__init__(folder, seed=seed)
        self._inputs = folder / "inputs"
        self._files = 0
        self._dice = random.Random(seed)  # noqa: S311 - when to kill is no secret

    def run_for(self, seconds: float, *, pause_s: float = 0.7, least_kills: int = 0) -> Counted:
        """Let all work for so many seconds, and kill one of them every `pause_s` on average.

        A slow machine, on which starts take long, is given more until there were `least_kills`.
        """
        self._execute(f"CREATE TABLE {_TABLE} ({DDL})")
        self._inputs.mkdir()
        loader = self._start_loader(_TABLE)
        copier, migrator = self._copy(), self._migrate(_TABLE, "local")
        maintainer = self._maintain()
        looking = self._look()
        kills, until = 0, self._clock.monotonic() + seconds
        while self._clock.monotonic() < until or kills < least_kills:
            self._clock.sleep(self._dice.uniform(0.2, 2 * pause_s - 0.2))
            self._add_file()
            if copier.poll() is not None:
                copier = self._copy()
            if migrator.poll() is not None:
                migrator = self._migrate(_TABLE, "local")
            if maintainer.poll() is not None:
                maintainer = self._maintain()
            victims = ("copier", "copier", "migrator", "maintainer", "loader", "service")
            victim = self._dice.choice(victims)
            kills += 1
            if victim == "service":
                self._stop_service()
                self._start_service()
            elif victim == "loader":
                loader.kill()
                self._close(loader)
                loader = self._start_loader(_TABLE)
            else:
                {"copier": copier, "migrator": migrator, "maintainer": maintainer}[victim].kill()
        self._settle(copier, migrator, maintainer)
        streamed = self._finish(loader)
        looking.stop()
        return self._counted(kills, streamed, looking)

    def _settle(self, *processes: subprocess.Popen[bytes]) -> None:
        for process in processes:
            process.kill()
            process.wait()
        self._must_end_well(self._copy(), self._migrate(_TABLE, "local"))
        # A maintainer whose lease another one had when it died goes home without a word.
        self._clock.sleep(self.settings.lease_s)
        self._must_end_well(self._maintain())

    def _must_end_well(self, *processes: subprocess.Popen[bytes]) -> None:
        for process in processes:
            if process.wait(120) != 0:
                raise InternalError(
                    f"The last load, migration or compaction failed: {self._tail()}"
                )

    def _look(self) -> Looking:
        keyring = KeyRing(load_master_key(self.settings.keys_dir))
        looking = Looking(
            self._catalog, keyring, self.settings.stage_url, _NAME, at_once=_ROWS_A_FILE
        )
        looking.start()
        return looking

    def _counted(self, kills: int, streamed: int, looking: Looking) -> Counted:
        rows = read_table(
            self._catalog,
            KeyRing(load_master_key(self.settings.keys_dir)),
            open_store(self.settings.stage_url),
            _NAME,
            columns=["CHANNEL", "NUMBER"],
        )
        pairs = zip(rows["CHANNEL"].to_pylist(), rows["NUMBER"].to_pylist(), strict=True)
        seen = Counter((channel, int(number)) for channel, number in pairs)
        copied = self._files * _ROWS_A_FILE
        wanted = {("channel", number) for number in range(1, streamed + 1)}
        wanted |= {("copied", number) for number in range(copied)}
        with self._catalog.reading() as connection:
            loads = list_loads(connection)
            runs = list_maintenance_runs(connection)
        done = [load for load in loads if load.state is LoadState.COMMITTED]
        return Counted(
            kills=kills,
            loads=len(done),
            lost_loads=len(loads) - len(done),
            compactions=sum(1 for run in runs if run.state is MaintenanceState.COMMITTED),
            streamed=streamed,
            copied=copied,
            rejects=sum(load.rejects or 0 for load in done),
            lost=len(wanted - set(seen)),
            doubled=sum(seen.values()) - len(wanted & set(seen)),
            queries=looking.queries,
            wrong=tuple(looking.wrong),
        )

    def _add_file(self) -> None:
        first = self._files * _ROWS_A_FILE
        lines = [f"copied|{first + at}|from a file\n" for at in range(_ROWS_A_FILE)]
        unfinished = self._inputs / "next"
        unfinished.write_text("".join([*lines, "copied|x|a reject\n"]))
        unfinished.rename(self._inputs / f"{self._files:05d}.csv")
        self._files += 1

    def _copy(self) -> subprocess.Popen[bytes]:
        if not self._files:
            self._add_file()
        statement = f"COPY {_TABLE} FROM '{self._inputs}/*.csv'"
        command = [sys.executable, "-m", "snowmelt", "--debug", "copy", statement]
        return self._start(command, self.settings.to_environment())

    def _maintain(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "snowmelt", "--debug", "maintain", "--full"]
        return self._start([*command, "--table", _TABLE], self.settings.to_environment())

    @staticmethod
    def _close(process: subprocess.Popen[bytes]) -> None:
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
