"""Snapshots that the Iceberg REST catalog publishes, their fresh files, and demand for tables.

A published snapshot is the native table plus fresh files with all newer chunks up to one commit
sequence. A native-only snapshot has no fresh files. Functions take a connection and do not commit.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import make_insert

# A table is in demand for this long after an engine has loaded it, or a query has read many of its
# chunks.
DEMAND_TTL = dt.timedelta(minutes=10)
# The files of a publication whose native table was replaced are retained for the retention time.
# The publication is served until it is this old, so a query can read its files for at least the
# retention time minus ten minutes.
MAX_REPLACED_AGE = dt.timedelta(minutes=10)
# Engines may write to a table for this long after a role that may change rows has loaded it.
WRITER_TTL = dt.timedelta(minutes=10)
_FILES = model.fresh_files
_PUBLISHED = model.published_snapshots
_DEMAND = model.snapshot_demand
_TABLES = model.tables
_path_list = msgspec.json.Decoder(tuple[str, ...])


@dataclass(frozen=True, slots=True)
class FreshFile:
    """A native file with the rows of the chunks in (`from_seq`, `to_seq`] that are not migrated yet.

    `entry` is the file's manifest entry. Only adjacent files of one `level` are compacted together,
    and files of the highest level never. Paths are relative to the warehouse; `size` is in bytes.
    """

    file_id: int
    from_seq: int
    to_seq: int
    level: int
    path: str
    size: int
    entry: bytes


@dataclass(frozen=True, slots=True)
class PublishedSnapshot:
    """A table state that engines read: native table `pointer` plus fresh files up to `up_to_seq`.

    `files` are the paths that only this publication uses. `snapshot` is its entry in the metadata
    file, or None if the current snapshot is native. `publication_id` is 0 until it is stored.
    """

    publication_id: int
    table_id: int
    native_only: bool
    pointer: str | None
    up_to_seq: int
    schema_version: int
    timestamp_ms: int
    metadata_path: str
    files: tuple[str, ...]
    snapshot: str | None
    created_at: dt.datetime

    def is_readable(self, pointer: str | None, now: dt.datetime) -> bool:
        """Return True if the snapshot's files will be retained for the maximum duration of a query.

        `pointer` is the current metadata file of the native table.
        """
        return self.pointer == pointer or now - self.created_at < MAX_REPLACED_AGE


@dataclass(frozen=True, slots=True)
class TableDemand:
    """A live table in demand, with the state that determines its next publication."""

    table_id: int
    native_only: bool
    incarnation: str
    pointer: str | None
    last_seq: int
    schema_version: int
    stalled_reason: str | None


# The publisher executes these statements in each round. Building one takes eight times as long as
# executing it, so they are built once.
_ADD_FRESH_FILE = sa.insert(_FILES)
_ADD_PUBLICATION = sa.insert(_PUBLISHED)
_SET_STALLED_REASON = (
    sa.update(_DEMAND)
    .where(
        _DEMAND.c.table_id == sa.bindparam("id"), _DEMAND.c.native_only == sa.bindparam("native")
    )
    .values(stalled_reason=sa.bindparam("reason"))
)
_LIST_FRESH_FILES = (
    sa.select(*[_FILES.c[name] for name in FreshFile.__slots__])
    .where(_FILES.c.table_id == sa.bindparam("id"), _FILES.c.retired_at.is_(None))
    .order_by(_FILES.c.from_seq, _FILES.c.file_id)
)
_SELECT_NEWEST_PUBLICATIONS = (
    sa.select(*[_PUBLISHED.c[name] for name in PublishedSnapshot.__slots__])
    .where(_PUBLISHED.c.table_id == sa.bindparam("id"))
    .order_by(_PUBLISHED.c.publication_id.desc())
    .limit(sa.bindparam("most", type_=sa.BigInteger))
)
_LIST_PUBLICATIONS = _SELECT_NEWEST_PUBLICATIONS.where(
    _PUBLISHED.c.native_only == sa.bindparam("native")
)
_LIST_HELD_PUBLICATIONS = _SELECT_NEWEST_PUBLICATIONS.where(
    _PUBLISHED.c.held_at >= sa.bindparam("since")
)


def record_demand(
    connection: sa.Connection, table_id: int, *, native_only: bool, now: dt.datetime
) -> None:
    """Record that an engine loads a table, or that a query reads many of its chunks."""
    insert = make_insert(connection, _DEMAND).values(
        table_id=table_id, native_only=native_only, requested_at=now
    )
    connection.execute(
        insert.on_conflict_do_update(
            index_elements=["table_id", "native_only"],
            set_={"requested_at": insert.excluded.requested_at},
        )
    )


def find_last_request(connection: sa.Connection, table_id: int) -> dt.datetime | None:
    """Return when the fresh rows of a table were last requested, or None."""
    query = sa.select(_DEMAND.c.requested_at).filter_by(table_id=table_id, native_only=False)
    return connection.execute(query).scalar()


def record_engine_write(connection: sa.Connection, table_id: int, now: dt.datetime) -> None:
    """Record that an engine creates files for a commit to a table that it has loaded."""
    connection.execute(
        sa.update(_DEMAND).where(_DEMAND.c.table_id == table_id).values(written_at=now)
    )


def find_last_engine_write(connection: sa.Connection, table_id: int) -> dt.datetime | None:
    """Return when an engine last created a file for a commit to a table, or None."""
    query = sa.select(sa.func.max(_DEMAND.c.written_at, type_=model.UtcTimestamp)).where(
        _DEMAND.c.table_id == table_id
    )
    return connection.execute(query).scalar()


def list_demand(connection: sa.Connection, *, since: dt.datetime) -> list[TableDemand]:
    """Return the live tables for which demand was recorded since `since`."""
    query = (
        sa.select(
            _DEMAND.c.table_id,
            _DEMAND.c.native_only,
            _TABLES.c.incarnation,
            _TABLES.c.pointer,
            _TABLES.c.last_seq,
            _TABLES.c.schema_version,
            _DEMAND.c.stalled_reason,
        )
        .join(_TABLES, _DEMAND.c.table_id == _TABLES.c.table_id)
        .where(_DEMAND.c.requested_at >= since, _TABLES.c.dropped_at.is_(None))
        .order_by(_DEMAND.c.table_id, _DEMAND.c.native_only)
    )
    return [TableDemand(*row) for row in connection.execute(query)]


@dataclass(frozen=True, slots=True)
class PublicationLag:
    """Publication lag: number of tables in demand and of stalled tables, and the oldest unpublished chunk.

    `oldest_unpublished_at` is the registration time of the oldest chunk that no publication contains, or
    None if there is none.
    """

    tables: int
    stalled_tables: int
    oldest_unpublished_at: dt.datetime | None


def measure_publication_lag(connection: sa.Connection, *, since: dt.datetime) -> PublicationLag:
    """Return the publication lag of tables that engines have loaded since `since`."""
    demands = [each for each in list_demand(connection, since=since) if not each.native_only]
    chunks = model.chunks
    oldest: list[dt.datetime] = []
    for demand in demands:
        found = list_publications(connection, demand.table_id, native_only=False, limit=1)
        following = (found[0].up_to_seq if found else 0) + 1
        query = sa.select(chunks.c.registered_at).where(
            chunks.c.table_id == demand.table_id, chunks.c.seq == following
        )
        oldest += connection.execute(query).scalars()
    stalled = sum(demand.stalled_reason is not None for demand in demands)
    return PublicationLag(len(demands), stalled, min(oldest, default=None))


def find_stalled_reason(
    connection: sa.Connection, table_id: int, *, native_only: bool
) -> str | None:
    """Return the reason why the newest chunks of a table cannot be published, or None if they can."""
    query = sa.select(_DEMAND.c.stalled_reason).filter_by(
        table_id=table_id, native_only=native_only
    )
    return connection.execute(query).scalar()


def set_stalled_reason(
    connection: sa.Connection, table_id: int, reason: str | None, *, native_only: bool
) -> None:
    """Set the reason why the newest chunks of a table cannot be published, or clear it with None."""
    connection.execute(
        _SET_STALLED_REASON, {"id": table_id, "native": native_only, "reason": reason}
    )


def add_fresh_file(
    connection: sa.Connection, table_id: int, file: FreshFile, *, now: dt.datetime
) -> None:
    """Store a fresh file. The database assigns `file_id`."""
    values = {name: getattr(file, name) for name in FreshFile.__slots__[1:]}
    connection.execute(_ADD_FRESH_FILE, {**values, "table_id": table_id, "created_at": now})


def list_fresh_files(connection: sa.Connection, table_id: int) -> list[FreshFile]:
    """Return the fresh files of a table that are not retired, by sequence."""
    return [FreshFile(*row) for row in connection.execute(_LIST_FRESH_FILES, {"id": table_id})]


def retire_fresh_files(
    connection: sa.Connection, file_ids: Collection[int], now: dt.datetime
) -> int:
    """Retire fresh files, so that later publications do not use them. Return how many were in use."""
    if not file_ids:
        return 0
    retired = connection.execute(
        sa.update(_FILES)
        .where(_FILES.c.file_id.in_(sorted(file_ids)), _FILES.c.retired_at.is_(None))
        .values(retired_at=now)
    )
    return retired.rowcount


def adopt_fresh_files(connection: sa.Connection, file_ids: Collection[int]) -> bool:
    """Delete the records of fresh files that become native. Return False if one was already retired."""
    if not file_ids:
        return True
    adopted = connection.execute(
        sa.delete(_FILES).where(
            _FILES.c.file_id.in_(sorted(file_ids)), _FILES.c.retired_at.is_(None)
        )
    )
    return adopted.rowcount == len(file_ids)


def add_publication(connection: sa.Connection, publication: PublishedSnapshot) -> None:
    """Store a publication as the table's newest one, which engines load."""
    values = {name: getattr(publication, name) for name in PublishedSnapshot.__slots__[1:]}
    values["files"] = msgspec.json.encode(publication.files).decode()
    connection.execute(_ADD_PUBLICATION, values)


