"""Deletes unreferenced blobs and native files, and the files of dropped tables.

A reader's plan is valid for less than the retention. Everything that a plan may reference is
retained for that time after its replacement. If a round is interrupted, the next one continues:

* A chunk's blob is deleted when the retention has passed since the commit of the migration, and
streams have read it (`snowmelt.catalog.jobs.load_history`). The catalog rows of the chunks are
marked, the object is deleted, then the rows are deleted. An object is deleted only if every chunk
in it is marked.
* A blob that was never registered is deleted a day after it was first seen, after its tombstone is
written.
* Native files are deleted if they are referenced neither by the current metadata nor by metadata
that was current within the retention. During a migration, no file is deleted. During a load or a
compaction, only older files are deleted, and files of unknown runs are retained for a day. Files
are listed before the catalog is read, so a file of a concurrent commit is never deleted.
* Files of publications (`snowmelt.table.snapshot_publication`) are deleted when the retention has passed
  since a newer publication replaced them, and files of unknown publications after a day.
* Nothing is deleted while a backup runs, because it copies what the catalog referenced when it
started.
* A dropped table is deleted completely after its retention time for UNDROP plus the retention. It
is first marked as purged, in a transaction that excludes UNDROP.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import uuid
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise

import sqlalchemy as sa

from snowmelt import failpoints
from snowmelt.blob.encryption import parse_blob_path
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs import leases, load_history, run_history
from snowmelt.catalog.jobs.run_history import RunState
from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.objects import namespaces, published_snapshots
from snowmelt.catalog.objects.tables import (
    delete_table_record,
    find_table_by_id,
    list_dropped_tables,
    list_tables,
)
from snowmelt.catalog.streaming import channels, chunks
from snowmelt.catalog.streaming import registration as stages
from snowmelt.catalog.streaming.registration import StagedBlob
from snowmelt.clock import Clock
from snowmelt.errors import BlobInvalid, SnowmeltError, TableNotFound
from snowmelt.failpoints import Failpoint
from snowmelt.storage.store import ObjectInfo, Store
from snowmelt.table.active_run_files import exclude_files_of_active_runs, parse_run_id
from snowmelt.table.file_replacement_run import abort_orphaned_maintenance_runs
from snowmelt.table.iceberg import (
    list_current_file_addresses,
    list_retained_file_addresses,
    load_native_table,
)
from snowmelt.table.load_commit import abort_orphaned_loads
from snowmelt.table.migration import abort_orphaned_migrations, migration_lease_name
from snowmelt.table.warehouse_paths import Warehouse, get_copied_path, is_published_path

_log = logging.getLogger("snowmelt.table")

UNREGISTERED_RETENTION = dt.timedelta(hours=24)

# Minimum age to record a sighting: younger blobs may still be registered.
_MIN_AGE = dt.timedelta(minutes=10)
_LEASE_S = 60.0
_BLOBS_PER_BATCH = 1000
_BACKUP_CHECK_S = 1.0
_LISTED_BLOBS_PER_BATCH = 5_000


@dataclass(frozen=True, slots=True)
class GarbageCollectionResult:
    """Numbers of deleted blobs, deleted unregistered blobs and deleted warehouse files.

    `problems` contains the tables that could not be processed, with the reasons. `waits_for_backup`
    is True if the round ended because of a running backup.
    """

    blobs: int
    unregistered: int
    files: int
    problems: tuple[str, ...] = ()
    waits_for_backup: bool = False


def _do_nothing() -> None:
    """Do not interrupt the round (default of `on_step`)."""


def collect_garbage(
    database: Database,
    stage: Store,
    warehouse: Store,
    *,
    clock: Clock,
    retention_s: float,
    on_step: Callable[[], None] = _do_nothing,
    is_replica: bool = False,
) -> GarbageCollectionResult:
    """Delete unreferenced blobs and files.

    Safe to run concurrently with readers, migrations and other collectors. A table that cannot be
    processed does not affect the others.

    Args:
        database: The catalog.
        stage: The store of the blobs.
        warehouse: The store of the native files.
        clock: The clock that determines ages.
        retention_s: Retention in seconds. Must be longer than any reader's plan is valid.
        on_step: Called between tables and between objects. If it raises a `retryable` error, the
            round ends, and the next round continues.
        is_replica: True if another site writes the catalog. Only objects that the other site dropped are
            then deleted.

    Raises:
        StageUnavailable: If a store does not respond. The next round completes this one.
    """
    backups = _BackupWatch(database, clock, on_step)
    try:
        backups.check()
        return _collect(
            database, stage, warehouse, clock, retention_s, backups.check_sometimes, is_replica
        )
    except _BackupRunning:
        return GarbageCollectionResult(0, 0, 0, waits_for_backup=True)


class _BackupRunning(Exception):
    """Control flow: a backup runs."""


class _BackupWatch:
    """Watch that ends a round at most a second after a backup starts."""

    def __init__(self, database: Database, clock: Clock, on_step: Callable[[], None]) -> None:
        self._database = database
        self._clock = clock
        self._on_step = on_step
        self._checked_s = 0.0

    def check(self) -> None:
        """Raise _BackupRunning if a backup runs."""
        with self._database.reading() as connection:
            if leases.is_backup_running(connection, self._clock.now()):
                raise _BackupRunning
        self._checked_s = self._clock.monotonic()

    def check_sometimes(self) -> None:
        """Call `on_step`, and `check` if the last check is over `_BACKUP_CHECK_S` seconds old."""
        self._on_step()
        if self._clock.monotonic() - self._checked_s > _BACKUP_CHECK_S:
            self.check()


def _collect(
    database: Database,
    stage: Store,
    warehouse: Store,
    clock: Clock,
    retention_s: float,
    on_step: Callable[[], None],
    is_replica: bool,
) -> GarbageCollectionResult:
    before = clock.now() - dt.timedelta(seconds=retention_s)
    with database.reading() as connection:
        live = list_tables(connection)
        gone = [
            table
            for table in list_dropped_tables(connection)
            if table.dropped_at is not None and table.dropped_at <= before
        ]
    problems: list[str] = []
    if is_replica:
        # The primary decides when UNDROP ends, and deletes the table's record.
        gone = []
    gone = [table for table in gone if _try_mark_purged(database, table, clock)]
    for table in [*live, *gone]:
        on_step()
        with _recording_problems(table, problems):
            # The primary deletes the catalog rows of a replica's chunks. After that, their blobs
            # count as unregistered.
            if not is_replica:
                _retire_chunks(database, table, clock, before)
    failpoints.hit_failpoint(Failpoint.CLEANUP_MARKED)
    blobs = 0 if is_replica else _delete_retired_blobs(database, stage, clock, on_step)
    unregistered = _delete_unregistered_blobs(database, stage, clock, on_step)
    house = Warehouse(warehouse)
    files = 0
    for table in live:
        on_step()
        with _recording_problems(table, problems):
            files += _delete_native_files(
                database, house, table, clock, before, on_step, is_replica=is_replica
            )
    for table in gone:
        with _recording_problems(table, problems):
            files += _delete_dropped_table(database, house, table, clock, on_step)
    for store in (stage, warehouse):
        store.delete_partial_writes(clock.now() - UNREGISTERED_RETENTION, on_step=on_step)
    return GarbageCollectionResult(blobs, unregistered, files, tuple(problems))


def expire_idle_channels(
    database: Database, clock: Clock, *, idle_s: float, on_step: Callable[[], None] = _do_nothing
) -> int:
    """Remove channels that were not written to for `idle_s` seconds. Return their number.

    Snowflake removes idle channels after 30 days, with their offset tokens. 0 disables expiry.
    Calls `on_step` between transactions. An error in `on_step` ends the expiry.
    """
    if idle_s <= 0:
        return 0
    count = 0
    while True:
        on_step()
        now = clock.now()
        with database.writing() as connection:
            some = channels.expire_idle_channels(
                connection, now - dt.timedelta(seconds=idle_s), now
            )
        if not some:
            return count
        count += some


@contextlib.contextmanager
def _recording_problems(table: TableRecord, problems: list[str]) -> Iterator[None]:
    """Record an error of one table. Reraises a retryable error (an outage) to end the round."""
    try:
        yield
    except Exception as error:
        if isinstance(error, SnowmeltError) and error.retryable:
            raise
        problem = f"table {table.name} ({table.incarnation}): {error}"
        _log.warning("clean-up of %s", problem, exc_info=error)
        problems.append(problem)


def _try_mark_purged(database: Database, table: TableRecord, clock: Clock) -> bool:
    """Mark a dropped table as purged, which excludes UNDROP, if its retention has passed.

    Returns True if the table may be deleted.
    """
    if table.kept_until is not None and table.kept_until > clock.now():
        return False
    with database.writing() as connection:
        return namespaces.mark_purged_if_expired(connection, table.table_id, clock.now())


def _retire_chunks(
    database: Database, table: TableRecord, clock: Clock, before: dt.datetime
) -> None:
    """Mark the chunks that no valid plan references."""
    with database.reading() as connection:
        last = table.last_seq
        if table.dropped_at is None:
            last = run_history.find_migrated_seq(connection, table.table_id, before)
            mark = load_history.find_lowest_position(connection, table.incarnation, clock.now())
            last = last if mark is None else min(last, mark)
        waiting = chunks.list_chunks(connection, table.table_id, 0, last, limit=1)
        if not waiting and not load_history.has_expired_positions(
            connection, table.incarnation, clock.now()
        ):
            return
    with database.writing() as connection:
        if table.dropped_at is not None:
            chunks.discard_quarantined_chunks(connection, table.table_id, clock.now())
        chunks.retire_chunks(connection, table.table_id, last, clock.now())
        load_history.delete_expired_positions(connection, table.incarnation, clock.now())


def _delete_retired_blobs(
    database: Database, stage: Store, clock: Clock, on_step: Callable[[], None]
) -> int:
    deleted = 0
    while True:
        with database.reading() as connection:
            blobs = chunks.list_deletable_blobs(connection, limit=_BLOBS_PER_BATCH)
        if not blobs:
            return deleted
        paths = [f"{blob.prefix}/{blob.path}" for blob in blobs]
        deleted += _delete_objects(stage, paths, on_step)
        failpoints.hit_failpoint(Failpoint.CLEANUP_DELETED)
        with database.writing() as connection:
            chunks.replace_with_tombstones(connection, blobs, clock.now())


def _delete_unregistered_blobs(
    database: Database, stage: Store, clock: Clock, on_step: Callable[[], None]
) -> int:
    now = clock.now()
    lying = _list_staged_blobs(stage, now - _MIN_AGE, on_step)
    blobs: set[StagedBlob] = set()
    # Process in batches: a stage has a blob for each second of each client.
    while some := list(islice(lying, _LISTED_BLOBS_PER_BATCH)):
        blobs |= _record_sightings_and_list_tombstoned(database, some, now)
    with database.writing() as connection:
        blobs |= set(
            stages.tombstone_unregistered_blobs(
                connection, seen_before=now - UNREGISTERED_RETENTION, now=now
            )
        )
    return _delete_objects(stage, [f"{blob.prefix}/{blob.path}" for blob in blobs], on_step)


def _record_sightings_and_list_tombstoned(
    database: Database, staged_blobs: Iterable[StagedBlob], now: dt.datetime
) -> set[StagedBlob]:
    """Record sightings of unregistered blobs, and return the blobs with a tombstone."""
    lying = {blob.path: blob for blob in staged_blobs}
    with database.reading() as connection:
        known = stages.filter_registered_paths(connection, lying)
        doomed = {
            path for path in stages.filter_tombstoned_paths(connection, lying) if path not in known
        }
    spared = known | doomed
    unknown = [blob for path, blob in lying.items() if path not in spared]
    if unknown:
        with database.writing() as connection:
            stages.record_blob_sightings(connection, unknown, now)
    return {lying[path] for path in doomed}


def _list_staged_blobs(
    stage: Store, before: dt.datetime, on_step: Callable[[], None]
) -> Iterator[StagedBlob]:
    for found in stage.list():
        on_step()
        prefix, _, path = found.path.partition("/")
        try:
            parse_blob_path(path)
        except BlobInvalid:
            continue
        if found.modified_at <= before:
            yield StagedBlob(prefix, path)


def _delete_native_files(
    database: Database,
    warehouse: Warehouse,
    table: TableRecord,
    clock: Clock,
    before: dt.datetime,
    on_step: Callable[[], None],
    *,
    is_replica: bool,
) -> int:
    listed = list(warehouse.store.list(warehouse.table_folder(table)))
    if not listed:
        return 0
    published = [each for each in listed if is_published_path(each.path)]
    found = [each for each in listed if not is_published_path(each.path)]
    if is_replica:
        # A file that is less than a day old may belong to a state that is being copied.
        until = clock.now() - UNREGISTERED_RETENTION
        found = [each for each in found if each.modified_at < until]
    else:
        _abort_orphaned_work(database, table, clock)
    with database.reading() as connection:
        try:
            table = find_table_by_id(connection, table.table_id)
        except TableNotFound:
            return 0
        if run_history.list_running_migrations(connection, table.table_id):
            return 0
        at_work = _list_running_start_times(connection, table.table_id)
        committed = _map_run_commit_times(connection, table.table_id)
        found = exclude_files_of_active_runs(
            connection, found, committed, clock.now() - UNREGISTERED_RETENTION
        )
        expired = published_snapshots.list_expired_publications(connection, table.table_id, before)
        known = published_snapshots.list_published_paths(connection, table.table_id)
        written_at = published_snapshots.find_last_engine_write(connection, table.table_id)
    if table.dropped_at is not None:
        return 0
    unregistered = clock.now() - UNREGISTERED_RETENTION
    if written_at is not None and written_at > unregistered:
        # Keep files without a run ID in their names for a day: they may be manifests that an engine
        # is about to commit.
        found = [
            each for each in found if parse_run_id(each.path) or each.modified_at < unregistered
        ]
    if at_work:
        # Also use the store's clock, because this process's clock may be ahead.
        newest = max((each.modified_at for each in found), default=before)
        first = min(*at_work, newest) - _MIN_AGE
        found = [each for each in found if each.modified_at < first]
    paths = [each.path for each in found]
    current = [] if table.pointer is None else [warehouse.to_path(table.pointer)]
    recent = _find_recently_replaced_metadata({*paths, *current}, committed, before) & set(paths)
    needed = _find_needed_paths(warehouse, table, recent)
    unneeded = [path for path in paths if path not in needed]
    remaining = {each.path for each in listed}.difference(unneeded)
    unneeded += _list_unneeded_publications(
        published,
        needed | (known - set(expired.paths)),
        known,
        remaining,
        clock.now() - UNREGISTERED_RETENTION,
    )
    deleted = _delete_objects(warehouse.store, unneeded, on_step)
    if expired.publication_ids or expired.file_ids:
        with database.writing() as connection:
            published_snapshots.delete_publications(connection, expired)
    return deleted


def _list_unneeded_publications(
    published: Iterable[ObjectInfo],
    needed: Container[str],
    known: Container[str],
    remaining: Container[str],
    before: dt.datetime,
) -> list[str]:
    """Return the files of publications that no reader uses.

    A copy of a native manifest is retained as long as the original. A file that is not in the
    catalog may belong to a publication in progress, and is retained until it is older than
    `before`.
    """
    unneeded = []
    for each in published:
        original = get_copied_path(each.path)
        is_needed = (
            each.path in needed
            or (original is not None and original in remaining)
            or (each.path not in known and each.modified_at > before)
        )
        if not is_needed:
            unneeded.append(each.path)
    return unneeded


def _abort_orphaned_work(database: Database, table: TableRecord, clock: Clock) -> None:
    """Close the migrations, loads and maintenance runs of a table whose process died."""
    _try_abort_orphaned_migrations(database, table, clock)
    abort_orphaned_loads(database, table, clock)
    abort_orphaned_maintenance_runs(database, table, clock)


def _list_running_start_times(connection: sa.Connection, table_id: int) -> list[dt.datetime]:
    """Return the start times of a table's running loads and maintenance runs."""
    return [
        *(load.started_at for load in load_history.list_running_loads(connection, table_id)),
        *(run.started_at for run in run_history.list_running_maintenance(connection, table_id)),
    ]


