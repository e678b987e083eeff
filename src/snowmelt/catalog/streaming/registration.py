"""Registering chunks: many offers, one transaction, a fixed number of statements.

The caller's transaction must be a writing one. Table rows are locked in id order; then
everything the verdicts rest on is read, set by set; then the accepted chunks, the channels
that moved and the tables' last sequence numbers are written.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db import dialect as sets
from snowmelt.catalog.model.privileges import ACCOUNTADMIN, PUBLIC
from snowmelt.catalog.objects.channel_tombstones import last_sequencer
from snowmelt.catalog.objects.error_tables import may_feed
from snowmelt.catalog.objects.tables import schema_of, schema_versions, table_by_id
from snowmelt.catalog.streaming import stages
from snowmelt.catalog.streaming.commit_rules import (
    ChannelAdvance,
    ChannelState,
    ChunkIdentity,
    ChunkOffer,
    Code,
    LastCommit,
    Ledger,
    StoredChunk,
    TableState,
    Verdict,
    accept,
    judge_parts,
)
from snowmelt.errors import DatabaseNotFound, SchemaNotFound, TableNotFound
from snowmelt.schema.evolution import find_schema_conflict

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Sequence

    from snowmelt.schema.types import TableName

__all__ = [
    "ChannelAdvance",
    "ChunkOffer",
    "Remembered",
    "Verdict",
    "register",
]

# --- Reading what verdicts on chunks rest on, set by set, under the lock of the tables concerned.

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

_MAX_REMEMBERED = 100_000
_channels_decoder = msgspec.json.Decoder(list[tuple[str, int, int, str | None, str | None]])


def _texts(name: str) -> sa.BindParameter[str]:
    return sa.bindparam(name, type_=sa.Text)


# Statements are built once: to build and render them anew cost more than to run them.
# All names in one statement, so that rows are locked in id order across the whole group.
_LOCKED_TABLES: sa.Select[Any] = (
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
    .where(
        _T.c.dropped_at.is_(None),
        _S.c.dropped_at.is_(None),
        _D.c.dropped_at.is_(None),
        sa.tuple_(_D.c.name, _S.c.name, _T.c.name).in_(sa.bindparam("names", expanding=True)),
    )
    .order_by(_T.c.table_id)
    .with_for_update(of=_T)
)
_PREFIXES = sa.select(_P.c.prefix, _P.c.user).where(sets.is_among(_P.c.prefix, _texts("prefixes")))
_ROLES = (
    sa.select(_U.c.name, _U.c.default_role, _M.c.role)
    .select_from(_U.outerjoin(_M, _U.c.user_id == _M.c.user_id))
    .where(sets.is_among(_U.c.name, _texts("users")))
)
_KEYS = sa.select(_K.c.key_id, _K.c.table_id, _K.c.user).where(
    _K.c.key_id.in_(sa.bindparam("key_ids", expanding=True))
)
_CHUNKS = (
    sa.select(
        _X.c.path,
        _X.c.offset,
        _X.c.table_id,
        _X.c.md5,
        _X.c.key_id,
        _X.c.channels,
        _X.c.registered_at,
        _X.c.retired_at,
    )
    .where(sets.is_among(_X.c.path, _texts("paths")))
    .order_by(_X.c.path, _X.c.offset)
    .with_for_update()
)
_SIGHTINGS = (
    sa.select(_Z.c.path, _Z.c.first_seen, _Z.c.tombstoned_at)
    .where(sets.is_among(_Z.c.path, _texts("paths")))
    .order_by(_Z.c.path)
    .with_for_update()
)
_CHANNEL_KEY = ("table_id", "name")


@cache
def _channels_query(dialect: str) -> sa.Select[Any]:
    given = sets.rows_of(dialect, sa.column("table_id", sa.BigInteger), sa.column("name", sa.Text))
    return sa.select(
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
    ).select_from(
        given.join(_C, sa.and_(_C.c.table_id == given.c.table_id, _C.c.name == given.c.name))
    )


@dataclass(frozen=True, slots=True)
class Remembered:
    """What never changes once it is committed, so that each group need not ask again.

    To whom a prefix was issued, and for which table and user a key is: neither is ever given to
    another. Everything that can change is read in the registering transaction.
    """

    prefixes: dict[str, str] = field(default_factory=dict)
    keys: dict[int, tuple[int, str]] = field(default_factory=dict)


def read_ledger(
    connection: sa.Connection,
    offers: Sequence[ChunkOffer],
    now: dt.datetime,
    remembered: Remembered,
) -> Ledger:
    """Lock the tables of these offers and return all that verdicts on them rest on.

    Needs a writing transaction. The number of statements does not depend on that of offers.
    """
    ledger = Ledger(now, prefixes=remembered.prefixes, keys=remembered.keys)
    owners = _lock_tables(connection, offers, ledger)
    _read_prefixes(connection, offers, remembered)
    _read_roles(connection, offers, ledger, owners)
    _read_keys(connection, offers, remembered)
    _read_renamed(connection, offers, ledger)
    paths = sets.packed(sorted({offer.path for offer in offers}))
    _read_chunks(connection, paths, ledger)
    _read_sightings(connection, paths, ledger)
    _read_channels(connection, offers, ledger)
    return ledger


def _lock_tables(
    connection: sa.Connection, offers: Sequence[ChunkOffer], ledger: Ledger
) -> dict[int, sa.Row[Any]]:
    """Lock the tables that the offers name; return by id who owns them and what they are in."""
    owners: dict[int, sa.Row[Any]] = {}
    names = {offer.table for offer in offers}
    by_name = {(name.database, name.schema, name.table): name for name in names}
    for row in connection.execute(_LOCKED_TABLES, {"names": sorted(by_name)}):
        name = by_name[row.database, row.schema, row.name]
        owners[row.table_id] = row
        ledger.tables[name] = TableState(row.table_id, name, row.last_seq, row.schema_version)
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
            found = {
                number: find_schema_conflict(schema, current) for number, schema in versions.items()
            }
            table.obstacles = {number: why for number, why in found.items() if why is not None}


def _read_prefixes(
    connection: sa.Connection, offers: Sequence[ChunkOffer], remembered: Remembered
) -> None:
    unknown = {offer.prefix for offer in offers} - remembered.prefixes.keys()
    if unknown:
        _keep_small(remembered.prefixes)
        found = connection.execute(_PREFIXES, {"prefixes": sets.packed(sorted(unknown))})
        remembered.prefixes.update((prefix, user) for prefix, user in found)


def _read_roles(
    connection: sa.Connection,
    offers: Sequence[ChunkOffer],
    ledger: Ledger,
    owners: dict[int, sa.Row[Any]],
) -> None:
    """Settle each sender's effective role, and which of these may not insert where."""
    granted: dict[str, set[str]] = defaultdict(set)
    default: dict[str, str] = {}
    asking = {(offer.user, offer.role, offer.table) for offer in offers}
    users = sets.packed(sorted({user for user, _, _ in asking}))
    for user, default_role, role in connection.execute(_ROLES, {"users": users}):
        granted[user] |= {PUBLIC, role}
        default[user] = default_role or PUBLIC
    for user, asked, _ in asking:
        role = asked or default.get(user)
        ledger.roles[user, asked] = role if role in granted[user] else None
    pairs = {
        (role, ledger.tables[table].table_id)
        for user, asked, table in asking
        if table in ledger.tables
        and (role := ledger.roles[user, asked]) not in {None, ACCOUNTADMIN}
    }
    if pairs:
        privileges = _privileges(connection, {role for role, _ in pairs if role}, owners)
        for role, table_id in pairs:
            refusal = _access_refusal(role or "", owners[table_id], privileges)
            if refusal is not None and not may_feed(connection, role or "", table_id):
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


