"""Spark jobs that run Python tasks, and DataFrames of Snowmelt's internal data sources.

A task reads and writes files in Python, and only its result passes through the JVM. Spark may run a
task twice. Each attempt writes its own files. Only the files of results that reach the driver are
committed.

Executors import this module, so it must not import the catalog or the database.
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

# The name matches `spark.redaction.regex`, so that Spark redacts the value when it shows options.
_PAYLOAD_OPTION = "secret_payload"

_registered_sources: weakref.WeakKeyDictionary[SparkSession, set[type[DataSource]]] = (
    weakref.WeakKeyDictionary()
)
_registration_lock = threading.Lock()


def create_payload_frame(
    spark: SparkSession, source: type[DataSource], payload: object, schema: StructType | str
) -> DataFrame:
    """Return a DataFrame of a data source. The source reads `payload` with `load_payload`."""
    with _registration_lock:
        registered = _registered_sources.setdefault(spark, set())
        if source not in registered:
            spark.dataSource.register(source)
            registered.add(source)
    encoded = base64.b85encode(pickle.dumps(payload)).decode()
    return spark.read.format(source.name()).schema(schema).option(_PAYLOAD_OPTION, encoded).load()


def load_payload(source: DataSource) -> Any:
    """Return the payload that `create_payload_frame` stored in a source's options."""
    # Safe to unpickle: only this session's driver writes the option.
    return pickle.loads(base64.b85decode(source.options[_PAYLOAD_OPTION]))  # noqa: S301


def run_tasks(
    spark: SparkSession, work: Callable[[Task], Outcome], tasks: Sequence[Task]
) -> list[Outcome]:
    """Run `work` for each task on executors, and return the results. `work` must be picklable."""
    # Use an RDD, because planning a data source starts two Python workers, which takes 0.1 s per
    # load.
    return spark.sparkContext.parallelize(tasks, max(1, len(tasks))).map(work).collect()
