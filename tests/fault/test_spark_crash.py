"""A Spark job that loses an executor loses and duplicates no row."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.chunks import Lakehouse
from snowmelt.failpoints import Failpoint
from snowmelt.testing.crash_harness import SHORT_LIVED_JAVA_OPTIONS

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

# Kill before the tasks, during the tasks, and while only the driver works.
STEPS = [Failpoint.MIGRATION_PLANNED, Failpoint.MIGRATION_TASK, Failpoint.MIGRATION_INSIDE_COMMIT]
CHUNKS = 6
ROWS = 50

# Use a separate process, because a process has only one Spark context.
PROGRAM = """
import os, signal, sys, threading, time
from functools import partial
from pathlib import Path

from support.executors import executors
from fixtures.chunks import NUMBERS, Lakehouse
from snowmelt import failpoints as faults
from snowmelt.clock import SystemClock
from snowmelt.spark.task_job import run_tasks
from snowmelt.spark.session import local_session
from snowmelt.table.migration import MigrationSettings, migrate_table

folder, chunks, rows, *steps = sys.argv[1:]
chunks, rows = int(chunks), int(rows)
lakehouse = Lakehouse(Path(folder))
spark = local_session("executors", "local-cluster[2,1,1024]")


def kill_one():
    global killed
    killed = executors(spark)[0]
    os.kill(killed, signal.SIGKILL)


def kill_at_first_file(files):
    while lakehouse.data_files() == files:
        time.sleep(0.01)
    kill_one()


settings = MigrationSettings(lakehouse.stage.url, lakehouse.warehouse.url, target_bytes=1)
done = 0
for step in steps:
    for _ in range(chunks):
        lakehouse.put_numbers(done, rows)
        done += rows
    # Both at work: those that died are started again by the cluster.
    while len(executors(spark)) < 2:
        time.sleep(0.05)
    spark.range(2).repartition(2).mapInArrow(lambda batches: batches, "id long").count()
    if step == "migration.task":
        files = lakehouse.data_files()
        threading.Thread(target=kill_at_first_file, args=(files,)).start()
    else:
        faults.arm(faults.Failpoint(step), kill_one)
    killed = None
    migrated = migrate_table(
        lakehouse.database, lakehouse.keyring, NUMBERS, settings, clock=SystemClock(),
        run_tasks=partial(run_tasks, spark),
    )
    while killed in [None, *executors(spark)]:
        time.sleep(0.05)
    print(step, migrated.rows, migrated.files, flush=True)
spark.stop()
"""


def test_a_migration_survives_the_death_of_an_executor_at_any_step(
    numbers_table: Lakehouse,
) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(numbers_table.folder), str(CHUNKS), str(ROWS), *STEPS],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "JDK_JAVA_OPTIONS": SHORT_LIVED_JAVA_OPTIONS,
        },
        capture_output=True,
        text=True,
        timeout=800,
    )
    told = [f"{step} {CHUNKS * ROWS} {CHUNKS}" for step in STEPS]
    assert answer.stdout.splitlines() == told, answer.stderr[-5000:]
    again = Lakehouse(numbers_table.folder)
    assert again.table().migrated_seq == again.table().last_seq == CHUNKS * len(STEPS)
    assert sorted(again.read_numbers()) == list(range(CHUNKS * ROWS * len(STEPS)))
    again.close()
