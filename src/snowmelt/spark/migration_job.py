"""Migration as a Spark job: executors run the tasks, the driver plans and commits."""

from __future__ import annotations

from pyspark.sql import SparkSession

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.clock import Clock
from snowmelt.schema.types import TableName
from snowmelt.spark.task_job import run_tasks
from snowmelt.table.migration import (
    MigrationResult,
    MigrationSettings,
    abort_migration,
    commit_migration,
    plan_migration,
    renewing_plan_lease,
)
from snowmelt.table.migration_task import run_migration_task


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
            done = run_tasks(spark, run_migration_task, plan.tasks)
        except Exception as error:
            abort_migration(database, plan, str(error).partition("\n")[0], clock=clock)
            raise
        outcomes = [outcome for each in done for outcome in each]
        return commit_migration(database, plan, outcomes, clock=clock)
