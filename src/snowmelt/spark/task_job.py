"""Work of Snowmelt as a Spark job: a Python data source, reading a partition of which does a task.

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
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

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
    rows = create_payload_frame(spark, TaskSource, (work, list(tasks)), "outcome binary").collect()
    # Written by our own tasks, like the payload.
    return [pickle.loads(row.outcome) for row in rows]  # noqa: S301


class TaskPartition(InputPartition):
    """One task, for one Spark task."""

    def __init__(self, work: Callable[[Any], Any], task: Any) -> None:
        self.work = work
        self.task = task


class TaskSource(DataSource):
    """A data source whose reading does tasks, and whose rows are their outcomes."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "snowmelt_tasks"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  the contract's
        """Return the reader that does the tasks."""
        return _TaskReader(*load_payload(self))


class _TaskReader(DataSourceReader):
    def __init__(self, work: Callable[[Any], Any], tasks: Sequence[Any]) -> None:
        self._work = work
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        return [TaskPartition(self._work, task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskPartition)  # noqa: S101  Spark hands back our own
        outcome = pickle.dumps(partition.work(partition.task))
        return iter([pa.RecordBatch.from_pydict({"outcome": pa.array([outcome], pa.binary())})])