def _try_abort_orphaned_migrations(database: Database, table: TableRecord, clock: Clock) -> None:
    """Close migrations whose process died. Acquires their lease, so that they can never commit."""
    with database.reading() as connection:
        if not run_history.list_running_migrations(connection, table.table_id):
            return
    with database.writing() as connection:
        lease = leases.acquire_lease(
            connection,
            migration_lease_name(table),
            f"cleanup:{uuid.uuid4().hex}",
            ttl_s=_LEASE_S,
            now=clock.now(),
        )
        if lease is not None:
            abort_orphaned_migrations(connection, table.table_id, clock)
            leases.release_lease(connection, lease)


def _map_run_commit_times(connection: sa.Connection, table_id: int) -> dict[str, dt.datetime]:
    """Return the commit time of each run of a table: migration, load or maintenance."""
    runs = {
        run.run_id: run.ended_at
        for run in run_history.list_migrations(connection, table_id)
        if run.state is RunState.COMMITTED and run.ended_at is not None
    }
    others = load_history.find_load_commit_times(
        connection, table_id
    ) | run_history.find_maintenance_commit_times(connection, table_id)
    return runs | others


def _find_recently_replaced_metadata(
    paths: Iterable[str], committed: Mapping[str, dt.datetime], before: dt.datetime
) -> set[str]:
    """Return the metadata files that were replaced after `before`, ordered by number."""
    line = sorted(
        (int(name.partition("-")[0]), path)
        for path in paths
        if (name := path.rpartition("/")[2]).endswith(".metadata.json")
        and _parse_metadata_run_id(path) in committed
    )
    return {
        path
        for (_, path), (_, successor) in pairwise(line)
        if committed[_parse_metadata_run_id(successor)] > before
    }