def _read_keys(
    connection: sa.Connection, offers: Sequence[ChunkOffer], remembered: Remembered
) -> None:
    unknown = {offer.key_id for offer in offers} - remembered.keys.keys()
    if unknown:
        _keep_small(remembered.keys)
        for key_id, table_id, user in connection.execute(_KEYS, {"key_ids": sorted(unknown)}):
            remembered.keys[key_id] = (table_id, user)


def _read_renamed(connection: sa.Connection, offers: Sequence[ChunkOffer], ledger: Ledger) -> None:
    """Find out what the tables are called whose chunks come under names that they had before."""
    # One of each table and key speaks for all: every channel has left its sequencer.
    asking = {(offer.table, offer.key_id): offer for offer in offers}
    for offer in asking.values():
        key = ledger.keys.get(offer.key_id)
        if offer.table in ledger.tables or key is None:
            continue
        # A renaming leaves the channels' sequencers behind under the old name.
        if last_sequencer(connection, offer.table, offer.channels[0].name) is not None:
            with suppress(TableNotFound):
                table = table_by_id(connection, key[0])
                if table.dropped_at is None:
                    ledger.renamed[table.table_id] = table.name


def _keep_small(memory: dict[Any, Any]) -> None:
    if len(memory) > _MAX_REMEMBERED:
        memory.clear()


def _read_chunks(connection: sa.Connection, paths: str, ledger: Ledger) -> None:
    """Read what is registered of the same blobs; the lock keeps it from being retired now."""
    for row in connection.execute(_CHUNKS, {"paths": paths}):
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


def _read_sightings(connection: sa.Connection, paths: str, ledger: Ledger) -> None:
    """Read what is known of unregistered blobs; the lock keeps tombstones from coming now."""
    for path, first_seen, tombstoned_at in connection.execute(_SIGHTINGS, {"paths": paths}):
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
    if not names:
        return
    query = _channels_query(connection.dialect.name)
    for row in connection.execute(query, sets.packed_rows(_CHANNEL_KEY, names)):
        (table_id, name, channel_id, client_sequencer, row_sequencer, offset_token, owner) = row[:7]
        ledger.channels[table_id, name] = ChannelState(
            channel_id,
            client_sequencer,
            row_sequencer,
            offset_token,
            owner,
            LastCommit(*row[7:12]),
            row[12],
            row[13],
        )


