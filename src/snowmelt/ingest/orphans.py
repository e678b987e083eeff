"""Blobs on the stage that nobody registers: sighted, after a day given up, then deleted."""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING

from snowmelt.catalog import stages
from snowmelt.catalog.stages import StagedBlob

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator

    from snowmelt.catalog.database import Database
    from snowmelt.storage.store import Store

_log = logging.getLogger("snowmelt.ingest")
_AT_ONCE = 1_000


def sight_blobs(database: Database, stage: Store, *, now: dt.datetime) -> int:
    """Note each blob that lies unregistered on the stage; return how many there are.

    Objects whose deletion was decided before, but perhaps interrupted, are deleted on the way.
    """
    unregistered = 0
    for blobs in _batches(stage):
        paths = [blob.path for blob in blobs]
        with database.reading() as connection:
            registered = stages.registered(connection, paths)
            doomed = stages.tombstoned(connection, paths)
        new = [blob for blob in blobs if blob.path not in registered | doomed]
        if new:
            with database.writing() as connection:
                stages.sight(connection, new, now)
        for blob in blobs:
            if blob.path in doomed:
                stage.delete(f"{blob.prefix}/{blob.path}")
        unregistered += len(new)
    return unregistered


def delete_orphans(
    database: Database, stage: Store, *, seen_before: dt.datetime, now: dt.datetime
) -> int:
    """Delete blobs first sighted before an instant and still unregistered; return how many.

    The tombstone is committed before the object goes: a registration finds one or the other.
    """
    deleted = 0
    while True:
        with database.writing() as connection:
            doomed = stages.tombstone(connection, seen_before=seen_before, now=now, limit=_AT_ONCE)
        for blob in doomed:
            stage.delete(f"{blob.prefix}/{blob.path}")
        deleted += len(doomed)
        if not doomed:
            break
    if deleted:
        _log.info("deleted %d blobs that nobody registered", deleted)
    return deleted


def _batches(stage: Store) -> Iterator[list[StagedBlob]]:
    blobs = (
        StagedBlob(*info.path.split("/", 1))
        for info in stage.list("")
        if "/" in info.path and info.path.endswith(".bdec")
    )
    while batch := list(itertools.islice(blobs, _AT_ONCE)):
        yield batch