def _find_needed_paths(warehouse: Warehouse, table: TableRecord, recent: Iterable[str]) -> set[str]:
    addresses = set[str]()
    if table.pointer is not None:
        addresses.update(
            list_retained_file_addresses(load_native_table(table.pointer, table.incarnation))
        )
    for path in recent:
        native = load_native_table(warehouse.to_address(path), table.incarnation)
        addresses.add(native.location)
        addresses.update(list_current_file_addresses(native))
    return {warehouse.to_path(address) for address in addresses}


def _parse_metadata_run_id(path: str) -> str:
    """Return the run ID of a metadata file name, `<number>-<run id>.metadata.json`."""
    return path.rpartition("/")[2].partition("-")[2].removesuffix(".metadata.json")


def _delete_dropped_table(
    database: Database,
    warehouse: Warehouse,
    table: TableRecord,
    clock: Clock,
    on_step: Callable[[], None],
) -> int:
    _abort_orphaned_work(database, table, clock)
    with database.reading() as connection:
        if run_history.list_running_migrations(connection, table.table_id):
            return 0
        if _list_running_start_times(connection, table.table_id):
            return 0
    listed = [found.path for found in warehouse.store.list(warehouse.table_folder(table))]
    deleted = _delete_objects(warehouse.store, listed, on_step)
    with database.writing() as connection:
        if not chunks.list_chunks(connection, table.table_id, 0, table.last_seq, limit=1):
            delete_table_record(connection, table.table_id)
    return deleted


def _delete_objects(store: Store, paths: Collection[str], on_step: Callable[[], None]) -> int:
    for path in paths:
        on_step()
        store.delete(path)
    return len(paths)
