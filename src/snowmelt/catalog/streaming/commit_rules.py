"""Commit decisions on offered chunks. Pure: uses only preloaded state.

A chunk is accepted completely or not at all. Sequence numbers are assigned after the decision, so a
rejected chunk leaves no gap in a table's sequence. Codes are those of streaming v1 (specification
§2.7).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from snowmelt.schema.inference import SchemaConflict
from snowmelt.schema.types import TableName, to_display_name

# Maximum age of a blob since its first sighting. Garbage collection may delete an older blob.
REGISTRATION_WINDOW = dt.timedelta(hours=1)


class CommitCode(IntEnum):
    """Result codes of a registration in streaming v1 (specification §2.7)."""

    ACCEPTED = 0
    TABLE_MISSING = 4
    DATABASE_MISSING = 8
    SCHEMA_MISSING = 9
    CHUNKS_MISSING = 12
    STALE_CLIENT_SEQUENCER = 20
    ROW_SEQUENCER_NOT_NEXT = 21
    SIBLING_REFUSED = 22
    DUPLICATE_CHANNEL = 23
    CHANNEL_MISSING = 25
    INVALID_BLOB_NAME = 34
    REOPEN = 36
    ROLE_MISSING = 37
    BLOB_TOO_OLD = 38
    COLUMN_MISSING = 40


@dataclass(frozen=True, slots=True)
class CommitDecision:
    """Result for one channel of one chunk. Code 0 means committed.

    `is_replay` is True if an earlier call committed the chunk.
    """

    code: int
    message: str | None = None
    is_replay: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class ChannelAdvance:
    """One channel's part of a chunk. `rows` is its row count, or None if the client omits it."""

    name: str
    client_sequencer: int
    row_sequencer: int
    start_offset_token: str | None
    end_offset_token: str | None
    rows: int | None = None

    @property
    def sequence_key(self) -> tuple[str, int, int]:
        """Key that identifies this advance."""
        return self.name, self.client_sequencer, self.row_sequencer


@dataclass(frozen=True, slots=True)
class ChunkOffer:
    """A chunk of a registration, already verified against the stage.

    If `role` is None, the user's default role applies. `rejection` (code and message) is set if the
    verification failed; the offer can then succeed only as a repetition of an accepted chunk.
    `commit_chunk_count` is the number of adjacent chunks that commit together.
    """

    path: str
    blob_md5: str
    prefix: str
    user: str
    role: str | None
    table: TableName
    offset: int
    length: int
    md5: str
    key_id: int
    rows: int
    schema_version: int
    statistics: bytes
    first_insert_ms: int | None
    last_insert_ms: int | None
    channels: tuple[ChannelAdvance, ...]
    rejection: tuple[int, str] | None = None
    commit_chunk_count: int = 1

    @property
    def location(self) -> tuple[str, int]:
        """Location of the chunk, unique among accepted chunks."""
        return self.path, self.offset

    @property
    def identity(self) -> ChunkIdentity:
        """Identity of the chunk, which is equal for a repetition."""
        return ChunkIdentity(
            self.md5, self.key_id, tuple(each.sequence_key for each in self.channels)
        )

    @property
    def commit_key(self) -> object:
        """Key of the commit, which is equal for chunks that commit together."""
        return (
            self.commit_chunk_count,
            self.user,
            self.table,
            tuple(each.sequence_key for each in self.channels),
        )


@dataclass(frozen=True, slots=True)
class ChunkIdentity:
    """Identity of a chunk at a location within one table."""

    md5: str
    key_id: int
    sequence_keys: tuple[tuple[str, int, int], ...]


@dataclass(slots=True)
class TableCommitState:
    """State of a live, locked table. `last_seq` increases as chunks are accepted.

    `schema_conflicts` maps older schema versions to the reason why rows with them are rejected.
    """

    table_id: int
    name: TableName
    last_seq: int
    schema_version: int
    schema_conflicts: Mapping[int, SchemaConflict] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk that was accepted before, or earlier in this group."""

    table_id: int
    identity: ChunkIdentity
    registered_at: dt.datetime


@dataclass(frozen=True, slots=True)
class LastCommittedChunk:
    """The last committed chunk of a channel. It is known even if the chunk's row is deleted."""

    client_sequencer: int | None
    path: str | None
    offset: int | None
    md5: str | None
    key_id: int | None


