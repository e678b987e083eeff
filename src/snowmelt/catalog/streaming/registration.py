"""Register groups of chunks in one transaction, and track unregistered blobs on the stage.

A registration runs in the caller's write transaction, with a constant number of statements:

1. Lock the table rows in ID order.
2. Load the state for the decisions.
3. Write the accepted chunks, the advanced channels and the tables' last sequence numbers.
"""

from __future__ import annotations

import datetime as dt
import operator
import secrets
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from snowmelt.catalog import model
from snowmelt.catalog.db import dialect as sets
from snowmelt.catalog.db.dialect import encode_array, in_array, make_insert
from snowmelt.catalog.db.replication_triggers import require_writable
from snowmelt.catalog.jobs.lineage import add_rowless_commits
from snowmelt.catalog.model.records import ACCOUNTADMIN, PUBLIC
from snowmelt.catalog.objects.channel_tombstones import find_tombstones
from snowmelt.catalog.objects.tables import (
    can_write_error_rows,
    find_namespace_ids,
    find_table_by_id,
    join_namespaces,
    list_table_schema_versions,
)
from snowmelt.catalog.streaming.commit_rules import (
    ChannelAdvance,
    ChannelCommitState,
    ChunkIdentity,
    ChunkOffer,
    CommitCode,
    CommitDecision,
    CommitDecisionInputs,
    LastCommittedChunk,
    StoredChunk,
    TableCommitState,
    apply_accepted_chunk,
    decide_all_or_none,
)
from snowmelt.errors import DatabaseNotFound, SchemaNotFound, TableNotFound
from snowmelt.schema.inference import find_schema_conflict
from snowmelt.schema.types import TableName

# Unregistered blobs. Garbage collection first records a sighting of a blob. If the blob stays
# unregistered, it writes a tombstone, and only then deletes the object. It also writes a tombstone
# when it deletes the chunk rows of a migrated blob. Registrations read the tombstones in their own
# transaction, so they cannot accept a blob that is to be deleted. The service deletes tombstones
# after seven days.

# Characters of a prefix. `_` separates the parts of a blob's name, so a prefix contains none. 16
# characters are 80 random bits.
_PREFIX_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_PREFIX_LENGTH = 16

_SIGHTINGS = model.sightings
_CHUNKS = model.chunks


@dataclass(frozen=True, slots=True, order=True)
class StagedBlob:
    """Location of a blob: `prefix/path` in the stage."""

    prefix: str
    path: str


def issue_client_prefix(connection: Connection, user: str, now: dt.datetime) -> str:
    """Issue a new client prefix. It must be unique, because a reused path would repeat the keystream."""
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
    """Return the user to whom a prefix was issued, or None if it was not issued."""
    return connection.execute(
        sa.select(_CLIENT_PREFIXES.c.user).where(_CLIENT_PREFIXES.c.prefix == prefix)
    ).scalar()


def record_blob_sightings(
    connection: Connection, blobs: Iterable[StagedBlob], now: dt.datetime
) -> None:
    """Record that these blobs are unregistered on the stage. Existing sightings keep their time."""
    rows = [
        {"path": blob.path, "prefix": blob.prefix, "first_seen": now} for blob in sorted(set(blobs))
    ]
    if rows:
        connection.execute(make_insert(connection, _SIGHTINGS).on_conflict_do_nothing(), rows)


