"""A standalone cluster with PostgreSQL and a bucket: counts stay exact if workers are killed."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

import snowmelt
from fixtures.s3 import Seaweed
from fixtures.service import KeyPair, ServiceProcess, prepare_loading
from snowmelt.clock import SystemClock
from snowmelt.spark.java import get_archive_options, use_java
from snowmelt.testing.crash_harness import SHORT_LIVED_JAVA_OPTIONS
from support.ports import free_port
from support.sdk_table import rows

pytestmark = [
    pytest.mark.spark,
    pytest.mark.postgres,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

PROGRAM = Path(__file__).parents[1] / "support" / "cluster_driver.py"
CHANNELS, FLUSHES, ROWS = 3, 3, 400
STREAMED = CHANNELS * FLUSHES * ROWS
FILES, LINES = 4, 250
# Range of the IDs of a DataFrame.
WRITTEN = (STREAMED + FILES * LINES, STREAMED + FILES * LINES + 5000)


class Cluster:
    """A master and its workers on loopback. `environment` is the environment of executors."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        home = Path(pyspark.__file__).parent
        self._class = str(home / "bin" / "spark-class")
        self._environment = environment | {
            "JAVA_HOME": str(use_java()),
            "JDK_JAVA_OPTIONS": SHORT_LIVED_JAVA_OPTIONS,
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": get_archive_options(),
            "SPARK_LOCAL_DIRS": str(folder),
        }
        self._numbers = itertools.count()
        self._daemons: list[subprocess.Popen[bytes]] = []
        log = self._start("master.Master")
        self.master = self._said(log, r"master at (spark://\S+)")
        self.workers: list[subprocess.Popen[bytes]] = []

    def add_worker(self) -> None:
        sizes = ("--cores", "1", "--memory", "600m", "--work-dir", str(self._folder))
        self._start("worker.Worker", *sizes, self.master)
        self.workers.append(self._daemons[-1])

    def kill_worker(self) -> None:
        """kill -9 the oldest worker and the executor that it started."""
        lost = self.workers.pop(0)
        os.killpg(lost.pid, signal.SIGKILL)
        lost.wait()

    def close(self) -> None:
        for each in self._daemons:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
            each.wait()

    def _start(self, name: str, *arguments: str) -> Path:
        log = self._folder / f"{name}-{next(self._numbers)}.log"
        ports = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        with log.open("wb") as file:
            daemon = subprocess.Popen(
                [self._class, f"org.apache.spark.deploy.{name}", *ports, *arguments],
                cwd=self._folder,
                env=self._environment,
                stdout=file,
                stderr=file,
                # Run a worker and its executors in a process group, to kill them together.
                start_new_session=True,
            )
        self._daemons.append(daemon)
        return log

    def _said(self, log: Path, pattern: str) -> str:
        clock = SystemClock()
        end = clock.monotonic() + 200
        while clock.monotonic() < end:
            if found := re.search(pattern, log.read_text()):
                return found[1]
            clock.sleep(0.05)
        raise AssertionError(log.read_text())


@pytest.fixture
def environment(
    seaweed: Seaweed, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> dict[Any, Any]:
    """Environment of all processes of the deployment: catalog, stage and warehouse."""
    own = uuid.uuid4().hex[:8]
    given = seaweed.environment | {
        "SNOWMELT_CATALOG_URL": postgres_url,
        "SNOWMELT_STAGE_URL": f"s3://behind/stage-{own}",
        "SNOWMELT_WAREHOUSE_URL": f"s3://behind/warehouse-{own}",
    }
    for name in range(FILES):
        lines = "".join(f"{n}|copied|2026-11-21 10:00:00\n" for n in copied(name))
        key = f"files-{own}/{name}.csv"
        seaweed.client().put_object(Bucket="behind", Key=key, Body=lines.encode())
    for variable, setting in given.items():
        monkeypatch.setenv(variable, setting)
    return {**os.environ, "FILES": f"s3://behind/files-{own}"}


def copied(file: int) -> range:
    first = STREAMED + file * LINES
    return range(first, first + LINES)


@pytest.fixture
def data(environment: Any, tmp_path: Path, key_pair: KeyPair) -> Iterator[Path]:
    """The data folder of a service with streamed rows."""
    service = ServiceProcess(tmp_path / "data", free_port(), os.environ["SNOWMELT_CATALOG_URL"])
    s3_port = free_port()
    service.start(s3_port=s3_port, stage_endpoint=f"http://127.0.0.1:{s3_port}")
    prepare_loading(service, key_pair)
    with snowmelt.Client(
        service.url,
        user="loader",
        private_key=key_pair.private_pem,
        max_client_lag=dt.timedelta(milliseconds=200),
    ) as client:
        channels = [client.open_channel(f"c{n}", table="demo.public.t") for n in range(CHANNELS)]
        batches = itertools.count()
        for _ in range(FLUSHES):
            for channel in channels:
                first = next(batches) * ROWS
                channel.insert_rows(rows(first, first + ROWS), str(first))
            for channel in channels:
                channel.flush()
    yield service.data_dir
    service.kill()


def test_a_worker_may_die_in_each_step(environment: Any, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    cluster = Cluster(folder, environment)
    log = (tmp_path / "driver.log").open("wb")
    found = {}
    try:
        for _ in range(2):
            cluster.add_worker()
        with (
            log,
            subprocess.Popen(
                [
                    sys.executable,
                    PROGRAM,
                    cluster.master,
                    str(data),
                    environment["FILES"],
                    "{}:{}".format(*WRITTEN),
                ],
                env=environment | {"JDK_JAVA_OPTIONS": SHORT_LIVED_JAVA_OPTIONS},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            ) as driver,
        ):
            assert driver.stdout is not None
            for line in driver.stdout:
                told = json.loads(line)
                if "running" in told:
                    cluster.kill_worker()
                    cluster.add_worker()
                    assert driver.stdin is not None
                    driver.stdin.write("dead\n")
                    driver.stdin.flush()
                else:
                    found[told["done"]] = told["result"]
        assert driver.returncode == 0, (tmp_path / "driver.log").read_text()[-5000:]
    finally:
        cluster.close()
    streamed = [STREAMED, STREAMED, sum(range(STREAMED))]
    everything = WRITTEN[1]
    assert found == {
        "query of chunks": streamed,
        "migrate": [STREAMED],
        "query of files": streamed,
        "copy": [FILES * LINES],
        "write": [5000, 5000],
        "end": [everything, everything, sum(range(everything))],
    }
