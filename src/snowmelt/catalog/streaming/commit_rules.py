"""Who may commit what: verdicts on offered chunks, from state that was read before. Pure.

A chunk is taken whole or not at all. Verdicts come first, numbers after them, so a refused
chunk leaves no gap in a table's sequence.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING

from snowmelt.schema.types import display_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from snowmelt.schema.evolution import SchemaConflict
    from snowmelt.schema.types import TableName

# From the service's first sight of a blob; what comes later may be on its way out already.
REGISTRATION_WINDOW = dt.timedelta(hours=1)


class Code(IntEnum):
    """The codes of streaming v1 (specification §2.7) that a registration may be answered with."""

    ACCEPTED = 0
    TABLE_MISSING = 4
    DATABASE_MISSING = 8
    SCHEMA_MISSING = 9
    CHUNKS_MISSING = 12
    STALE_CLIENT_SEQUENCER = 20
    ROW_SEQUENCER_NOT_NEXT = 21
    SIBLING_REFUSED = 22
    CHANNEL_TWICE = 23
    CHANNEL_MISSING = 25
    BLOB_NAME_WRONG = 34
    REOPEN = 36
    ROLE_MISSING = 37
    BLOB_TOO_OLD = 38
    COLUMN_MISSING = 40


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer for one channel of one chunk; 0 is committed, by this call or an earlier one.

    `is_repeated` where it was an earlier one.
    """

    code: int
    message: str | None = None
    is_repeated: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class ChannelAdvance:
    """One channel of a chunk; `rows` are its own, None where the client does not say."""

    name: str
    client_sequencer: int
    row_sequencer: int
    start_offset_token: str | None
    end_offset_token: str | None
    rows: int | None = None

    @property
    def epoch(self) -> tuple[str, int, int]:
        """What makes this advance unique."""
        return self.name, self.client_sequencer, self.row_sequencer


@dataclass(frozen=True, slots=True)
class ChunkOffer:
    """One chunk as a client registers it, checked against the stage already.

    `role` None means the user's default. With a `refusal` (code and message) the checks failed,
    and the offer can only be a repetition of what was accepted before. Of a commit in several
    `parts` this is one; they follow each other.
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
    refusal: tuple[int, str] | None = None
    parts: int = 1

    @property
    def place(self) -> tuple[str, int]:
        """Where the chunk lies: no two accepted chunks share it."""
        return self.path, self.offset

    @property
    def identity(self) -> ChunkIdentity:
        """What an equal chunk must have equal."""
        return ChunkIdentity(self.md5, self.key_id, tuple(each.epoch for each in self.channels))

    @property
    def commit(self) -> object:
        """What the parts of one commit have equal."""
        return self.parts, self.user, self.table, tuple(each.epoch for each in self.channels)


@dataclass(frozen=True, slots=True)
class ChunkIdentity:
    """What makes a chunk at the same place the same chunk, within one table."""

    md5: str
    key_id: int
    epochs: tuple[tuple[str, int, int], ...]


@dataclass(slots=True)
class TableState:
    """A live, locked table; `last_seq` grows as chunks are accepted.

    `obstacles` tells for older versions of its columns why their rows are not taken any more.
    """

    table_id: int
    name: TableName
    last_seq: int
    schema_version: int
    obstacles: Mapping[int, SchemaConflict] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk that was accepted before, or earlier in this group."""

    table_id: int
    identity: ChunkIdentity
    registered_at: dt.datetime
    retired: bool


@dataclass(frozen=True, slots=True)
class LastCommit:
    """The last committed chunk of a channel: remembers it when the chunk's row is gone."""

    client_sequencer: int | None
    path: str | None
    offset: int | None
    md5: str | None
    key_id: int | None


@dataclass(slots=True)
class ChannelState:
    """A channel as it is now; moves on as chunks are accepted."""

    channel_id: int
    client_sequencer: int
    row_sequencer: int
    offset_token: str | None
    owner_user: str
    last: LastCommit
    rows: int | None
    bytes: int | None
    moved: bool = False


@dataclass(slots=True)
class Ledger:
    """Everything the verdicts of one group of offers rest on.

    `missing` tells for names that are no live table why, `renamed` by id what tables are called
    whose chunks came under another name; `roles` maps (user, asked role) to the
    effective role or None; `refused_access` maps (role, table id) to a verdict for roles that
    may not insert; `keys` maps key ids to (table id, user).
    """

    now: dt.datetime
    tables: dict[TableName, TableState] = field(default_factory=dict)
    missing: dict[TableName, Verdict] = field(default_factory=dict)
    renamed: dict[int, TableName] = field(default_factory=dict)
    prefixes: dict[str, str] = field(default_factory=dict)
    roles: dict[tuple[str, str | None], str | None] = field(default_factory=dict)
    refused_access: dict[tuple[str, int], Verdict] = field(default_factory=dict)
    keys: dict[int, tuple[int, str]] = field(default_factory=dict)
    channels: dict[tuple[int, str], ChannelState] = field(default_factory=dict)
    chunks: dict[tuple[str, int], StoredChunk] = field(default_factory=dict)
    first_seen: dict[str, dt.datetime] = field(default_factory=dict)
    buried: set[str] = field(default_factory=set)


