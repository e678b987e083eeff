"""A stream from table to table whose driver and executors are killed copies each row once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fixtures.chunks import COLUMNS, NUMBERS, Lakehouse, numbers
from snowmelt.catalog.jobs.load_history import list_loads
from snowmelt.catalog.jobs.run_history import RunState
from snowmelt.catalog.objects.tables import create_table
from snowmelt.clock import SystemClock
from snowmelt.schema.types import TableName
from snowmelt.table.compaction import compact
from snowmelt.table.file_replacement_run import MaintenanceSettings
from snowmelt.testing.crash_harness import SHORT_LIVED_JAVA_OPTIONS

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

COPIED = TableName("DEMO", "PUBLIC", "COPIED")
ROWS = 20

# Use a separate process: it is killed, and a process has only one Spark context.
PROGRAM = """
import os, signal, sys, threading, time

from pyspark.errors import StreamingQueryException

from support.executors import executors
from snowmelt.spark.format import register
from snowmelt.spark.session import local_session

folder, kill = sys.argv[1:]
# Executors are killed with their driver, so it needs none.
spark = local_session("streams", "local-cluster[2,1,1024]" if kill == "executor" else "local[2]")
register(spark)


while kill == "executor" and len(executors(spark)) < 2:
    time.sleep(0.05)
stream = (
    spark.readStream.format("snowmelt")
    .options(data_dir=folder, table="demo.public.numbers", maxChunksPerTrigger="1")
    .load()
)
writer = (
    stream.repartition(2)
    .writeStream.format("snowmelt")
    .options(data_dir=folder, table="demo.public.copied")
    .option("checkpointLocation", folder + "/checkpoint")
    .trigger(availableNow=True)
)


def kill_one(query):
    while query.isActive and not query.recentProgress:
        time.sleep(0.05)
    os.kill(executors(spark)[0], signal.SIGKILL)


while True:
    query = writer.start()
    if kill == "executor":
        threading.Thread(target=kill_one, args=(query,)).start()
        kill = None
    try:
        query.awaitTermination()
        break
    except StreamingQueryException as error:
        # Spark gives a source's process ten seconds to start, a loaded machine more.
        if "failed to connect back" not in str(error):
            raise
print("done", flush=True)
"""


def start(folder: Path, kill: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), kill],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "JDK_JAVA_OPTIONS": SHORT_LIVED_JAVA_OPTIONS,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def committed(house: Lakehouse) -> int:
    with house.database.reading() as connection:
        return sum(load.state is RunState.COMMITTED for load in list_loads(connection))


def test_each_row_is_copied_once_whoever_is_killed(lakehouse: Lakehouse) -> None:
    lakehouse.create()
    with lakehouse.database.writing() as connection:
        create_table(connection, COPIED, COLUMNS, owner="ACCOUNTADMIN", now=lakehouse.clock.now())
    for number in range(6):
        lakehouse.put(numbers(number * ROWS, ROWS))
        if number in {2, 4}:
            lakehouse.migrate()

    first = start(lakehouse.folder, "driver")
    try:
        while committed(lakehouse) < 2:
            assert first.stdout is not None
            assert first.poll() is None, first.stdout.read()[-5000:]
            time.sleep(0.02)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()
    # The rows are stored in other files when the stream restarts.
    settings = MaintenanceSettings(lakehouse.warehouse.url, min_files=2)
    lakehouse.migrate()
    compact(lakehouse.database, NUMBERS, settings, clock=SystemClock())
    lakehouse.put(numbers(6 * ROWS, ROWS))

    second = start(lakehouse.folder, "executor")
    try:
        said, _ = second.communicate(timeout=500)
    finally:
        if second.poll() is None:
            os.killpg(second.pid, signal.SIGKILL)
    # Messages of the ending cluster may follow it.
    assert "done" in said.splitlines(), said[-5000:]
    again = Lakehouse(lakehouse.folder)
    assert sorted(map(int, again.read_numbers(COPIED))) == list(range(7 * ROWS))
    again.close()
