"""Among how many machines a rate is shared out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def hosts_of(spark: SparkSession) -> int:
    """Return how many machines have executors now; 1 over Spark Connect, which does not tell."""
    try:
        # Spark's own list has no other way. `SparkEnv` would tell the driver apart as well, but
        # names a class that is not in Spark's jars, so that no method of it can be looked up.
        store: Any = spark.sparkContext._jsc.sc().statusStore()  # noqa: SLF001
        listed = store.executorList(True).iterator()
        places = {}
        while listed.hasNext():
            each = listed.next()
            places[str(each.id())] = str(each.hostPort()).rpartition(":")[0]
    except Exception:  # noqa: BLE001  Spark Connect has no context, and says so in several ways
        return 1
    # The driver is listed like an executor; in local mode it is the only one.
    return len({host for name, host in places.items() if name != "driver"}) or 1
