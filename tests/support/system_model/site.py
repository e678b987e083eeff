"""Service of a run, which is killed and started again, with its catalog and its storage."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from fixtures.postgres import postgres_server
from fixtures.s3 import seaweed_server
from fixtures.service import ServiceProcess
from support.ports import free_port

_COMMAND_TIMEOUT_S = 300.0


class Site:
    """`snowmelt serve` in a folder, with frequent migrations, compactions and clean-ups.

    Whoever holds `lock` is safe from kills.
    """

    def __init__(
        self,
        folder: Path,
        *,
        migrate_max_age_s: int = 3,
        catalog_url: str | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        self._service = ServiceProcess(
            folder / "data",
            free_port(),
            catalog_url=catalog_url,
            program=("-m", "snowmelt", "serve", "--dev"),
            popen=subprocess.Popen,
            environment={
                "SNOWMELT_S3_PORT": str(free_port()),
                "SNOWMELT_MIGRATE": "1",
                "SNOWMELT_MIGRATE_INTERVAL_S": "1",
                "SNOWMELT_MIGRATE_MAX_AGE_S": str(migrate_max_age_s),
                "SNOWMELT_MIGRATE_MAX_CHUNKS": "40",
                "SNOWMELT_COMPACT_INTERVAL_S": "4",
                "SNOWMELT_COMPACT_MIN_FILES": "2",
                "SNOWMELT_CLEANUP_INTERVAL_S": "5",
                "SNOWMELT_LEASE_S": "5",
                "SNOWMELT_CONSOLE": "off",
                **(environment or {}),
            },
        )
        self._killer: threading.Thread | None = None
        self._killer_error: BaseException | None = None

    @property
    def url(self) -> str:
        return self._service.url

    @property
    def data_dir(self) -> Path:
        return self._service.data_dir

    @property
    def environment(self) -> dict[str, str]:
        """Environment of commands and clients beside the service."""
        more = {"SNOWMELT_DATA_DIR": str(self._service.data_dir)}
        if self._service.catalog_url is not None:
            more["SNOWMELT_CATALOG_URL"] = self._service.catalog_url
        folders = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        path = os.pathsep.join(filter(None, folders))
        return {**os.environ, "PYTHONPATH": path, **self._service.environment, **more}

    def start(self) -> None:
        self._service.start()

    def stop(self) -> None:
        """Stop the service."""
        if self._killer is not None:
            self._killer.join()
        if self._service.process is not None and self._service.process.poll() is None:
            self._service.stop()

    def kill_soon(self, delay_s: float) -> None:
        """Kill the service after a delay, beside what is done until then, and start it again."""
        if self._killer is not None and self._killer.is_alive():
            return
        self._killer = threading.Thread(target=self._kill_after, args=(delay_s,), daemon=True)
        self._killer.start()

    def wait_for_kill(self) -> None:
        """Wait until the service runs again.

        Raises:
            AssertionError: If the service did not start.
        """
        if self._killer is not None:
            self._killer.join()
        if self._killer_error is not None:
            raise AssertionError("the service did not start") from self._killer_error

    def run_command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of `snowmelt` on the data folder."""
        return subprocess.run(
            [sys.executable, "-m", "snowmelt", *arguments],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )

    def _kill_after(self, delay_s: float) -> None:
        time.sleep(delay_s)
        try:
            with self.lock:
                self._service.kill()
                self._service.start()
        except BaseException as error:
            self._killer_error = error


@contextlib.contextmanager
def running_site(
    folder: Path, *, postgres: bool = False, bucket: bool = False, migrate_max_age_s: int = 3
) -> Iterator[Site]:
    """Run a service in a folder, on SQLite or PostgreSQL, with its files in folders or a bucket."""
    with contextlib.ExitStack() as servers:
        url = servers.enter_context(postgres_server()) if postgres else None
        environment = {}
        if bucket:
            seaweed_folder = Path(servers.enter_context(tempfile.TemporaryDirectory()))
            seaweed = servers.enter_context(seaweed_server(seaweed_folder))
            name = uuid.uuid4().hex[:8]
            environment = {
                **seaweed.environment,
                "SNOWMELT_STAGE_URL": f"s3://behind/stage-{name}",
                "SNOWMELT_WAREHOUSE_URL": f"s3://behind/warehouse-{name}",
            }
        site = Site(
            folder,
            migrate_max_age_s=migrate_max_age_s,
            catalog_url=url,
            environment=environment,
        )
        try:
            site.start()
            yield site
        finally:
            site.stop()
