"""Maintenance runs, which replace native files without changing rows, or expire snapshots.

A run holds a lease of the table, which shows that its process is alive and excludes a second run.
Migrations and loads continue concurrently. A run commits like them: one transaction of the catalog
swaps the pointer and closes the run in the history. Watermark, epoch, checksum and row count do not
change. If a migration or a load has committed first, the run retries on the newer metadata with the
same files, because neither removes files.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pyiceberg.manifest import DataFile

from snowmelt import failpoints
from snowmelt.backoff import growing_delays_s
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs import leases, lineage, run_history
from snowmelt.catalog.jobs.leases import Lease, new_lease_owner
from snowmelt.catalog.jobs.run_history import MaintenanceKind, MaintenanceTotals, RunState
from snowmelt.catalog.model.records import MetadataPointer, TableRecord
from snowmelt.catalog.objects.tables import find_table, find_table_by_id, swap_metadata_pointer
from snowmelt.clock import Clock, to_epoch_ms
from snowmelt.errors import CommitLost, LeaseLost, TransactionConflict, UnknownOutcome
from snowmelt.failpoints import Failpoint
from snowmelt.schema.types import TableName
from snowmelt.table.file_lineage import JoinedFiles, prepare_lineage, record_joined_files
from snowmelt.table.iceberg import (
    IcebergAppend,
    NativeTable,
    begin_transaction,
    commit_append,
    find_expired_snapshots,
    find_file_entries,
)
from snowmelt.table.native_file_writer import WrittenFile
from snowmelt.table.snapshot import load_current_native_table
from snowmelt.table.warehouse_paths import open_warehouse

_MIB = 1024 * 1024
_MAX_ATTEMPTS = 100
_MIN_RETRY_DELAY_S, _MAX_RETRY_DELAY_S = 0.02, 0.2
# Minimum number of snapshots to expire while the table has writes: fewer are not worth a commit.
_MIN_EXPIRED_SNAPSHOTS = 10


@dataclass(frozen=True, slots=True)
class MaintenanceSettings:
    """Location and limits of maintenance runs.

    `target_bytes` is the target size of a file. Small files are compacted when there are
    `min_files` of similar size. One commit replaces at most `run_bytes`. `memory_bytes` limits the
    rows in memory. Snapshots expire after `retention_s`.
    """

    warehouse_url: str
    target_bytes: int = 128 * _MIB
    min_files: int = 8
    run_bytes: int = 1024 * _MIB
    memory_bytes: int = 256 * _MIB
    retention_s: float = 3600.0
    lease_s: float = 60.0
    owner: str = field(default_factory=new_lease_owner)


@dataclass(frozen=True, slots=True)
class OpenMaintenanceRun:
    """Running maintenance run, with the table and native table as of its start."""

    run_id: str
    table: TableRecord
    native: NativeTable
    lease: Lease
    settings: MaintenanceSettings

    @property
    def folder(self) -> str:
        """Folder of the run's files."""
        folder = open_warehouse(self.settings.warehouse_url).table_folder(self.table)
        return f"{folder}/data/{self.run_id}"


def maintenance_lease_name(table: TableRecord) -> str:
    """Return the name of the maintenance lease of a table."""
    return f"maintenance:{table.incarnation}"


def begin_maintenance_run(
    database: Database,
    name: TableName,
    kind: MaintenanceKind,
    settings: MaintenanceSettings,
    clock: Clock,
) -> OpenMaintenanceRun | None:
    """Acquire the lease of a table and begin a run.

    Returns None if another process has the lease, or the table has no native files. End the run with
    `commit_maintenance_run` or `abort_maintenance_run`.

    Raises:
        TableNotFound: If the table does not exist.
        TableInconsistent: If catalog and native table do not agree.
    """
    run_id = str(uuid.uuid4())
    with database.writing() as connection:
        now = clock.now()
        table = find_table(connection, name)
        if table.pointer is None:
            return None
        lease = leases.acquire_lease(
            connection,
            maintenance_lease_name(table),
            settings.owner,
            ttl_s=settings.lease_s,
            now=now,
        )
        if lease is None:
            return None
        for lost in run_history.list_running_maintenance(connection, table.table_id):
            run_history.finish_maintenance_run(
                connection, lost.run_id, RunState.LOST, now=now, message=_ORPHANED_MESSAGE
            )
        run_history.start_maintenance_run(connection, run_id, table.table_id, kind, now)
    try:
        native = load_current_native_table(table)
    except Exception as error:
        _fail_run_and_release_lease(database, run_id, lease, str(error), clock)
        raise
    return None if native is None else OpenMaintenanceRun(run_id, table, native, lease, settings)


