"""Among how many machines a rate is shared out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def hosts_of(spark: SparkSession) -> int:
    """Return how many machines have executors now; 1 over Spark Connect, which does not tell."""
    try:
        context = spark.sparkContext
        java: Any = context._jvm  # noqa: SLF001  Spark's own list has no other way
        members = context._jsc.sc().getExecutorMemoryStatus().keys().iterator()  # noqa: SLF001
        places = set()
        while members.hasNext():
            places.add(str(members.next()))
        # The driver is listed like an executor; in local mode it is the only one.
        driver = java.org.apache.spark.SparkEnv.get().blockManager().blockManagerId().hostPort()
    except Exception:  # noqa: BLE001  Spark Connect has no context, and says so in several ways
        return 1
    executors = places - {str(driver)} or places
    return len({place.rpartition(":")[0] for place in executors})