@dataclass(slots=True)
class ChannelCommitState:
    """Current state of a channel. It advances as chunks are accepted."""

    channel_id: int
    client_sequencer: int
    row_sequencer: int
    offset_token: str | None
    owner_user: str
    last_chunk: LastCommittedChunk
    rows: int | None
    bytes: int | None
    has_advanced: bool = False


@dataclass(slots=True)
class CommitDecisionInputs:
    """All inputs of the decisions on one group of offers.

    * `missing_tables` maps names without a live table to the reason.
    * `renamed_tables` maps table IDs to current names if chunks were offered under another name.
    * `effective_roles` maps (user, requested role) to the effective role or None.
    * `access_rejections` maps (role, table ID) to a rejection if the role lacks INSERT.
    * `key_scopes` maps key IDs to (table ID, user).
    """

    now: dt.datetime
    tables: dict[TableName, TableCommitState] = field(default_factory=dict)
    missing_tables: dict[TableName, CommitDecision] = field(default_factory=dict)
    renamed_tables: dict[int, TableName] = field(default_factory=dict)
    prefix_owners: dict[str, str] = field(default_factory=dict)
    effective_roles: dict[tuple[str, str | None], str | None] = field(default_factory=dict)
    access_rejections: dict[tuple[str, int], CommitDecision] = field(default_factory=dict)
    key_scopes: dict[int, tuple[int, str]] = field(default_factory=dict)
    channels: dict[tuple[int, str], ChannelCommitState] = field(default_factory=dict)
    chunks: dict[tuple[str, int], StoredChunk] = field(default_factory=dict)
    first_seen_at: dict[str, dt.datetime] = field(default_factory=dict)
    tombstoned_paths: set[str] = field(default_factory=set)


ACCEPTED = CommitDecision(CommitCode.ACCEPTED)
REPLAYED = replace(ACCEPTED, is_replay=True)


def decide_commit(
    offer: ChunkOffer, commit_state: CommitDecisionInputs
) -> tuple[tuple[CommitDecision, ...], TableCommitState | None]:
    """Decide on one chunk. Return a decision per channel, and the table if the chunk is new.

    For a repetition of an accepted chunk, the decisions are positive and the table is None.
    """
    table = commit_state.tables.get(offer.table)
    if commit_state.prefix_owners.get(offer.prefix) != offer.user:
        message = f"Blob {offer.path} has a prefix that was not issued to this user."
        refusal = CommitDecision(CommitCode.INVALID_BLOB_NAME, message)
        verdicts = _decide_all_channels(offer, refusal)
    elif table is None:
        missing = commit_state.missing_tables[offer.table]
        verdicts = _decide_all_channels(offer, _find_rename_error(offer, commit_state) or missing)
    elif is_replay(offer, table, commit_state):
        return _decide_all_channels(offer, REPLAYED), None
    elif (found := _find_chunk_error(offer, table, commit_state)) is not None:
        verdicts = _decide_all_channels(offer, found)
    else:
        verdicts = _decide_channels(offer, table, commit_state)
    return verdicts, None if any(verdict.code for verdict in verdicts) else table


def decide_all_or_none(
    offers: Sequence[ChunkOffer], commit_state: CommitDecisionInputs
) -> list[tuple[tuple[CommitDecision, ...], TableCommitState | None]]:
    """Return the results of `decide_commit` for the chunks of one commit: all are accepted, or none."""
    judged = [decide_commit(offer, commit_state) for offer in offers]
    if offers[0].commit_chunk_count == 1:
        return judged
    if any(verdicts[0].is_replay for verdicts, _ in judged):
        # In a repetition, the chunks were accepted together. Only the last chunk may still be
        # recorded.
        return [(_decide_all_channels(offer, REPLAYED), None) for offer in offers]
    refusal: CommitDecision | None = None
    if len({offer.location for offer in offers}) != offers[0].commit_chunk_count:
        refusal = CommitDecision(
            CommitCode.CHUNKS_MISSING,
            f"The commit has {offers[0].commit_chunk_count} chunks, but {len(offers)} were sent; send "
            "all of them in one request.",
        )
    elif any(table is None for _, table in judged):
        refusal = CommitDecision(
            CommitCode.SIBLING_REFUSED, "Another chunk of the same commit was rejected."
        )
    if refusal is None:
        return judged
    return [
        (_decide_all_channels(offer, refusal) if table is not None else verdicts, None)
        for offer, (verdicts, table) in zip(offers, judged, strict=True)
    ]


