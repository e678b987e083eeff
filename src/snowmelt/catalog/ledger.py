"""Reading what verdicts on chunks rest on, set by set, under the lock of the tables concerned."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.access import ACCOUNTADMIN, PUBLIC
from snowmelt.catalog.tables import schema_of, schema_versions
from snowmelt.catalog.verdicts import (
    ChannelState,
    ChunkIdentity,
    Code,
    LastCommit,
    Ledger,
    StoredChunk,
    TableState,
    Verdict,
)
from snowmelt.errors import DatabaseNotFound, SchemaNotFound, TableNotFound

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Iterator, Sequence

    from snowmelt.catalog.verdicts import ChunkOffer
    from snowmelt.schema.types import TableName, TableSchema

# SQLite takes 32,766 parameters in a statement, PostgreSQL 65,535.
_AT_ONCE = 5_000

_T = model.tables
_S = model.schemas
_D = model.databases
_C = model.channels
_K = model.data_keys
_P = model.client_prefixes
_U = model.users
_M = model.role_members
_G = model.grants
_X = model.chunks
_Z = model.sightings

_channels_decoder = msgspec.json.Decoder(list[tuple[str, int, int, str | None, str | None]])


def read_ledger(
    connection: sa.Connection, offers: Sequence[ChunkOffer], now: dt.datetime
) -> Ledger:
    """Lock the tables of these offers and return all that verdicts on them rest on.

    Needs a writing transaction. The number of statements does not depend on that of offers.
    """
    ledger = Ledger(now)
    owners = _lock_tables(connection, offers, ledger)
    _read_prefixes(connection, offers, ledger)
    _read_roles(connection, offers, ledger, owners)
    _read_keys(connection, offers, ledger)
    _read_chunks(connection, offers, ledger)
    _read_sightings(connection, offers, ledger)
    _read_channels(connection, offers, ledger)
    return ledger


def _lock_tables(
    connection: sa.Connection, offers: Sequence[ChunkOffer], ledger: Ledger
) -> dict[int, sa.Row[Any]]:
    """Lock the tables that the offers name; return by id who owns them and what they are in."""
    owners: dict[int, sa.Row[Any]] = {}
    names = {offer.table for offer in offers}
    query: sa.Select[Any] = (
        sa.select(
            _T.c.table_id,
            _T.c.name,
            _T.c.last_seq,
            _T.c.schema_version,
            _T.c.owner,
            _S.c.schema_id,
            _S.c.name.label("schema"),
            _S.c.owner.label("schema_owner"),
            _D.c.database_id,
            _D.c.name.label("database"),
            _D.c.owner.label("database_owner"),
        )
        .join(_S, _T.c.schema_id == _S.c.schema_id)
        .join(_D, _S.c.database_id == _D.c.database_id)
        .where(_T.c.dropped_at.is_(None), _S.c.dropped_at.is_(None), _D.c.dropped_at.is_(None))
        .order_by(_T.c.table_id)
        .with_for_update(of=_T)
    )
    # All names in one statement, so that rows are locked in id order across the whole group.
    by_name = {(name.database, name.schema, name.table): name for name in names}
    wanted = sa.tuple_(_D.c.name, _S.c.name, _T.c.name).in_(sorted(by_name))
    for row in connection.execute(query.where(wanted)):
        name = by_name[row.database, row.schema, row.name]
        owners[row.table_id] = row
        ledger.tables[name] = TableState(
            row.table_id, name, row.last_seq, row.schema_version, frozenset({row.schema_version})
        )
    for name in names - ledger.tables.keys():
        ledger.missing[name] = _why_missing(connection, name)
    _read_older_versions(connection, offers, ledger)
    return owners


def _why_missing(connection: sa.Connection, name: TableName) -> Verdict:
    try:
        schema_of(connection, name.database, name.schema)
    except (DatabaseNotFound, SchemaNotFound) as error:
        return Verdict(error.response_code, str(error))
    return Verdict(Code.TABLE_MISSING, str(TableNotFound(table=name)))


def _read_older_versions(
    connection: sa.Connection, offers: Sequence[ChunkOffer], ledger: Ledger
) -> None:
    """Find out which older versions of a table's columns may still be written."""
    for name in {offer.table for offer in offers}:
        table = ledger.tables.get(name)
        older = table is not None and any(
            offer.table == name and 0 < offer.schema_version < table.schema_version
            for offer in offers
        )
        if table is not None and older:
            versions = schema_versions(connection, table.table_id)
            current = versions[table.schema_version]
            table.fitting_versions = frozenset(
                number for number, schema in versions.items() if _may_write(schema, current)
            )