_CHUNK_COLUMNS = (
    "table_id",
    "seq",
    "prefix",
    "path",
    "offset",
    "length",
    "md5",
    "key_id",
    "rows",
    "schema_version",
    "first_insert_ms",
    "last_insert_ms",
    "registered_at",
    "channels",
    "statistics",
)
_CHANNEL_COLUMNS = (
    "channel_id",
    "row_sequencer",
    "offset_token",
    "last_client_sequencer",
    "last_path",
    "last_chunk_offset",
    "last_chunk_md5",
    "last_key_id",
    "last_commit_at",
    "rows",
    "bytes",
)

_encoder = msgspec.json.Encoder()


def register(
    connection: sa.Connection,
    offers: Sequence[ChunkOffer],
    *,
    now: dt.datetime,
    remembered: Remembered | None = None,
) -> list[tuple[Verdict, ...]]:
    """Register chunks and return a verdict for each channel of each offer.

    Offers are judged in the order given, each on top of those before it; the parts of one commit
    are accepted together or not at all. A chunk that was accepted before is answered with its
    acceptance and not added again.

    Args:
        connection: A writing transaction; nothing counts before its commit.
        offers: Verified chunks, or refused ones that may turn out to be repetitions.
        now: The service's time, for the age of blobs; order never depends on it.
        remembered: Kept by the caller from group to group, so that what cannot change is read
            only once.
    """
    if not offers:
        return []
    ledger = read_ledger(connection, offers, now, remembered or Remembered())
    answers = []
    instant = model.microseconds(now)
    added: list[tuple[Any, ...]] = []
    unregistered: list[stages.StagedBlob] = []
    judged = (
        (offer, *verdict)
        for together in _commits(offers)
        for offer, verdict in zip(together, judge_parts(together, ledger), strict=True)
    )
    for offer, verdicts, table in judged:
        if table is not None and offer.channels:
            seq = accept(offer, table, ledger)
            if offer.rows:
                added.append(_chunk_row(offer, table.table_id, seq, instant))
        elif _is_on_stage(offer, ledger) and any(verdict.code for verdict in verdicts):
            unregistered.append(stages.StagedBlob(offer.prefix, offer.path))
        answers.append(verdicts)
    _write(connection, ledger, added, instant)
    stages.sight(connection, unregistered, now)
    return answers


def _commits(offers: Sequence[ChunkOffer]) -> Iterator[Sequence[ChunkOffer]]:
    """Yield offers one by one, and those together that are parts of one commit."""
    start = 0
    while start < len(offers):
        first, end = offers[start], start + 1
        while end < min(start + first.parts, len(offers)) and offers[end].commit == first.commit:
            end += 1
        yield offers[start:end]
        start = end


def _is_on_stage(offer: ChunkOffer, ledger: Ledger) -> bool:
    # Verified and of the user's own prefix: nobody fills the table of sightings with inventions.
    return offer.refusal is None and ledger.prefixes.get(offer.prefix) == offer.user


def _chunk_row(offer: ChunkOffer, table_id: int, seq: int, instant: int) -> tuple[Any, ...]:
    channels = [
        (*each.epoch, each.start_offset_token, each.end_offset_token) for each in offer.channels
    ]
    return (
        table_id,
        seq,
        offer.prefix,
        offer.path,
        offer.offset,
        offer.length,
        offer.md5,
        offer.key_id,
        offer.rows,
        offer.schema_version,
        offer.first_insert_ms,
        offer.last_insert_ms,
        instant,
        _encoder.encode(channels).decode(),
        offer.statistics,
    )


def _write(
    connection: sa.Connection, ledger: Ledger, added: list[tuple[Any, ...]], instant: int
) -> None:
    moved = [
        (
            state.channel_id,
            state.row_sequencer,
            state.offset_token,
            state.last.client_sequencer,
            state.last.path,
            state.last.offset,
            state.last.md5,
            state.last.key_id,
            instant,
            state.rows,
            state.bytes,
        )
        for state in ledger.channels.values()
        if state.moved
    ]
    if not moved:
        return
    if added:
        sets.insert_rows(connection, model.chunks, _CHUNK_COLUMNS, added)
    sets.update_rows(connection, model.channels, _CHANNEL_COLUMNS, moved)
    if not added:
        return
    touched = {row[0] for row in added}
    counted = [
        (table.table_id, table.last_seq)
        for table in ledger.tables.values()
        if table.table_id in touched
    ]
    sets.update_rows(connection, model.tables, ("table_id", "last_seq"), counted)