def commit_maintenance_run(
    database: Database,
    run: OpenMaintenanceRun,
    totals: MaintenanceTotals,
    *,
    clock: Clock,
    joined: Sequence[JoinedFiles] = (),
) -> MaintenanceTotals:
    """Replace files and expire snapshots, all or nothing.

    Returns:
        The totals, with the number of expired snapshots.

    Raises:
        CommitLost: If the table was dropped, or a replaced file is no longer part of it.
        LeaseLost: If another process took over the lease. Nothing was changed.
        UnknownOutcome: If the commit may have succeeded. The history has the outcome.
    """
    tally = replace(
        totals,
        files_before=sum(len(each.replaced) for each in joined),
        files_after=len(joined),
        bytes_after=sum(each.written.size for each in joined),
    )
    try:
        return _commit_with_retry(database, run, tally, clock, joined)
    except Exception as error:
        # Look up the outcome in the catalog. A run that is closed as failed can never commit.
        try:
            if not _fail_run_and_release_lease(
                database, run.run_id, run.lease, str(error), clock
            ) and _is_committed(database, run):
                return tally
        except Exception as unclear:
            raise UnknownOutcome(
                f"The commit of run {run.run_id} to {run.table.name} did not end clearly: {error}"
            ) from unclear
        raise


def abort_maintenance_run(
    database: Database, run: OpenMaintenanceRun, reason: str, *, clock: Clock
) -> None:
    """Close a run in the history, unless it is already closed, and release the lease."""
    _fail_run_and_release_lease(database, run.run_id, run.lease, reason, clock)


def abort_orphaned_maintenance_runs(database: Database, table: TableRecord, clock: Clock) -> None:
    """Close runs whose process died. Acquires their lease, so that they can never commit."""
    with database.reading() as connection:
        if not run_history.list_running_maintenance(connection, table.table_id):
            return
    with database.writing() as connection:
        now = clock.now()
        owner = f"cleanup:{uuid.uuid4().hex}"
        lease = leases.acquire_lease(
            connection, maintenance_lease_name(table), owner, ttl_s=1.0, now=now
        )
        if lease is None:
            return
        for run in run_history.list_running_maintenance(connection, table.table_id):
            run_history.finish_maintenance_run(
                connection, run.run_id, RunState.LOST, now=now, message=_ORPHANED_MESSAGE
            )
        leases.release_lease(connection, lease)


def expire_snapshots(
    database: Database, name: TableName, settings: MaintenanceSettings, clock: Clock
) -> MaintenanceTotals | None:
    """Expire snapshots older than the retention. Return None if that is not worth a commit.

    Garbage collection deletes their files when the retention has passed since their replacement. A
    table without writes eventually has only its current snapshot.

    Raises:
        TableNotFound: If the table does not exist.
        ConflictError: If another process committed first. Nothing was changed.
        UnknownOutcome: If the commit may have succeeded.
    """
    if not count_expired_snapshots(database, name, settings, clock):
        return None
    run = begin_maintenance_run(database, name, MaintenanceKind.EXPIRY, settings, clock)
    return (
        None
        if run is None
        else commit_maintenance_run(database, run, MaintenanceTotals(), clock=clock)
    )


def count_expired_snapshots(
    database: Database, name: TableName, settings: MaintenanceSettings, clock: Clock
) -> int:
    """Return the number of snapshots that `expire_snapshots` would expire.

    Raises:
        TableNotFound: If the table does not exist.
    """
    with database.reading() as connection:
        table = find_table(connection, name)
    native = load_current_native_table(table)
    if native is None:
        return 0
    before_ms = _expiry_cutoff_ms(settings, clock)
    old = [each for each in native.metadata.snapshots if each.timestamp_ms < before_ms]
    current = native.metadata.current_snapshot_id
    count = sum(1 for each in old if each.snapshot_id != current)
    rests = len(old) == len(native.metadata.snapshots)
    return count if rests or count >= _MIN_EXPIRED_SNAPSHOTS else 0


_ORPHANED_MESSAGE = "The process that maintained the table died, or lost its lease."