def write_blob_tombstones(
    connection: Connection, blobs: Iterable[StagedBlob], now: dt.datetime
) -> None:
    """Write tombstones for blobs, so that their unregistered chunks can never be registered."""
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
    """Delete up to `limit` tombstones that were written before a time. Return the deleted number.

    This limits the size of the table. `before` must be longer ago than any registration or garbage
    collection of the blobs takes, which is minutes.
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
    """Return the paths that have at least one chunk row."""
    return _filter_paths(connection, sa.select(_CHUNKS.c.path).distinct(), paths)


def filter_tombstoned_paths(connection: Connection, paths: Collection[str]) -> set[str]:
    """Return the paths that have a tombstone. Their objects may be deleted."""
    query = sa.select(_SIGHTINGS.c.path).where(_SIGHTINGS.c.tombstoned_at.is_not(None))
    return _filter_paths(connection, query, paths)


def tombstone_unregistered_blobs(
    connection: Connection, *, seen_before: dt.datetime, now: dt.datetime
) -> list[StagedBlob]:
    """Write tombstones for up to 1,000 unregistered blobs that were sighted before a time.

    Also deletes the sightings of blobs that are registered now. Returns the blobs.
    """
    # Two statements are required. The first waits for registrations that have locked these rows.
    # The second reads what they wrote. In PostgreSQL, a subquery would read the older state.
    query = (
        sa.select(_SIGHTINGS.c.prefix, _SIGHTINGS.c.path)
        .where(_SIGHTINGS.c.first_seen < seen_before, _SIGHTINGS.c.tombstoned_at.is_(None))
        .order_by(_SIGHTINGS.c.first_seen)
        .limit(1_000)
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


__all__ = ["ChannelAdvance", "ChunkOffer", "CommitCache", "CommitDecision", "register_chunks"]

_TABLES = model.tables
_SCHEMAS = model.schemas
_DATABASES = model.databases
_CHANNELS = model.channels
_DATA_KEYS = model.data_keys
_CLIENT_PREFIXES = model.client_prefixes
_USERS = model.users
_ROLE_MEMBERS = model.role_members
_GRANTS = model.grants

_MAX_CACHED_ENTRIES = 100_000
_channels_decoder = msgspec.json.Decoder(list[tuple[str, int, int, str | None, str | None]])


def _text_parameter(name: str) -> sa.BindParameter[str]:
    return sa.bindparam(name, type_=sa.Text)


# Statements are built once, because building and rendering them costs more than running them. One
# statement locks the tables of all names, so that rows are locked in ID order.
_SELECT_TABLES_FOR_UPDATE: sa.Select[Any] = (
    sa.select(
        *(_TABLES.c[name] for name in ("table_id", "name", "last_seq", "schema_version", "owner")),
        _SCHEMAS.c.schema_id,
        _SCHEMAS.c.name.label("schema"),
        _SCHEMAS.c.owner.label("schema_owner"),
        _DATABASES.c.database_id,
        _DATABASES.c.name.label("database"),
        _DATABASES.c.owner.label("database_owner"),
    )
    .select_from(join_namespaces(_TABLES))
    .where(
        *(each.c.dropped_at.is_(None) for each in (_TABLES, _SCHEMAS, _DATABASES)),
        sa.tuple_(_DATABASES.c.name, _SCHEMAS.c.name, _TABLES.c.name).in_(
            sa.bindparam("names", expanding=True)
        ),
    )
    .order_by(_TABLES.c.table_id)
    .with_for_update(of=_TABLES)
)
_SELECT_PREFIX_OWNERS = sa.select(_CLIENT_PREFIXES.c.prefix, _CLIENT_PREFIXES.c.user).where(
    sets.in_array(_CLIENT_PREFIXES.c.prefix, _text_parameter("prefixes"))
)
_SELECT_USER_ROLES = (
    sa.select(_USERS.c.name, _USERS.c.default_role, _ROLE_MEMBERS.c.role)
    .select_from(_USERS.outerjoin(_ROLE_MEMBERS, _USERS.c.user_id == _ROLE_MEMBERS.c.user_id))
    .where(sets.in_array(_USERS.c.name, _text_parameter("users")))
)
_SELECT_KEY_SCOPES = sa.select(_DATA_KEYS.c.key_id, _DATA_KEYS.c.table_id, _DATA_KEYS.c.user).where(
    _DATA_KEYS.c.key_id.in_(sa.bindparam("key_ids", expanding=True))
)
_STORED_CHUNK_COLUMNS = "path offset table_id md5 key_id channels registered_at retired_at"
_SELECT_CHUNKS = (
    sa.select(*(_CHUNKS.c[name] for name in _STORED_CHUNK_COLUMNS.split()))
    .where(sets.in_array(_CHUNKS.c.path, _text_parameter("paths")))
    .order_by(_CHUNKS.c.path, _CHUNKS.c.offset)
    .with_for_update()
)
_SELECT_SIGHTINGS = (
    sa.select(_SIGHTINGS.c.path, _SIGHTINGS.c.first_seen, _SIGHTINGS.c.tombstoned_at)
    .where(sets.in_array(_SIGHTINGS.c.path, _text_parameter("paths")))
    .order_by(_SIGHTINGS.c.path)
    .with_for_update()
)
_CHANNEL_KEY_COLUMNS = ("table_id", "name")
_CHANNEL_STATE_COLUMNS = (
    *_CHANNEL_KEY_COLUMNS,
    *("channel_id", "client_sequencer", "row_sequencer", "offset_token", "owner_user"),
    *("last_client_sequencer", "last_path", "last_chunk_offset", "last_chunk_md5", "last_key_id"),
    *("rows", "bytes"),
)


@cache
def _select_channels(dialect: str) -> sa.Select[Any]:
    given = sets.make_rows_source(
        dialect, sa.column("table_id", sa.BigInteger), sa.column("name", sa.Text)
    )
    same = sa.and_(*(_CHANNELS.c[name] == given.c[name] for name in _CHANNEL_KEY_COLUMNS))
    columns = (_CHANNELS.c[name] for name in _CHANNEL_STATE_COLUMNS)
    return sa.select(*columns).select_from(given.join(_CHANNELS, same))


@dataclass(frozen=True, slots=True)
class CommitCache:
    """Cache of immutable committed data: prefix owners and key scopes.

    A prefix always belongs to the same user, and a key to the same table and user. Each
    registration reads mutable state in its transaction.
    """

    prefix_owners: dict[str, str] = field(default_factory=dict)
    key_scopes: dict[int, tuple[int, str]] = field(default_factory=dict)


def lock_and_load_commit_state(
    connection: sa.Connection,
    offers: Sequence[ChunkOffer],
    now: dt.datetime,
    commit_cache: CommitCache,
) -> CommitDecisionInputs:
    """Lock the tables of these offers, and return the state for the commit decisions.

    Requires a write transaction. The number of statements does not depend on the number of offers.
    """
    commit_state = CommitDecisionInputs(
        now, prefix_owners=commit_cache.prefix_owners, key_scopes=commit_cache.key_scopes
    )
    owners = _lock_offered_tables(connection, offers, commit_state)
    _clear_if_full(commit_state.prefix_owners)
    prefixes = {offer.prefix for offer in offers} - commit_state.prefix_owners.keys()
    if prefixes:
        wanted = {"prefixes": sets.encode_array(sorted(prefixes))}
        for prefix, user in connection.execute(_SELECT_PREFIX_OWNERS, wanted):
            commit_state.prefix_owners[prefix] = user
    _load_effective_roles(connection, offers, commit_state, owners)
    _clear_if_full(commit_state.key_scopes)
    key_ids = {offer.key_id for offer in offers} - commit_state.key_scopes.keys()
    if key_ids:
        for key_id, *scope in connection.execute(_SELECT_KEY_SCOPES, {"key_ids": sorted(key_ids)}):
            commit_state.key_scopes[key_id] = (scope[0], scope[1])
    _load_renamed_tables(connection, offers, commit_state)
    _load_blobs(
        connection, sets.encode_array(sorted({offer.path for offer in offers})), commit_state
    )
    _load_channels(connection, offers, commit_state)
    return commit_state


def _lock_offered_tables(
    connection: sa.Connection, offers: Sequence[ChunkOffer], commit_state: CommitDecisionInputs
) -> dict[int, sa.Row[Any]]:
    """Lock the tables of the offers. Return their rows with owners and namespaces by table ID."""
    owners: dict[int, sa.Row[Any]] = {}
    names = {offer.table for offer in offers}
    by_name = {(name.database, name.schema, name.table): name for name in names}
    missing = set(by_name)
    # TRUNCATE replaces a table. A statement that waits for its lock does not see the new table, and the
    # next statement does.
    for _ in range(2):
        if not missing:
            break
        for row in connection.execute(_SELECT_TABLES_FOR_UPDATE, {"names": sorted(missing)}):
            parts = row.database, row.schema, row.name
            missing.discard(parts)
            owners[row.table_id] = row
            name = by_name[parts]
            commit_state.tables[name] = TableCommitState(
                row.table_id, name, row.last_seq, row.schema_version
            )
    for name in names - commit_state.tables.keys():
        commit_state.missing_tables[name] = _decide_missing_table(connection, name)
    _load_schema_conflicts(connection, offers, commit_state)
    return owners


def _decide_missing_table(connection: sa.Connection, name: TableName) -> CommitDecision:
    try:
        find_namespace_ids(connection, name.database, name.schema)
    except (DatabaseNotFound, SchemaNotFound) as error:
        return CommitDecision(error.response_code, str(error))
    return CommitDecision(CommitCode.TABLE_MISSING, str(TableNotFound(table=name)))


def _load_schema_conflicts(
    connection: sa.Connection, offers: Sequence[ChunkOffer], commit_state: CommitDecisionInputs
) -> None:
    """Load the conflicts of older schema versions with the current columns."""
    for name in {offer.table for offer in offers}:
        table = commit_state.tables.get(name)
        older = table is not None and any(
            offer.table == name and 0 < offer.schema_version < table.schema_version
            for offer in offers
        )
        if table is not None and older:
            versions = list_table_schema_versions(connection, table.table_id)
            current = versions[table.schema_version]
            found = {
                number: find_schema_conflict(schema, current) for number, schema in versions.items()
            }
            table.schema_conflicts = {
                number: why for number, why in found.items() if why is not None
            }


def _load_effective_roles(
    connection: sa.Connection,
    offers: Sequence[ChunkOffer],
    commit_state: CommitDecisionInputs,
    locked_tables: dict[int, sa.Row[Any]],
) -> None:
    """Load the effective role of each user, and the roles that lack INSERT on an offered table."""
    granted: dict[str, set[str]] = defaultdict(set)
    default: dict[str, str] = {}
    asking = {(offer.user, offer.role, offer.table) for offer in offers}
    users = sets.encode_array(sorted({user for user, _, _ in asking}))
    for user, default_role, role in connection.execute(_SELECT_USER_ROLES, {"users": users}):
        granted[user] |= {PUBLIC, role}
        default[user] = default_role or PUBLIC
    for user, asked, _ in asking:
        role = asked or default.get(user)
        commit_state.effective_roles[user, asked] = role if role in granted[user] else None
    pairs = {
        (role, commit_state.tables[table].table_id)
        for user, asked, table in asking
        if table in commit_state.tables
        and (role := commit_state.effective_roles[user, asked]) not in {None, ACCOUNTADMIN}
    }
    if pairs:
        privileges = _load_granted_privileges(
            connection, {role for role, _ in pairs if role}, locked_tables
        )
        for role, table_id in pairs:
            refusal = _find_access_error(role or "", locked_tables[table_id], privileges)
            if refusal is not None and not can_write_error_rows(connection, role or "", table_id):
                commit_state.access_rejections[role or "", table_id] = refusal


def _load_granted_privileges(
    connection: sa.Connection, roles: set[str], locked_tables: dict[int, sa.Row[Any]]
) -> set[tuple[str, str, int]]:
    """Return (role, kind, object ID) of the grants that an insert requires.

    An insert requires INSERT on the table, and USAGE on its schema and database.
    """
    objects = {
        ("TABLE", "INSERT"): set(locked_tables),
        ("SCHEMA", "USAGE"): {row.schema_id for row in locked_tables.values()},
        ("DATABASE", "USAGE"): {row.database_id for row in locked_tables.values()},
    }
    some_of = [
        sa.and_(
            _GRANTS.c.kind == kind,
            _GRANTS.c.privilege == privilege,
            _GRANTS.c.object_id.in_(sorted(ids)),
        )
        for (kind, privilege), ids in objects.items()
    ]
    query = sa.select(_GRANTS.c.role, _GRANTS.c.kind, _GRANTS.c.object_id).where(
        _GRANTS.c.role.in_(sorted({*roles, PUBLIC})), sa.or_(*some_of)
    )
    return {(row.role, row.kind, row.object_id) for row in connection.execute(query)}


def _find_access_error(
    role: str, table: sa.Row[Any], privileges: set[tuple[str, str, int]]
) -> CommitDecision | None:
    codes = (CommitCode.DATABASE_MISSING, CommitCode.SCHEMA_MISSING, CommitCode.TABLE_MISSING)
    chain = (
        ("DATABASE", table.database_id, table.database_owner, table.database, codes[0]),
        ("SCHEMA", table.schema_id, table.schema_owner, table.schema, codes[1]),
        ("TABLE", table.table_id, table.owner, table.name, codes[2]),
    )
    holders = (role, PUBLIC)
    for kind, object_id, owner, name, code in chain:
        granted = any((holder, kind, object_id) in privileges for holder in holders)
        if owner not in holders and not granted:
            message = f"{kind.capitalize()} {name} does not exist, or this role may not use it."
            return CommitDecision(code, message)
    return None


def _load_renamed_tables(
    connection: sa.Connection, offers: Sequence[ChunkOffer], commit_state: CommitDecisionInputs
) -> None:
    """Load the current names of renamed tables whose chunks were offered under an old name."""
    # One offer per table and key suffices, because a rename writes tombstones for all channels.
    asking = {(offer.table, offer.key_id): offer for offer in offers}
    for offer in asking.values():
        key = commit_state.key_scopes.get(offer.key_id)
        if offer.table in commit_state.tables or key is None:
            continue
        # A rename writes tombstones under the old name.
        if find_tombstones(connection, offer.table, [offer.channels[0].name]):
            with suppress(TableNotFound):
                table = find_table_by_id(connection, key[0])
                if table.dropped_at is None:
                    commit_state.renamed_tables[table.table_id] = table.name


def _clear_if_full(entries: dict[Any, Any]) -> None:
    if len(entries) > _MAX_CACHED_ENTRIES:
        entries.clear()


def _load_blobs(
    connection: sa.Connection, encoded_paths: str, commit_state: CommitDecisionInputs
) -> None:
    """Load the chunks of the offered blobs, and sightings of unregistered blobs.

    The locks prevent concurrent retirement of chunks and concurrent tombstones until the commit.
    """
    seen: list[Any] = []
    for row in connection.execute(_SELECT_CHUNKS, {"paths": encoded_paths}):
        channels = _channels_decoder.decode(row.channels)
        identity = ChunkIdentity(
            row.md5, row.key_id, tuple((name, client, at) for name, client, at, *_ in channels)
        )
        commit_state.chunks[row.path, row.offset] = StoredChunk(
            row.table_id, identity, row.registered_at
        )
        seen.append((row.path, row.registered_at, row.retired_at))
    seen += connection.execute(_SELECT_SIGHTINGS, {"paths": encoded_paths})
    first_seen_at = commit_state.first_seen_at
    for path, seen_at, ended_at in seen:
        first_seen_at[path] = min(seen_at, first_seen_at.get(path, seen_at))
        if ended_at is not None:
            commit_state.tombstoned_paths.add(path)


def _load_channels(
    connection: sa.Connection, offers: Sequence[ChunkOffer], commit_state: CommitDecisionInputs
) -> None:
    names = {
        (commit_state.tables[offer.table].table_id, advance.name)
        for offer in offers
        if offer.table in commit_state.tables
        for advance in offer.channels
    }
    if not names:
        return
    query = _select_channels(connection.dialect.name)
    for row in connection.execute(query, sets.encode_rows(_CHANNEL_KEY_COLUMNS, names)):
        values: tuple[Any, ...] = tuple(row)
        channel_id, client_sequencer, row_sequencer, offset_token, owner = values[2:7]
        commit_state.channels[row.table_id, row.name] = ChannelCommitState(
            channel_id,
            client_sequencer,
            row_sequencer,
            offset_token,
            owner,
            LastCommittedChunk(*values[7:12]),
            row.rows,
            row.bytes,
        )


# Fields of offers and channel states that are written to the catalog.
_OFFER_FIELDS = (
    *("prefix", "path", "offset", "length", "md5", "key_id", "rows", "schema_version"),
    *("first_insert_ms", "last_insert_ms", "statistics"),
)
_CHUNK_COLUMNS = ("table_id", "seq", "registered_at", "channels", *_OFFER_FIELDS)
_get_offer_values = operator.attrgetter(*_OFFER_FIELDS)
_CHANNEL_FIELDS_BY_COLUMN = {
    "channel_id": "channel_id",
    "row_sequencer": "row_sequencer",
    "offset_token": "offset_token",
    "last_client_sequencer": "last_chunk.client_sequencer",
    "last_path": "last_chunk.path",
    "last_chunk_offset": "last_chunk.offset",
    "last_chunk_md5": "last_chunk.md5",
    "last_key_id": "last_chunk.key_id",
    "rows": "rows",
    "bytes": "bytes",
}
_CHANNEL_COLUMNS = (*_CHANNEL_FIELDS_BY_COLUMN, "last_commit_at")
_get_channel_values = operator.attrgetter(*_CHANNEL_FIELDS_BY_COLUMN.values())

_json_encoder = msgspec.json.Encoder()


def register_chunks(
    connection: sa.Connection,
    offers: Sequence[ChunkOffer],
    *,
    now: dt.datetime,
    commit_cache: CommitCache | None = None,
) -> list[tuple[CommitDecision, ...]]:
    """Register chunks. Return a commit decision for each channel of each offer.

    Decides on the offers in order, each on the state after the previous ones. Chunks of one commit
    are accepted together or not at all. A repetition of an accepted chunk is reported as accepted,
    and not added again.

    The decisions take effect with the commit of the caller's write transaction.

    Args:
        connection: Connection in a write transaction.
        offers: Verified chunks. They include chunks with a `rejection`, which may be repetitions.
        now: Current time, used for the age of blobs. The order of commits does not depend on it.
        commit_cache: Cache that the caller reuses for all groups. None: no cache.

    Raises:
        SiteReadOnly: If another site is the primary.
    """
    if not offers:
        return []
    require_writable(connection)
    commit_state = lock_and_load_commit_state(
        connection, offers, now, commit_cache or CommitCache()
    )
    answers = []
    instant = model.to_microseconds(now)
    added: list[tuple[Any, ...]] = []
    rowless: list[tuple[int, str, int, int, str | None, int]] = []
    unregistered: list[StagedBlob] = []
    judged = (
        (offer, *verdict)
        for together in _group_by_commit(offers)
        for offer, verdict in zip(together, decide_all_or_none(together, commit_state), strict=True)
    )
    for offer, verdicts, table in judged:
        if table is not None and offer.channels:
            seq = apply_accepted_chunk(offer, table, commit_state)
            if offer.rows:
                channels = [
                    (*each.sequence_key, each.start_offset_token, each.end_offset_token)
                    for each in offer.channels
                ]
                encoded = _json_encoder.encode(channels).decode()
                added.append((table.table_id, seq, instant, encoded, *_get_offer_values(offer)))
            else:
                rowless += [
                    (table.table_id, *each.sequence_key, each.end_offset_token, instant)
                    for each in offer.channels
                ]
        elif (
            # Only verified blobs of the user's own prefix are recorded. Otherwise a client could fill
            # the table with invented paths.
            offer.rejection is None
            and commit_state.prefix_owners.get(offer.prefix) == offer.user
            and any(verdict.code for verdict in verdicts)
        ):
            unregistered.append(StagedBlob(offer.prefix, offer.path))
        answers.append(verdicts)
    _write_commit(connection, commit_state, added, instant)
    add_rowless_commits(connection, rowless)
    record_blob_sightings(connection, unregistered, now)
    return answers


def _group_by_commit(offers: Sequence[ChunkOffer]) -> Iterator[Sequence[ChunkOffer]]:
    """Group the offers by commit. An offer that commits alone is a group of one."""
    start = 0
    while start < len(offers):
        first, end = offers[start], start + 1
        while (
            end < min(start + first.commit_chunk_count, len(offers))
            and offers[end].commit_key == first.commit_key
        ):
            end += 1
        yield offers[start:end]
        start = end


def _write_commit(
    connection: sa.Connection,
    commit_state: CommitDecisionInputs,
    chunk_rows: list[tuple[Any, ...]],
    committed_at_us: int,
) -> None:
    moved = [
        (*_get_channel_values(state), committed_at_us)
        for state in commit_state.channels.values()
        if state.has_advanced
    ]
    if not moved:
        return
    if chunk_rows:
        sets.insert_rows(connection, model.chunks, _CHUNK_COLUMNS, chunk_rows)
    sets.update_rows(connection, model.channels, _CHANNEL_COLUMNS, moved)
    touched = {row[0] for row in chunk_rows}
    counted = [
        (table.table_id, table.last_seq)
        for table in commit_state.tables.values()
        if table.table_id in touched
    ]
    if counted:
        sets.update_rows(connection, model.tables, ("table_id", "last_seq"), counted)
