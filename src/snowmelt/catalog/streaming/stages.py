"""The stage as the catalog knows it: whose prefix, and blobs that nobody has registered.

An unregistered blob is first sighted, and when it stays unregistered for long, gets a
tombstone; only then is the object deleted. So does a blob whose rows are forgotten after its
migration. The tombstone stays for days: registrations look at it in their own transaction, so
none can accept a blob whose deletion has been decided.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import insert_for

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Iterable, Sequence

    from sqlalchemy import Connection

# `_` separates the parts of a blob's name, so a prefix has none; 80 random bits.
_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
_LENGTH = 16
_AT_ONCE = 5_000

_P = model.client_prefixes
_S = model.sightings
_C = model.chunks


@dataclass(frozen=True, slots=True, order=True)
class StagedBlob:
    """A blob's place: in the stage at `prefix/path`."""

    prefix: str
    path: str


def issue_prefix(connection: Connection, user: str, now: dt.datetime) -> str:
    """Return a client prefix that was never issued before: reused paths repeat the keystream."""
    while True:
        prefix = "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))
        issued = connection.execute(
            insert_for(connection, _P)
            .values(prefix=prefix, user=user, issued_at=now)
            .on_conflict_do_nothing()
            .returning(_P.c.prefix)
        ).first()
        if issued is not None:
            return prefix


def prefix_owner(connection: Connection, prefix: str) -> str | None:
    """Return the user to whom a prefix was issued, None when it never was."""
    return connection.execute(sa.select(_P.c.user).where(_P.c.prefix == prefix)).scalar()


def sight(connection: Connection, blobs: Iterable[StagedBlob], now: dt.datetime) -> None:
    """Note that these blobs lie unregistered on the stage; the first sighting counts."""
    rows = [
        {"path": blob.path, "prefix": blob.prefix, "first_seen": now} for blob in sorted(set(blobs))
    ]
    if rows:
        connection.execute(insert_for(connection, _S).on_conflict_do_nothing(), rows)


def bury(connection: Connection, blobs: Iterable[StagedBlob], now: dt.datetime) -> None:
    """Give blobs a tombstone: none of their chunks that is not registered ever will be."""
    rows = [
        {"path": blob.path, "prefix": blob.prefix, "first_seen": now, "tombstoned_at": now}
        for blob in sorted(set(blobs))
    ]
    if rows:
        insert = insert_for(connection, _S)
        connection.execute(
            insert.on_conflict_do_update(
                index_elements=["path"], set_={"tombstoned_at": insert.excluded.tombstoned_at}
            ),
            rows,
        )


def forget_tombstones(connection: Connection, before: dt.datetime, *, limit: int = 1_000) -> int:
    """Remove tombstones set before an instant, so that they do not heap up; return how many.

    A tombstone must outlive whoever checked the blob while it was there and every clean-up that
    had it on its list: minutes.
    """
    old = (
        sa.select(_S.c.path)
        .where(_S.c.tombstoned_at < before)
        .order_by(_S.c.tombstoned_at)
        .limit(limit)
    )
    removed = connection.execute(sa.delete(_S).where(_S.c.path.in_(old.scalar_subquery())))
    return removed.rowcount


def registered(connection: Connection, paths: Collection[str]) -> set[str]:
    """Return those of `paths` of which some chunk is registered and not yet forgotten."""
    return _among(connection, sa.select(_C.c.path).distinct(), _C.c.path, paths)


def tombstoned(connection: Connection, paths: Collection[str]) -> set[str]:
    """Return those of `paths` whose deletion has been decided: the object may be deleted."""
    query = sa.select(_S.c.path).where(_S.c.tombstoned_at.is_not(None))
    return _among(connection, query, _S.c.path, paths)


def tombstone(
    connection: Connection, *, seen_before: dt.datetime, now: dt.datetime, limit: int = 1_000
) -> list[StagedBlob]:
    """Decide the deletion of blobs sighted before an instant and still unregistered.

    Sightings of blobs that were registered after all are forgotten on the way.
    """
    # Two statements on purpose: the first waits for registrations that hold these rows, the
    # second then sees what they wrote (PostgreSQL would judge a subquery by the older state).
    query = (
        sa.select(_S.c.prefix, _S.c.path)
        .where(_S.c.first_seen < seen_before, _S.c.tombstoned_at.is_(None))
        .order_by(_S.c.first_seen)
        .limit(limit)
        .with_for_update()
    )
    seen = [StagedBlob(*row) for row in connection.execute(query)]
    kept = registered(connection, [blob.path for blob in seen])
    _for_each(connection, sa.delete(_S), [blob.path for blob in seen if blob.path in kept])
    doomed = [blob for blob in seen if blob.path not in kept]
    mark = sa.update(_S).values(tombstoned_at=now)
    _for_each(connection, mark, [blob.path for blob in doomed])
    return doomed


def _among(
    connection: Connection,
    query: sa.Select[tuple[Any]],
    column: sa.Column[Any],
    paths: Collection[str],
) -> set[str]:
    ordered = sorted(paths)
    found = set[str]()
    for start in range(0, len(ordered), _AT_ONCE):
        some = query.where(column.in_(ordered[start : start + _AT_ONCE]))
        found.update(connection.execute(some).scalars())
    return found


def _for_each(
    connection: Connection, statement: sa.Update | sa.Delete, paths: Sequence[str]
) -> None:
    if paths:
        by_path = statement.where(_S.c.path == sa.bindparam("the_path"))
        connection.execute(by_path, [{"the_path": path} for path in paths])
