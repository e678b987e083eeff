"""A data source whose partitions are the tasks of a migration: reading one runs the task.

Separate from the driver's module, so that executors import neither catalog nor database.
"""

from __future__ import annotations

import base64
import pickle
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from snowmelt.table.migration_task import run_migration_task

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

    from snowmelt.table.migration_task import MigrationTask

FORMAT = "snowmelt_migration"
TASKS_OPTION = "secret_tasks"
OUTCOMES_SCHEMA = "outcomes binary"


class MigrationTaskPartition(InputPartition):
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
        return _MigrationTaskReader(pickle.loads(base64.b85decode(self.options[TASKS_OPTION])))  # noqa: S301


class _MigrationTaskReader(DataSourceReader):
    def __init__(self, tasks: Sequence[MigrationTask]) -> None:
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        return [MigrationTaskPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, MigrationTaskPartition)  # noqa: S101  Spark hands back our own
        outcomes = pickle.dumps(run_migration_task(partition.task))
        schema = pa.schema([pa.field("outcomes", pa.binary())])
        return iter(
            [pa.RecordBatch.from_arrays([pa.array([outcomes], pa.binary())], schema=schema)]
        )
