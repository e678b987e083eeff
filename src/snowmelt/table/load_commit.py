"""Loads of native files into tables: begin, publish rejects, commit, abort.

A load's files become visible with its commit. One transaction of the catalog swaps the table's
pointer, closes the load in the history, records its files and advances the offsets of its streams.
Chunks and watermark do not change. If a migration or another load has moved the pointer meanwhile,
the load retries with the same files.

Each load holds its own lease, which shows that its process is alive. If garbage collection takes
over the lease, it closes the load, which can then never commit. The load's files are deleted like
all files that no commit references.

A load's rows for the error table are committed in the same transaction.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import sqlalchemy as sa

from snowmelt import failpoints
from snowmelt.backoff import growing_delays_s
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.db.dialect import replace_nul
from snowmelt.catalog.jobs import leases, lineage, load_history
from snowmelt.catalog.jobs.leases import Lease, renewing_lease
from snowmelt.catalog.jobs.load_history import (
    LoadedFileKey,
    LoadFileRecord,
    LoadFileState,
    LoadRecord,
    LoadTotals,
    OffsetAdvance,
)
from snowmelt.catalog.jobs.run_history import RunState
from snowmelt.catalog.model.records import MetadataPointer, TableRecord
from snowmelt.catalog.objects.tables import (
    create_table,
    find_error_table,
    find_namespace_ids,
    find_table,
    find_table_by_id,
    lock_tables,
    swap_metadata_pointer,
)
from snowmelt.catalog.security.access_control import (
    apply_future_table_grants,
    require_role,
    require_table_privilege,
)
from snowmelt.clock import Clock, to_epoch_ms
from snowmelt.errors import (
    CommitLost,
    ConflictError,
    InternalError,
    LeaseLost,
    LoadOvertaken,
    LoadRefused,
    TableNotFound,
    TransactionConflict,
    UnknownOutcome,
)
from snowmelt.failpoints import Failpoint
from snowmelt.schema.types import TableName
from snowmelt.table.file_lineage import LineageStart, make_file_record, prepare_lineage
from snowmelt.table.file_removal import FileRemoval, plan_removal
from snowmelt.table.iceberg import IcebergAppend, IcebergSummary, NativeTable, commit_append
from snowmelt.table.native_file_writer import WrittenFile
from snowmelt.table.rejects import REJECT_SCHEMA
from snowmelt.table.snapshot import load_current_native_table
from snowmelt.table.warehouse_paths import open_warehouse

# Pause after a lost race. A retry reads the metadata and writes a manifest, which takes about 30
# ms.
_MAX_ATTEMPTS = 100
_MIN_RETRY_DELAY_S, _MAX_RETRY_DELAY_S = 0.02, 0.2

_log = logging.getLogger("snowmelt.load")


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Request to begin a load: table, table of rejects, role and statement."""

    table: TableName
    statement: str
    role: str
    rejects: TableName | None = None
    stream_name: str | None = None
    # Folder of files that were written before the load began. None: use a new folder.
    load_id: str | None = None
    # True: if `rejects` is None, store rejects in the error table of the table, if it has one.
    keep_rejected: bool = False


@dataclass(frozen=True, slots=True)
class OpenLoad:
    """Running load. `folder` and `reject_folder` contain its files."""

    load_id: str
    table: TableRecord
    rejects: TableRecord | None
    lease: Lease
    lease_s: float
    warehouse_url: str
    folder: str
    # Error table, if rejects are stored there.
    errors: TableRecord | None = None

    @property
    def error_folder(self) -> str | None:
        """Folder of rejected rows for the error table."""
        return self._find_data_folder(self.errors)

    @property
    def reject_folder(self) -> str | None:
        """Folder of rejected rows for the table of rejects."""
        return self._find_data_folder(self.rejects)

    def _find_data_folder(self, table: TableRecord | None) -> str | None:
        if table is None:
            return None
        return f"{open_warehouse(self.warehouse_url).table_folder(table)}/data/{self.load_id}"


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Result of a load: native files, result of each input, and stream offsets.

    With `force`, files that another load loaded meanwhile are loaded again. `message` is stored in
    the history. `removed` has the paths of files of the table that the new files replace. `failure`
    is why no file was loaded: the history shows the load as failed. `snapshot_id` and `properties`
    belong to the new snapshot. If the ID is None, it is random.
    """

    files: Sequence[WrittenFile]
    inputs: Sequence[LoadFileRecord]
    totals: LoadTotals
    offsets: Sequence[OffsetAdvance] = ()
    force: bool = False
    message: str | None = None
    failure: str | None = None
    removed: frozenset[str] = frozenset()
    snapshot_id: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


def load_lease_name(load_id: str) -> str:
    """Return the name of a load's lease."""
    return f"load:{load_id}"


