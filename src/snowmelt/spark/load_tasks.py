"""A load's portions as a Python data source: reading a partition does the work.

Kept apart from the driver's half, so that executors import neither catalog nor database.
"""

from __future__ import annotations

import base64
import pickle
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from snowmelt.bulk.work import run_work

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

    from snowmelt.bulk.work import WorkPlan
    from snowmelt.load.steps import LoadTask

FORMAT = "snowmelt_load_tasks"
OPTION = "secret_tasks"
SCHEMA = "outcome binary"


class LoadPartition(InputPartition):
    """One portion of a load, for one Spark task."""

    def __init__(self, plan: WorkPlan, task: LoadTask) -> None:
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
        return _Reader(*pickle.loads(base64.b85decode(self.options[OPTION])))  # noqa: S301


class _Reader(DataSourceReader):
    def __init__(self, plan: WorkPlan, tasks: Sequence[LoadTask]) -> None:
        self._plan = plan
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        return [LoadPartition(self._plan, task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LoadPartition)  # noqa: S101  Spark hands back our own
        outcome = pickle.dumps(run_work(partition.plan, partition.task))
        schema = pa.schema([pa.field("outcome", pa.binary())])
        return iter([pa.RecordBatch.from_arrays([pa.array([outcome], pa.binary())], schema=schema)])