ACCEPTED = Verdict(Code.ACCEPTED)
REPEATED = replace(ACCEPTED, is_repeated=True)


def judge(offer: ChunkOffer, ledger: Ledger) -> tuple[tuple[Verdict, ...], TableState | None]:
    """Return a verdict per channel, and the table when the chunk is to be added to it now.

    A repetition of an accepted chunk gets its acceptance again, and no table.
    """
    table = ledger.tables.get(offer.table)
    if ledger.prefixes.get(offer.prefix) != offer.user:
        message = f"Blob {offer.path} is of a foreign prefix."
        verdicts = _all(offer, Verdict(Code.BLOB_NAME_WRONG, message))
    elif table is None:
        verdicts = _all(offer, _renamed(offer, ledger) or ledger.missing[offer.table])
    elif is_repetition(offer, table, ledger):
        return _all(offer, REPEATED), None
    elif (refusal := _chunk_refusal(offer, table, ledger)) is not None:
        verdicts = _all(offer, refusal)
    else:
        verdicts = _channel_verdicts(offer, table, ledger)
    return verdicts, None if any(verdict.code for verdict in verdicts) else table


def judge_parts(
    offers: Sequence[ChunkOffer], ledger: Ledger
) -> list[tuple[tuple[Verdict, ...], TableState | None]]:
    """Return what `judge` returns for each part of one commit: all are to be added, or none is."""
    judged = [judge(offer, ledger) for offer in offers]
    if offers[0].parts == 1:
        return judged
    if any(verdicts[0].is_repeated for verdicts, _ in judged):
        # They were taken together, and perhaps only the last one is still remembered.
        return [(_all(offer, REPEATED), None) for offer in offers]
    refusal: Verdict | None = None
    if len({offer.place for offer in offers}) != offers[0].parts:
        refusal = Verdict(
            Code.CHUNKS_MISSING, f"Of {offers[0].parts} chunks of one commit {len(offers)} came."
        )
    elif any(table is None for _, table in judged):
        refusal = Verdict(Code.SIBLING_REFUSED, "Another chunk of the same commit was refused.")
    if refusal is None:
        return judged
    return [
        (_all(offer, refusal) if table is not None else verdicts, None)
        for offer, (verdicts, table) in zip(offers, judged, strict=True)
    ]


def accept(offer: ChunkOffer, table: TableState, ledger: Ledger) -> int:
    """Move table and channels on by an accepted chunk and return its sequence number.

    One without rows has none: its channels alone move, and remember it.
    """
    table.last_seq += 1 if offer.rows else 0
    last = LastCommit(None, offer.path, offer.offset, offer.md5, offer.key_id)
    shares = _shares(offer)
    for advance, share in zip(offer.channels, shares, strict=True):
        channel = ledger.channels[table.table_id, advance.name]
        channel.row_sequencer = advance.row_sequencer
        if advance.end_offset_token is not None:
            channel.offset_token = advance.end_offset_token
        channel.last = LastCommit(
            advance.client_sequencer, last.path, last.offset, last.md5, last.key_id
        )
        if share is None or channel.rows is None or channel.bytes is None:
            channel.rows = channel.bytes = None
        else:
            channel.rows += share[0]
            channel.bytes += share[1]
        channel.moved = True
    if offer.rows:
        ledger.chunks[offer.place] = StoredChunk(
            table.table_id, offer.identity, ledger.now, retired=False
        )
    return table.last_seq


def is_repetition(offer: ChunkOffer, table: TableState, ledger: Ledger) -> bool:
    """Tell whether exactly this chunk was accepted before: never by its place alone."""
    stored = ledger.chunks.get(offer.place)
    if stored is not None:
        return stored.table_id == table.table_id and stored.identity == offer.identity
    # The chunk's row may have been cleaned up. It was taken whole: one channel that remembers it
    # as its last commit speaks for the others, which must then be at least as far.
    states = [ledger.channels.get((table.table_id, each.name)) for each in offer.channels]
    remembered = False
    for advance, state in zip(offer.channels, states, strict=True):
        if state is None or state.row_sequencer < advance.row_sequencer:
            return False
        remembered |= state.row_sequencer == advance.row_sequencer and state.last == LastCommit(
            advance.client_sequencer, offer.path, offer.offset, offer.md5, offer.key_id
        )
    return remembered


def _chunk_refusal(offer: ChunkOffer, table: TableState, ledger: Ledger) -> Verdict | None:
    if offer.refusal is not None:
        # The key first: with the key of a table that was created again the checks can only say
        # that the chunk does not decrypt, and not that opening again helps.
        return _key_refusal(offer, table, ledger) or Verdict(*offer.refusal)
    role = ledger.roles.get((offer.user, offer.role))
    if role is None:
        return Verdict(Code.ROLE_MISSING, f"Role {offer.role} is not granted to {offer.user}.")
    # The key first: what the role may do with another table that has the name now does not matter.
    return (
        _key_refusal(offer, table, ledger)
        or ledger.refused_access.get((role, table.table_id))
        or _age_refusal(offer, ledger)
        or _schema_refusal(offer, table)
    )