def apply_accepted_chunk(
    offer: ChunkOffer, table: TableCommitState, commit_state: CommitDecisionInputs
) -> int:
    """Advance the table and the channels by an accepted chunk. Return the table's last sequence.

    A chunk without rows gets no sequence number. Only its channels advance.
    """
    table.last_seq += 1 if offer.rows else 0
    sizes = _compute_channel_sizes(offer)
    for advance, share in zip(offer.channels, sizes, strict=True):
        channel = commit_state.channels[table.table_id, advance.name]
        channel.row_sequencer = advance.row_sequencer
        if advance.end_offset_token is not None:
            channel.offset_token = advance.end_offset_token
        channel.last_chunk = LastCommittedChunk(
            advance.client_sequencer, offer.path, offer.offset, offer.md5, offer.key_id
        )
        if share is None or channel.rows is None or channel.bytes is None:
            channel.rows = channel.bytes = None
        else:
            channel.rows += share[0]
            channel.bytes += share[1]
        channel.has_advanced = True
    if offer.rows:
        commit_state.chunks[offer.location] = StoredChunk(
            table.table_id, offer.identity, commit_state.now
        )
    return table.last_seq


def is_replay(
    offer: ChunkOffer, table: TableCommitState, commit_state: CommitDecisionInputs
) -> bool:
    """Return True if this chunk was accepted before. An equal location is not sufficient."""
    stored = commit_state.chunks.get(offer.location)
    if stored is not None:
        return stored.table_id == table.table_id and stored.identity == offer.identity
    # The chunk's row may be deleted. Because a chunk is accepted completely, it suffices that one
    # channel has it as its last commit and the others have advanced at least as far.
    states = [commit_state.channels.get((table.table_id, each.name)) for each in offer.channels]
    remembered = False
    for advance, state in zip(offer.channels, states, strict=True):
        if state is None or state.row_sequencer < advance.row_sequencer:
            return False
        remembered |= (
            state.row_sequencer == advance.row_sequencer
            and state.last_chunk
            == LastCommittedChunk(
                advance.client_sequencer, offer.path, offer.offset, offer.md5, offer.key_id
            )
        )
    return remembered


def _find_chunk_error(
    offer: ChunkOffer, table: TableCommitState, commit_state: CommitDecisionInputs
) -> CommitDecision | None:
    if offer.rejection is not None:
        # Check the key first. If the key belongs to an earlier table of this name, the verification
        # only reports that the chunk cannot be decrypted. The key check tells the client to reopen
        # the channel.
        return _find_key_error(offer, table, commit_state) or CommitDecision(*offer.rejection)
    role = commit_state.effective_roles.get((offer.user, offer.role))
    if role is None:
        return CommitDecision(
            CommitCode.ROLE_MISSING, f"Role {offer.role} is not granted to {offer.user}."
        )
    # Check the key first: privileges on another table that now has the name are irrelevant.
    return (
        _find_key_error(offer, table, commit_state)
        or commit_state.access_rejections.get((role, table.table_id))
        or _find_age_error(offer, commit_state)
        or _find_schema_error(offer, table)
    )


def _find_age_error(offer: ChunkOffer, commit_state: CommitDecisionInputs) -> CommitDecision | None:
    if offer.path in commit_state.tombstoned_paths:
        return CommitDecision(CommitCode.BLOB_TOO_OLD, f"Blob {offer.path} is being deleted.")
    seen = commit_state.first_seen_at.get(offer.path)
    if seen is not None and commit_state.now - seen > REGISTRATION_WINDOW:
        return CommitDecision(
            CommitCode.BLOB_TOO_OLD,
            f"Blob {offer.path} was first seen over an hour ago; send its rows in a new one.",
        )
    return None


def _find_key_error(
    offer: ChunkOffer, table: TableCommitState, commit_state: CommitDecisionInputs
) -> CommitDecision | None:
    if commit_state.key_scopes.get(offer.key_id) == (table.table_id, offer.user):
        return None
    return CommitDecision(
        CommitCode.REOPEN,
        f"Encryption key {offer.key_id} is not the one of {offer.user} for the table {table.name}"
        " as it is now (was it created again?). Open the channel again.",
    )


