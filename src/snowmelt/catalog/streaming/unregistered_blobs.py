"""Stage state in the catalog: client prefixes, and sightings and tombstones of blobs.

An unregistered blob is first recorded as sighted. If it stays unregistered, it gets a tombstone,
and only then is the object deleted. A blob whose rows are removed after its migration gets one,
too. The tombstone stays for days. Registrations read it in their own transaction, so they cannot
accept a blob whose deletion has been decided.
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import encode_array, in_array, make_insert

# `_` separates the parts of a blob's name, so a prefix has none; 80 random bits.
_PREFIX_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_PREFIX_LENGTH = 16

_CLIENT_PREFIXES = model.client_prefixes
_SIGHTINGS = model.sightings
_CHUNKS = model.chunks


@dataclass(frozen=True, slots=True, order=True)
class StagedBlob:
    """A blob's place: in the stage at `prefix/path`."""

    prefix: str
    path: str


def issue_client_prefix(connection: Connection, user: str, now: dt.datetime) -> str:
    """Return a client prefix that was never issued before: reused paths repeat the keystream."""
    while True:
        prefix = "".join(secrets.choice(_PREFIX_ALPHABET) for _ in range(_PREFIX_LENGTH))
        issued = connection.execute(
            make_insert(connection, _CLIENT_PREFIXES)
            .values(prefix=prefix, user=user, issued_at=now)
            .on_conflict_do_nothing()
            .returning(_CLIENT_PREFIXES.c.prefix)
        ).first()
        if issued is not None:
            return prefix


def find_prefix_owner(connection: Connection, prefix: str) -> str | None:
    """Return the user to whom a prefix was issued, None when it never was."""
    return connection.execute(
        sa.select(_CLIENT_PREFIXES.c.user).where(_CLIENT_PREFIXES.c.prefix == prefix)
    ).scalar()


def record_blob_sightings(
    connection: Connection, blobs: Iterable[StagedBlob], now: dt.datetime
) -> None:
    """Note that these blobs lie unregistered on the stage; the first sighting counts."""
    rows = [
        {"path": blob.path, "prefix": blob.prefix, "first_seen": now} for blob in sorted(set(blobs))
    ]
    if rows:
        connection.execute(make_insert(connection, _SIGHTINGS).on_conflict_do_nothing(), rows)


def write_blob_tombstones(
    connection: Connection, blobs: Iterable[StagedBlob], now: dt.datetime
) -> None:
    """Give blobs a tombstone: none of their chunks that is not registered ever will be."""
    rows = [
        {"path": blob.path, "prefix": blob.prefix, "first_seen": now, "tombstoned_at": now}
        for blob in sorted(set(blobs))
    ]
    if rows:
        insert = make_insert(connection, _SIGHTINGS)
        connection.execute(
            insert.on_conflict_do_update(
                index_elements=["path"], set_={"tombstoned_at": insert.excluded.tombstoned_at}
            ),
            rows,
        )


def delete_blob_tombstones(
    connection: Connection, before: dt.datetime, *, limit: int = 1_000
) -> int:
    """Remove tombstones set before an instant, so that they do not heap up; return how many.

    A tombstone must outlive whoever checked the blob while it was there and every clean-up that
    had it on its list: minutes.
    """
    old = (
        sa.select(_SIGHTINGS.c.path)
        .where(_SIGHTINGS.c.tombstoned_at < before)
        .order_by(_SIGHTINGS.c.tombstoned_at)
        .limit(limit)
    )
    removed = connection.execute(
        sa.delete(_SIGHTINGS).where(_SIGHTINGS.c.path.in_(old.scalar_subquery()))
    )
    return removed.rowcount


def filter_registered_paths(connection: Connection, paths: Collection[str]) -> set[str]:
    """Return those of `paths` of which some chunk is registered and not yet forgotten."""
    return _filter_paths(connection, sa.select(_CHUNKS.c.path).distinct(), paths)


def filter_tombstoned_paths(connection: Connection, paths: Collection[str]) -> set[str]:
    """Return those of `paths` whose deletion has been decided: the object may be deleted."""
    query = sa.select(_SIGHTINGS.c.path).where(_SIGHTINGS.c.tombstoned_at.is_not(None))
    return _filter_paths(connection, query, paths)


def tombstone_unregistered_blobs(
    connection: Connection, *, seen_before: dt.datetime, now: dt.datetime, limit: int = 1_000
) -> list[StagedBlob]:
    """Decide the deletion of blobs sighted before an instant and still unregistered.

    Sightings of blobs that were registered after all are forgotten on the way.
    """
    # Two statements on purpose: the first waits for registrations that hold these rows, the
    # second then sees what they wrote (PostgreSQL would judge a subquery by the older state).
    query = (
        sa.select(_SIGHTINGS.c.prefix, _SIGHTINGS.c.path)
        .where(_SIGHTINGS.c.first_seen < seen_before, _SIGHTINGS.c.tombstoned_at.is_(None))
        .order_by(_SIGHTINGS.c.first_seen)
        .limit(limit)
        .with_for_update()
    )
    seen = [StagedBlob(*row) for row in connection.execute(query)]
    kept = filter_registered_paths(connection, [blob.path for blob in seen])
    _execute_per_path(
        connection, sa.delete(_SIGHTINGS), [blob.path for blob in seen if blob.path in kept]
    )
    doomed = [blob for blob in seen if blob.path not in kept]
    mark = sa.update(_SIGHTINGS).values(tombstoned_at=now)
    _execute_per_path(connection, mark, [blob.path for blob in doomed])
    return doomed


def _filter_paths(
    connection: Connection, query: sa.Select[Any], paths: Collection[str]
) -> set[str]:
    some = query.where(in_array(query.selected_columns[0], encode_array(sorted(paths))))
    return set(connection.execute(some).scalars())


def _execute_per_path(
    connection: Connection, statement: sa.Update | sa.Delete, paths: Sequence[str]
) -> None:
    if paths:
        by_path = statement.where(_SIGHTINGS.c.path == sa.bindparam("the_path"))
        connection.execute(by_path, [{"the_path": path} for path in paths])
