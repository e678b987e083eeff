"""Migration of chunks to native files: plan, write (on any executor), commit.

A run covers a gap-free prefix of the chunks above the watermark. Its tasks do not use the catalog
and may run in other processes. Their files become visible with the commit, which is one transaction
of the catalog. It checks everything that could have changed: the table's incarnation and pointer,
the watermark, and the lease's epoch. Each run has its own folder. Garbage collection deletes the
folder of a run whose process died.

Rows that the publisher already wrote (`snowmelt.table.fresh_files`) are not written again if their
file was compacted at least once. Tasks compare such files with their chunks, and the commit adopts
them as native files. If the publisher compacts one of them again meanwhile, the run fails, and the
next run starts from the beginning.

A chunk that cannot be decoded, or whose MD5 does not match, is quarantined, and the other chunks
are migrated. The quarantined chunk is in no native file, is not deleted, and is listed in the
catalog with the reason. Its rows are committed. Queries of the table therefore fail with an error
that names the blob, until the blob is restored or an administrator discards the chunk
(`snowmelt.catalog.streaming.chunks`). A missing blob, a missing key or an unavailable stage fails
the run instead, because it may become available again.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import sqlalchemy as sa

from snowmelt import failpoints, tracing
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs import leases, lineage, run_history
from snowmelt.catalog.jobs.leases import Lease, new_lease_owner, renewing_lease
from snowmelt.catalog.jobs.lineage import FileSource, merge_sources
from snowmelt.catalog.jobs.run_history import MigrationRecord, MigrationTotals, RunState
from snowmelt.catalog.model.records import MetadataPointer, TableRecord
from snowmelt.catalog.objects.published_snapshots import (
    WRITER_TTL,
    FreshFile,
    adopt_fresh_files,
    list_fresh_files,
    list_held_publications,
)
from snowmelt.catalog.objects.tables import find_table, find_table_by_id, swap_metadata_pointer
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.catalog.streaming.chunks import ChunkRecord, list_chunks, quarantine_chunk
from snowmelt.clock import Clock, SystemClock, to_epoch_ms
from snowmelt.errors import (
    CommitLost,
    ConflictError,
    LeaseLost,
    TableInconsistent,
    UnknownOutcome,
)
from snowmelt.failpoints import Failpoint
from snowmelt.schema.types import TableName
from snowmelt.table.chunk_reader import ChunkReadTask
from snowmelt.table.file_lineage import LineageStart, make_file_record, prepare_lineage
from snowmelt.table.fresh_files import decode_fresh_file
from snowmelt.table.iceberg import IcebergAppend, IcebergSummary, NativeTable, commit_append
from snowmelt.table.migration_task import (
    MigrationTask,
    TaskOutcome,
    UndecodableChunk,
    group_chunks,
    run_migration_task,
)
from snowmelt.table.native_file_writer import WrittenFile
from snowmelt.table.snapshot import load_current_native_table
from snowmelt.table.table_reader import make_chunk_read_tasks
from snowmelt.table.warehouse_paths import open_warehouse

_MIB = 1024 * 1024

# Function that runs a function for each task, on any executor, and returns the results.
TaskRunner: TypeAlias = Callable[
    [Callable[[MigrationTask], list[TaskOutcome]], Sequence[MigrationTask]],
    Iterable[list[TaskOutcome]],
]


@dataclass(frozen=True, slots=True)
class MigrationSettings:
    """Locations and limits of migrations.

    `target_bytes` is the target size of a native file. `lease_s` is the time after which another
    migrator takes over from a crashed one.
    """

    stage_url: str
    warehouse_url: str
    max_chunks: int = 500
    target_bytes: int = 128 * _MIB
    lease_s: float = 60.0
    owner: str = field(default_factory=new_lease_owner)


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """Planned run under a lease: tasks for the chunks (from_seq, to_seq] of a table.

    `adopted` has the fresh files whose rows no task writes, because the commit adopts the files.
    """

    run_id: str
    table: TableRecord
    lease: Lease
    native: NativeTable | None
    chunks: tuple[ChunkRecord, ...]
    tasks: tuple[MigrationTask, ...]
    settings: MigrationSettings
    adopted: tuple[FreshFile, ...] = ()

    @property
    def from_seq(self) -> int:
        """Watermark before the run."""
        return self.table.migrated_seq

    @property
    def to_seq(self) -> int:
        """Watermark after the commit."""
        return self.chunks[-1].seq


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """Result of a migration run."""

    run_id: str
    from_seq: int
    to_seq: int
    rows: int
    files: int
    bytes: int
    quarantined: tuple[UndecodableChunk, ...]


def migration_lease_name(table: TableRecord) -> str:
    """Return the name of the migration lease of a table."""
    return f"migration:{table.incarnation}"


def plan_migration(
    database: Database,
    keyring: KeyRing,
    name: TableName,
    settings: MigrationSettings,
    *,
    clock: Clock | None = None,
) -> MigrationPlan | None:
    """Acquire the lease of a table and plan a run. Return None if there is no lease or no work.

    End the plan with `commit_migration` or `abort_migration`.

    Raises:
        TableNotFound: If the table does not exist.
        TableInconsistent: If catalog, chunks and native table do not agree.
    """
    clock = clock or SystemClock()
    started = _start_migration(database, name, settings, clock)
    if started is None:
        return None
    try:
        plan = _complete_plan(database, keyring, started)
    except Exception as error:
        abort_migration(database, started, str(error), clock=clock)
        raise
    failpoints.hit_failpoint(Failpoint.MIGRATION_PLANNED)
    return plan


def commit_migration(
    database: Database,
    plan: MigrationPlan,
    outcomes: Sequence[TaskOutcome],
    *,
    clock: Clock | None = None,
) -> MigrationResult:
    """Add the files of a run to the table, all or nothing, and release the lease.

    `outcomes` has one outcome for each task.

    Raises:
        LeaseLost: If another migrator took over the lease. Nothing was changed.
        CommitLost: If the table was dropped, or its chunks were migrated. Nothing was changed.
        TableInconsistent: If the files do not have the rows of the chunks. Nothing was changed.
        UnknownOutcome: If the commit may have succeeded. The next run determines it.
    """
    clock = clock or SystemClock()
    failpoints.hit_failpoint(Failpoint.MIGRATION_WRITTEN)
    result = _make_result(plan, outcomes)
    try:
        _commit_with_retry(database, plan, outcomes, result, clock)
    except (ConflictError, TableInconsistent) as error:
        abort_migration(database, plan, str(error), clock=clock)
        raise
    except Exception as error:
        # Only the catalog records the outcome.
        if not _is_committed(database, plan):
            if isinstance(error, UnknownOutcome):
                raise
            raise UnknownOutcome(
                f"The commit of run {plan.run_id} to {plan.table.name} did not end clearly: {error}"
            ) from error
    with database.writing() as connection:
        leases.release_lease(connection, plan.lease)
    paths = (chunk.path for chunk in plan.chunks)
    tracing.record_blob_spans(
        "snowmelt.migrated", paths, run=plan.run_id, table=str(plan.table.name)
    )
    return result


def abort_migration(
    database: Database, plan: MigrationPlan, reason: str, *, clock: Clock | None = None
) -> None:
    """Close a run in the history, unless it is already closed, and release the lease."""
    now = (clock or SystemClock()).now()
    with database.writing() as connection:
        # Update the row of the lease first, as the commit does, to serialize with a commit.
        leases.release_lease(connection, plan.lease)
        run = run_history.find_migration(connection, plan.run_id)
        if run is not None and run.state is RunState.RUNNING:
            run_history.finish_migration(
                connection, plan.run_id, RunState.FAILED, now=now, message=reason
            )


def migrate_table(
    database: Database,
    keyring: KeyRing,
    name: TableName,
    settings: MigrationSettings,
    *,
    clock: Clock | None = None,
    run_tasks: TaskRunner = map,
) -> MigrationResult | None:
    """Run one migration. Return None if there is no lease or no work.

    `run_tasks` runs the tasks; `map` runs them in this process. The lease is renewed in the
    background. A failed renewal raises no error, because the commit checks the lease.

    Raises:
        TableNotFound: If the table does not exist.
        LeaseLost: If another migrator took over the lease. Nothing was changed.
        CommitLost: If the table was dropped, or its pointer has moved. Nothing was changed.
        UnknownOutcome: If the commit may have succeeded. The next run determines it.
    """
    clock = clock or SystemClock()
    plan = plan_migration(database, keyring, name, settings, clock=clock)
    if plan is None:
        return None
    with renewing_lease(database, plan.lease, ttl_s=settings.lease_s, clock=clock):
        try:
            outcomes = [each for done in run_tasks(run_migration_task, plan.tasks) for each in done]
        except Exception as error:
            # Keep only the first line: the other lines of a Spark error are a Java stack trace.
            abort_migration(database, plan, str(error).partition("\n")[0], clock=clock)
            raise
        return commit_migration(database, plan, outcomes, clock=clock)


def _start_migration(
    database: Database, name: TableName, settings: MigrationSettings, clock: Clock
) -> MigrationPlan | None:
    """Acquire the lease and begin a run. Does not load the native table or plan tasks."""
    with database.reading() as connection:
        table = find_table(connection, name)
    if table.last_seq == table.migrated_seq:
        return None
    with database.writing() as connection:
        now = clock.now()
        lease = leases.acquire_lease(
            connection, migration_lease_name(table), settings.owner, ttl_s=settings.lease_s, now=now
        )
        if lease is None:
            return None
        # Read the table again, because the previous migrator may have committed meanwhile.
        table = find_table(connection, name)
        if lease.name != migration_lease_name(table):
            return None
        if table.last_seq == table.migrated_seq:
            leases.release_lease(connection, lease)
            return None
        abort_orphaned_migrations(connection, table.table_id, clock)
        last = min(table.last_seq, table.migrated_seq + settings.max_chunks)
        fresh = _list_adoptable_files(connection, table, now)
        # End at the end of a fresh file: a file across the end would have to be written again.
        last = next((file.from_seq for file in fresh if file.from_seq < last < file.to_seq), last)
        if last == table.migrated_seq:
            last = fresh[0].to_seq
        chunks = tuple(list_chunks(connection, table.table_id, table.migrated_seq, last))
        if not chunks:
            leases.release_lease(connection, lease)
            return None
        numbers = [chunk.seq for chunk in chunks]
        if numbers != list(range(table.migrated_seq + 1, last + 1)):
            raise TableInconsistent(
                table=name, reason=f"chunks are missing between {table.migrated_seq} and {last}"
            )
        run_id = str(uuid.uuid4())
        run_history.start_migration(
            connection,
            MigrationRecord(
                run_id=run_id,
                table_id=table.table_id,
                epoch=lease.epoch,
                from_seq=table.migrated_seq,
                to_seq=last,
                state=RunState.RUNNING,
                started_at=now,
            ),
        )
    adopted = tuple(file for file in fresh if file.to_seq <= last)
    return MigrationPlan(run_id, table, lease, None, chunks, (), settings, adopted)


def _list_adoptable_files(
    connection: sa.Connection, table: TableRecord, now: dt.datetime
) -> list[FreshFile]:
    """Return the fresh files above the watermark that the commit adopts.

    Files of level 0 have only the rows of one round. Their chunks are written again, to larger
    files, unless an engine may be about to replace one of the files.
    """
    written = list_held_publications(connection, table.table_id, since=now - WRITER_TTL, limit=1)
    return [
        file
        for file in list_fresh_files(connection, table.table_id)
        if (file.level > 0 or written) and file.from_seq >= table.migrated_seq
    ]


def abort_orphaned_migrations(connection: sa.Connection, table_id: int, clock: Clock) -> None:
    """Close the open runs of a table. They can never commit, because the caller holds the lease."""
    for run in run_history.list_running_migrations(connection, table_id):
        run_history.finish_migration(
            connection,
            run.run_id,
            RunState.LOST,
            now=clock.now(),
            message="The migrator died, or lost its lease.",
        )


def _complete_plan(database: Database, keyring: KeyRing, started: MigrationPlan) -> MigrationPlan:
    table, settings = started.table, started.settings
    native = load_current_native_table(table)
    if native is not None and native.facts.epoch >= started.lease.epoch:
        raise TableInconsistent(
            table=table.name,
            reason=f"its last commit has epoch {native.facts.epoch}, the lease {started.lease.epoch}",
        )
    reading = make_chunk_read_tasks(
        database, keyring, settings.stage_url, started.chunks, table.schema
    )
    groups: list[tuple[list[ChunkReadTask], WrittenFile | None]] = []
    for file in started.adopted:
        adopted = [chunk for chunk in reading if file.from_seq < chunk.seq <= file.to_seq]
        groups.append((adopted, decode_fresh_file(file)))
    taken = {chunk.seq for adopted, _ in groups for chunk in adopted}
    written = [chunk for chunk in reading if chunk.seq not in taken]
    groups += [(group, None) for group in group_chunks(written, settings.target_bytes)]
    folder = f"{open_warehouse(settings.warehouse_url).table_folder(table)}/data/{started.run_id}"
    names = {column.name for column in table.schema.columns}
    tasks = tuple(
        MigrationTask(
            number=number,
            warehouse_url=settings.warehouse_url,
            folder=folder,
            chunks=tuple(group),
            schema=table.schema,
            cluster_by=tuple(name for name in table.cluster_by if name in names),
            adopted=adopted_file,
        )
        for number, (group, adopted_file) in enumerate(groups)
    )
    return replace(started, native=native, tasks=tasks)


def _make_result(plan: MigrationPlan, outcomes: Sequence[TaskOutcome]) -> MigrationResult:
    files = _list_written_files(outcomes)
    return MigrationResult(
        run_id=plan.run_id,
        from_seq=plan.from_seq,
        to_seq=plan.to_seq,
        rows=sum(file.rows for file in files),
        files=len(files),
        bytes=sum(file.size for file in files),
        quarantined=tuple(out for out in outcomes if isinstance(out, UndecodableChunk)),
    )


def _list_written_files(outcomes: Sequence[TaskOutcome]) -> list[WrittenFile]:
    return [outcome for outcome in outcomes if isinstance(outcome, WrittenFile)]


def _commit_with_retry(
    database: Database,
    plan: MigrationPlan,
    outcomes: Sequence[TaskOutcome],
    result: MigrationResult,
    clock: Clock,
) -> None:
    """Commit a run. Retries with the same files if a load moved the pointer meanwhile."""
    while True:
        append = _make_append(plan, outcomes, result, clock)
        try:
            return commit_append(
                append, _make_pointer_swap(database, plan, outcomes, result, clock)
            )
        except CommitLost:
            with database.reading() as connection:
                table = find_table_by_id(connection, plan.table.table_id)
            overtaken = table.migrated_seq != plan.from_seq or table.dropped_at is not None
            if overtaken or table.pointer == plan.table.pointer:
                raise
            # Keep the columns and the clustering for which the files were written.
            base = replace(plan.table, pointer=table.pointer)
            plan = replace(plan, table=base, native=load_current_native_table(table))


def _make_append(
    plan: MigrationPlan, outcomes: Sequence[TaskOutcome], result: MigrationResult, clock: Clock
) -> IcebergAppend:
    table = plan.table
    held = {chunk.seq for chunk in result.quarantined}
    counts = [(chunk.seq, 0 if chunk.seq in held else chunk.rows) for chunk in plan.chunks]
    expected = sum(rows for _, rows in counts)
    if result.rows != expected:
        raise TableInconsistent(
            table=table.name,
            reason=f"run {plan.run_id} wrote {result.rows} rows of {expected}",
        )
    before = None if plan.native is None else plan.native.facts
    checksum = hashlib.sha256((before.checksum if before else "").encode())
    checksum.update("".join(f"{seq}:{rows};" for seq, rows in counts).encode())
    facts = IcebergSummary(
        incarnation=table.incarnation,
        watermark=plan.to_seq,
        run_id=plan.run_id,
        epoch=plan.lease.epoch,
        rows=result.rows,
        total_rows=result.rows + (before.total_rows if before else 0),
        checksum=checksum.hexdigest(),
        replaced_rows=before.replaced_rows if before else 0,
    )
    files = _list_written_files(outcomes)
    warehouse = open_warehouse(plan.settings.warehouse_url)
    return IcebergAppend(
        warehouse=warehouse,
        folder=warehouse.table_folder(table),
        base=plan.native,
        schema=table.schema,
        files=sorted(files, key=lambda file: file.path),
        facts=facts,
        now_ms=to_epoch_ms(clock.now()),
    )


def _make_pointer_swap(
    database: Database,
    plan: MigrationPlan,
    outcomes: Sequence[TaskOutcome],
    result: MigrationResult,
    clock: Clock,
) -> Callable[[str, int], None]:
    files = _list_written_files(outcomes)
    warehouse = open_warehouse(plan.settings.warehouse_url)
    started = prepare_lineage(database, warehouse, plan.table, plan.native)

    def swap(location: str, snapshot_id: int) -> None:
        failpoints.hit_failpoint(Failpoint.MIGRATION_STAGED)
        with database.writing() as connection:
            swap_metadata_pointer(
                connection,
                plan.table,
                expected=MetadataPointer(plan.table.pointer, plan.from_seq),
                new=MetadataPointer(location, plan.to_seq),
            )
            if not leases.holds_lease(connection, plan.lease):
                raise LeaseLost(name=plan.lease.name)
            if not adopt_fresh_files(connection, [file.file_id for file in plan.adopted]):
                raise CommitLost(
                    table=plan.table.name, reason="a fresh file was compacted meanwhile"
                )
            _record_lineage(connection, plan, files, started, clock.now())
            run_history.finish_migration(
                connection,
                plan.run_id,
                RunState.COMMITTED,
                now=clock.now(),
                totals=MigrationTotals(result.rows, result.files, result.bytes, snapshot_id),
            )
            for chunk in result.quarantined:
                quarantine_chunk(connection, plan.table.table_id, chunk.seq, chunk.reason)
            failpoints.hit_failpoint(Failpoint.MIGRATION_INSIDE_COMMIT)
        failpoints.hit_failpoint(Failpoint.MIGRATION_COMMITTED)

    return swap


def _record_lineage(
    connection: sa.Connection,
    plan: MigrationPlan,
    files: Sequence[WrittenFile],
    started: LineageStart | None,
    now: dt.datetime,
) -> None:
    table = plan.table
    if started is not None:
        lineage.begin_lineage(connection, table.table_id, plan.from_seq, started, now)
    lineage.add_committed_chunks(
        connection,
        table.table_id,
        plan.from_seq,
        plan.to_seq,
        run_id=plan.run_id,
        fingerprints={seq: found for file in files for seq, found in file.chunks},
    )
    adopted = {decode_fresh_file(file).path: file for file in plan.adopted}
    records = []
    for file in files:
        if (fresh := adopted.get(file.path)) is not None:
            sources: Sequence[FileSource] = ((fresh.from_seq + 1, fresh.to_seq),)
        else:
            sources = merge_sources((seq, seq) for seq, _ in file.chunks)
        records.append(make_file_record(file, plan.run_id, table, sources, now))
    lineage.add_native_files(connection, table.table_id, records)


def _is_committed(database: Database, plan: MigrationPlan) -> bool:
    with contextlib.suppress(Exception), database.reading() as connection:
        run = run_history.find_migration(connection, plan.run_id)
        return run is not None and run.state is RunState.COMMITTED
    return False