def _find_schema_error(offer: ChunkOffer, table: TableCommitState) -> CommitDecision | None:
    version = offer.schema_version
    if not 0 < version <= table.schema_version:
        return CommitDecision(
            CommitCode.REOPEN, f"Table {table.name} has no version {version} of its columns."
        )
    obstacle = table.schema_conflicts.get(version)
    if obstacle is None:
        return None
    return CommitDecision(
        CommitCode.COLUMN_MISSING if obstacle.is_missing else CommitCode.REOPEN,
        f"Table {table.name} was altered since the channel was opened: {obstacle.reason}. Open the"
        " channel again and send the rows since its committed offset token.",
    )


def _find_rename_error(
    offer: ChunkOffer, commit_state: CommitDecisionInputs
) -> CommitDecision | None:
    """Return an error with the table's new name if the user has a key of the renamed table."""
    table_id, user = commit_state.key_scopes.get(offer.key_id, (0, ""))
    name = commit_state.renamed_tables.get(table_id)
    if name is None or user != offer.user:
        return None
    return CommitDecision(
        CommitCode.REOPEN,
        f"Table {offer.table} was renamed to {name}. Open the channel by that name, and resume after its"
        " committed offset token.",
    )


def _decide_channels(
    offer: ChunkOffer, table: TableCommitState, commit_state: CommitDecisionInputs
) -> tuple[CommitDecision, ...]:
    names = [advance.name for advance in offer.channels]
    found = [
        CommitDecision(
            CommitCode.DUPLICATE_CHANNEL,
            f"Channel {to_display_name(advance.name)} is twice in the chunk.",
        )
        if names.count(advance.name) > 1
        else _decide_channel_advance(
            offer, advance, commit_state.channels.get((table.table_id, advance.name))
        )
        for advance in offer.channels
    ]
    refused = [name for name, verdict in zip(names, found, strict=True) if verdict.code]
    if not refused and offer.location in commit_state.chunks:
        message = f"Another chunk was registered at {offer.offset} of blob {offer.path}."
        return _decide_all_channels(offer, CommitDecision(CommitCode.INVALID_BLOB_NAME, message))
    if not refused:
        return tuple(found)
    sibling = CommitDecision(
        CommitCode.SIBLING_REFUSED,
        f"Channel {to_display_name(refused[0])}, which shares the chunk, was rejected.",
    )
    return tuple(verdict if verdict.code else sibling for verdict in found)


def _decide_channel_advance(
    offer: ChunkOffer, advance: ChannelAdvance, channel_state: ChannelCommitState | None
) -> CommitDecision:
    if channel_state is None:
        return CommitDecision(
            CommitCode.CHANNEL_MISSING,
            f"Channel {to_display_name(advance.name)} does not exist on {offer.table}: it was dropped, or it was "
            "idle for too long and has expired. Open it again.",
        )
    if (
        advance.client_sequencer != channel_state.client_sequencer
        or offer.user != channel_state.owner_user
    ):
        return CommitDecision(
            CommitCode.STALE_CLIENT_SEQUENCER,
            f"Channel {to_display_name(advance.name)} is fenced: another client opened it, or its table"
            f" was restored with UNDROP. Expected client sequencer {channel_state.client_sequencer}, got"
            f" {advance.client_sequencer}. To write, reopen the channel and resume after its committed offset token.",
        )
    if advance.row_sequencer != channel_state.row_sequencer + 1:
        return CommitDecision(
            CommitCode.ROW_SEQUENCER_NOT_NEXT,
            f"Invalid row sequencer on channel {to_display_name(advance.name)}: expected"
            f" {channel_state.row_sequencer + 1}, got {advance.row_sequencer}.",
        )
    return ACCEPTED


def _compute_channel_sizes(offer: ChunkOffer) -> Sequence[tuple[int, int] | None]:
    """Return (rows, bytes) of each channel in a chunk, or None if they are unknown."""
    if len(offer.channels) == 1:
        return [(offer.rows, offer.length)]
    return [
        None if each.rows is None else (each.rows, offer.length * each.rows // max(offer.rows, 1))
        for each in offer.channels
    ]


def _decide_all_channels(offer: ChunkOffer, decision: CommitDecision) -> tuple[CommitDecision, ...]:
    return (decision,) * len(offer.channels)
