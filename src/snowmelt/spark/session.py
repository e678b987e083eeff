"""The Spark settings that Snowmelt depends on, and local sessions."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from importlib import resources

from pyspark.sql import SparkSession

from snowmelt.spark import copy_dataframe_source, select
from snowmelt.spark.java import using_java

# What reading needs for right answers; set on any session that is handed to us as well.
_REQUIRED_SETTINGS: Mapping[str, str] = {
    # A session that skips missing or broken files drops rows without a word.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    # Native files are read by field id, so that names which differ only by case, or were
    # renamed, find their column.
    "spark.sql.parquet.fieldId.read.enabled": "true",
    # TIME is a type that Spark 4 still keeps behind a switch.
    "spark.sql.timeType.enabled": "true",
    # INT96, the default, has no statistics and other engines refuse it.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}

# What makes it fast; measured on two cores. A user's own session keeps its own values.
_PERFORMANCE_SETTINGS: Mapping[str, str] = {
    # Planning 10,000 paths takes 16.5 s by a listing job and 1.1 s on the driver.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
    # Small files are many: at the default of 4 MiB each 93 KB file costs a task of its own.
    "spark.sql.files.openCostInBytes": "131072",
    # A Python UDF otherwise keeps its results back until 64 KiB have come together.
    "spark.sql.execution.python.udf.buffer.size": "4096",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.shuffle.partitions": "8",
}

_LOCAL_SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    # Workers forked from ours have their imports done.
    "spark.python.daemon.module": "snowmelt.spark.daemon",
    "spark.sql.artifact.isolation.enabled": "false",
}


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Return the builder with everything that Snowmelt wants of a session it may shape."""
    return builder.config(map={**_REQUIRED_SETTINGS, **_PERFORMANCE_SETTINGS})


def local_session(
    app_name: str = "snowmelt", master: str = "local[2]", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start, or return, the Spark session of this process; `conf` goes over our settings.

    Raises:
        JavaMissing: There is no Java, and the wheel that brings one is not installed.
    """
    # Workers must run this interpreter: `python3` on the PATH lacks our packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable  # noqa: TID251  PySpark reads it there
    # Spark otherwise looks for an address of this machine, and warns of what it finds.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # noqa: TID251  read by the JVM
    # It prints whole JVM stacks of what is raised anyway.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    builder = configure(SparkSession.builder.appName(app_name).master(master))
    logs = resources.files("snowmelt.spark") / "log4j2.properties"
    with using_java(), resources.as_file(logs) as path:
        # Spark's own log settings print five lines at each start.
        options = {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={path.as_uri()}"}
        spark = builder.config(map={**_LOCAL_SETTINGS, **options, **(conf or {})}).getOrCreate()
    select.register(spark)
    copy_dataframe_source.register(spark)
    return spark


def apply_required_settings(spark: SparkSession) -> None:
    """Set on a running session what right answers depend on, and leave the rest to its owner."""
    for name, value in _REQUIRED_SETTINGS.items():
        if spark.conf.get(name, None) != value:
            spark.conf.set(name, value)