def _age_refusal(offer: ChunkOffer, ledger: Ledger) -> Verdict | None:
    if offer.path in ledger.buried:
        return Verdict(Code.BLOB_TOO_OLD, f"Blob {offer.path} is being deleted.")
    seen = ledger.first_seen.get(offer.path)
    if seen is not None and ledger.now - seen > REGISTRATION_WINDOW:
        return Verdict(
            Code.BLOB_TOO_OLD,
            f"Blob {offer.path} was first seen over an hour ago; send its rows in a new one.",
        )
    return None


def _key_refusal(offer: ChunkOffer, table: TableState, ledger: Ledger) -> Verdict | None:
    if ledger.keys.get(offer.key_id) == (table.table_id, offer.user):
        return None
    return Verdict(
        Code.REOPEN,
        f"Encryption key {offer.key_id} is not the one of {offer.user} for the table {table.name}"
        " as it is now (was it created again?). Open the channel again.",
    )


def _schema_refusal(offer: ChunkOffer, table: TableState) -> Verdict | None:
    version = offer.schema_version
    if not 0 < version <= table.schema_version:
        return Verdict(Code.REOPEN, f"Table {table.name} has no version {version} of its columns.")
    obstacle = table.obstacles.get(version)
    if obstacle is None:
        return None
    return Verdict(
        Code.COLUMN_MISSING if obstacle.is_missing else Code.REOPEN,
        f"Table {table.name} was altered since the channel was opened: {obstacle.reason}. Open the"
        " channel again and send the rows since its committed offset token.",
    )


def _renamed(offer: ChunkOffer, ledger: Ledger) -> Verdict | None:
    """Return where a table went whose name is free now, to those who hold a key of it."""
    table_id, user = ledger.keys.get(offer.key_id, (0, ""))
    name = ledger.renamed.get(table_id)
    if name is None or user != offer.user:
        return None
    return Verdict(
        Code.REOPEN,
        f"Table {offer.table} is called {name} now. Open the channel again under that name and"
        " send the rows since its committed offset token.",
    )


def _channel_verdicts(offer: ChunkOffer, table: TableState, ledger: Ledger) -> tuple[Verdict, ...]:
    names = [advance.name for advance in offer.channels]
    found = [
        Verdict(Code.CHANNEL_TWICE, f"Channel {display_name(advance.name)} is twice in the chunk.")
        if names.count(advance.name) > 1
        else _advance_verdict(offer, advance, ledger.channels.get((table.table_id, advance.name)))
        for advance in offer.channels
    ]
    refused = [name for name, verdict in zip(names, found, strict=True) if verdict.code]
    if not refused and offer.place in ledger.chunks:
        message = f"Another chunk was registered at {offer.offset} of blob {offer.path}."
        return _all(offer, Verdict(Code.BLOB_NAME_WRONG, message))
    if not refused:
        return tuple(found)
    sibling = Verdict(
        Code.SIBLING_REFUSED,
        f"Channel {display_name(refused[0])}, which shares the chunk, was refused.",
    )
    return tuple(verdict if verdict.code else sibling for verdict in found)


def _advance_verdict(
    offer: ChunkOffer, advance: ChannelAdvance, state: ChannelState | None
) -> Verdict:
    if state is None:
        return Verdict(
            Code.CHANNEL_MISSING,
            f"Channel {display_name(advance.name)} does not exist on {offer.table}: it was dropped, or nobody "
            "wrote to it for long and it has expired. Open it again.",
        )
    if advance.client_sequencer != state.client_sequencer or offer.user != state.owner_user:
        return Verdict(
            Code.STALE_CLIENT_SEQUENCER,
            f"Channel {display_name(advance.name)} was opened by another client since, or came back"
            f" with its table (UNDROP): client sequencer {advance.client_sequencer} came, {state.client_sequencer} is"
            " current. Whoever is to write opens it and goes on after its committed offset token.",
        )
    if advance.row_sequencer != state.row_sequencer + 1:
        return Verdict(
            Code.ROW_SEQUENCER_NOT_NEXT,
            f"Channel {display_name(advance.name)}: row sequencer {advance.row_sequencer} came,"
            f" {state.row_sequencer + 1} is next.",
        )
    return ACCEPTED


def _shares(offer: ChunkOffer) -> Sequence[tuple[int, int] | None]:
    """Return (rows, bytes) of each channel in a chunk, None where it is not known."""
    if len(offer.channels) == 1:
        return [(offer.rows, offer.length)]
    return [
        None if each.rows is None else (each.rows, offer.length * each.rows // max(offer.rows, 1))
        for each in offer.channels
    ]


def _all(offer: ChunkOffer, verdict: Verdict) -> tuple[Verdict, ...]:
    return (verdict,) * len(offer.channels)
