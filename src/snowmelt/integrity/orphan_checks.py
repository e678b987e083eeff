"""Find unreferenced objects that garbage collection should have deleted."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from itertools import islice

from snowmelt.blob.encryption import parse_blob_path
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.objects import published_snapshots
from snowmelt.catalog.streaming import registration
from snowmelt.errors import BlobInvalid, SnowmeltError
from snowmelt.integrity.findings import Finding, make_finding
from snowmelt.integrity.table_state import TableState
from snowmelt.storage.store import ObjectInfo, Store
from snowmelt.table.iceberg import list_retained_file_addresses
from snowmelt.table.snapshot import load_current_native_table
from snowmelt.table.warehouse_paths import Warehouse, is_published_path

# Garbage collection deletes unregistered objects after a day, and replaced files after their
# retention.
_MIN_AGE = dt.timedelta(days=2)
_BATCH = 10_000
_MAX_FINDINGS = 20


def check_orphan_files(
    database: Database,
    state: TableState,
    warehouse: Warehouse,
    listed: Iterable[ObjectInfo],
    now: dt.datetime,
) -> Iterator[Finding]:
    """Return up to 20 findings about unreferenced files in a table's folder."""
    old = [
        each
        for each in listed
        if each.modified_at < now - _MIN_AGE and not is_published_path(each.path)
    ]
    if not old:
        return
    try:
        native = load_current_native_table(state.table)
        addresses = [] if native is None else list(list_retained_file_addresses(native))
    except Exception as error:
        if isinstance(error, SnowmeltError) and error.retryable:
            raise
        # `check_files` reports native metadata that cannot be read.
        return
    with database.reading() as connection:
        published = published_snapshots.list_published_paths(connection, state.table.table_id)
    recently = {file.path for file in state.files if (file.removed_at or now) > now - _MIN_AGE}
    needed = {warehouse.to_path(address) for address in addresses} | published | recently
    orphans = [each for each in old if each.path not in needed]
    for each in orphans[:_MAX_FINDINGS]:
        age = (now - each.modified_at).days
        detail = f"File {each.path} with {each.size} bytes is {age} days old and in no snapshot."
        yield make_finding("orphan-file", state.table.name, detail, path=each.path)


def check_orphan_blobs(database: Database, stage: Store, now: dt.datetime) -> Iterator[Finding]:
    """Return up to 20 findings about unreferenced blobs on the stage."""
    count = 0
    lying = (each for each in stage.list() if each.modified_at < now - _MIN_AGE)
    while batch := list(islice(lying, _BATCH)):
        paths = {path: each for each in batch if (path := _parse_path(each.path)) is not None}
        with database.reading() as connection:
            known = registration.filter_registered_paths(connection, paths)
        for path in sorted(paths.keys() - known):
            each = paths[path]
            age = (now - each.modified_at).days
            detail = f"Blob {each.path} with {each.size} bytes is {age} days old and has no chunk."
            yield make_finding("orphan-blob", "", detail, path=each.path)
            count += 1
            if count == _MAX_FINDINGS:
                return


def _parse_path(path: str) -> str | None:
    """Return the path of a blob below its prefix, or None if the object is not a blob."""
    _, _, name = path.partition("/")
    try:
        parse_blob_path(name)
    except BlobInvalid:
        return None
    return name
