"""Migration as a Spark job: tasks run on executors, the driver plans and commits.

A task reads chunks and writes native files in Python; what crosses to the JVM is only its
outcome. Spark may run a task twice; each attempt writes files of its own, and only those whose
outcome arrives at the driver are committed.
"""

from __future__ import annotations

import base64
import pickle
import threading
import weakref
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from snowmelt.table.migration import (
    abandon_migration,
    commit_migration,
    kept_lease,
    plan_migration,
)
from snowmelt.table.tasks import write_task

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from snowmelt.catalog.database import Database
    from snowmelt.catalog.keys import KeyRing
    from snowmelt.clock import Clock
    from snowmelt.schema.types import TableName
    from snowmelt.table.migration import Migrated, MigrationPlan, MigrationSettings
    from snowmelt.table.tasks import MigrationTask, Outcome

FORMAT = "snowmelt_migration"
_OPTION = "secret_tasks"
_SCHEMA = "outcomes binary"


class TaskPartition(InputPartition):
    """One task of a migration, for one Spark task."""

    def __init__(self, task: MigrationTask) -> None:
        self.task = task


class MigrationSource(DataSource):
    """A data source whose reading does a migration's work, and whose rows say what was done."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  the contract's
        """Return the reader that runs the tasks which the option brings."""
        # Only bytes that this very process's driver has pickled come here.
        return _TaskReader(pickle.loads(base64.b85decode(self.options[_OPTION])))  # noqa: S301


class _TaskReader(DataSourceReader):
    def __init__(self, tasks: Sequence[MigrationTask]) -> None:
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        return [TaskPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskPartition)  # noqa: S101  Spark hands back our own
        outcomes = pickle.dumps(write_task(partition.task))
        schema = pa.schema([pa.field("outcomes", pa.binary())])
        return iter(
            [pa.RecordBatch.from_arrays([pa.array([outcomes], pa.binary())], schema=schema)]
        )


def migrate_table(
    spark: SparkSession,
    database: Database,
    keyring: KeyRing,
    name: TableName,
    settings: MigrationSettings,
    *,
    clock: Clock,
) -> Migrated | None:
    """Run one migration of a table; None when there is nothing to do or another one runs.

    Raises:
        TableNotFound: There is no such table.
        LeaseLost: Another migrator has taken over; nothing was changed.
        CommitLost: The table was dropped, or its pointer has moved; nothing was changed.
        UnknownOutcome: It may have been committed; the next run will see.
    """
    plan = plan_migration(database, keyring, name, settings, clock=clock)
    if plan is None:
        return None
    with kept_lease(database, plan, clock=clock):
        try:
            outcomes = _run(spark, plan)
        except Exception as error:
            abandon_migration(database, plan, str(error).partition("\n")[0], clock=clock)
            raise
        return commit_migration(database, plan, outcomes, clock=clock)


_registered: weakref.WeakSet[SparkSession] = weakref.WeakSet()
_registering = threading.Lock()


def _run(spark: SparkSession, plan: MigrationPlan) -> list[Outcome]:
    with _registering:
        if spark not in _registered:
            spark.dataSource.register(MigrationSource)
            _registered.add(spark)
    payload = base64.b85encode(pickle.dumps(list(plan.tasks))).decode()
    frame = spark.read.format(FORMAT).schema(_SCHEMA).option(_OPTION, payload).load()
    # Written by our own tasks, like the payload.
    return [outcome for row in frame.collect() for outcome in pickle.loads(row.outcomes)]  # noqa: S301
