"""Import a state of the primary into the catalog of a follower, in one transaction.

A former primary may have changes that the new primary lacks. When it follows the new primary, the
whole state of the new primary replaces its own. The lost changes are first recorded in
`diverged_changes`, and are never merged.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Any, BinaryIO

import msgspec
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from snowmelt import failpoints
from snowmelt.backup.catalog_tables import (
    RowConverter,
    read_last_id,
    reject_nul,
    stored_form,
    write_last_id,
)
from snowmelt.backup.restoration import make_opening_converters
from snowmelt.catalog import model
from snowmelt.catalog.db.database import SCHEMA_VERSION, Database
from snowmelt.catalog.db.dialect import make_insert
from snowmelt.catalog.jobs import leases
from snowmelt.catalog.jobs.leases import Lease
from snowmelt.catalog.objects import failover_groups
from snowmelt.catalog.objects.failover_groups import ReportedChannel, SiteRole, TokenMode
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.errors import ConflictError
from snowmelt.failpoints import Failpoint
from snowmelt.replication.object_copy import NeededObjects
from snowmelt.replication.protocol import (
    FOLLOWER_LEASE,
    DeletedKeys,
    PullResponse,
    TableHeader,
    TableRows,
    read_frames,
)
from snowmelt.table.warehouse_paths import Warehouse

_ROWS_PER_STATEMENT = 500
# Tables whose live rows have unique names. Two rows may exchange their names between two states.
_NAMED_TABLES = frozenset(
    table.name
    for table in model.list_portable_tables()
    if "dropped_at" in table.c and any(index.unique for index in table.indexes)
)


# Tables that a state may write. Other tables have data of one site, such as its role in the group.
_PORTABLE_TABLES = {str(table.name): table for table in model.list_portable_tables()}


class StateUnusable(ConflictError):
    """The state of the primary cannot be applied here: {reason}."""


# Tables that are not replicated, and whose rows refer to rows of replicated tables.
_DEPENDENT_TABLES = frozenset(
    {"upload_parts", "uploads", "fresh_files", "published_snapshots", "snapshot_demand"}
)


@dataclass(slots=True)
class _TablePart:
    """Part of a state that belongs to one table."""

    header: TableHeader
    rows: list[list[Any]] = field(default_factory=list)
    deleted: list[list[Any]] = field(default_factory=list)


def list_needed_objects(content: BinaryIO) -> NeededObjects:
    """Return the objects that a state refers to.

    Raises:
        StateUnusable: If the state has tables or columns that this version of Snowmelt lacks.
    """
    needed = NeededObjects()
    for part in _read_parts(content):
        columns = part.header.columns
        for values in part.rows:
            row = dict(zip(columns, values, strict=True))
            name = part.header.name
            # Do not copy a damaged blob. Its chunk stays quarantined.
            if name == "chunks" and row["quarantine_reason"] is None:
                path = f"{row['prefix']}/{row['path']}"
                found = (row["offset"], row["length"], row["md5"])
                needed.blobs.setdefault(path, []).append(found)
            elif name == "objects":
                needed.bucket_files[row["file"]] = row["size"]
            elif name == "tables" and row["pointer"] is not None and row["purged_at"] is None:
                needed.pointers.add(row["pointer"])
            elif name == "native_files" and row["sha256"] is not None:
                needed.checksums[row["path"]] = row["sha256"]
    return needed


@dataclass(eq=False, slots=True)
class StateImporter:
    """Importer of states into the catalog of this site."""

    _database: Database
    _keyring: KeyRing
    _warehouse: Warehouse
    _private_key: X25519PrivateKey
    _now: Callable[[], dt.datetime]

    def apply(
        self, response: PullResponse, content: BinaryIO, lease: Lease | None = None
    ) -> list[ReportedChannel]:
        """Apply a state, and return its channels. All objects of the state must exist at this site.

        `lease` is the lease under which the state was requested. If the lease has expired, another
        process of this site may have applied a newer state.

        Raises:
            StateUnusable: If the changes do not start from the state of this site, or the state
                cannot be stored here.
        """
        if response.catalog_version != SCHEMA_VERSION:
            raise StateUnusable(
                reason=f"its catalog has version {response.catalog_version}, expected {SCHEMA_VERSION}. Run "
                "the same version of Snowmelt at both sites. Upgrade the secondary first"
            )
        with self._database.writing() as connection:
            group = failover_groups.find_group(connection, lock=True)
            is_follower = group is not None and group.role in {SiteRole.SECONDARY, SiteRole.FENCED}
            if group is None or not is_follower or group.epoch > response.epoch:
                raise StateUnusable(reason="this site was promoted after it requested the state")
            is_next = group.epoch == response.epoch and group.point == response.since
            if (response.since is not None and not is_next) or (
                lease is not None and not leases.holds_lease(connection, lease)
            ):
                raise StateUnusable(reason="another process of this site has applied a newer state")
            failover_groups.update_group(connection, applying=True)
            if response.since is None:
                if group.epoch >= 0 and group.epoch != response.epoch:
                    _DivergenceRecorder(
                        connection, self._warehouse, group.epoch, self._now()
                    ).record(content)
                _delete_everything(connection)
            else:
                _free_names(connection, content)
            reported = self._write_parts(connection, content)
            if response.since is None:
                deployment = model.deployment.c
                is_other_history = sa.or_(
                    deployment.deployment_id != response.deployment_id,
                    sa.literal(group.epoch != response.epoch),
                )
                connection.execute(
                    sa.update(model.deployment).values(
                        deployment_id=response.deployment_id,
                        sequencer_floor=response.sequencer_floor,
                        history=sa.func.coalesce(deployment.history, 0)
                        + sa.case((is_other_history, 1), else_=0),
                    )
                )
            _retire_fresh_files(connection, self._now())
            settings = msgspec.structs.replace(
                group.settings,
                allowed_sites=tuple(each for each in response.sites if each != group.site),
                tokens=TokenMode(response.tokens),
            )
            failpoints.hit_failpoint(Failpoint.REPLICA_INSIDE_APPLY)
            failover_groups.update_group(
                connection,
                applying=False,
                role=SiteRole.SECONDARY,
                epoch=response.epoch,
                kind=response.kind,
                settings=msgspec.json.encode(settings).decode(),
                site_number=response.site_number,
                point=response.point,
                promotable_from=response.protected_from,
                state_at=model.from_microseconds(response.state_at),
                applied_at=self._now(),
                last_error=None,
                handed_to=None,
                switch_requested=group.switch_requested and group.epoch == response.epoch,
            )
        return reported

    def _write_parts(self, connection: sa.Connection, content: BinaryIO) -> list[ReportedChannel]:
        incarnations = {
            row.table_id: row.incarnation
            for row in connection.execute(
                sa.select(model.tables.c.table_id, model.tables.c.incarnation)
            )
        }
        converters = make_opening_converters(
            incarnations, self._private_key, self._keyring, self._warehouse
        )
        _delete_rows(connection, content)
        reported: list[ReportedChannel] = []
        for part in _read_parts(content):
            table = model.metadata.tables[part.header.name]
            rows = [dict(zip(part.header.columns, values, strict=True)) for values in part.rows]
            if table is model.leases:
                # Keep this site's own lease, which is held while a state is applied.
                rows = [row for row in rows if row["name"] != FOLLOWER_LEASE]
            elif table is model.tables:
                incarnations.update({row["table_id"]: row["incarnation"] for row in rows})
            elif table is model.channels:
                reported += (
                    ReportedChannel(
                        row["channel_id"],
                        row["client_sequencer"],
                        row["row_sequencer"],
                        row["offset_token"],
                    )
                    for row in rows
                )
            _write_rows(connection, table, rows, converters.get(table.name))
            last_id = part.header.last_id
            if last_id is not None and last_id > (read_last_id(connection, table) or 0):
                write_last_id(connection, table, last_id)
        return reported


class _DivergenceRecorder:
    """Recorder of chunks, tokens, loads and tables of a former primary that the new one lacks."""

    def __init__(
        self, connection: sa.Connection, warehouse: Warehouse, epoch: int, now: dt.datetime
    ) -> None:
        self._connection = connection
        self._warehouse = warehouse
        self._common = {"epoch": epoch, "at": now}
        self._names = _read_table_names(connection)
        self._found: list[dict[str, Any]] = []

    def record(self, content: BinaryIO) -> None:
        """Compare the catalog with the state of the new primary, and record the differences."""
        new: dict[str, set[Any]] = {name: set() for name in _IDENTITIES}
        tokens: dict[int, str | None] = {}
        for part in _read_parts(content):
            name = part.header.name
            for values in part.rows:
                row = dict(zip(part.header.columns, values, strict=True))
                if name in _IDENTITIES:
                    new[name].add(_IDENTITIES[name](row))
                elif name == "channels":
                    tokens[row["channel_id"]] = row["offset_token"]
        new["chunks"] |= new["chunk_ledger"]
        channels = self._find_chunks(new["chunks"])
        channels |= {
            (row["table_id"], row["channel"])
            for row in self._list_lost(model.rowless_commits, new["rowless_commits"])
        }
        self._add_channels(channels, tokens)
        for load in self._list_lost(model.loads, new["loads"]):
            if load["state"] == "committed":
                name = self._name(load["table_id"])
                self._add("load", name, load_id=load["load_id"], rows=load["rows"])
        for table in self._list_lost(model.tables, new["tables"]):
            address = table["pointer"]
            path = None if address is None else self._warehouse.to_path(address)
            self._add("table", self._name(table["table_id"]), path=path)
        for start in range(0, len(self._found), _ROWS_PER_STATEMENT):
            self._connection.execute(
                sa.insert(model.diverged_changes), self._found[start : start + _ROWS_PER_STATEMENT]
            )

    def _find_chunks(self, known: set[Any]) -> set[tuple[int, str]]:
        """Record the lost chunks, and return their channels."""
        channels: set[tuple[int, str]] = set()
        for table in (model.chunks, model.chunk_ledger):
            for row in list(self._list_lost(table, known)):
                known.add(_chunk_identity(row))
                advances = msgspec.json.decode(row["channels"])
                channels.update((row["table_id"], each[0]) for each in advances)
                self._add(
                    "chunk",
                    self._name(row["table_id"]),
                    path=_stage_path(row),
                    seq=row["seq"],
                    rows=row["rows"],
                    offset=row["offset"],
                    length=row["length"],
                    channels=advances,
                )
        return channels

    def _add_channels(
        self, channels: set[tuple[int, str]], tokens: Mapping[int, str | None]
    ) -> None:
        for row in self._read(model.channels):
            if (row["table_id"], row["name"]) in channels:
                self._add(
                    "channel",
                    self._name(row["table_id"]),
                    channel=row["name"],
                    offset_token=row["offset_token"],
                    new_offset_token=tokens.get(row["channel_id"]),
                )

    def _list_lost(self, table: sa.Table, known: set[Any]) -> Iterator[Mapping[Any, Any]]:
        identify = _IDENTITIES[table.name]
        return (row for row in self._read(table) if identify(row) not in known)

    def _read(self, table: sa.Table) -> Iterator[Mapping[Any, Any]]:
        yield from self._connection.execute(sa.select(stored_form(table))).mappings()

    def _name(self, table_id: int) -> str:
        return self._names.get(table_id, str(table_id))

    def _add(
        self,
        kind: str,
        table: str,
        *,
        channel: str | None = None,
        path: str | None = None,
        **detail: object,
    ) -> None:
        text = msgspec.json.encode(detail).decode()
        values = {"kind": kind, "table_name": table, "channel": channel, "path": path}
        self._found.append({**self._common, **values, "detail": text})


def _read_parts(content: BinaryIO) -> Iterator[_TablePart]:
    """Yield the tables of a state in slices of limited size."""
    header: TableHeader | None = None
    for frame in read_frames(content):
        if isinstance(frame, TableHeader):
            header = frame
            table = _PORTABLE_TABLES.get(frame.name)
            unknown = set(frame.columns) - set(() if table is None else table.c.keys())
            if unknown:
                raise StateUnusable(
                    reason=f"it has column {frame.name}.{min(unknown)}, which this version of Snowmelt "
                    "does not support. Upgrade this site first"
                )
            yield _TablePart(frame)
        elif header is None:
            raise EOFError
        elif isinstance(frame, TableRows):
            yield _TablePart(header, rows=frame.rows)
        elif isinstance(frame, DeletedKeys):
            yield _TablePart(header, deleted=frame.keys)


def _delete_everything(connection: sa.Connection) -> None:
    for table in reversed(model.metadata.sorted_tables):
        is_portable = table.name not in model.LOCAL_TABLES
        # Keep the leases: metadata of native tables contains their epochs, which must not decrease.
        if (is_portable and table is not model.leases) or table.name in _DEPENDENT_TABLES:
            connection.execute(sa.delete(table))


def _free_names(connection: sa.Connection, content: BinaryIO) -> None:
    """Mark all rows that a state changes as dropped, so that their names can be reused.

    Unique indexes cover only rows that are not dropped. The state then writes the final values.
    """
    for part in _read_parts(content):
        table = _PORTABLE_TABLES[part.header.name]
        if table.name not in _NAMED_TABLES:
            continue
        stored = stored_form(table)
        [key] = [column.name for column in table.primary_key]
        place = part.header.columns.index(key)
        for start in range(0, len(part.rows), _ROWS_PER_STATEMENT):
            some = [row[place] for row in part.rows[start : start + _ROWS_PER_STATEMENT]]
            connection.execute(
                sa.update(stored).where(stored.c[key].in_(some)).values(dropped_at=0)
            )


def _delete_rows(connection: sa.Connection, content: BinaryIO) -> None:
    """Delete the rows that a state lists as deleted. Delete referring rows before referenced ones."""
    deleted: dict[str, list[list[Any]]] = {}
    for part in _read_parts(content):
        deleted.setdefault(part.header.name, []).extend(part.deleted)
    for table in reversed(model.list_portable_tables()):
        keys = deleted.get(table.name)
        if not keys or table is model.leases:
            continue
        if table is model.tables:
            for other in reversed(model.metadata.sorted_tables):
                if any(each.column.table is table for each in other.foreign_keys):
                    _delete_by_key(connection, other, ["table_id"], keys)
        elif table is model.buckets:
            _delete_by_key(connection, model.uploads, ["bucket_id"], keys)
        _delete_by_key(connection, table, [column.name for column in table.primary_key], keys)


def _delete_by_key(
    connection: sa.Connection, table: sa.Table, names: Sequence[str], keys: Sequence[Sequence[Any]]
) -> None:
    stored = stored_form(table)
    columns = [stored.c[name] for name in names]
    for start in range(0, len(keys), _ROWS_PER_STATEMENT):
        some = keys[start : start + _ROWS_PER_STATEMENT]
        condition = (
            columns[0].in_([key[0] for key in some])
            if len(columns) == 1
            else sa.tuple_(*columns).in_([tuple(key) for key in some])
        )
        connection.execute(sa.delete(stored).where(condition))


def _write_rows(
    connection: sa.Connection,
    table: sa.Table,
    rows: Iterable[dict[str, Any]],
    convert: RowConverter | None,
) -> None:
    stored = stored_form(table)
    keys = [column.name for column in table.primary_key]
    remaining = iter(rows)
    while some := list(islice(remaining, _ROWS_PER_STATEMENT)):
        converted = some if convert is None else [convert(row) for row in some]
        if connection.dialect.name == "postgresql":
            reject_nul(table, converted)
        insert = make_insert(connection, stored)
        new = insert.excluded
        values: dict[str, Any] = {name: new[name] for name in converted[0] if name not in keys}
        if table is model.leases:
            # Keep the greatest epoch: processes of this site hold leases, which may be newer.
            greatest = sa.case((stored.c.epoch > new.epoch, stored.c.epoch), else_=new.epoch)
            values = {"epoch": greatest}
            converted = [{**row, "expires_at": None} for row in converted]
        statement = (
            insert.on_conflict_do_update(index_elements=keys, set_=values)
            if values
            else insert.on_conflict_do_nothing()
        )
        connection.execute(statement, converted)


def _retire_fresh_files(connection: sa.Connection, now: dt.datetime) -> None:
    """Retire this site's files of fresh rows that have been migrated to native files."""
    files, tables = model.fresh_files, model.tables
    overlapping = (
        sa.select(files.c.table_id)
        .join(tables, tables.c.table_id == files.c.table_id)
        .where(
            files.c.retired_at.is_(None),
            files.c.from_seq < tables.c.migrated_seq,
            files.c.to_seq > tables.c.migrated_seq,
        )
    )
    native = sa.select(tables.c.migrated_seq).where(tables.c.table_id == files.c.table_id)
    connection.execute(
        sa.update(files)
        .where(
            files.c.retired_at.is_(None),
            # A partly migrated file is unusable, and later files of its table would leave a gap.
            sa.or_(files.c.to_seq <= native.scalar_subquery(), files.c.table_id.in_(overlapping)),
        )
        .values(retired_at=now)
    )


def _chunk_identity(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    return row["table_id"], row["seq"], _stage_path(row), row["offset"], row["md5"]


def _stage_path(row: Mapping[Any, Any]) -> str:
    """Return the path of a blob in the stage. A row of the ledger has it in one column."""
    prefix = row.get("prefix")
    return row["path"] if prefix is None else f"{prefix}/{row['path']}"


# For each table, a function that returns a row's identity, which is equal at both sites.
_IDENTITIES: dict[str, Callable[[Mapping[Any, Any]], Any]] = {
    "chunks": _chunk_identity,
    "chunk_ledger": _chunk_identity,
    "rowless_commits": itemgetter("table_id", "channel", "client_sequencer", "row_sequencer"),
    "loads": itemgetter("load_id"),
    "tables": itemgetter("incarnation"),
}


def _read_table_names(connection: sa.Connection) -> dict[int, str]:
    query = sa.select(
        model.tables.c.table_id, model.databases.c.name, model.schemas.c.name, model.tables.c.name
    ).select_from(model.tables.join(model.schemas).join(model.databases))
    return {row[0]: ".".join(row[1:]) for row in connection.execute(query)}