def _may_write(older: TableSchema, current: TableSchema) -> bool:
    there = {column.ordinal for column in older.columns}
    return all(column.nullable for column in current.columns if column.ordinal not in there)


def _read_prefixes(connection: sa.Connection, offers: Sequence[ChunkOffer], ledger: Ledger) -> None:
    query = sa.select(_P.c.prefix, _P.c.user)
    for some in _slices({offer.prefix for offer in offers}):
        for prefix, user in connection.execute(query.where(_P.c.prefix.in_(some))):
            ledger.prefixes[prefix] = user


def _read_roles(
    connection: sa.Connection,
    offers: Sequence[ChunkOffer],
    ledger: Ledger,
    owners: dict[int, sa.Row[Any]],
) -> None:
    """Settle each sender's effective role, and which of these may not insert where."""
    granted: dict[str, set[str]] = defaultdict(set)
    default: dict[str, str] = {}
    query = sa.select(_U.c.name, _U.c.default_role, _M.c.role).select_from(
        _U.outerjoin(_M, _U.c.user_id == _M.c.user_id)
    )
    for some in _slices({offer.user for offer in offers}):
        for user, default_role, role in connection.execute(query.where(_U.c.name.in_(some))):
            granted[user] |= {PUBLIC, role}
            default[user] = default_role or PUBLIC
    for offer in offers:
        role = offer.role or default.get(offer.user)
        ledger.roles[offer.user, offer.role] = role if role in granted[offer.user] else None
    pairs = {
        (role, ledger.tables[offer.table].table_id)
        for offer in offers
        if offer.table in ledger.tables
        and (role := ledger.roles[offer.user, offer.role]) not in {None, ACCOUNTADMIN}
    }
    if pairs:
        privileges = _privileges(connection, {role for role, _ in pairs if role}, owners)
        for role, table_id in pairs:
            refusal = _access_refusal(role or "", owners[table_id], privileges)
            if refusal is not None:
                ledger.refused_access[role or "", table_id] = refusal


def _privileges(
    connection: sa.Connection, roles: set[str], owners: dict[int, sa.Row[Any]]
) -> set[tuple[str, str, int]]:
    """Return (role, kind, object id) of what is granted, of the one privilege each kind needs."""
    objects = {
        ("TABLE", "INSERT"): set(owners),
        ("SCHEMA", "USAGE"): {row.schema_id for row in owners.values()},
        ("DATABASE", "USAGE"): {row.database_id for row in owners.values()},
    }
    some_of = [
        sa.and_(_G.c.kind == kind, _G.c.privilege == privilege, _G.c.object_id.in_(sorted(ids)))
        for (kind, privilege), ids in objects.items()
    ]
    query = sa.select(_G.c.role, _G.c.kind, _G.c.object_id).where(
        _G.c.role.in_(sorted({*roles, PUBLIC})), sa.or_(*some_of)
    )
    return {(row.role, row.kind, row.object_id) for row in connection.execute(query)}


def _access_refusal(
    role: str, table: sa.Row[Any], privileges: set[tuple[str, str, int]]
) -> Verdict | None:
    chain = (
        (
            "DATABASE",
            table.database_id,
            table.database_owner,
            table.database,
            Code.DATABASE_MISSING,
        ),
        ("SCHEMA", table.schema_id, table.schema_owner, table.schema, Code.SCHEMA_MISSING),
        ("TABLE", table.table_id, table.owner, table.name, Code.TABLE_MISSING),
    )
    holders = (role, PUBLIC)
    for kind, object_id, owner, name, code in chain:
        granted = any((holder, kind, object_id) in privileges for holder in holders)
        if owner not in holders and not granted:
            message = f"{kind.capitalize()} {name} does not exist, or this role may not use it."
            return Verdict(code, message)
    return None


