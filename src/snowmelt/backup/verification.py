"""Verify a point: restore it into a scratch folder, and read all its data."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from snowmelt.backup.destination import BackupDestination, Progress, report_nothing
from snowmelt.backup.manifests import PointManifest, TableAtPoint
from snowmelt.backup.restoration import RestoreTarget, restore_point
from snowmelt.catalog import model
from snowmelt.catalog.db.database import Database, open_and_upgrade_database
from snowmelt.catalog.objects.tables import find_table_by_id, list_table_schema_versions
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.catalog.streaming.chunks import list_chunks
from snowmelt.clock import Clock
from snowmelt.errors import SnowmeltError
from snowmelt.integrity.checker import CheckSettings, IntegrityChecker
from snowmelt.storage.local_store import LocalStore
from snowmelt.table.chunk_reader import run_chunk_read_task
from snowmelt.table.file_io import make_file_io
from snowmelt.table.iceberg import list_native_files, load_native_table
from snowmelt.table.table_reader import make_chunk_read_tasks
from snowmelt.table.warehouse_paths import open_warehouse


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """Counts of verified data, and the problems found, as sentences."""

    tables: int
    rows: int
    channels: int
    problems: tuple[str, ...]


def verify_point(
    destination: BackupDestination,
    point: PointManifest,
    private_key: X25519PrivateKey,
    clock: Clock,
    *,
    scratch: Path | None = None,
    progress: Progress = report_nothing,
) -> VerificationResult:
    """Restore a point into a temporary folder in `scratch`, read every row, and delete the folder.

    Raises:
        BackupDamaged: If an object of the backup is missing or has wrong bytes.
        BackupRejected: If the private key does not match the backup.
    """
    with tempfile.TemporaryDirectory(prefix="snowmelt-verify-", dir=scratch) as name:
        folder = Path(name)
        target = RestoreTarget(
            f"sqlite:///{folder / 'catalog.db'}",
            LocalStore(folder / "stage"),
            open_warehouse(str(folder / "warehouse")),
            LocalStore(folder / "objects"),
            folder / "keys",
            clock,
        )
        restore_point(destination, point, private_key, target, progress=progress)
        with contextlib.closing(open_and_upgrade_database(target.catalog_url)) as database:
            keyring = KeyRing(load_master_key(target.keys_dir, create=False))
            problems = list(find_problems(database, keyring, target, point))
    live = point.live_tables
    rows = sum(table.native_rows + table.fresh_rows for table in live)
    return VerificationResult(len(live), rows, len(point.channels), tuple(problems))


def find_problems(
    database: Database, keyring: KeyRing, target: RestoreTarget, point: PointManifest
) -> Iterator[str]:
    """Yield each difference between a restored installation and the manifest of its point.

    Reads the footer of each native file, decrypts and decodes each chunk, compares the channels, and runs
    a deep check (`snowmelt check --deep`).
    """
    for state in point.tables:
        try:
            yield from _find_table_problems(database, keyring, target, state)
        except (SnowmeltError, OSError) as error:
            yield f"Cannot read table {state.name}: {error}"
    yield from _find_channel_problems(database, point)
    checker = IntegrityChecker(
        database,
        keyring,
        target.stage,
        target.warehouse,
        target.clock,
        settings=CheckSettings(deep=True),
    )
    for report in checker.check_all():
        for each in report.findings:
            yield f"{each.kind.name}: {each.detail}"


def _find_table_problems(
    database: Database, keyring: KeyRing, target: RestoreTarget, state: TableAtPoint
) -> Iterator[str]:
    with database.reading() as connection:
        table = find_table_by_id(connection, state.table_id)
        chunks = list_chunks(connection, table.table_id, 0, table.last_seq)
        versions = list_table_schema_versions(connection, table.table_id)
        held = set(
            connection.execute(
                sa.select(model.chunks.c.seq).where(
                    model.chunks.c.table_id == table.table_id,
                    model.chunks.c.quarantine_reason.is_not(None),
                )
            ).scalars()
        )
    native_rows = 0
    if table.pointer is not None:
        for file in list_native_files(load_native_table(table.pointer, table.incarnation)):
            with make_file_io(file.path).new_input(file.path).open() as stream:
                rows = pq.ParquetFile(stream).metadata.num_rows
            if rows != file.rows:
                yield f"{file.path} has {rows:,} rows, and its manifest says {file.rows:,}."
            native_rows += rows
    if native_rows != state.native_rows:
        yield (
            f"Table {state.name} has {native_rows:,} rows in native files instead of "
            f"{state.native_rows:,}."
        )
    readable = [chunk for chunk in chunks if chunk.seq not in held]
    current = versions[table.schema.version]
    # Decoding raises an error if the number of rows differs from the registered one.
    for task in make_chunk_read_tasks(database, keyring, target.stage.url, readable, current):
        run_chunk_read_task(task)
    fresh = [chunk for chunk in chunks if chunk.seq > table.migrated_seq or chunk.seq in held]
    fresh_rows = sum(chunk.rows for chunk in fresh)
    if fresh_rows != state.fresh_rows:
        yield f"Table {state.name} has {fresh_rows:,} rows in chunks instead of {state.fresh_rows:,}."
    above = {chunk.seq for chunk in chunks if chunk.seq > table.migrated_seq}
    missing = set(range(table.migrated_seq + 1, table.last_seq + 1)) - above
    if missing:
        yield f"Table {state.name} lacks chunk {min(missing)}, which is above the watermark."


def _find_channel_problems(database: Database, point: PointManifest) -> Iterator[str]:
    names = {table.table_id: table.name for table in point.live_tables}
    query = sa.select(
        model.channels.c.table_id, model.channels.c.name, model.channels.c.offset_token
    )
    with database.reading() as connection:
        found = {
            (names[row.table_id], row.name): row.offset_token
            for row in connection.execute(query)
            if row.table_id in names
        }
    expected = {(each.table, each.channel): each.offset_token for each in point.channels}
    for table, channel in expected.keys() | found.keys():
        here, there = found.get((table, channel)), expected.get((table, channel))
        if here != there:
            yield f"Channel {channel} of {table} is at token {here!r} instead of {there!r}."
