"""Crash tests of streaming: kill a process at a failpoint, restart it, and count the rows.

Each run has a real service and real loading processes. A process kills itself with SIGKILL at the
failpoint in `SNOWMELT_FAULT`. The rows are numbered, so lost and duplicate rows are known exactly:
each number up to the last committed offset token must be present once.
"""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx

from snowmelt.catalog.db.database import Database, open_and_upgrade_database
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.security.encryption_keys import KeyRing, generate_key_pair, load_master_key
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.clock import SystemClock
from snowmelt.config import Settings, copy_environment
from snowmelt.errors import InternalError, ServiceUnavailable
from snowmelt.failpoints import Failpoint
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.table_reader import read_table
from snowmelt.testing.workload import COLUMNS_DDL

CLIENT_POINTS = (
    Failpoint.ROWS_BUFFERED,
    Failpoint.BLOB_BUILT,
    Failpoint.STAGE_WRITE,
    Failpoint.BLOB_STAGED,
    Failpoint.REGISTERED,
)
SERVICE_POINTS = (
    Failpoint.BEFORE_REGISTRATION,
    Failpoint.INSIDE_REGISTRATION,
    Failpoint.AFTER_REGISTRATION,
    Failpoint.ANSWERING,
)
MIGRATION_POINTS = (
    Failpoint.MIGRATION_PLANNED,
    Failpoint.MIGRATION_TASK,
    Failpoint.MIGRATION_WRITTEN,
    Failpoint.MIGRATION_STAGED,
    Failpoint.MIGRATION_INSIDE_COMMIT,
    Failpoint.MIGRATION_COMMITTED,
)

_USER = "CRASH"
# Long timeout, because the harness may run on a machine with many other jobs.
_STEP_TIMEOUT_S = 600.0
# Reduce JIT compilation, because these Java processes run only for seconds.
SHORT_LIVED_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_WORKER_DIED_MESSAGE = "Python worker exited unexpectedly"


@dataclass(frozen=True, slots=True)
class CrashResult:
    """Result for one failpoint: kills, expected rows, lost rows and duplicate rows."""

    point: Failpoint
    kills: int
    expected_rows: int
    lost_rows: int
    duplicate_rows: int


