"""Files that no object needs: dropped ones, and what a crash left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.buckets.indexed import mark_of_this_process
from snowmelt.catalog import objects

if TYPE_CHECKING:
    import datetime as dt

    from snowmelt.catalog.database import Database
    from snowmelt.storage.local import LocalStore

_AT_ONCE = 1000


def delete_dropped(database: Database, files: LocalStore) -> int:
    """Delete files whose objects were replaced or deleted; return how many were on the list."""
    done = 0
    while True:
        with database.reading() as connection:
            dropped = objects.dropped_files(connection, _AT_ONCE)
        for file in dropped:
            files.delete(file)
        if dropped:
            with database.writing() as connection:
                objects.forget_files(connection, dropped)
        done += len(dropped)
        if len(dropped) < _AT_ONCE:
            return done


def sweep(database: Database, files: LocalStore, before: dt.datetime) -> int:
    """Delete what earlier processes left behind: files that the catalog never knew.

    Args:
        database: The catalog.
        files: Where objects of our own lie.
        before: What is younger is left alone, such as when this process began.
    """
    removed = files.sweep(before)
    batch: list[str] = []
    ours = mark_of_this_process()
    for info in files.list():
        if not info.path.endswith(ours) and info.modified_at < before:
            batch.append(info.path)
        if len(batch) == _AT_ONCE:
            removed += _delete_unknown(database, files, batch)
            batch = []
    return removed + _delete_unknown(database, files, batch)


def _delete_unknown(database: Database, files: LocalStore, some: list[str]) -> int:
    with database.reading() as connection:
        unknown = objects.unknown_files(connection, some)
    for file in unknown:
        files.delete(file)
    return len(unknown)
