"""Requests that wait become chunks, and chunks a blob for each user."""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from snowmelt.blob.bdec import make_blob_path
from snowmelt.blob.writer import ChunkInput, build_blob
from snowmelt.catalog.objects.error_tables import find_error_table
from snowmelt.catalog.objects.tables import find_table_by_id
from snowmelt.catalog.streaming.commit_rules import ChunkOffer
from snowmelt.errors import TableNotFound
from snowmelt.ingest.rows.append import Append
from snowmelt.ingest.rows.row_converter import Converted
from snowmelt.ingest.rows.targets import PipePath, Target
from snowmelt.schema.error_table import (
    ErrorRow,
    ErrorRowOrigin,
    convert_table_rows,
    make_table_rows,
)
from snowmelt.schema.statistics import collect_statistics
from snowmelt.schema.types import internal_name
from snowmelt.wire.column_statistics import statistics_to_message

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Sequence

    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.model.records import TableRecord
    from snowmelt.catalog.security.encryption_keys import DataKey, KeyRing
    from snowmelt.catalog.streaming.commit_rules import ChannelAdvance
    from snowmelt.clock import Clock
    from snowmelt.ingest.rows.targets import Sender, Targets
    from snowmelt.storage.store import Store

_THREAD_ID = 2
_MAX_CHUNK_BYTES = 256 * 1024 * 1024
_MAX_CHUNKS = 100
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Plan:
    """Requests that share a chunk, in its order; of one elastic channel, or of named ones."""

    target: Target
    members: tuple[Append, ...]

    @property
    def is_elastic(self) -> bool:
        """Whether its requests name no channel."""
        return self.members[0].continuation is None


@dataclass(frozen=True, slots=True)
class Staged:
    """A plan whose chunk lies on the stage; the offer names no channels yet."""

    plan: Plan
    offer: ChunkOffer

    def offered(self, channels: tuple[ChannelAdvance, ...]) -> ChunkOffer:
        """Return the offer for these channels."""
        return replace(self.offer, channels=channels)


class Stager:
    """Builds blobs under names that are never used again, and puts them on the stage."""

    def __init__(self, stage: Store, targets: Targets, deployment_id: int, clock: Clock) -> None:
        self._stage = stage
        self._targets = targets
        self._deployment_id = deployment_id
        self._clock = clock
        self._counter = itertools.count()

    def stage_all(self, plans: Sequence[Plan]) -> list[Staged]:
        """Put the rows of these plans on the stage; not durable before its `sync`.

        Raises:
            StageUnavailable: The stage does not take them.
        """
        users: dict[str, list[Plan]] = {}
        for plan in plans:
            users.setdefault(plan.target.sender.user, []).append(plan)
        return [
            staged
            for user, theirs in users.items()
            for start in range(0, len(theirs), _MAX_CHUNKS)
            for staged in self._put(user, theirs[start : start + _MAX_CHUNKS])
        ]

    def _put(self, user: str, plans: Sequence[Plan]) -> Iterator[Staged]:
        prefix = self._targets.prefix(user)
        path = make_blob_path(
            self._clock.now(),
            f"{prefix}_{self._deployment_id}",
            _THREAD_ID,
            next(self._counter),
        )
        tables = [_rows(plan) for plan in plans]
        blob = build_blob(
            path,
            [
                ChunkInput(rows, plan.target.table.schema, plan.target.data_key.key)
                for rows, plan in zip(tables, plans, strict=True)
            ],
        )
        self._stage.put(f"{prefix}/{path}", blob.data)
        for plan, rows, chunk in zip(plans, tables, blob.chunks, strict=True):
            target = plan.target
            schema = target.table.schema
            role = target.sender.role
            times = [member.inserted_ms for member in plan.members]
            offer = ChunkOffer(
                path=path,
                blob_md5=blob.md5,
                prefix=prefix,
                user=user,
                role=internal_name(role) if role else None,
                table=target.table.name,
                offset=chunk.offset,
                length=chunk.length,
                md5=chunk.md5,
                key_id=target.data_key.key_id,
                rows=chunk.rows,
                schema_version=schema.version,
                statistics=_encoder.encode(
                    statistics_to_message(schema, collect_statistics(rows, schema))
                ),
                first_insert_ms=min(times),
                last_insert_ms=max(times),
                channels=(),
            )
            yield Staged(plan, offer)


def plans_of(appends: Sequence[Append]) -> list[Plan]:
    """Group requests that have rows by what must be equal within a chunk.

    A channel's second one stands alone, after the others: one of both will be refused.
    """
    grouped: dict[tuple[object, ...], list[Append]] = {}
    sizes: dict[tuple[object, ...], int] = {}
    plans: list[Plan] = []
    apart: list[Plan] = []
    seen: set[tuple[int, str]] = set()
    for append in appends:
        if append.rows == 0:
            continue
        channel = (append.target.table.table_id, append.channel)
        if append.is_alone or (append.continuation is not None and channel in seen):
            apart.append(Plan(append.target, (append,)))
            continue
        seen.add(channel)
        key = (append.continuation is None, *append.target.key)
        size = append.converted.size_bytes
        if sizes.get(key, 0) + size > _MAX_CHUNK_BYTES and key in grouped:
            plans.append(_plan(grouped.pop(key)))
            sizes[key] = 0
        grouped.setdefault(key, []).append(append)
        sizes[key] = sizes.get(key, 0) + size
    return [*plans, *map(_plan, grouped.values()), *apart]