def begin_load(
    database: Database,
    request: LoadRequest,
    *,
    warehouse_url: str,
    clock: Clock,
    lease_s: float = 60.0,
    privileges: Sequence[str] = ("INSERT",),
) -> OpenLoad:
    """Begin a load. End it with `commit_load` or `abort_load`.

    The role must have one of `privileges` on the table.

    Raises:
        TableNotFound: If a table does not exist or the role lacks the privilege on it.
        LoadRefused: If the table of rejects does not have the columns of rejects, or is the table
            itself.
    """
    load_id = request.load_id or str(uuid.uuid4())
    with database.writing() as connection:
        now = clock.now()
        table = find_table(connection, request.table)
        require_table_privilege(connection, request.role, table, *privileges)
        rejects = None
        if request.rejects is not None:
            if request.rejects == request.table:
                raise LoadRefused(
                    what=f"REJECTED DATA AS TABLE {request.rejects}",
                    reason="this is the table that is loaded. Name another table",
                )
            rejects = get_or_create_reject_table(
                connection, request.rejects, owner=request.role, now=now
            )
            require_table_privilege(connection, request.role, rejects, "INSERT")
        errors = None
        if rejects is None and request.keep_rejected:
            errors = find_error_table(connection, table)
        kept = rejects or errors
        lease = leases.acquire_lease(
            connection, load_lease_name(load_id), load_id, ttl_s=lease_s, now=now
        )
        if lease is None:
            raise InternalError(f"The lease of the new load {load_id} is taken.")
        load_history.start_load(
            connection,
            LoadRecord(
                load_id=load_id,
                table_id=table.table_id,
                reject_table_id=None if kept is None else kept.table_id,
                role=request.role,
                stream_name=request.stream_name,
                statement=replace_nul(request.statement) or "",
                state=RunState.RUNNING,
                started_at=now,
            ),
        )
    failpoints.hit_failpoint(Failpoint.LOAD_BEGUN)
    folder = f"{open_warehouse(warehouse_url).table_folder(table)}/data/{load_id}"
    return OpenLoad(load_id, table, rejects, lease, lease_s, warehouse_url, folder, errors)


@contextlib.contextmanager
def renewing_load_lease(database: Database, load: OpenLoad, *, clock: Clock) -> Iterator[None]:
    """Renew a load's lease while the block runs."""
    with renewing_lease(database, load.lease, ttl_s=load.lease_s, clock=clock):
        yield


def publish_rejects(
    database: Database, load: OpenLoad, files: Sequence[WrittenFile], *, clock: Clock
) -> None:
    """Add files of rejects to their table.

    Raises:
        CommitLost: If the table of rejects was dropped.
        LeaseLost: If another process aborted this load.
        UnknownOutcome: If the files may have been added.
    """
    rejects = load.rejects
    if not files or rejects is None:
        return

    def is_done() -> bool:
        with database.reading() as connection:
            native = load_current_native_table(find_table_by_id(connection, rejects.table_id))
        return native is not None and native.has_snapshot_of_run(load.load_id)

    def inside(connection: sa.Connection, _snapshot_id: int | None) -> None:
        _require_lease(connection, load)

    _append_files(database, load, [_Addition(rejects, files)], inside, is_done, clock)
    failpoints.hit_failpoint(Failpoint.LOAD_REJECTS_PUBLISHED)


def commit_load(
    database: Database,
    load: OpenLoad,
    result: LoadResult,
    *,
    clock: Clock,
    rejected_files: Sequence[WrittenFile] = (),
) -> None:
    """Add a load's files to the table, all or nothing, and close the load.

    `rejected_files` become part of the error table in the same transaction.

    Raises:
        LoadOvertaken: If another load loaded one of the files or advanced one of the streams, if
            the table was dropped, or if a column became NOT NULL. Nothing was changed.
        LeaseLost: If another process aborted this load. Nothing was changed.
        UnknownOutcome: If the commit may have succeeded. The history has the outcome.
    """
    additions = [
        _Addition(load.table, result.files, result.removed, result.snapshot_id, result.properties)
    ]
    if rejected_files and (errors := _find_current_error_table(database, load)):
        additions.append(_Addition(errors, rejected_files))
    failpoints.hit_failpoint(Failpoint.LOAD_WRITTEN)

    def inside(connection: sa.Connection, snapshot_id: int | None) -> None:
        _finish_committed_load(connection, load, result, snapshot_id, clock)
        failpoints.hit_failpoint(Failpoint.LOAD_INSIDE_COMMIT)

    def is_done() -> bool:
        if result.failure is None:
            return is_committed(database, load.load_id)
        with database.reading() as connection:
            return load_history.find_load(connection, load.load_id).state is RunState.FAILED

    try:
        _append_files(database, load, additions, inside, is_done, clock)
    except CommitLost as error:
        raise LoadOvertaken(load=load.load_id, reason=str(error).rstrip(".")) from error
    failpoints.hit_failpoint(Failpoint.LOAD_COMMITTED)