def list_publications(
    connection: sa.Connection, table_id: int, *, native_only: bool, limit: int
) -> list[PublishedSnapshot]:
    """Return the newest publications of a table, newest first."""
    values = {"id": table_id, "native": native_only, "most": limit}
    return [_to_publication(row) for row in connection.execute(_LIST_PUBLICATIONS, values)]


def find_published_snapshot(
    connection: sa.Connection, table_id: int, snapshot_id: int
) -> dict[str, Any] | None:
    """Return the entry of a published snapshot that is still retained, or None."""
    query = (
        sa.select(_PUBLISHED.c.snapshot)
        .where(
            _PUBLISHED.c.table_id == table_id,
            _PUBLISHED.c.snapshot.contains(f'"snapshot-id": {snapshot_id},', autoescape=True),
        )
        .limit(1)
    )
    found = connection.execute(query).scalar()
    return None if found is None else msgspec.json.decode(found, type=dict[str, Any])


def hold_publication(
    connection: sa.Connection, publication: PublishedSnapshot, now: dt.datetime
) -> bool:
    """Record that an engine may commit on top of a publication. Return False if a newer one exists.

    Later publications contain it as an ancestor.
    """
    # Wait for a publisher that has locked this publication. The next statement sees its new one.
    this = sa.select(_PUBLISHED.c.publication_id).where(
        _PUBLISHED.c.publication_id == publication.publication_id
    )
    connection.execute(this.with_for_update())
    newest = sa.select(sa.func.max(_PUBLISHED.c.publication_id)).where(
        _PUBLISHED.c.table_id == publication.table_id,
        _PUBLISHED.c.native_only == publication.native_only,
    )
    held = connection.execute(
        sa.update(_PUBLISHED)
        .where(
            _PUBLISHED.c.publication_id == publication.publication_id,
            _PUBLISHED.c.publication_id == newest.scalar_subquery(),
        )
        .values(held_at=now)
    )
    return held.rowcount == 1


