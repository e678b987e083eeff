"""Compare the lineage of a table, its native table and its files."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import localcontext

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.catalog.jobs.lineage import NativeFileRecord
from snowmelt.errors import ObjectMissing, SnowmeltError
from snowmelt.integrity.findings import Finding, make_finding
from snowmelt.integrity.table_state import LedgerTotals, TableState
from snowmelt.schema.chunk_types import FIELD_ID, to_contiguous_array
from snowmelt.schema.iceberg_table_form import keeps_values
from snowmelt.schema.row_fingerprint import Fingerprint, fingerprint_table, sum_fingerprints
from snowmelt.table.column_bounds import StoredBound, decode_bound
from snowmelt.table.iceberg import NativeTable, list_native_files
from snowmelt.table.native_file import NativeFile, read_native_bytes
from snowmelt.table.snapshot import load_current_native_table
from snowmelt.table.warehouse_paths import Warehouse

_RANGE_LIMIT = 5
_DECIMAL_DIGITS = 76


def check_files(
    state: TableState, totals: LedgerTotals, warehouse: Warehouse, sizes: Mapping[str, int]
) -> tuple[list[Finding], dict[str, NativeFile]]:
    """Check the native table without reading data files.

    Args:
        state: The table in the catalog.
        totals: Totals of the table's ledger.
        warehouse: Store of the native files.
        sizes: Bytes of the objects in the table's folder, by path.

    Returns:
        Findings, and the files of the native table by path.
    """
    findings = list(_check_lineage(state, totals))
    try:
        native = load_current_native_table(state.table)
        listed = [] if native is None else list_native_files(native)
    except Exception as error:
        if isinstance(error, SnowmeltError) and error.retryable:
            raise
        detail = f"{state.table.pointer}: {str(error) or type(error).__name__}"
        findings.append(make_finding("native-table-invalid", state.table.name, detail))
        return findings, {}
    files = {warehouse.to_path(file.path): file for file in listed}
    findings += _check_manifests(state, native, listed, files)
    findings += _check_objects(state, files, sizes)
    return findings, files


def _check_lineage(state: TableState, totals: LedgerTotals) -> Iterator[Finding]:
    """Check that every migrated chunk is in one file, and each file has the rows of its sources."""
    table = state.table
    if state.lineage_from is None:
        return
    start, end = state.lineage_from, table.migrated_seq
    current = np.zeros(end + 1, np.int32)
    ended = np.zeros(end + 1, np.int32)
    for file in state.files:
        if file.removed_at is None or file.changed_rows:
            target = current if file.removed_at is None else ended
            for first, last in file.chunk_ranges:
                target[max(first, 0) : last + 1] += 1
    held = state.quarantined.keys() | totals.discarded
    for seq in held:
        if 0 <= seq <= end and not current[seq]:
            ended[seq] = max(ended[seq], 1)
    known = slice(start + 1, end + 1)
    offset = start + 1
    for seq in _list_some(np.flatnonzero((current + ended)[known] == 0) + offset):
        yield make_finding(
            "chunk-in-no-file",
            table.name,
            f"Chunk {seq} with {totals.rows[seq]} rows is in no native file; the watermark is {end}.",
            seq=int(seq),
        )
    for seq in _list_some(np.flatnonzero((current + ended)[known] > 1) + offset):
        paths = [file.path for file in state.current_files if file.has_chunk(int(seq))]
        yield make_finding(
            "chunk-in-two-files",
            table.name,
            f"Chunk {seq} with {totals.rows[seq]} rows is in the files {', '.join(paths)}.",
            seq=int(seq),
        )
    for file in state.files:
        loaded = sum(int(each[1]) for each in file.sources if not isinstance(each[0], int))
        expected = totals.sum_rows(file.chunk_ranges) + loaded
        if file.rows != expected:
            yield make_finding(
                "file-rows-differ",
                table.name,
                f"File {file.path} has {file.rows} rows; its chunks and loads have {expected}.",
                path=file.path,
            )
        written = Fingerprint.from_bytes(file.fingerprint)
        proof = _sum_chunk_fingerprints(state, totals, file)
        if None not in {written, proof} and written != proof:
            yield make_finding(
                "ledger-differs",
                table.name,
                f"The fingerprint of file {file.path} differs from the sum of the fingerprints of its"
                " chunks in the ledger.",
                path=file.path,
            )
    yield from _check_compactions(state)


def _sum_chunk_fingerprints(
    state: TableState, totals: LedgerTotals, file: NativeFileRecord
) -> Fingerprint | None:
    """Return the fingerprint that the ledger implies for a file, or None if it is unknown.

    It is unknown if the file has rows of loads, or if a column was dropped after its chunks were
    written.
    """
    ranges, schema = file.chunk_ranges, state.schemas.get(file.schema_version)
    if len(ranges) != len(file.sources) or schema is None:
        return None
    versions = {
        int(each) for first, last in ranges for each in np.unique(totals.versions[first : last + 1])
    }
    if not all(
        version in state.schemas and keeps_values(state.schemas[version], schema)
        for version in versions
    ):
        return None
    return totals.sum_fingerprints(ranges)


def _list_some(numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[int]:
    return [int(each) for each in numbers[:_RANGE_LIMIT]]


def _check_compactions(state: TableState) -> Iterator[Finding]:
    """Check that each compaction wrote exactly the rows of its input files."""
    before: dict[str, list[NativeFileRecord]] = {}
    after: dict[str, list[NativeFileRecord]] = {}
    for file in state.files:
        after.setdefault(file.run_id, []).append(file)
        if file.removed_by is not None and not file.changed_rows:
            before.setdefault(file.removed_by, []).append(file)
    for run_id, joined in before.items():
        written = after.get(run_id, [])
        rows = sum(file.rows for file in joined), sum(file.rows for file in written)
        newest = state.schemas.get(written[0].schema_version) if written else None
        is_comparable = newest is not None and all(
            file.schema_version in state.schemas
            and keeps_values(state.schemas[file.schema_version], newest)
            for file in joined
        )
        prints = (_sum_known(joined), _sum_known(written)) if is_comparable else (None, None)
        if rows[0] != rows[1] or (None not in prints and prints[0] != prints[1]):
            yield make_finding(
                "compaction-differs",
                state.table.name,
                f"Compaction {run_id} read files with {rows[0]} rows and wrote {rows[1]} rows"
                f"{'' if rows[0] != rows[1] else ' with other values'}.",
                run=run_id,
            )


def _sum_known(files: list[NativeFileRecord]) -> Fingerprint | None:
    return sum_fingerprints(Fingerprint.from_bytes(file.fingerprint) for file in files)


def _check_manifests(
    state: TableState,
    native: NativeTable | None,
    listed: list[NativeFile],
    files: Mapping[str, NativeFile],
) -> Iterator[Finding]:
    table = state.table
    for address, count in Counter(file.path for file in listed).items():
        if count > 1:
            yield make_finding(
                "file-doubled",
                table.name,
                f"File {address} is in the native table {count} times.",
                path=address,
            )
    rows = sum(file.rows for file in listed)
    if native is not None and native.facts.total_rows != rows:
        yield make_finding(
            "total-rows-differ",
            table.name,
            f"The last commit states {native.facts.total_rows} rows; the files have {rows}.",
        )
    if state.lineage_from is None:
        return
    known = {file.path: file for file in state.current_files}
    for path in sorted(files.keys() - known.keys()):
        yield make_finding(
            "file-unknown",
            table.name,
            f"File {path} with {files[path].rows} rows is in the native table, but not in the catalog.",
            path=path,
        )
    for path in sorted(known.keys() - files.keys()):
        yield make_finding(
            "file-dropped",
            table.name,
            f"File {path} with {known[path].rows} rows of run {known[path].run_id} is in the catalog,"
            " but not in the native table.",
            path=path,
        )
    for path in sorted(known.keys() & files.keys()):
        stored, listed_file = known[path], files[path]
        pair = (stored.rows, stored.size), (listed_file.rows, listed_file.size)
        if pair[0] != pair[1]:
            yield make_finding(
                "file-entry-differs",
                table.name,
                f"File {path} has {pair[1][0]} rows and {pair[1][1]} bytes in the manifest, and"
                f" {pair[0][0]} and {pair[0][1]} in the catalog.",
                path=path,
            )


def _check_objects(
    state: TableState, files: Mapping[str, NativeFile], sizes: Mapping[str, int]
) -> Iterator[Finding]:
    for path, file in files.items():
        if path not in sizes:
            yield make_finding(
                "file-missing",
                state.table.name,
                f"File {path} with {file.rows} rows is not in the warehouse.",
                path=path,
            )
        elif sizes[path] != file.size:
            yield make_finding(
                "file-size-differs",
                state.table.name,
                f"File {path} has {sizes[path]} bytes; {file.size} were written.",
                path=path,
            )


def check_file_content(
    state: TableState,
    totals: LedgerTotals,
    warehouse: Warehouse,
    path: str,
    file: NativeFile,
    record: NativeFileRecord | None,
) -> Iterator[Finding]:
    """Read a native file: bytes, rows, bounds, and the fingerprint of the chunks in it.

    Raises:
        StageUnavailable: If the warehouse does not respond.
    """
    name = state.table.name
    try:
        data = warehouse.store.get(path)
    except ObjectMissing:
        # `check_files` reports this.
        return
    if record is not None and record.sha256 is not None:
        found = hashlib.sha256(data).hexdigest()
        if found != record.sha256:
            yield make_finding(
                "file-changed",
                name,
                f"File {path} has SHA-256 {found}; {record.sha256} was written.",
                path=path,
            )
    schema = state.table.schema
    if record is not None:
        schema = state.schemas.get(record.schema_version, schema)
    try:
        table = read_native_bytes(data, schema)
    except (OSError, pa.ArrowException, ValueError) as error:
        detail = f"File {path} cannot be read: {str(error).partition(chr(10))[0]}"
        yield make_finding("file-unreadable", name, detail, path=path)
        return
    if table.num_rows != file.rows:
        yield make_finding(
            "file-values-differ",
            name,
            f"File {path} has {table.num_rows} rows; the manifest says {file.rows}.",
            path=path,
        )
        return
    yield from _check_fingerprint(state, totals, path, record, table)
    yield from _check_bounds(state, path, file, table)


def _check_fingerprint(
    state: TableState,
    totals: LedgerTotals,
    path: str,
    record: NativeFileRecord | None,
    table: pa.Table,
) -> Iterator[Finding]:
    if record is None:
        return
    found = fingerprint_table(table)
    written = Fingerprint.from_bytes(record.fingerprint)
    if written is not None and found != written:
        yield make_finding(
            "file-values-differ",
            state.table.name,
            f"The rows of file {path} differ from the written rows: their fingerprints differ.",
            path=path,
        )
        return
    expected = _sum_chunk_fingerprints(state, totals, record)
    if expected is not None and found != expected:
        yield make_finding(
            "file-values-differ",
            state.table.name,
            f"The rows of file {path} differ from the rows of its chunks: their fingerprints differ.",
            path=path,
        )


def _check_bounds(
    state: TableState, path: str, file: NativeFile, table: pa.Table
) -> Iterator[Finding]:
    for part, column in zip(table.schema, table.columns, strict=True):
        key = int(part.metadata[FIELD_ID])
        nulls = file.nulls.get(key)
        problem = None
        if nulls is not None and nulls != column.null_count:
            problem = f"{column.null_count} NULLs; the manifest says {nulls}"
        else:
            problem = _find_bound_error(file, key, part.type, column)
        if problem is not None:
            yield make_finding(
                "bounds-differ",
                state.table.name,
                f"Column {part.name} of file {path} has {problem}.",
                path=path,
                column=part.name,
            )


def _find_bound_error(
    file: NativeFile, key: int, kind: pa.DataType, column: pa.ChunkedArray
) -> str | None:
    lower, upper = file.lower.get(key), file.upper.get(key)
    if lower is None and upper is None:
        return None
    found = _find_min_max(column, kind)
    if found is None:
        return None
    if lower is not None and found[0] < decode_bound(lower, kind):  # type: ignore[operator]
        return f"values below {decode_bound(lower, kind)!r}, the lower bound in the manifest"
    if upper is not None and found[1] > decode_bound(upper, kind):  # type: ignore[operator]
        return f"values above {decode_bound(upper, kind)!r}, the upper bound in the manifest"
    return None


def _find_min_max(
    column: pa.ChunkedArray, kind: pa.DataType
) -> tuple[StoredBound, StoredBound] | None:
    """Return minimum and maximum as stored values, or None if there are no values."""
    plain = column
    if pa.types.is_string(kind):
        plain = column.cast(pa.binary())
    elif pa.types.is_date(kind):
        plain = column.cast(pa.int32())
    elif pa.types.is_temporal(kind):
        plain = column.cast(pa.int64())
    elif pa.types.is_floating(kind):
        flat = to_contiguous_array(column)
        plain = pc.drop_null(pc.if_else(pc.is_nan(flat), None, flat))
    ends = pc.min_max(plain).as_py()
    low, high = ends["min"], ends["max"]
    if low is None:
        return None
    if pa.types.is_decimal(kind):
        # Python's default decimal context would round to 28 digits.
        with localcontext(prec=_DECIMAL_DIGITS):
            return int(low.scaleb(kind.scale)), int(high.scaleb(kind.scale))
    return low, high
