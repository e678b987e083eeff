"""Native files of runs that are not in the catalog, or that have not committed.

Spark tasks write native files before their load begins, because no Snowmelt process runs for the
whole write of a DataFrame. Such files are in `data/<load id>/` like the files of other loads.
Garbage collection retains them as long as unregistered blobs.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Container, Iterable

import sqlalchemy as sa

from snowmelt.catalog.jobs import load_history, run_history
from snowmelt.catalog.jobs.run_history import RunState
from snowmelt.errors import NotFound
from snowmelt.storage.store import ObjectInfo

_DATA_FOLDER = "/data/"


def parse_run_id(path: str) -> str | None:
    """Return the ID of the run that wrote a native file, or None for a metadata file."""
    _, found, rest = path.partition(_DATA_FOLDER)
    return rest.partition("/")[0] if found else None


def exclude_files_of_active_runs(
    connection: sa.Connection,
    found: Iterable[ObjectInfo],
    committed: Container[str],
    since: dt.datetime,
) -> list[ObjectInfo]:
    """Return the files, except those of running loads and of unknown runs.

    Files of an unknown run are excluded only while its newest file is newer than `since`.
    """
    files = list(found)
    newest: dict[str, dt.datetime] = {}
    for each in files:
        run_id = parse_run_id(each.path)
        if run_id is not None and run_id not in committed:
            newest[run_id] = max(each.modified_at, newest.get(run_id, each.modified_at))
    open_runs = {
        run_id
        for run_id, at in newest.items()
        if _is_active_run(connection, run_id, is_young=at > since)
    }
    return [each for each in files if parse_run_id(each.path) not in open_runs]


def _is_active_run(connection: sa.Connection, run_id: str, *, is_young: bool) -> bool:
    try:
        return load_history.find_load(connection, run_id).state is RunState.RUNNING
    except NotFound:
        known = run_history.find_migration(connection, run_id) or run_history.find_maintenance_run(
            connection, run_id
        )
        return is_young and known is None