def lock_newest_publication(connection: sa.Connection, table_id: int) -> None:
    """Prevent `hold_publication` until this transaction has added a publication with fresh rows."""
    query = (
        sa.select(_PUBLISHED.c.publication_id)
        .where(_PUBLISHED.c.table_id == table_id, _PUBLISHED.c.native_only.is_(False))
        .order_by(_PUBLISHED.c.publication_id.desc())
        .limit(1)
    )
    connection.execute(query.with_for_update())


def list_held_publications(
    connection: sa.Connection, table_id: int, *, since: dt.datetime, limit: int
) -> list[PublishedSnapshot]:
    """Return the publications that `hold_publication` recorded, newest first."""
    values = {"id": table_id, "since": since, "most": limit}
    return [_to_publication(row) for row in connection.execute(_LIST_HELD_PUBLICATIONS, values)]


def list_recent_fresh_files(
    connection: sa.Connection, table_id: int, since: dt.datetime
) -> frozenset[int]:
    """Return the IDs of the fresh files of a table that were written since `since`."""
    query = sa.select(_FILES.c.file_id).where(
        _FILES.c.table_id == table_id, _FILES.c.created_at >= since
    )
    return frozenset(connection.execute(query).scalars())


@dataclass(frozen=True, slots=True)
class ExpiredPublications:
    """Expired publications and fresh files, and the paths of their files."""

    publication_ids: tuple[int, ...]
    file_ids: tuple[int, ...]
    paths: tuple[str, ...]