def _plan(members: list[Append]) -> Plan:
    return Plan(members[0].target, tuple(members))


def _rows(plan: Plan) -> pa.Table:
    tables = [member.converted.table for member in plan.members]
    return (tables[0] if len(tables) == 1 else pa.concat_tables(tables)).combine_chunks()


# --- Refused rows of requests, on their way into the error tables of their tables.
#
# They are staged as a chunk of their own and registered in the transaction that takes the good
# rows of the same requests: both are there, or neither.

_log = logging.getLogger("snowmelt.ingest")

_MOST_KEYS = 10_000


class Torn(Exception):
    """Refused rows would be kept whose request is not taken now: tried another way."""


class Moved(Exception):
    """The error table was altered or renamed since refused rows were staged for it."""


@dataclass(frozen=True, slots=True)
class Aside:
    """Refused rows of some requests, on the stage."""

    staged: Staged
    sources: tuple[Append, ...]


class Keeper:
    """Stages refused rows; used by one thread."""

    def __init__(self, database: Database, keyring: KeyRing, stager: Stager, clock: Clock) -> None:
        self._database = database
        self._keyring = keyring
        self._stager = stager
        self._clock = clock
        self._keys: dict[tuple[str, str], DataKey] = {}

    def stage(self, group: Sequence[Append]) -> list[Aside]:
        """Put the refused rows of those requests on the stage whose tables have error tables.

        Raises:
            StageUnavailable: The stage does not take them.
        """
        sorted_out: dict[tuple[int, Sender], list[Append]] = defaultdict(list)
        for each in group:
            if each.converted.refused and each.target.table.error_table_id is not None:
                sorted_out[each.target.table.table_id, each.target.sender].append(each)
        found: list[Aside] = []
        for (table_id, sender), sources in sorted_out.items():
            table = self._error_table(table_id)
            if table is None:
                continue
            target = Target(_path(table), table, sender, self._key(table, sender))
            joined = self._joined(target, sources)
            if not joined.rows:
                _log.warning("Table %s does not take refused rows any more.", table.name)
                continue
            plan = Plan(target, (joined,))
            found += [Aside(staged, tuple(sources)) for staged in self._stager.stage_all([plan])]
        return found

    def _joined(self, target: Target, sources: Sequence[Append]) -> Append:
        now = self._clock.now()
        rows = [
            row
            for source in sources
            for row in make_table_rows(_origin(source, now), _each(source))
        ]
        table = convert_table_rows(target.table.schema, rows).table
        return Append(
            target=target,
            channel=f"refused:{target.sender.user}",
            continuation=None,
            request_id="",
            start_offset_token=None,
            end_offset_token=None,
            converted=Converted(table, table.nbytes, table.num_rows, 0, ()),
            inserted_ms=min(source.inserted_ms for source in sources),
            respond=lambda _: None,
        )

    def _error_table(self, table_id: int) -> TableRecord | None:
        # As it is now: what was found for the request may be seconds old.
        with self._database.reading() as connection:
            try:
                return find_error_table(connection, find_table_by_id(connection, table_id))
            except TableNotFound:
                return None

    def _key(self, table: TableRecord, sender: Sender) -> DataKey:
        known = self._keys.get((table.incarnation, sender.user))
        if known is None:
            with self._database.writing() as connection:
                known = self._keyring.get_or_create_data_key(connection, table, sender.user)
            if len(self._keys) >= _MOST_KEYS:
                self._keys.clear()
            self._keys[table.incarnation, sender.user] = known
        return known


def tell_lost(aside: Aside, reason: str | None) -> None:
    """Say that refused rows were not kept, since their table does not take them."""
    _log.warning(
        "%d refused rows of table %s are not kept: %s",
        aside.staged.offer.rows,
        aside.sources[0].target.table.name,
        reason or f"table {aside.staged.offer.table} does not take them",
    )


def _origin(source: Append, now: dt.datetime) -> ErrorRowOrigin:
    return ErrorRowOrigin(
        table=str(source.target.table.name),
        protocol="rows",
        source=source.channel,
        rejected_at=now,
        start_offset_token=source.start_offset_token,
        offset_token=source.end_offset_token,
    )


def _each(source: Append) -> list[ErrorRow]:
    return [
        ErrorRow(each.number, each.reason, each.row, each.code, each.column)
        for each in source.converted.refused
    ]


def _path(table: TableRecord) -> PipePath:
    return PipePath(table.name.database, table.name.schema, table.name.table)
