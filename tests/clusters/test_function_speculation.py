"""External functions when Spark runs a task twice on two hosts, by speculation or after a failure.

Spark starts no copy of a task on the same host, so there are two workers, each with a loopback
address of its own. The slow task occupies one worker, and the other worker runs all other tasks.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import pyspark
import pytest

from fixtures.functions import Counted, counting
from snowmelt.clock import SystemClock
from snowmelt.functions.service import Context, RemoteService
from snowmelt.spark.java import use_java
from snowmelt.testing.crash_harness import SHORT_LIVED_JAVA_OPTIONS
from support.functions_service import hosted

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

HOSTS = ("127.0.0.2", "127.0.0.3")
PROGRAM = """
import json, sys, time

from pyspark import TaskContext

from snowmelt.spark import Snowmelt
from snowmelt.spark.functions.registry import count_executor_hosts
from snowmelt.spark.session import local_session

folder, url, master = sys.argv[1:]
speculation = {"quantile": 0.75, "multiplier": 1.1, "interval": "100ms", "minTaskRuntime": "1s"}
spark = local_session("speculating", master, {
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    **{f"spark.speculation.{name}": str(value) for name, value in speculation.items()},
})
lake = Snowmelt.local(folder, spark=spark, create=True)
lake.sql("create database demo")
lake.sql(
    "create api integration here api_provider = http "
    f"api_allowed_prefixes = ('{url}') enabled = true"
)
lake.sql(
    "create external function demo.public.doubled(n number(10,0)) returns number(10,0)"
    f" max_batch_rows = 10 api_integration = here as '{url}/doubled'"
)


def breaking(batches):
    yield from batches
    if TaskContext.get().partitionId() == 1 and TaskContext.get().attemptNumber() == 0:
        raise ValueError("a first attempt breaks after its last row")


def told(given):
    print(json.dumps(given), flush=True)


while count_executor_hosts(spark) < 2:
    time.sleep(0.05)
found = lake.sql("select id, int(demo.public.doubled(id)) v from range(0, 40, 1, 4)")
told(sorted(tuple(row) for row in found.mapInArrow(breaking, found.schema).collect()))
# The copy that lost had its answer too, and writes that down in its own time.
for _ in range(600):
    calls = [(row.BATCH_ID, row.ATTEMPT, row.ATTEMPTS) for row in lake.calls().collect()]
    if sum(attempt for _, attempt, _ in calls) == 2 and len(calls) == 6:
        break
    time.sleep(0.1)
told(calls)
spark.stop()
"""


def at_home(folder: Path) -> list[int]:
    """Return the processes whose working directory is a folder or below it."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and (process / "cwd").readlink().is_relative_to(folder):
                found.append(int(process.name))
        except OSError:
            continue  # The process has ended, or belongs to another user.
    return found


def until(
    given: Callable[[], list[int]] | Callable[[], re.Match[str] | None],
    wanted: Callable[[Any], bool] | type[bool],
) -> list[int] | re.Match[str] | None:
    """Call a function until its result satisfies a condition, for some minutes. Return the result."""
    clock = SystemClock()
    end = clock.monotonic() + 200
    while not wanted(found := given()) and clock.monotonic() < end:
        clock.sleep(0.05)
    return found


@contextmanager
def daemon(folder: Path, name: str, *arguments: str) -> Iterator[Path]:
    """Run a daemon of Spark's standalone mode. Yield its log file."""
    home = Path(pyspark.__file__).parent
    log = folder / f"{name.rpartition('.')[2]}-{arguments[1]}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [home / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *arguments],
            cwd=folder,
            env={
                **os.environ,
                "JAVA_HOME": str(use_java()),
                "JDK_JAVA_OPTIONS": SHORT_LIVED_JAVA_OPTIONS,
                "SPARK_HOME": str(home),
                "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_LOCAL_DIRS": str(folder),
            },
            stdout=file,
            stderr=file,
        )
    try:
        yield log
    finally:
        process.terminate()
        process.wait(120)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Any]:
    """The URL of a cluster with two hosts. The cluster ends with the test."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    with ExitStack() as daemons:
        anywhere = ("--port", "0", "--webui-port", "0")
        log = daemons.enter_context(
            daemon(folder, "master.Master", "--host", "127.0.0.1", *anywhere)
        )
        started = until(lambda: re.search(r"master at (spark://\S+)", log.read_text()), bool)
        assert isinstance(started, re.Match), log.read_text()
        size = ("--cores", "1", "--memory", "600m", "--work-dir", str(folder))
        for host in HOSTS:
            daemons.enter_context(
                daemon(folder, "worker.Worker", "--host", host, *anywhere, *size, started[1])
            )
        yield started[1]
    assert until(lambda: at_home(folder), lambda found: not found) == []


@pytest.fixture
def service() -> Iterator[tuple[str, Counted, list[str]]]:
    """A service that responds to the batch with number 0 only when it is requested again."""
    svc, counted, worked = RemoteService("straggling"), Counted(), []
    clock = SystemClock()

    @svc.function(mode="batch")
    async def doubled(n: list[int], context: Context) -> list[int]:
        batch = cast("str", context.batch_id)
        worked.append(batch)
        end = clock.monotonic() + 200
        while 0 in n and counted.ids.count(batch) < 2 and clock.monotonic() < end:
            await clock.pause(0.05)
        return [2 * each for each in n]

    with hosted(counting(svc.asgi(), counted)) as url:
        yield url, counted, worked


def test_copies_and_attempts_of_a_task_are_worked_on_once(
    master: Any, service: tuple[str, Counted, list[str]], tmp_path: Path
) -> None:
    url, counted, worked = service
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "lake"), url, master],
        env={**os.environ, "JDK_JAVA_OPTIONS": SHORT_LIVED_JAVA_OPTIONS},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert answer.returncode == 0, answer.stderr[-5000:]
    rows, calls = map(json.loads, answer.stdout.splitlines())
    assert rows == [[n, 2 * n] for n in range(40)]
    requests: dict[str, dict[Any, Any]] = {batch: {} for batch in counted.ids}
    for batch, attempt, count in calls:
        requests[batch][attempt] = count
    # Both copies of one task and both attempts at another sent requests, each of them once.
    for first in (0, 10):
        [batch] = {batch for _, batch, data in counted.calls if [0, first] in data}
        assert requests[batch] == {0: 1, 1: 1}
    assert Counter(counted.ids) == {batch: len(attempts) for batch, attempts in requests.items()}
    assert Counter(worked) == dict.fromkeys(requests, 1)
