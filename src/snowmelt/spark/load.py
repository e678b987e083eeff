"""Portions of a load as a Spark job, one task for each.

A task does the whole load inside and writes native files in Python; what crosses to the JVM is
only its outcome. Spark may run a task twice; each attempt writes files of its own, and only
those whose outcome arrives at the driver are committed.
"""

from __future__ import annotations

import base64
import pickle
import threading
import weakref
from typing import TYPE_CHECKING

from snowmelt.spark.load_tasks import FORMAT, OPTION, SCHEMA, LoadTaskSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from snowmelt.bulk.work import Portioned, WorkPlan
    from snowmelt.load.steps import LoadTask

_registered: weakref.WeakSet[SparkSession] = weakref.WeakSet()
_registering = threading.Lock()


class SparkRunner:
    """Runs portions as tasks of a Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def parallelism(self) -> int:
        """How many tasks run at a time."""
        return int(self._spark.sparkContext.defaultParallelism)

    def __call__(self, plan: WorkPlan, tasks: Sequence[LoadTask]) -> list[Portioned]:
        """Run portions and return their outcomes when all are done."""
        with _registering:
            if self._spark not in _registered:
                self._spark.dataSource.register(LoadTaskSource)
                _registered.add(self._spark)
        payload = base64.b85encode(pickle.dumps((plan, list(tasks)))).decode()
        frame = self._spark.read.format(FORMAT).schema(SCHEMA).option(OPTION, payload).load()
        # Written by our own tasks, like the payload.
        return [pickle.loads(row.outcome) for row in frame.collect()]  # noqa: S301
