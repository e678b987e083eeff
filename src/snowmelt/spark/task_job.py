"""Work of Snowmelt as a Spark job, and DataFrames of data sources of ours.

A task reads and writes files in Python; only its outcome passes through the JVM. Spark may run a
task twice. Each attempt writes its own files, and only files whose outcome reaches the driver are
committed.

Executors import neither catalog nor database for this module, but only what a task needs.
"""

from __future__ import annotations

import base64
import pickle
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")

# Redacted by Spark wherever options are shown: it matches `spark.redaction.regex`.
_PAYLOAD_OPTION = "secret_payload"

_registered_sources: weakref.WeakKeyDictionary[SparkSession, set[type[DataSource]]] = (
    weakref.WeakKeyDictionary()
)
_registration_lock = threading.Lock()


def create_payload_frame(
    spark: SparkSession, source: type[DataSource], payload: object, schema: StructType | str
) -> DataFrame:
    """Return a DataFrame of a data source of ours, which gets `payload` by `load_payload`."""
    with _registration_lock:
        registered = _registered_sources.setdefault(spark, set())
        if source not in registered:
            spark.dataSource.register(source)
            registered.add(source)
    encoded = base64.b85encode(pickle.dumps(payload)).decode()
    return spark.read.format(source.name()).schema(schema).option(_PAYLOAD_OPTION, encoded).load()


def load_payload(source: DataSource) -> Any:
    """Return the payload that a data source was created with."""
    # Only bytes that this very process's driver has pickled come here.
    return pickle.loads(base64.b85decode(source.options[_PAYLOAD_OPTION]))  # noqa: S301


def run_tasks(
    spark: SparkSession, work: Callable[[Task], Outcome], tasks: Sequence[Task]
) -> list[Outcome]:
    """Have executors do `work`, which can be pickled, for each task; return the outcomes."""
    # Not a data source: to plan one takes two Python workers, a tenth of a second for each load.
    return spark.sparkContext.parallelize(tasks, max(1, len(tasks))).map(work).collect()