def _find_current_error_table(database: Database, load: OpenLoad) -> TableRecord | None:
    """Return the error table of a load, or None if it was replaced or dropped."""
    with database.reading() as connection:
        current = find_error_table(connection, find_table_by_id(connection, load.table.table_id))
    if load.errors is None or current is None:
        _log.warning(
            "Rejects of load %s are not stored: the error table was dropped or replaced.",
            load.load_id,
        )
        return None
    return load.errors if current.table_id == load.errors.table_id else None


def abort_load(
    database: Database,
    load: OpenLoad,
    reason: str,
    *,
    clock: Clock,
    inputs: Sequence[LoadFileRecord] = (),
    totals: LoadTotals | None = None,
) -> bool:
    """Abort a load. If it has already ended, change nothing and return False."""
    with database.writing() as connection:
        # Update the row of the lease first, as the commit does, to serialize with a commit.
        leases.release_lease(connection, load.lease)
        closed = load_history.finish_load(
            connection,
            load.load_id,
            RunState.FAILED,
            now=clock.now(),
            totals=totals,
            message=reason,
        )
        if closed:
            load_history.save_load_files(connection, load.load_id, load.table.table_id, inputs)
        return closed


def is_committed(database: Database, load_id: str) -> bool:
    """Return True if a load has committed.

    Raises:
        NotFound: If the load never started.
    """
    with database.reading() as connection:
        return load_history.find_load(connection, load_id).state is RunState.COMMITTED


def abort_orphaned_loads(database: Database, table: TableRecord, clock: Clock) -> None:
    """Close loads whose process died. Acquires their leases, so that they can never commit."""
    with database.reading() as connection:
        running = load_history.list_running_loads(connection, table.table_id)
    for load in running:
        owner = f"cleanup:{uuid.uuid4().hex}"
        with database.writing() as connection:
            lease = leases.acquire_lease(
                connection, load_lease_name(load.load_id), owner, ttl_s=1.0, now=clock.now()
            )
            if lease is None:
                continue
            load_history.finish_load(
                connection,
                load.load_id,
                RunState.LOST,
                now=clock.now(),
                message="The process that loaded died, or lost its lease.",
            )
            leases.release_lease(connection, lease)


def _require_lease(connection: sa.Connection, load: OpenLoad) -> None:
    if not leases.holds_lease(connection, load.lease):
        raise LeaseLost(name=load.lease.name)


def _finish_committed_load(
    connection: sa.Connection,
    load: OpenLoad,
    result: LoadResult,
    snapshot_id: int | None,
    clock: Clock,
) -> None:
    """Close a load in the transaction that commits it.

    Raises:
        LeaseLost: If another process aborted the load.
        LoadOvertaken: If another load loaded one of the files or advanced one of the streams.
    """
    _require_lease(connection, load)
    now, table_id = clock.now(), load.table.table_id
    if result.snapshot_id is not None and load_history.find_load_of_snapshot(
        connection, table_id, result.snapshot_id
    ):
        raise LoadOvertaken(
            load=load.load_id, reason=f"snapshot {result.snapshot_id} was committed meanwhile"
        )
    if not result.force:
        _require_not_loaded(connection, load, result.inputs)
    load_history.finish_load(
        connection,
        load.load_id,
        RunState.COMMITTED if result.failure is None else RunState.FAILED,
        now=now,
        totals=replace(result.totals, snapshot_id=snapshot_id or result.snapshot_id),
        message=result.failure or result.message,
    )
    load_history.save_load_files(connection, load.load_id, table_id, result.inputs)
    try:
        load_history.advance_stream_offsets(connection, load.load_id, result.offsets, now)
    except CommitLost as error:
        raise LoadOvertaken(load=load.load_id, reason=str(error).rstrip(".")) from error
    leases.release_lease(connection, load.lease)