def _commit_with_retry(
    database: Database,
    run: OpenMaintenanceRun,
    totals: MaintenanceTotals,
    clock: Clock,
    joined: Sequence[JoinedFiles],
) -> MaintenanceTotals:
    """Commit, and retry after each lost race until the commit succeeds or cannot succeed."""
    delays_s = growing_delays_s(_MIN_RETRY_DELAY_S, _MAX_RETRY_DELAY_S)
    left = _MAX_ATTEMPTS
    replaced = {address for each in joined for address in each.replaced}
    while True:
        left -= 1
        current, native = _read_current_table(database, run)
        old = find_file_entries(native, replaced)
        if len(old) != len(replaced):
            raise CommitLost(table=run.table.name, reason="files to compact no longer exist")
        append = _make_append(run, current, native, clock, [each.written for each in joined])
        if not old:
            append = replace(append, facts=native.facts, run_id=run.run_id)
        expired = len(find_expired_snapshots(native.metadata, append.expire_before_ms))
        totals = replace(
            totals,
            snapshots_expired=expired,
            bytes_before=sum(entry.file_size_in_bytes for entry in old),
        )
        try:
            _commit_replacement(
                append,
                old,
                _make_pointer_swap(database, run, current, native, joined, totals, clock),
            )
        except (CommitLost, TransactionConflict):
            if not left:
                raise
            clock.sleep(next(delays_s))
        else:
            return totals


def _read_current_table(
    database: Database, run: OpenMaintenanceRun
) -> tuple[TableRecord, NativeTable]:
    with database.reading() as connection:
        table = find_table_by_id(connection, run.table.table_id)
    native = load_current_native_table(table)
    if native is None or table.dropped_at is not None:
        raise CommitLost(table=run.table.name, reason="it was dropped")
    return table, native


def _make_append(
    run: OpenMaintenanceRun,
    current: TableRecord,
    native: NativeTable,
    clock: Clock,
    written: Sequence[WrittenFile],
) -> IcebergAppend:
    warehouse = open_warehouse(run.settings.warehouse_url)
    return IcebergAppend(
        warehouse=warehouse,
        folder=warehouse.table_folder(current),
        base=native,
        schema=current.schema,
        files=written,
        # This run adds no rows.
        facts=replace(native.facts, run_id=run.run_id, rows=0),
        now_ms=to_epoch_ms(clock.now()),
        expire_before_ms=_expiry_cutoff_ms(run.settings, clock),
    )


def _commit_replacement(
    append: IcebergAppend, replaced_entries: Sequence[DataFile], swap: Callable[[str, int], None]
) -> None:
    if replaced_entries:
        commit_append(replace(append, removed=replaced_entries), swap)
    else:
        begin_transaction(append, swap).commit_transaction()


def _make_pointer_swap(
    database: Database,
    run: OpenMaintenanceRun,
    current: TableRecord,
    native: NativeTable,
    joined: Sequence[JoinedFiles],
    totals: MaintenanceTotals,
    clock: Clock,
) -> Callable[[str, int], None]:
    warehouse = open_warehouse(run.settings.warehouse_url)
    started = prepare_lineage(database, warehouse, current, native)

    def swap(location: str, snapshot_id: int) -> None:
        failpoints.hit_failpoint(Failpoint.COMPACTION_STAGED)
        with database.writing() as connection:
            swap_metadata_pointer(
                connection,
                current,
                expected=MetadataPointer(current.pointer, current.migrated_seq),
                new=MetadataPointer(location, current.migrated_seq),
            )
            closed = leases.holds_lease(
                connection, run.lease
            ) and run_history.finish_maintenance_run(
                connection,
                run.run_id,
                RunState.COMMITTED,
                now=clock.now(),
                totals=replace(totals, snapshot_id=snapshot_id),
            )
            if not closed:
                raise LeaseLost(name=run.lease.name)
            leases.release_lease(connection, run.lease)
            if started is not None:
                lineage.begin_lineage(
                    connection, current.table_id, current.migrated_seq, started, clock.now()
                )
            # The files were written for the columns and the clustering at the start of the run.
            record_joined_files(connection, warehouse, run.table, run.run_id, joined, clock.now())
            failpoints.hit_failpoint(Failpoint.COMPACTION_INSIDE_COMMIT)
        failpoints.hit_failpoint(Failpoint.COMPACTION_COMMITTED)

    return swap


def _expiry_cutoff_ms(settings: MaintenanceSettings, clock: Clock) -> int:
    return to_epoch_ms(clock.now() - dt.timedelta(seconds=settings.retention_s))


def _fail_run_and_release_lease(
    database: Database, run_id: str, lease: Lease, reason: str, clock: Clock
) -> bool:
    """Close a run as failed and release the lease. Return False if the run was already closed."""
    with database.writing() as connection:
        # Update the row of the lease first, as the commit does, to serialize with a commit.
        leases.release_lease(connection, lease)
        return run_history.finish_maintenance_run(
            connection, run_id, RunState.FAILED, now=clock.now(), message=reason
        )


def _is_committed(database: Database, run: OpenMaintenanceRun) -> bool:
    with database.reading() as connection:
        found = run_history.find_maintenance_run(connection, run.run_id)
    return found is not None and found.state is RunState.COMMITTED
