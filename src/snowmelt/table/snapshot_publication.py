"""Publication of table snapshots for engines that read Iceberg: native files plus fresh files.

A publication consists of a metadata file, a manifest list and a manifest, written without a commit.
Its current snapshot has every row up to one commit sequence exactly once. The commit sequence of a
table's publications never decreases. Publications use addresses in the warehouse bucket of the S3
endpoint, which engines on other machines can read. The manifests of a warehouse in a folder contain
`file:` addresses; they are copied once with the other addresses.

A snapshot is also listed in the metadata files of the next publications, for engines that planned
with it or whose clock is behind. Its files are retained for the retention time. A snapshot on which
an engine may base a commit is listed for 50 minutes, and later snapshots descend from it. The
reason: before a commit, an engine walks from the newest snapshot back to the one with which it
planned.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import secrets
import uuid
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa
from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO, OutputFile
from pyiceberg.manifest import (
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from snowmelt import failpoints
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs import leases, run_history
from snowmelt.catalog.jobs.leases import Lease
from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.objects import published_snapshots as catalog
from snowmelt.catalog.objects.published_snapshots import (
    MAX_REPLACED_AGE,
    FreshFile,
    PublishedSnapshot,
)
from snowmelt.catalog.objects.tables import find_table_by_id
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.catalog.streaming.chunks import (
    ChunkRecord,
    list_chunks,
    list_quarantined_chunk_records,
)
from snowmelt.clock import Clock, to_epoch_ms
from snowmelt.errors import LeaseLost, TableInconsistent
from snowmelt.failpoints import Failpoint
from snowmelt.table.file_io import BufferedOutputFile, PublishedOutputFile, make_file_io
from snowmelt.table.fresh_files import (
    MAX_ROUND_BYTES,
    MAX_UNJOINED_FILES,
    FreshFileWriter,
)
from snowmelt.table.iceberg import NativeTable, make_current_metadata
from snowmelt.table.published_manifests import (
    encode_file,
    write_fresh_manifest,
    write_published_list,
)
from snowmelt.table.snapshot import MAX_SNAPSHOT_AGE_S, load_current_native_table
from snowmelt.table.table_reader import make_chunk_read_tasks
from snowmelt.table.warehouse_paths import (
    COPY_PREFIX,
    PUBLISHED_FOLDER,
    Warehouse,
    open_warehouse,
)

# Number of publications that list a snapshot. DuckDB chooses the newest snapshot that is not newer
# than its transaction. DuckDB repeats a failed load for 2.1 s (0.1 + 0.4 + 1.6) or 8.5 s in the
# same transaction. The snapshot must be listed for that time. 50 rounds take ten seconds or more.
LISTED_PUBLICATIONS = 50
_PAUSE = dt.timedelta(seconds=10)
_BACKDATING = dt.timedelta(seconds=60)
# Time per round to copy the manifests of older native snapshots, so that a first load does not
# wait. A snapshot is listed when its manifests are copied.
_COPY_BUDGET_S = 0.5
_CHUNKS_PER_READ = 1000
# Rows that compress to a few bytes take as much CPU as other rows. A round has at most about a
# million rows.
_MIN_ROW_BYTES = 32
_MAX_HELD = 200
# Minimum age of fresh files to compact if an engine may be planning with them: engines cannot
# remove a file that was compacted.
_MIN_JOIN_AGE = dt.timedelta(seconds=60)
# Engines retry a commit 4 times, and do not treat rows that arrive later as a conflict.
_SERVED_PROPERTIES = {
    "commit.retry.num-retries": "4",
    "write.delete.isolation-level": "snapshot",
    "write.update.isolation-level": "snapshot",
    "write.merge.isolation-level": "snapshot",
}
_COMPRESSION: Literal["deflate"] = "deflate"


@dataclass(frozen=True, slots=True)
class PublicationSettings:
    """Locations of stage and warehouse."""

    stage_url: str
    warehouse_url: str


@dataclass(frozen=True, slots=True)
class _TableState:
    """State from which a publication is made, read in one transaction."""

    table: TableRecord
    fresh: tuple[FreshFile, ...]
    published: tuple[PublishedSnapshot, ...]
    held: tuple[PublishedSnapshot, ...]
    unjoinable: frozenset[int]
    quarantined: tuple[ChunkRecord, ...]
    is_migrating: bool


class SnapshotPublisher:
    """Publisher of the snapshots of all tables. Not thread-safe.

    Caches the copied manifests, so that manifests of a native table are read only once.
    """

    def __init__(
        self, database: Database, keyring: KeyRing, settings: PublicationSettings, clock: Clock
    ) -> None:
        self._database = database
        self._keyring = keyring
        self._settings = settings
        self._clock = clock
        self._warehouse = open_warehouse(settings.warehouse_url)
        self._copier = ManifestCopier(self._warehouse, clock)
        # Table, commit sequence and time of the last chunk written.
        self._last_written: tuple[int, int, dt.datetime] | None = None

    def publish(
        self,
        table_id: int,
        *,
        native_only: bool = False,
        lease: Lease | None = None,
        max_bytes: int | None = None,
    ) -> PublishedSnapshot | None:
        """Publish the current state of a table. Return None if the last publication already has it.

        Writes up to `max_bytes` (None: 32 MiB) of new chunks as fresh files, and leaves later
        chunks to the next call. A row counts as 32 bytes or more. With `native_only`, publishes only the native table. With `lease`, stores nothing if the lease is
        lost.

        Raises:
            LeaseLost: If another process holds the lease.
            TableNotFound: If the table was deleted.
            TableInconsistent: If catalog and native table do not agree.
            ObjectMissing: If a blob does not exist.
            StageUnavailable: If stage or warehouse do not respond.
        """
        while True:
            # Repeats only if an engine loads the publication while it is replaced.
            with contextlib.suppress(_HeldMeanwhile):
                return self._publish(
                    table_id, native_only=native_only, lease=lease, max_bytes=max_bytes
                )

    def _publish(
        self, table_id: int, *, native_only: bool, lease: Lease | None, max_bytes: int | None
    ) -> PublishedSnapshot | None:
        state = self._read_state(table_id, native_only=native_only)
        table = state.table
        if state.quarantined and state.quarantined[0].seq <= table.migrated_seq:
            # The chunk's rows are committed, but in no native file, so a newer state would omit
            # them.
            first = state.quarantined[0]
            reason = f"Chunk {first.seq} is quarantined; its blob is {first.prefix}/{first.path}."
            self._store_stalled_reason(state, reason, native_only=native_only)
            return None
        native = load_current_native_table(table)
        files, retired, problem = (
            ([], [], None)
            if native_only
            else self._write_fresh_files(state, max_bytes or MAX_ROUND_BYTES)
        )
        up_to = files[-1].to_seq if files else table.migrated_seq
        last = state.published[0] if state.published else None
        if last is not None and up_to < last.up_to_seq:
            # A blob became unreadable. Do not publish a state that is older than the last one.
            self._store_stalled_reason(state, problem, native_only=native_only)
            return None
        # Files of the last publication may be retired only if there is a new publication.
        has_same_files = not retired and all(file.file_id for file in files)
        if (
            has_same_files
            and last is not None
            and (last.pointer, last.up_to_seq, last.schema_version)
            == (table.pointer, up_to, table.schema.version)
        ):
            self._store_stalled_reason(state, problem, native_only=native_only)
            return None
        made = self._build(state, native, files, up_to, native_only=native_only)
        failpoints.hit_failpoint(Failpoint.PUBLICATION_WRITTEN)
        now = self._clock.now()
        with self._database.writing() as connection:
            if lease is not None and not leases.holds_lease(connection, lease):
                raise LeaseLost(name=lease.name)
            if not native_only:
                catalog.lock_newest_publication(connection, table_id)
            held = [] if native_only else self._list_held(connection, table_id, limit=1)
            if held != list(state.held[:1]):
                raise _HeldMeanwhile
            for file in files:
                if not file.file_id:
                    catalog.add_fresh_file(connection, table_id, file, now=now)
            catalog.retire_fresh_files(connection, [file.file_id for file in retired], now)
            catalog.set_stalled_reason(connection, table_id, problem, native_only=native_only)
            catalog.add_publication(connection, made)
            failpoints.hit_failpoint(Failpoint.PUBLICATION_INSIDE_COMMIT)
        failpoints.hit_failpoint(Failpoint.PUBLICATION_COMMITTED)
        return made

    def _read_state(self, table_id: int, *, native_only: bool) -> _TableState:
        young = self._clock.now() - _MIN_JOIN_AGE
        with self._database.reading() as connection:
            held = self._list_held(connection, table_id, limit=_MAX_HELD)
            return _TableState(
                find_table_by_id(connection, table_id),
                tuple(catalog.list_fresh_files(connection, table_id)),
                tuple(
                    catalog.list_publications(
                        connection, table_id, native_only=native_only, limit=LISTED_PUBLICATIONS
                    )
                ),
                () if native_only else tuple(held),
                catalog.list_recent_fresh_files(connection, table_id, young)
                if held
                else frozenset(),
                tuple(list_quarantined_chunk_records(connection, table_id)),
                bool(run_history.list_running_migrations(connection, table_id)),
            )

    def _list_held(
        self, connection: sa.Connection, table_id: int, *, limit: int
    ) -> list[PublishedSnapshot]:
        since = self._clock.now() - dt.timedelta(seconds=MAX_SNAPSHOT_AGE_S)
        return catalog.list_held_publications(connection, table_id, since=since, limit=limit)

    def _store_stalled_reason(
        self, state: _TableState, reason: str | None, *, native_only: bool
    ) -> None:
        table_id = state.table.table_id
        with self._database.reading() as connection:
            known = catalog.find_stalled_reason(connection, table_id, native_only=native_only)
        if known != reason:
            with self._database.writing() as connection:
                catalog.set_stalled_reason(connection, table_id, reason, native_only=native_only)

    def _write_fresh_files(
        self, state: _TableState, max_bytes: int
    ) -> tuple[list[FreshFile], list[FreshFile], str | None]:
        """Return fresh files above the watermark, files they replace, and the reason to stop."""
        table = state.table
        names = {column.name for column in table.schema.columns}
        writer = FreshFileWriter(
            self._warehouse,
            self._warehouse.table_folder(table),
            table.schema,
            tuple(name for name in table.cluster_by if name in names),
        )
        files: list[FreshFile] = []
        retired: list[FreshFile] = []
        covered, budget = table.migrated_seq, max_bytes
        for file in (*state.fresh, None):
            if file is not None and file.to_seq <= covered:
                retired.append(file)
                continue
            # If a migration ended within a fresh file, the file cannot be used.
            is_split = file is not None and file.from_seq < covered
            end = table.last_seq if file is None else file.to_seq if is_split else file.from_seq
            if is_split and file is not None:
                retired.append(file)
            while covered < end:
                # Rows of a published file must be written again, without a size limit.
                limit = budget if file is None else MAX_ROUND_BYTES
                made, used, reason = self._write_round(writer, table, covered, end, limit)
                if made is not None:
                    files.append(made)
                    covered = made.to_seq
                    budget -= used
                if reason is not None or (budget <= 0 and file is None):
                    # Stop here. Later rounds process the fresh files after `covered`.
                    return files, retired, reason
            if file is not None and not is_split:
                files.append(file)
                covered = file.to_seq
        if state.is_migrating or len(files) <= MAX_UNJOINED_FILES:
            # Do not compact files during a migration, which may adopt them.
            return files, retired, None
        joinable = (
            [file for file in files if file.file_id and file.file_id not in state.unjoinable]
            if state.held
            else files
        )
        for run, joined in writer.join_files(joinable):
            position = files.index(run[0])
            files[position : position + len(run)] = [joined]
            retired += [file for file in run if file.file_id]
            failpoints.hit_failpoint(Failpoint.PUBLICATION_JOINED)
        return files, retired, None

    def _write_round(
        self, writer: FreshFileWriter, table: TableRecord, start: int, end: int, budget: int
    ) -> tuple[FreshFile | None, int, str | None]:
        """Write a file of chunks (`start`, `end`]. Return it, its bytes and the reason to stop."""
        with self._database.reading() as connection:
            chunks = list_chunks(connection, table.table_id, start, end, limit=_CHUNKS_PER_READ)
        numbers = [chunk.seq for chunk in chunks]
        if not numbers or numbers != list(range(start + 1, start + 1 + len(numbers))):
            raise TableInconsistent(
                table=table.name, reason=f"chunks are missing between {start} and {end}"
            )
        taken = _cut_at_registration(chunks, budget, end)
        tasks = make_chunk_read_tasks(
            self._database, self._keyring, self._settings.stage_url, taken, table.schema
        )
        made, problem = writer.write_chunks(start, tasks)
        failpoints.hit_failpoint(Failpoint.PUBLICATION_FILE)
        if made is not None:
            last = taken[made.to_seq - start - 1]
            self._last_written = (table.table_id, last.seq, last.registered_at)
        used = sum(map(_weigh_chunk, taken))
        return made, used, None if problem is None else str(problem)

    def _build(
        self,
        state: _TableState,
        native: NativeTable | None,
        files: Sequence[FreshFile],
        up_to: int,
        *,
        native_only: bool,
    ) -> PublishedSnapshot:
        """Write the metadata objects of a publication."""
        table = state.table
        folder = self._warehouse.table_folder(table)
        now = self._clock.now()
        base = make_current_metadata(native, table, self._warehouse.to_address(folder))
        last = state.published[0] if state.published else None
        listed = _list_readable(state, now)
        timestamp = self._choose_timestamp(base, state, listed, up_to)
        made_paths: list[str] = []
        snapshot: dict[str, Any] | None = None
        # Without a snapshot, the publication could not descend from those with which engines
        # planned.
        if files or (state.held and base.current_snapshot() is not None):
            snapshot, made_paths = self._write_snapshot(base, folder, files, timestamp)
            if state.held:
                snapshot["parent-snapshot-id"] = _get_snapshot_id(state.held[0])
        # Increase the number: engines compare names of metadata files, and read the number as a
        # version.
        number = 0 if last is None else _parse_number(last.metadata_path) + 1
        path = f"{folder}/{PUBLISHED_FOLDER}/{number:05d}-{uuid.uuid4()}.metadata.json"
        kept = [each for each in listed if each.snapshot is not None][: LISTED_PUBLICATIONS - 1]
        known = {each.publication_id for each in kept}
        kept += [each for each in state.held if each.publication_id not in known]
        document = self._make_document(base, kept, snapshot, timestamp)
        self._warehouse.store.put(
            path, json.dumps(document).encode(), create_only=True, durable=True
        )
        return PublishedSnapshot(
            publication_id=0,
            table_id=table.table_id,
            native_only=native_only,
            pointer=table.pointer,
            up_to_seq=up_to,
            schema_version=table.schema.version,
            timestamp_ms=timestamp,
            metadata_path=path,
            files=(path, *made_paths),
            snapshot=None if snapshot is None else json.dumps(snapshot),
            created_at=now,
        )

    def _choose_timestamp(
        self,
        base: TableMetadata,
        state: _TableState,
        listed: Sequence[PublishedSnapshot],
        up_to: int,
    ) -> int:
        """Return the time of a snapshot in ms: of its last chunk, but after the previous snapshot.

        DuckDB ignores a snapshot that is newer than its transaction. A load that waited for this
        publication must find a snapshot. The first snapshot, and the first after a pause of 10 s,
        is therefore backdated by 60 s.
        """
        times = self._find_registration_times(state.table.table_id, up_to)
        now = self._clock.now()
        last = state.published[0] if state.published else None
        is_first = not base.snapshots and all(each.snapshot is None for each in listed)
        if times and (is_first or last is None or now - last.created_at > _PAUSE):
            times = [min(*times, now - _BACKDATING)]
        milliseconds = [*map(to_epoch_ms, times), base.last_updated_ms]
        if last is not None:
            # Before the first snapshot, times may be equal: an empty table has metadata but no
            # snapshot.
            milliseconds.append(last.timestamp_ms + (0 if is_first else 1))
        return max(milliseconds)

    def _find_registration_times(self, table_id: int, seq: int) -> list[dt.datetime]:
        """Return the registration time of a chunk, or an empty list if it does not exist."""
        if self._last_written is not None and self._last_written[:2] == (table_id, seq):
            return [self._last_written[2]]
        with self._database.reading() as connection:
            chunks = list_chunks(connection, table_id, seq - 1, seq)
        return [chunk.registered_at for chunk in chunks]

    def _write_snapshot(
        self, base: TableMetadata, folder: str, files: Sequence[FreshFile], timestamp: int
    ) -> tuple[dict[str, Any], list[str]]:
        """Write manifest and manifest list of native and fresh files. Return snapshot and paths."""
        warehouse = self._warehouse
        snapshot_id = secrets.randbelow(2**63 - 1) + 1
        parent = base.current_snapshot()
        sequence = (0 if parent is None else parent.sequence_number or 0) + 1
        stem = f"{folder}/{PUBLISHED_FOLDER}/{uuid.uuid4()}"
        manifest_path, list_path = f"{stem}-m0.avro", f"{stem}-list.avro"
        manifests: list[ManifestFile] = []
        encoded = [
            encode_file(file.entry, warehouse.to_public_address(file.path)) for file in files
        ]
        if files:
            manifests.append(
                write_fresh_manifest(
                    warehouse,
                    manifest_path,
                    base.schema(),
                    encoded,
                    snapshot_id=snapshot_id,
                    sequence_number=sequence,
                )
            )
        if parent is not None:
            manifests += self._copier.list_manifests(parent)
        list_address = write_published_list(
            warehouse,
            list_path,
            manifests,
            parent,
            snapshot_id=snapshot_id,
            sequence_number=sequence,
        )
        entry: dict[str, Any] = {
            "snapshot-id": snapshot_id,
            "sequence-number": sequence,
            "timestamp-ms": timestamp,
            "manifest-list": list_address,
            "summary": _make_summary(parent, sum(each.rows for each in encoded), files),
            "schema-id": base.current_schema_id,
        }
        if parent is not None:
            entry["parent-snapshot-id"] = parent.snapshot_id
        return entry, [*([manifest_path] if files else []), list_path]

    def _make_document(
        self,
        base: TableMetadata,
        published: Sequence[PublishedSnapshot],
        snapshot: dict[str, Any] | None,
        timestamp: int,
    ) -> dict[str, Any]:
        """Return the native table's metadata with public addresses and additional snapshots."""
        document: dict[str, Any] = json.loads(
            base.model_dump_json(by_alias=True, exclude_none=True)
        )
        warehouse = self._warehouse
        document["location"] = warehouse.to_public_address(warehouse.to_path(base.location))
        current = base.current_snapshot()
        native = self._copier.copy_snapshots(base.snapshots, current, budget_s=_COPY_BUDGET_S)
        listed = [json.loads(each.snapshot) for each in published if each.snapshot is not None]
        added = [*listed, *([] if snapshot is None else [snapshot])]
        document["snapshots"] = sorted([*native, *added], key=lambda each: each["timestamp-ms"])
        known = {each["snapshot-id"] for each in document["snapshots"]}
        log = [
            {"snapshot-id": each["snapshot-id"], "timestamp-ms": each["timestamp-ms"]}
            for each in (*document.get("snapshot-log", ()), *added)
            if each["snapshot-id"] in known
        ]
        document["snapshot-log"] = sorted(log, key=lambda each: each["timestamp-ms"])
        document["metadata-log"] = []
        document["properties"] = {**document.get("properties", {}), **_SERVED_PROPERTIES}
        document["last-updated-ms"] = timestamp
        if snapshot is not None:
            document["current-snapshot-id"] = snapshot["snapshot-id"]
            document["last-sequence-number"] = snapshot["sequence-number"]
            document["refs"] = {
                **document.get("refs", {}),
                "main": {"snapshot-id": snapshot["snapshot-id"], "type": "branch"},
            }
        return document


