"""The format on Spark Connect, whose client has no JVM: reads, writes and streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.chunks import Lakehouse, numbers
from snowmelt.testing.crash_harness import SHORT_LIVED_JAVA_OPTIONS

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

# Use a separate process: a process cannot have a classic session and a Connect session.
PROGRAM = """
import json, sys

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from snowmelt.spark import Snowmelt
from snowmelt.spark.java import use_java
from snowmelt.spark.session import configure

folder = sys.argv[1]
table = "demo.public.numbers"
use_java()
spark = configure(SparkSession.builder.remote("local[2]")).getOrCreate()
lake = Snowmelt.local(folder, spark=spark, create=True)


def told(value):
    print(json.dumps(value), flush=True)


def read(**options):
    frame = spark.read.format("snowmelt").options(table=table, **options).load()
    return sorted(int(row.N) for row in frame.collect())


told(read(where="n < 5"))
frame = spark.range(100, 103).selectExpr("id AS n", "'w' AS word")
frame.write.format("snowmelt").mode("append").option("table", table).save()
told([int(row[0]) for row in lake.sql(f"INSERT INTO {table} SELECT n + 100, word FROM {table} "
                                      "WHERE n >= 100").collect()])
told(read(where="n >= 100"))
lake.sql("CREATE TABLE demo.public.copied (n INT, word VARCHAR(100))")
stream = spark.readStream.format("snowmelt").option("table", table).load()
writer = (
    stream.writeStream.format("snowmelt").option("table", "demo.public.copied")
    .option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True)
)
while True:
    try:
        writer.start().awaitTermination()
        break
    except StreamingQueryException as error:
        # Spark gives a source's process ten seconds to start, a loaded machine more.
        if "failed to connect back" not in str(error):
            raise
told(int(lake.table("demo.public.copied").count()))
try:
    frame.write.format("snowmelt").mode("overwrite").option("table", table).save()
except PySparkException as error:
    told("tables support only appends" in str(error))
spark.stop()
"""


def test_tables_are_read_written_and_streamed_without_a_jvm(lakehouse: Lakehouse) -> None:
    lakehouse.create()
    lakehouse.put(numbers(0, 10))
    lakehouse.migrate()
    lakehouse.put(numbers(10, 10))
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(lakehouse.folder)],
        env={**os.environ, "JDK_JAVA_OPTIONS": SHORT_LIVED_JAVA_OPTIONS},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    told = [json.loads(line) for line in answer.stdout.splitlines()]
    news = [100, 101, 102, 200, 201, 202]
    assert told == [[0, 1, 2, 3, 4], [3], news, 26, True], answer.stderr[-5000:]