def _require_not_loaded(
    connection: sa.Connection, load: OpenLoad, inputs: Sequence[LoadFileRecord]
) -> None:
    fresh = [each for each in inputs if each.state is not LoadFileState.FAILED]
    known = load_history.find_loaded_files(
        connection, load.table.table_id, [each.path for each in fresh]
    )
    for each in fresh:
        if each.size is None or each.tag is None:
            continue
        other = known.get(LoadedFileKey(each.path, each.size, each.tag))
        if other is not None:
            raise LoadOvertaken(
                load=load.load_id, reason=f"load {other} has loaded {each.path} meanwhile"
            )


@dataclass(frozen=True, slots=True)
class _Addition:
    """Files that a commit adds to or removes from one table, as in `LoadResult`."""

    table: TableRecord
    files: Sequence[WrittenFile]
    removed: frozenset[str] = frozenset()
    snapshot_id: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _StagedMove:
    """Written metadata of one table that is not current yet."""

    table: TableRecord
    location: str
    snapshot_id: int
    addition: _Addition
    removal: FileRemoval
    lineage_start: LineageStart | None


def _append_files(
    database: Database,
    load: OpenLoad,
    additions: Sequence[_Addition],
    commit_step: Callable[[sa.Connection, int | None], None],
    is_done: Callable[[], bool],
    clock: Clock,
) -> None:
    """Add files to tables and remove others, and run `commit_step` in the same transaction.

    `commit_step` receives the snapshot of the first table, or None if no files are added to it.
    """
    table_ids = [each.table.table_id for each in additions]
    warehouse = open_warehouse(load.warehouse_url)

    def stage(moves: tuple[_StagedMove | None, ...]) -> None:
        """Stage the metadata of each table, then move all pointers."""
        if len(moves) == len(additions):
            return swap(moves)
        each = additions[len(moves)]
        if not (each.files or each.removed):
            return stage((*moves, None))
        current, native = _read_current_table(database, load, each.table)
        removal = plan_removal(database, warehouse, current, native, each.removed)
        if removal is None:
            raise LoadOvertaken(
                load=load.load_id,
                reason=f"files of table {current.name} that it replaces were replaced by others",
            )
        started = prepare_lineage(database, warehouse, current, native)
        return commit_append(
            _make_append(load, current, native, each, removal, clock),
            lambda location, snapshot_id: stage(
                (*moves, _StagedMove(current, location, snapshot_id, each, removal, started))
            ),
        )

    def swap(moves: tuple[_StagedMove | None, ...]) -> None:
        failpoints.hit_failpoint(Failpoint.LOAD_STAGED)
        with database.writing() as connection:
            # The lock orders loads without files after loads that swap the pointer of their table.
            if len(lock_tables(connection, table_ids)) < len(table_ids):
                which = "the" if len(table_ids) == 1 else "a"
                raise LoadOvertaken(load=load.load_id, reason=f"{which} table was dropped")
            for move in moves:
                if move is not None:
                    _require_same_columns(connection, move.table)
                    swap_metadata_pointer(
                        connection,
                        move.table,
                        expected=MetadataPointer(move.table.pointer, move.removal.from_seq),
                        new=MetadataPointer(move.location, move.removal.to_seq),
                    )
                    _record_lineage(connection, load, move, clock.now())
            commit_step(connection, None if moves[0] is None else moves[0].snapshot_id)

    _retry_load_commit(load, lambda: stage(()), is_done, clock)


def _require_same_columns(connection: sa.Connection, table: TableRecord) -> None:
    """Check that a locked table has the columns for which its files were checked.

    Raises:
        CommitLost: If the columns have changed.
    """
    if find_table_by_id(connection, table.table_id).schema.version != table.schema.version:
        raise CommitLost(table=table.name, reason="its columns have changed")


def _record_lineage(
    connection: sa.Connection, load: OpenLoad, move: _StagedMove, now: dt.datetime
) -> None:
    """Store the files that a load adds and removes.

    Raises:
        CommitLost: If a removed fresh file was compacted meanwhile.
    """
    table, removed = move.table, move.addition.removed
    if move.lineage_start is not None:
        lineage.begin_lineage(
            connection, table.table_id, move.removal.from_seq, move.lineage_start, now
        )
    move.removal.apply(connection, table, move.snapshot_id, now)
    if removed:
        lineage.mark_files_removed(
            connection, table.table_id, removed, run_id=load.load_id, now=now, changed_rows=True
        )
    records = [
        make_file_record(file, load.load_id, table, [(load.load_id, file.rows)], now)
        for file in move.addition.files
    ]
    lineage.add_native_files(connection, table.table_id, records)