class _HeldMeanwhile(Exception):
    """Control flow: an engine loaded a publication, so the new publication must descend from it."""


def _get_snapshot_id(publication: PublishedSnapshot) -> int:
    return int(json.loads(publication.snapshot or "")["snapshot-id"])


def _list_readable(state: _TableState, now: dt.datetime) -> list[PublishedSnapshot]:
    """Return the earlier publications whose files outlast any query, newest first."""
    readable = []
    replaced_at = now
    for each in state.published:
        if now - replaced_at < MAX_REPLACED_AGE and each.is_readable(state.table.pointer, now):
            readable.append(each)
        replaced_at = each.created_at
    return readable


class ManifestCopier:
    """Copier of native manifests and lists, with addresses that engines on other machines can read.

    Copies nothing if the warehouse is in a bucket, because its addresses are public. Not
    thread-safe.
    """

    def __init__(self, warehouse: Warehouse, clock: Clock) -> None:
        self._warehouse = warehouse
        self._clock = clock
        self._manifests: dict[str, ManifestFile] = {}
        self._lists: dict[str, str] = {}

    def copy_snapshots(
        self, snapshots: Iterable[Snapshot], current: Snapshot | None, *, budget_s: float
    ) -> list[dict[str, Any]]:
        """Return the entries of native snapshots for a metadata file.

        Includes the current snapshot, and the older ones (newest first) whose manifests are copied
        or can be copied within `budget_s` seconds.
        """
        deadline = self._clock.monotonic() + budget_s
        entries = []
        for snapshot in sorted(snapshots, key=lambda each: -each.timestamp_ms):
            is_current = current is not None and snapshot.snapshot_id == current.snapshot_id
            known = self._warehouse.is_public or snapshot.manifest_list in self._lists
            if is_current or known or self._clock.monotonic() < deadline:
                entry = json.loads(snapshot.model_dump_json(by_alias=True, exclude_none=True))
                entry["manifest-list"] = self._copy_list(snapshot)
                entries.append(entry)
        return entries

    def list_manifests(self, snapshot: Snapshot) -> list[ManifestFile]:
        """Return the manifests of a native snapshot. Copies them if needed."""
        io = make_file_io(snapshot.manifest_list)
        manifests = list(read_manifest_list(io.new_input(snapshot.manifest_list)))
        if self._warehouse.is_public:
            return manifests
        return [self._copy_manifest(each, io) for each in manifests]

    def _copy_list(self, snapshot: Snapshot) -> str:
        address = snapshot.manifest_list
        if self._warehouse.is_public:
            return address
        if address not in self._lists:
            output = PublishedOutputFile(self._warehouse, self._copied_path(address))
            if not output.exists():
                buffer = BufferedOutputFile(output)
                with write_manifest_list(
                    2,
                    buffer,
                    snapshot.snapshot_id,
                    snapshot.parent_snapshot_id,
                    snapshot.sequence_number or 0,
                    _COMPRESSION,
                ) as writer:
                    writer.add_manifests(self.list_manifests(snapshot))
                buffer.flush()
            self._lists[address] = output.location
        return self._lists[address]

    def _copy_manifest(self, manifest: ManifestFile, io: FileIO) -> ManifestFile:
        address = manifest.manifest_path
        if address not in self._manifests:
            if manifest.content is not ManifestContent.DATA:
                raise TableInconsistent(
                    table=address, reason="another tool has deleted rows from it by delete files"
                )
            output = PublishedOutputFile(self._warehouse, self._copied_path(address))
            if not output.exists():
                copy_manifest(manifest, io, output, self._to_public_address)
            copied = deepcopy(manifest)
            copied[0], copied[1] = output.location, len(output)
            self._manifests[address] = copied
        return self._manifests[address]

    def _to_public_address(self, address: str) -> str:
        return self._warehouse.to_public_address(self._warehouse.to_path(address))

    def _copied_path(self, address: str) -> str:
        """Return the path of a copy: the original's name in the folder of publications."""
        folder, _, name = self._warehouse.to_path(address).rpartition("/metadata/")
        return f"{folder}/{PUBLISHED_FOLDER}/{COPY_PREFIX}{name}"


