"""COPY as a Spark job, one task for each portion.

A task runs its part of the load and writes native files in Python; only its outcome passes through
the JVM. Spark may run a task twice. Each attempt writes its own files, and only files whose outcome
reaches the driver are committed.
"""

from __future__ import annotations

import base64
import contextlib
import pickle
import threading
import uuid
import weakref
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from snowmelt.loaders.load_task_execution import run_load_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from snowmelt.load.task import LoadTask
    from snowmelt.loaders.load_task_execution import LoadTaskPlan, PortionResult

_registered_sessions: weakref.WeakSet[SparkSession] = weakref.WeakSet()
_registration_lock = threading.Lock()
_JOB_GROUP_PROPERTY = "spark.jobGroup.id"
_POLL_INTERVAL_S = 0.5


class SparkLoadRunner:
    """Runs portions as tasks of a Spark session.

    While they run, `on_tasks` is told twice a second how many are done, and how many there are.
    """

    def __init__(
        self, spark: SparkSession, on_tasks: Callable[[int, int], None] | None = None
    ) -> None:
        self._spark = spark
        self._on_tasks = on_tasks

    @property
    def parallelism(self) -> int:
        """How many tasks run at a time."""
        return int(self._spark.sparkContext.defaultParallelism)

    def __call__(self, plan: LoadTaskPlan, tasks: Sequence[LoadTask]) -> list[PortionResult]:
        """Run portions and return their outcomes when all are done."""
        with _registration_lock:
            if self._spark not in _registered_sessions:
                self._spark.dataSource.register(LoadTaskSource)
                _registered_sessions.add(self._spark)
        payload = base64.b85encode(pickle.dumps((plan, list(tasks)))).decode()
        frame = (
            self._spark.read.format(FORMAT)
            .schema(OUTCOME_SCHEMA)
            .option(TASKS_OPTION, payload)
            .load()
        )
        with self._reporting_progress(len(tasks)):
            rows = frame.collect()
        # Written by our own tasks, like the payload.
        return [pickle.loads(row.outcome) for row in rows]  # noqa: S301

    @contextlib.contextmanager
    def _reporting_progress(self, task_count: int) -> Iterator[None]:
        """Tell of tasks that are done, as Spark's scheduler knows them."""
        told = self._on_tasks
        if told is None:
            yield
            return
        context, group, ended = (
            self._spark.sparkContext,
            f"snowmelt-{uuid.uuid4()}",
            threading.Event(),
        )
        tracker = context.statusTracker()

        def watch() -> None:
            # Where Java ends, the load itself says so.
            with contextlib.suppress(Py4JError, OSError):
                while not ended.wait(_POLL_INTERVAL_S):
                    jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(group))
                    stages = [stage for job in jobs if job is not None for stage in job.stageIds]
                    found = map(tracker.getStageInfo, stages)
                    done = sum(stage.numCompletedTasks for stage in found if stage is not None)
                    told(done, task_count)

        before = context.getLocalProperty(_JOB_GROUP_PROPERTY)
        context.setLocalProperty(_JOB_GROUP_PROPERTY, group)
        watcher = threading.Thread(target=watch, name="snowmelt-load-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()
            with contextlib.suppress(Py4JError, OSError):
                # None takes it away, which the annotation does not know.
                context.setLocalProperty(_JOB_GROUP_PROPERTY, cast("str", before))


# --- A load's portions as a Python data source: reading a partition does the work.
#
# Kept apart from the driver's half, so that executors import neither catalog nor database.

FORMAT = "snowmelt_load_tasks"
TASKS_OPTION = "secret_tasks"
OUTCOME_SCHEMA = "outcome binary"


class LoadTaskPartition(InputPartition):
    """One portion of a load, for one Spark task."""

    def __init__(self, plan: LoadTaskPlan, task: LoadTask) -> None:
        self.plan = plan
        self.task = task


class LoadTaskSource(DataSource):
    """A data source whose reading loads, and whose rows say what became of each portion."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  the contract's
        """Return the reader that runs the portions which the option brings."""
        # Only bytes that this very process's driver has pickled come here.
        return _LoadTaskReader(*pickle.loads(base64.b85decode(self.options[TASKS_OPTION])))  # noqa: S301


class _LoadTaskReader(DataSourceReader):
    def __init__(self, plan: LoadTaskPlan, tasks: Sequence[LoadTask]) -> None:
        self._plan = plan
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        return [LoadTaskPartition(self._plan, task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LoadTaskPartition)  # noqa: S101  Spark hands back our own
        outcome = pickle.dumps(run_load_task(partition.plan, partition.task))
        schema = pa.schema([pa.field("outcome", pa.binary())])
        return iter([pa.RecordBatch.from_arrays([pa.array([outcome], pa.binary())], schema=schema)])
