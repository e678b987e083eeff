"""Check chunks whose blobs are on the stage: bytes, rows and statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from snowmelt.blob.chunk_table_reader import read_chunk
from snowmelt.blob.encryption import apply_aes_ctr
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.errors import BlobCorrupt, ObjectMissing, SnowmeltError, TableInconsistent
from snowmelt.integrity.findings import Finding, make_finding
from snowmelt.integrity.table_state import LedgerTotals, StoredChunkRow, TableState
from snowmelt.schema.iceberg_table_form import keeps_values
from snowmelt.schema.row_fingerprint import fingerprint_table
from snowmelt.schema.statistics import collect_statistics
from snowmelt.storage.store import Store
from snowmelt.table.chunk_reader import ChunkReadTask, run_chunk_read_task
from snowmelt.table.table_reader import make_chunk_read_tasks
from snowmelt.wire.column_statistics import NO_STORED_STATISTICS, encode_stored_statistics


def list_needed_chunks(state: TableState) -> list[StoredChunkRow]:
    """Return the chunks that queries read from the stage: waiting and quarantined chunks."""
    watermark = state.table.migrated_seq
    return [
        chunk
        for chunk in state.chunks
        if not chunk.is_retired and (chunk.record.seq > watermark or chunk.quarantine_reason)
    ]


def check_blobs(state: TableState, sizes: Mapping[str, int]) -> Iterator[Finding]:
    """Check that the blobs of needed chunks exist. `sizes` maps paths in the stage to bytes."""
    name = state.table.name
    for chunk in list_needed_chunks(state):
        record, path = chunk.record, chunk.stage_path
        size = sizes.get(path)
        subject = {"seq": record.seq, "path": path}
        if size is None:
            detail = f"Blob {path} of chunk {record.seq} is not on the stage."
            yield make_finding("blob-missing", name, detail, **subject)
        elif size < record.offset + record.length:
            detail = (
                f"Blob {path} has {size} bytes; chunk {record.seq} ends at"
                f" {record.offset + record.length}."
            )
            yield make_finding("blob-short", name, detail, **subject)
    for seq, reason in state.quarantined.items():
        detail = f"Chunk {seq} is quarantined: {reason}"
        yield make_finding("chunk-quarantined", name, detail, seq=seq)


def check_keys(database: Database, keyring: KeyRing, state: TableState) -> Iterator[Finding]:
    """Check that the master key decrypts the data keys of all chunks."""
    for key_id in sorted({chunk.record.key_id for chunk in state.chunks}):
        try:
            with database.reading() as connection:
                found = keyring.find_data_keys(connection, [key_id])
            problem = None if key_id in found else "it is not in the catalog"
        except SnowmeltError as error:
            if error.retryable:
                raise
            problem = str(error)
        if problem is not None:
            detail = f"Key {key_id} of chunks cannot be used: {problem.rstrip('.')}."
            yield make_finding("key-unreadable", state.table.name, detail, key=key_id)


def check_chunk_contents(
    database: Database,
    keyring: KeyRing,
    stage: Store,
    state: TableState,
    totals: LedgerTotals,
    chunks: Iterable[StoredChunkRow],
) -> Iterator[Finding]:
    """Read chunks: MD5, encryption, rows, statistics, and the fingerprint in the ledger.

    Raises:
        StageUnavailable: If the stage does not respond.
    """
    for chunk in chunks:
        try:
            [task] = make_chunk_read_tasks(
                database, keyring, stage.url, [chunk.record], state.table.schema
            )
        except (TableInconsistent, SnowmeltError) as error:
            if error.retryable:
                raise
            # `check_keys` reports this.
            continue
        yield from _check_content(state, totals, chunk, task, stage)


def _check_content(
    state: TableState,
    totals: LedgerTotals,
    chunk: StoredChunkRow,
    task: ChunkReadTask,
    stage: Store,
) -> Iterator[Finding]:
    seq, name = chunk.record.seq, state.table.name
    subject = {"seq": seq, "path": chunk.stage_path}
    try:
        table = run_chunk_read_task(task)
    except ObjectMissing:
        # `check_blobs` reports this if a query needs the blob.
        return
    except BlobCorrupt as error:
        yield make_finding("chunk-corrupt", name, f"Chunk {seq}: {error}", **subject)
        return
    stored = totals.find_fingerprint(seq)
    if stored is not None:
        # The ledger's fingerprint covers the columns at the time of the migration. `table` has the
        # current ones.
        written = state.schemas.get(int(totals.versions[seq]))
        if written is None or not keeps_values(written, state.table.schema):
            stored = None
    if stored is not None and fingerprint_table(table) != stored:
        detail = (
            f"The rows of chunk {seq} differ from the migrated rows: their fingerprints differ."
        )
        yield make_finding("ledger-differs", name, detail, seq=seq)
    if problem := _find_statistics_error(state, chunk, task, stage):
        yield make_finding("statistics-differ", name, f"Chunk {seq}: {problem}", **subject)


def _find_statistics_error(
    state: TableState, chunk: StoredChunkRow, task: ChunkReadTask, stage: Store
) -> str | None:
    """Return the difference between stored statistics and rows, or None without a difference."""
    stored = chunk.record.statistics
    written = state.schemas.get(chunk.record.schema_version)
    if stored == NO_STORED_STATISTICS or written is None:
        return None
    data = stage.get_range(task.stage_path, task.offset, task.length)
    parquet = apply_aes_ctr(data, key=task.chunk_key, offset=task.offset)
    table = read_chunk(parquet, written, path=task.path)
    try:
        found = msgspec.msgpack.decode(stored, type=dict[str, list[object]])
    except msgspec.DecodeError:
        # Versions before 0.2 stored another format, which is not used for pruning.
        return None
    expected = msgspec.msgpack.decode(
        encode_stored_statistics(written, collect_statistics(table, written)),
        type=dict[str, list[object]],
    )
    for column in written.columns:
        key = str(column.ordinal)
        if key in found and found[key] != expected[key]:
            return (
                f"statistics of column {column.display_name} are {found[key]}; its rows have"
                f" {expected[key]}."
            )
    return None