def copy_manifest(
    manifest: ManifestFile, io: FileIO, output: OutputFile, convert: Callable[[str], str]
) -> None:
    """Write a copy of a manifest. `convert` returns the addresses of data files in the copy.

    After an error, the copy does not exist.
    """
    with AvroFile[ManifestEntry](io.new_input(manifest.manifest_path)) as original:
        schema = Schema.model_validate_json(original.header.meta["schema"])
    snapshot_id = manifest.added_snapshot_id or 0
    buffer = BufferedOutputFile(output)
    with write_manifest(
        2, UNPARTITIONED_PARTITION_SPEC, schema, buffer, snapshot_id, _COMPRESSION
    ) as writer:
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=False):
            entry.data_file[1] = convert(entry.data_file.file_path)
            writer.add_entry(entry)
    buffer.flush()


def _weigh_chunk(chunk: ChunkRecord) -> int:
    """Return the bytes that a chunk takes of a round's size, at least `_MIN_ROW_BYTES` per row."""
    return max(chunk.length, chunk.rows * _MIN_ROW_BYTES)


def _cut_at_registration(
    chunks: Sequence[ChunkRecord], max_bytes: int, end: int
) -> Sequence[ChunkRecord]:
    """Return the first chunks of about `max_bytes` by weight, without splitting a registration.

    The chunks of one registration have the same time. If chunk `end` was not read, the last
    registration may continue after the chunks that were read.
    """
    size = 0
    cut = len(chunks)
    for position, chunk in enumerate(chunks):
        if size >= max_bytes:
            cut = position
            break
        size += _weigh_chunk(chunk)
    if cut == len(chunks) and chunks[-1].seq == end:
        return chunks
    following = chunks[cut] if cut < len(chunks) else chunks[-1]
    start = cut
    while start > 0 and chunks[start - 1].registered_at == following.registered_at:
        start -= 1
    if start == 0:
        # One registration exceeds a round. Take all of its chunks that were read.
        while cut < len(chunks) and chunks[cut].registered_at == following.registered_at:
            cut += 1
        return chunks[:cut]
    return chunks[:start]


def _make_summary(parent: Snapshot | None, rows: int, files: Sequence[FreshFile]) -> dict[str, str]:
    """Return the summary of a snapshot that adds fresh files, with all totals for ClickHouse."""
    added = {
        "records": rows,
        "data-files": len(files),
        "files-size": sum(each.size for each in files),
    }
    before = (
        {} if parent is None or parent.summary is None else parent.summary.additional_properties
    )
    totals = {
        f"total-{name}": str(int(before.get(f"total-{name}", 0)) + count)
        for name, count in added.items()
    }
    zeros = dict.fromkeys(
        ("total-delete-files", "total-position-deletes", "total-equality-deletes"), "0"
    )
    return {
        "operation": "append",
        **{f"added-{name}": str(count) for name, count in added.items()},
        **totals,
        **zeros,
    }


def _parse_number(metadata_path: str) -> int:
    return int(metadata_path.rpartition("/")[2].partition("-")[0])
