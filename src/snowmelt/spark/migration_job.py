"""Migration as a Spark job: executors run the tasks, the driver plans and commits.

A task reads chunks and writes native files in Python; only its outcome passes through the JVM.
Spark may run a task twice. Each attempt writes its own files, and only files whose outcome reaches
the driver are committed.
"""

from __future__ import annotations

import base64
import pickle
import threading
import weakref
from typing import TYPE_CHECKING

from snowmelt.spark.migration_task_source import (
    FORMAT,
    OUTCOMES_SCHEMA,
    TASKS_OPTION,
    MigrationSource,
)
from snowmelt.table.migration import (
    abort_migration,
    commit_migration,
    plan_migration,
    renewing_plan_lease,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.security.encryption_keys import KeyRing
    from snowmelt.clock import Clock
    from snowmelt.schema.types import TableName
    from snowmelt.table.migration import MigrationPlan, MigrationResult, MigrationSettings
    from snowmelt.table.migration_task import TaskOutcome


def migrate_table(
    spark: SparkSession,
    database: Database,
    keyring: KeyRing,
    name: TableName,
    settings: MigrationSettings,
    *,
    clock: Clock,
) -> MigrationResult | None:
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
    with renewing_plan_lease(database, plan, clock=clock):
        try:
            outcomes = _run_tasks(spark, plan)
        except Exception as error:
            abort_migration(database, plan, str(error).partition("\n")[0], clock=clock)
            raise
        return commit_migration(database, plan, outcomes, clock=clock)


_registered_sessions: weakref.WeakSet[SparkSession] = weakref.WeakSet()
_registration_lock = threading.Lock()


def _run_tasks(spark: SparkSession, plan: MigrationPlan) -> list[TaskOutcome]:
    with _registration_lock:
        if spark not in _registered_sessions:
            spark.dataSource.register(MigrationSource)
            _registered_sessions.add(spark)
    payload = base64.b85encode(pickle.dumps(list(plan.tasks))).decode()
    frame = spark.read.format(FORMAT).schema(OUTCOMES_SCHEMA).option(TASKS_OPTION, payload).load()
    # Written by our own tasks, like the payload.
    return [outcome for row in frame.collect() for outcome in pickle.loads(row.outcomes)]  # noqa: S301
