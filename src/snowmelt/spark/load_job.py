"""COPY as a Spark job with one task per portion. Uses `snowmelt.spark.task_job`."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import cast

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from snowmelt.load.task import LoadTask
from snowmelt.loaders.load_task_execution import LoadTaskPlan, PortionResult, run_load_task
from snowmelt.spark.task_job import run_tasks

_JOB_GROUP_PROPERTY = "spark.jobGroup.id"
_POLL_INTERVAL_S = 0.5


class SparkLoadRunner:
    """Runner that executes portions as tasks of a Spark session.

    While they run, `on_tasks(done, total)` is called every 0.5 s from a background thread.
    """

    def __init__(
        self, spark: SparkSession, on_tasks: Callable[[int, int], None] | None = None
    ) -> None:
        self._spark = spark
        self._on_tasks = on_tasks

    @property
    def parallelism(self) -> int:
        """The number of tasks that run concurrently."""
        return int(self._spark.sparkContext.defaultParallelism)

    def __call__(self, plan: LoadTaskPlan, tasks: Sequence[LoadTask]) -> list[PortionResult]:
        """Run portions and return their results when all are done."""
        with self._reporting_progress(len(tasks)):
            return run_tasks(self._spark, partial(run_load_task, plan), tasks)

    @contextlib.contextmanager
    def _reporting_progress(self, task_count: int) -> Iterator[None]:
        """Report the number of completed tasks from Spark's scheduler while the block runs."""
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
            # If the JVM has exited, the load itself raises an error.
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
                # None removes the property, although the annotation does not allow it.
                context.setLocalProperty(_JOB_GROUP_PROPERTY, cast("str", before))