def _retry_load_commit(
    load: OpenLoad,
    attempt: Callable[[], None],
    is_done: Callable[[], bool],
    clock: Clock,
) -> None:
    """Commit, and retry after each lost race until the commit succeeds or cannot succeed."""
    delays_s = growing_delays_s(_MIN_RETRY_DELAY_S, _MAX_RETRY_DELAY_S)
    left = _MAX_ATTEMPTS
    while True:
        left -= 1
        try:
            return attempt()
        except (CommitLost, TransactionConflict):
            if not left:
                raise
            clock.sleep(next(delays_s))
        except ConflictError:
            raise
        except Exception as error:
            # Look up the outcome in the catalog.
            with contextlib.suppress(Exception):
                if is_done():
                    return None
            if isinstance(error, UnknownOutcome):
                raise
            raise UnknownOutcome(
                f"The commit of load {load.load_id} to {load.table.name} did not end clearly: "
                f"{error}"
            ) from error


def _read_current_table(
    database: Database, load: OpenLoad, table: TableRecord
) -> tuple[TableRecord, NativeTable | None]:
    """Return the current record of a load's table, and its native table.

    Raises:
        LoadOvertaken: If the table was dropped, or a column became NOT NULL.
    """
    with database.reading() as connection:
        current = find_table_by_id(connection, table.table_id)
    if current.dropped_at is not None:
        raise LoadOvertaken(load=load.load_id, reason=f"table {table.name} was dropped")
    never_null = {column.ordinal for column in table.schema.columns if not column.nullable}
    for column in current.schema.columns:
        if column.ordinal not in never_null and not column.nullable:
            raise LoadOvertaken(
                load=load.load_id,
                reason=f"column {column.display_name} of table {table.name} became NOT NULL "
                "during the load",
            )
    return current, load_current_native_table(current)


def _make_append(
    load: OpenLoad,
    table: TableRecord,
    native: NativeTable | None,
    addition: _Addition,
    removal: FileRemoval,
    clock: Clock,
) -> IcebergAppend:
    """Return the commit of a load's files to a table."""
    files = [*addition.files, *removal.adopted_files]
    rows = sum(file.rows for file in files)
    before = None if native is None else native.facts
    warehouse = open_warehouse(load.warehouse_url)
    return IcebergAppend(
        warehouse=warehouse,
        folder=warehouse.table_folder(table),
        base=native,
        schema=table.schema,
        files=sorted(files, key=lambda file: file.path),
        facts=IcebergSummary(
            incarnation=table.incarnation,
            watermark=removal.to_seq,
            run_id=load.load_id,
            # Keep the epoch: it belongs to migrations.
            epoch=0 if before is None else before.epoch,
            rows=rows,
            total_rows=rows + (0 if before is None else before.total_rows) - removal.native_rows,
            checksum=removal.extend_checksum("" if before is None else before.checksum),
            replaced_rows=removal.replaced_rows + (0 if before is None else before.replaced_rows),
        ),
        now_ms=to_epoch_ms(clock.now()),
        removed=removal.entries,
        changes_rows=True,
        snapshot_id=addition.snapshot_id,
        properties=addition.properties,
    )


def get_or_create_reject_table(
    connection: sa.Connection, name: TableName, *, owner: str, now: dt.datetime
) -> TableRecord:
    """Return the table of rejects of this name. Creates it if it is missing.

    Raises:
        LoadRefused: If a table of that name has other columns.
        SchemaNotFound: If the schema does not exist.
    """
    try:
        found = find_table(connection, name)
    except TableNotFound:
        # The lock waits for another load that creates the table.
        find_namespace_ids(connection, name.database, name.schema, lock=True)
        try:
            found = find_table(connection, name)
        except TableNotFound:
            require_role(connection, owner)
            new = create_table(connection, name, REJECT_SCHEMA.columns, owner=owner, now=now)
            apply_future_table_grants(connection, new)
            return new
    if found.schema.columns != REJECT_SCHEMA.columns:
        raise LoadRefused(
            what=f"REJECTED DATA AS TABLE {name}",
            reason="this table exists, and does not have the columns of a table of rejects. Name "
            "another table, or drop it and let COPY create it",
        )
    return found
