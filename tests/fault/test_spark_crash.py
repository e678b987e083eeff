"""A Spark job that loses an executor in the middle loses no row, and doubles none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fix_chunks import Lakehouse

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

CHUNKS = 40
ROWS = 50

# A process of its own: there is one Spark context in a process.
PROGRAM = """
import os, signal, sys, threading, time
from pathlib import Path

from fix_chunks import NUMBERS, Lakehouse
from snowmelt.clock import SystemClock
from snowmelt.spark.migrate import migrate_table
from snowmelt.spark.session import local_session
from snowmelt.table.migration import MigrationSettings

lakehouse = Lakehouse(Path(sys.argv[1]))
spark = local_session("executors", "local-cluster[2,1,1024]")
spark.range(4).mapInArrow(lambda batches: batches, "id long").count()


def executors():
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            words = (process / "cmdline").read_bytes() if (process / "cmdline").exists() else b""
            ours = spark.sparkContext.applicationId.encode() in words
            if ours and b"CoarseGrainedExecutorBackend" in words:
                found.append(int(process.name))
    return found


def kill_one():
    while not lakehouse.data_files():
        time.sleep(0.01)
    print("killed", len(executors()), flush=True)
    os.kill(executors()[0], signal.SIGKILL)


threading.Thread(target=kill_one).start()
settings = MigrationSettings(lakehouse.stage.url, lakehouse.warehouse.url, target_bytes=1)
done = migrate_table(
    spark, lakehouse.database, lakehouse.keyring, NUMBERS, settings, clock=SystemClock()
)
print("migrated", done.rows, done.files, flush=True)
spark.stop()
"""


def test_a_migration_survives_the_death_of_an_executor(numbers_table):
    for number in range(CHUNKS):
        numbers_table.put_numbers(number * ROWS, ROWS)
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(numbers_table.folder)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert "killed 2" in answer.stdout, answer.stderr[-5000:]
    assert f"migrated {CHUNKS * ROWS} {CHUNKS}" in answer.stdout, answer.stderr[-5000:]
    again = Lakehouse(numbers_table.folder)
    assert again.table().migrated_seq == again.table().last_seq == CHUNKS
    assert sorted(again.read_numbers()) == list(range(CHUNKS * ROWS))
    again.close()