class CrashHarness:
    """Runs a service and loaders of numbered rows in a data folder. All processes end with the context.

    `engine` (`local` or `spark`) is the engine of the migrations that are killed. Remaining chunks
    are migrated without Spark, which takes 1 s instead of 20 s. `popen` starts the processes, which
    run this interpreter with `-m` and a module. `s3_port` is the port of the S3 endpoint, or 0 for
    none.
    """

    def __init__(
        self,
        folder: Path,
        *,
        engine: str = "local",
        seed: int = 1,
        popen: type[subprocess.Popen[bytes]] = subprocess.Popen,
        s3_port: int = 0,
    ) -> None:
        self._folder = folder
        self._engine = engine
        self._popen = popen
        self._random = random.Random(seed)  # noqa: S311 - no cryptographic use
        self._clock = SystemClock()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.settings = Settings.load(
            data_dir=folder, port=port, s3_port=s3_port, migrate=False, lease_s=1.0
        )
        self.url = f"http://127.0.0.1:{port}"
        self._key_file = folder / "crash-key.pem"
        self._log_file = folder / "processes.log"
        self._database: Database | None = None
        self._stop_file = folder / "stop"
        self._service: subprocess.Popen[bytes] | None = None
        # Use one client for all polls, because creating a client takes longer than a request.
        self._http = httpx.Client(base_url=self.url, timeout=2.0, verify=False)  # noqa: S501 - no TLS
        self._children: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._database = open_and_upgrade_database(self.settings.catalog_url)
        public = _write_key_pair(self._key_file)
        self._execute_statements(
            "CREATE DATABASE crash",
            f"CREATE USER {_USER} RSA_PUBLIC_KEY = '{public}' DEFAULT_ROLE = ACCOUNTADMIN",
            f"GRANT ROLE ACCOUNTADMIN TO USER {_USER}",
        )
        self._start_service()
        return self

    def __exit__(self, *_: object) -> None:
        for child in [*self._children, *([self._service] if self._service else [])]:
            if child.poll() is None:
                child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
        self._http.close()
        if self._database is not None:
            self._database.close()

    def run(self, point: Failpoint, kills: int) -> CrashResult:
        """Kill `kills` times at `point` while rows are streamed, then finish and count the rows."""
        table = f"crash.public.{point.name}"
        self._execute_statements(f"CREATE TABLE {table} ({COLUMNS_DDL})")
        self._stop_file.unlink(missing_ok=True)
        if point in CLIENT_POINTS:
            done = self._kill_clients(point, table, kills)
        elif point in SERVICE_POINTS:
            done = self._kill_services(point, table, kills)
        else:
            done = self._kill_migrations(point, table, kills)
        return self._count_rows(point, table, kills, done)

    def _kill_clients(self, point: Failpoint, table: str, kills: int) -> int:
        for _ in range(kills):
            loader = self._start_loader(table, self._format_kill_fault(point))
            loader.wait(_STEP_TIMEOUT_S)
            _check_killed(loader, point)
        return self._finish_loader(self._start_loader(table))

    def _kill_services(self, point: Failpoint, table: str, kills: int) -> int:
        loader = self._start_loader(table)
        for _ in range(kills):
            self._stop_service()
            service = self._start_service(self._format_kill_fault(point))
            service.wait(_STEP_TIMEOUT_S)
            _check_killed(service, point)
        self._start_service()
        return self._finish_loader(loader)

    def _kill_migrations(self, point: Failpoint, table: str, kills: int) -> int:
        # Increase the lag, so that the loader does not outpace the migrators.
        loader = self._start_loader(table, lag_ms=1000 if self._engine == "spark" else 300)
        for _ in range(kills):
            self._wait_until(lambda: self._has_backlog(table))
            # The migrator first waits until the lease of the killed one has expired.
            said = self._log_file.stat().st_size
            migration = self._start_migration(table, self._engine, f"{point.value}=kill")
            migration.wait(_STEP_TIMEOUT_S)
            if self._engine != "spark" or point is not Failpoint.MIGRATION_TASK:
                _check_killed(migration, point)
                continue
            # The failpoint kills Spark's worker, after which the driver fails.
            words = self._log_file.read_bytes()[said:].decode(errors="replace")
            if migration.returncode <= 0 or _WORKER_DIED_MESSAGE not in words:
                raise InternalError(f"No worker was killed at {point}: {self._read_log_tail()}")
        done = self._finish_loader(loader)
        if self._start_migration(table, "local").wait(_STEP_TIMEOUT_S) != 0:
            raise InternalError(
                f"The migration after the kills at {point} failed: {self._read_log_tail()}"
            )
        return done

    def _has_backlog(self, table: str) -> bool:
        with self._require_database.reading() as connection:
            found = find_table(connection, TableName(*table.upper().split(".")))
        return found.last_seq > found.migrated_seq

    def _finish_loader(self, loader: subprocess.Popen[bytes]) -> int:
        self._clock.sleep(0.3)
        self._stop_file.touch()
        answer, _ = loader.communicate(timeout=_STEP_TIMEOUT_S)
        if loader.returncode != 0:
            raise InternalError(f"The last loader failed: {self._read_log_tail()}")
        return int(answer)

    def _count_rows(
        self, point: Failpoint, table: str, kills: int, expected_rows: int
    ) -> CrashResult:
        keyring = KeyRing(load_master_key(self.settings.keys_dir))
        stage = open_store(self.settings.stage_url)
        name = TableName(*table.upper().split("."))
        rows = read_table(self._require_database, keyring, stage, name, columns=["NUMBER"])
        seen = Counter(int(number) for number in rows["NUMBER"].to_pylist())
        lost = sum(1 for number in range(1, expected_rows + 1) if number not in seen)
        doubled = sum(count - 1 for count in seen.values())
        return CrashResult(point, kills, expected_rows, lost, doubled)

    def _format_kill_fault(self, point: Failpoint) -> str:
        # Batches are more frequent than flushes. Let some batches commit before the kill.
        passages = 20 if point is Failpoint.ROWS_BUFFERED else 4
        return f"{point.value}=kill:{self._random.randint(1, passages)}"

    def _start_service(self, fault: str = "") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "snowmelt", "serve"]
        environment = self.settings.to_environment() | {"SNOWMELT_FAULT": fault}
        self._service = self._start_process(command, environment)
        if not fault:
            self._wait_until(self._is_service_ready)
        return self._service

    def _stop_service(self) -> None:
        if self._service is not None and self._service.poll() is None:
            self._service.kill()
            self._service.wait()

    def _is_service_ready(self) -> bool:
        if self._service is not None and self._service.poll() is not None:
            raise ServiceUnavailable(url=self.url, reason=self._read_log_tail())
        try:
            return self._http.get("/healthz").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def _start_loader(
        self, table: str, fault: str = "", *, lag_ms: int = 100
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "snowmelt.testing.workload", self.url, _USER]
        command += [str(self._key_file), table, "channel", "--stop", str(self._stop_file)]
        command += ["--lag-ms", str(lag_ms)]
        return self._start_process(command, {"SNOWMELT_FAULT": fault}, stdout=subprocess.PIPE)

    def _start_migration(self, table: str, engine: str, fault: str = "") -> subprocess.Popen[bytes]:
        # With --debug, Java reports dead workers on standard error.
        command = [sys.executable, "-m", "snowmelt", "--debug", "migrate", table]
        return self._start_process(
            [*command, "--engine", engine],
            self.settings.to_environment() | {"SNOWMELT_FAULT": fault},
        )

    def _start_process(
        self, command: list[str], environment: dict[str, str], stdout: int | None = None
    ) -> subprocess.Popen[bytes]:
        everywhere = copy_environment() | {"JDK_JAVA_OPTIONS": SHORT_LIVED_JAVA_OPTIONS}
        # Hundreds of processes are started. Without cached bytecode, each would compile its
        # imports.
        if everywhere.pop("PYTHONDONTWRITEBYTECODE", ""):
            everywhere.setdefault("PYTHONPYCACHEPREFIX", str(self._folder / "bytecode"))
        with self._log_file.open("ab") as log:
            out = log if stdout is None else stdout
            child = self._popen(command, env=everywhere | environment, stdout=out, stderr=log)
        self._children.append(child)
        return child

    @property
    def _require_database(self) -> Database:
        if self._database is None:
            raise InternalError("Use the crash harness as a context manager (with …).")
        return self._database

    def _execute_statements(self, *statements: str) -> None:
        for statement in statements:
            execute_statement(self._require_database, statement, user=None, clock=self._clock)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        until = self._clock.monotonic() + _STEP_TIMEOUT_S
        while not condition():
            if self._clock.monotonic() > until:
                raise InternalError(
                    f"A step of the crash run took longer than {_STEP_TIMEOUT_S:g} s:"
                    f" {self._read_log_tail()}"
                )
            self._clock.sleep(0.02)

    def _read_log_tail(self) -> str:
        if not self._log_file.exists():
            return "no output"
        return self._log_file.read_text(errors="replace")[-2000:]


def _check_killed(process: subprocess.Popen[bytes], point: Failpoint) -> None:
    if process.returncode != -signal.SIGKILL:
        raise InternalError(f"Nothing was killed at {point}: exit code {process.returncode}.")


def _write_key_pair(path: Path) -> str:
    private, public = generate_key_pair()
    path.touch(mode=0o600)
    path.write_bytes(private)
    return "".join(public.decode().splitlines()[1:-1])