def _read_keys(connection: sa.Connection, offers: Sequence[ChunkOffer], ledger: Ledger) -> None:
    query = sa.select(_K.c.key_id, _K.c.table_id, _K.c.user)
    for some in _slices({offer.key_id for offer in offers}):
        for key_id, table_id, user in connection.execute(query.where(_K.c.key_id.in_(some))):
            ledger.keys[key_id] = (table_id, user)


def _read_chunks(connection: sa.Connection, offers: Sequence[ChunkOffer], ledger: Ledger) -> None:
    """Read what is registered of the same blobs; the lock keeps it from being retired now."""
    query = sa.select(
        _X.c.path,
        _X.c.offset,
        _X.c.table_id,
        _X.c.md5,
        _X.c.key_id,
        _X.c.channels,
        _X.c.registered_at,
        _X.c.retired_at,
    ).order_by(_X.c.path, _X.c.offset)
    for some in _slices({offer.path for offer in offers}):
        for row in connection.execute(query.where(_X.c.path.in_(some)).with_for_update()):
            channels = _channels_decoder.decode(row.channels)
            identity = ChunkIdentity(
                row.md5, row.key_id, tuple((name, client, at) for name, client, at, *_ in channels)
            )
            retired = row.retired_at is not None
            ledger.chunks[row.path, row.offset] = StoredChunk(
                row.table_id, identity, row.registered_at, retired
            )
            _see(ledger, row.path, row.registered_at)
            if retired:
                ledger.buried.add(row.path)


def _read_sightings(
    connection: sa.Connection, offers: Sequence[ChunkOffer], ledger: Ledger
) -> None:
    """Read what is known of unregistered blobs; the lock keeps tombstones from coming now."""
    query = sa.select(_Z.c.path, _Z.c.first_seen, _Z.c.tombstoned_at).order_by(_Z.c.path)
    for some in _slices({offer.path for offer in offers}):
        rows = connection.execute(query.where(_Z.c.path.in_(some)).with_for_update())
        for path, first_seen, tombstoned_at in rows:
            _see(ledger, path, first_seen)
            if tombstoned_at is not None:
                ledger.buried.add(path)


def _see(ledger: Ledger, path: str, at: dt.datetime) -> None:
    ledger.first_seen[path] = min(at, ledger.first_seen.get(path, at))


def _read_channels(connection: sa.Connection, offers: Sequence[ChunkOffer], ledger: Ledger) -> None:
    names = {
        (ledger.tables[offer.table].table_id, advance.name)
        for offer in offers
        if offer.table in ledger.tables
        for advance in offer.channels
    }
    query = sa.select(
        _C.c.table_id,
        _C.c.name,
        _C.c.channel_id,
        _C.c.client_sequencer,
        _C.c.row_sequencer,
        _C.c.offset_token,
        _C.c.owner_user,
        _C.c.last_client_sequencer,
        _C.c.last_path,
        _C.c.last_chunk_offset,
        _C.c.last_chunk_md5,
        _C.c.last_key_id,
        _C.c.rows,
        _C.c.bytes,
    )
    for some in _slices(names):
        wanted = sa.tuple_(_C.c.table_id, _C.c.name).in_(some)
        for row in connection.execute(query.where(wanted)):
            ledger.channels[row.table_id, row.name] = ChannelState(
                channel_id=row.channel_id,
                client_sequencer=row.client_sequencer,
                row_sequencer=row.row_sequencer,
                offset_token=row.offset_token,
                owner_user=row.owner_user,
                last=LastCommit(
                    row.last_client_sequencer,
                    row.last_path,
                    row.last_chunk_offset,
                    row.last_chunk_md5,
                    row.last_key_id,
                ),
                rows=row.rows,
                bytes=row.bytes,
            )


def _slices(values: Collection[Any]) -> Iterator[list[Any]]:
    ordered = sorted(values)
    for start in range(0, len(ordered), _AT_ONCE):
        yield ordered[start : start + _AT_ONCE]
