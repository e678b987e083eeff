"""External functions when Spark repeats work: every batch has one ID and runs once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.functions import Counted, counting
from snowmelt.clock import SystemClock
from snowmelt.functions.service import Context, RemoteService
from snowmelt.testing.crash_harness import SHORT_LIVED_JAVA_OPTIONS
from support.functions_service import hosted

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

DEFINED = """
def defined(lake, url):
    lake.sql("create database demo")
    lake.sql(
        "create api integration here api_provider = http "
        f"api_allowed_prefixes = ('{url}') enabled = true"
    )
    lake.sql(
        "create external function demo.public.doubled(n number(10,0)) returns number(10,0)"
        f" max_batch_rows = 10 max_in_flight = 2 api_integration = here as '{url}/doubled'"
    )
"""
CLUSTER = """
import json, os, signal, sys, threading, time

from support.executors import executors
from snowmelt.spark import Snowmelt
from snowmelt.spark.session import local_session

folder, url = sys.argv[1:]
# On one machine Spark speculates on nothing, as both executors have one host; it warns all the same.
spark = local_session("cluster", "local-cluster[2,1,1024]", {"spark.speculation": "true"})
lake = Snowmelt.local(folder, spark=spark, create=True)
defined(lake, url)


def asked(start, end):
    text = f"select id, demo.public.doubled(id) v from range({start}, {end}, 1, 4)"
    return sorted((row.id, int(row.v)) for row in lake.sql(text).collect())


def kill_one():
    sys.stdin.readline()
    os.kill(executors(spark)[0], signal.SIGKILL)


# Both have told the driver of themselves, so each gets a task at once.
status = spark.sparkContext._jsc.sc().statusTracker()
while len(status.getExecutorInfos()) < 3:
    time.sleep(0.05)
asked(0, 4)
threading.Thread(target=kill_one, daemon=True).start()
print(json.dumps(asked(100, 420)), flush=True)
spark.stop()
"""
CONNECT = """
import json, os, sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from snowmelt.errors import UserError
from snowmelt.spark import Snowmelt
from snowmelt.spark.java import use_java
from snowmelt.spark.session import configure

folder, url = sys.argv[1:]
use_java()
spark = configure(SparkSession.builder.remote("local[2]")).getOrCreate()
lake = Snowmelt.local(folder, spark=spark, create=True)
defined(lake, url)
rows = lake.sql("select doubled(id) v from range(0, 30, 1, 2)", database="demo").collect()
print(json.dumps(sorted(int(row.v) for row in rows)), flush=True)
tried = lake.sql("select try_doubled(n => 4) v", database="demo").collect()[0].v
print(json.dumps([int(tried.value), tried.error]), flush=True)
column = lake.function("demo.public.doubled")
print(json.dumps([int(row[0]) for row in spark.range(2).select(column("id")).collect()]), flush=True)
lake.attach_functions("demo.public")
print(json.dumps(int(spark.sql("select doubled(21)").collect()[0][0])), flush=True)
try:
    lake.sql("select doubled(1, 2)", database="demo")
except UserError as error:
    print(json.dumps(str(error)), flush=True)
names = [row.FUNCTION_NAME for row in lake.calls().collect()]
print(json.dumps([len(names), sorted(set(names))]), flush=True)
spark.stop()
"""


def run(
    program: str, folder: Path, url: str, *, is_time: Callable[[], bool] = lambda: True
) -> tuple[list[Any], str]:
    """Run a program. Return its output and log. Sends it a line when a condition is met."""
    with subprocess.Popen(
        [sys.executable, "-c", DEFINED + program, str(folder), url],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "JDK_JAVA_OPTIONS": SHORT_LIVED_JAVA_OPTIONS,
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            while process.poll() is None and not is_time():
                SystemClock().sleep(0.01)
            said, complained = process.communicate("now\n", timeout=800)
        finally:
            process.kill()
    assert process.returncode == 0, complained[-5000:]
    return [json.loads(line) for line in said.splitlines()], complained


@pytest.fixture
def service() -> Iterator[tuple[str, Counted, list[str | None]]]:
    """A slow service, its requests, and the batches that it ran."""
    svc, counted, worked = RemoteService("slow"), Counted(), []

    @svc.function(mode="batch")
    async def doubled(n: list[int], context: Context) -> list[int]:
        worked.append(context.batch_id)
        await SystemClock().pause(0.4)
        return [2 * each for each in n]

    with hosted(counting(svc.asgi(), counted)) as url:
        yield url, counted, worked


def test_tasks_of_an_executor_that_dies_are_worked_on_once(
    service: tuple[str, Counted, list[str | None]], tmp_path: Path
) -> None:
    url, counted, worked = service

    def both_at_work() -> bool:
        return len({(n - 100) // 80 for n in counted.values if n >= 100}) >= 2

    [answered], warned = run(CLUSTER, tmp_path, url, is_time=both_at_work)
    assert "spark.speculation is on" in warned
    assert answered == [[n, 2 * n] for n in range(100, 420)]
    posts = Counter(counted.ids)
    assert max(posts.values()) >= 2
    assert set(Counter(worked).values()) == {1}
    assert set(worked) == set(posts)


def test_spark_connect_calls_them_too(
    service: tuple[str, Counted, list[str | None]], tmp_path: Path
) -> None:
    url, _, _ = service
    answers, _ = run(CONNECT, tmp_path, url)
    assert answers[:4] == [[2 * n for n in range(30)], [8, None], [0, 2], 42]
    assert "it takes 1 argument (N NUMBER(10,0)), not 2" in answers[4]
    assert answers[5][0] >= 6
    assert answers[5][1] == ["DEMO.PUBLIC.DOUBLED"]
