"""A COPY on Spark that loses an executor, a worker or its driver loads every row once or none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.chunks import Lakehouse
from snowmelt.failpoints import Failpoint
from snowmelt.testing.crash_harness import SHORT_LIVED_JAVA_OPTIONS

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

# Failpoints that executors can reach. Other points are tested without Spark.
STEPS = [Failpoint.LOAD_TASK, Failpoint.LOAD_INSIDE_COMMIT]
FILES = 4
ROWS = 50

# Use a separate process, because a process has only one Spark context.
PROGRAM = """
import os, signal, sys, threading, time
from pathlib import Path

from support.executors import executors, workers
from fixtures.chunks import Lakehouse
from fixtures.copy import Copying
from snowmelt import failpoints as faults
from snowmelt.spark.load_job import SparkLoadRunner
from snowmelt.spark.session import local_session

folder, files, rows, *steps = sys.argv[1:]
files, rows = int(files), int(rows)
house = Lakehouse(Path(folder))
copying = Copying(house)
spark = local_session("executors", "local-cluster[2,1,1024]")


def kill_one():
    global killed
    killed = executors(spark)[0]
    os.kill(killed, signal.SIGKILL)


def kill_at_first_file(before, kill):
    while house.data_files() == before:
        time.sleep(0.01)
    kill()


def kill_workers():
    global killed
    killed = 0
    for worker in workers(spark):
        os.kill(worker, signal.SIGKILL)


done = 0
for step in steps:
    paths = []
    for number in range(files):
        data = "".join(f"{n}|word\\n" for n in range(done, done + rows)) + "x|reject\\n"
        paths.append(copying.file(f"{step}-{number}.csv", data))
        done += rows
    # Both at work: those that died are started again by the cluster.
    while len(executors(spark)) < 2:
        time.sleep(0.05)
    spark.range(2).repartition(2).mapInArrow(lambda batches: batches, "id long").count()
    if step in ("load.task", "worker"):
        kill = kill_one if step == "load.task" else kill_workers
        before = house.data_files()
        threading.Thread(target=kill_at_first_file, args=(before, kill)).start()
    else:
        faults.arm(faults.Failpoint(step), kill_one)
    killed = None
    statement = f"COPY numbers FROM {', '.join(paths)} REJECTED DATA AS TABLE rejects"
    copied = copying.copy(statement, run=SparkLoadRunner(spark))
    while killed in [None, *executors(spark)]:
        time.sleep(0.05)
    print(step, copied.totals.rows, copied.totals.rejects, flush=True)
# At last the driver itself, which takes its executors with it.
path = copying.file("last.csv", "1|never\\n")
faults.arm(faults.Failpoint.LOAD_WRITTEN, lambda: os.kill(os.getpid(), signal.SIGKILL))
print("driver", flush=True)
copying.copy(f"COPY numbers FROM {path}", run=SparkLoadRunner(spark))
"""


def test_a_load_survives_the_death_of_executors_and_workers_at_any_step(
    numbers_table: Lakehouse,
) -> None:
    steps = [*STEPS, "worker"]
    words = [str(numbers_table.folder), str(FILES), str(ROWS), *steps]
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "JDK_JAVA_OPTIONS": SHORT_LIVED_JAVA_OPTIONS,
        },
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    told = [f"{step} {FILES * ROWS} {FILES}" for step in steps]
    assert answer.stdout.splitlines() == [*told, "driver"], answer.stderr[-5000:]
    again = Lakehouse(numbers_table.folder)
    assert sorted(again.read_numbers()) == list(range(FILES * ROWS * len(steps)))
    again.close()