def list_expired_publications(
    connection: sa.Connection, table_id: int, before: dt.datetime
) -> ExpiredPublications:
    """Return the publications and fresh files that were replaced before a time.

    The newest publication of each kind never expires.
    """
    successor_created_at = (
        sa.func.lead(_PUBLISHED.c.created_at, type_=model.UtcTimestamp)
        .over(partition_by=_PUBLISHED.c.native_only, order_by=_PUBLISHED.c.publication_id)
        .label("replaced_at")
    )
    replaced = (
        sa.select(_PUBLISHED.c.publication_id, _PUBLISHED.c.files, successor_created_at)
        .where(_PUBLISHED.c.table_id == table_id)
        .subquery()
    )
    old = connection.execute(sa.select(replaced).where(replaced.c.replaced_at < before)).all()
    retired = connection.execute(
        sa.select(_FILES.c.file_id, _FILES.c.path).where(
            _FILES.c.table_id == table_id, _FILES.c.retired_at < before
        )
    ).all()
    paths = [path for row in old for path in _path_list.decode(row.files)]
    return ExpiredPublications(
        tuple(row.publication_id for row in old),
        tuple(row.file_id for row in retired),
        (*paths, *(row.path for row in retired)),
    )


def delete_publications(connection: sa.Connection, expired: ExpiredPublications) -> None:
    """Delete the records of expired publications and fresh files."""
    for column, ids in (
        (_PUBLISHED.c.publication_id, expired.publication_ids),
        (_FILES.c.file_id, expired.file_ids),
    ):
        for start in range(0, len(ids), _IDS_PER_STATEMENT):
            some = ids[start : start + _IDS_PER_STATEMENT]
            connection.execute(sa.delete(column.table).where(column.in_(some)))


def list_published_paths(connection: sa.Connection, table_id: int) -> set[str]:
    """Return the paths of all files of a table's publications and fresh files."""
    query = sa.select(_PUBLISHED.c.files).where(_PUBLISHED.c.table_id == table_id)
    paths = {path for row in connection.execute(query) for path in _path_list.decode(row.files)}
    fresh = sa.select(_FILES.c.path).where(_FILES.c.table_id == table_id)
    return paths | set(connection.execute(fresh).scalars())


# SQLite limits the number of parameters of one statement.
_IDS_PER_STATEMENT = 10_000


def _to_publication(row: Sequence[object]) -> PublishedSnapshot:
    values = dict(zip(PublishedSnapshot.__slots__, row, strict=True))
    values["files"] = _path_list.decode(str(values["files"]))
    return PublishedSnapshot(**values)  # type: ignore[arg-type]
