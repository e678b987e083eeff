"""Build chunks from pending requests, and one blob per user.

Rejected rows of tables with an error table are staged in separate chunks. The transaction that
commits the accepted rows of a request also registers the rejected ones, so either both are stored
or neither.
"""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from snowmelt.blob.encryption import make_blob_path
from snowmelt.blob.writer import ChunkInput, build_blob
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.objects.tables import find_error_table, find_table_by_id
from snowmelt.catalog.security.encryption_keys import DataKey, KeyRing
from snowmelt.catalog.streaming.commit_rules import ChunkOffer
from snowmelt.clock import Clock
from snowmelt.errors import TableNotFound
from snowmelt.ingest.rows.append_types import AppendRequest
from snowmelt.ingest.rows.row_converter import ConvertedRows
from snowmelt.ingest.rows.targets import PipePath, PipeTarget, RowSender, TargetResolver
from snowmelt.schema.error_table import (
    ErrorRowOrigin,
    convert_error_table_rows,
    make_error_table_rows,
)
from snowmelt.schema.statistics import collect_statistics
from snowmelt.schema.types import to_internal_name
from snowmelt.storage.store import Store
from snowmelt.wire.column_statistics import encode_stored_statistics

_BLOB_THREAD_ID = 2
_MAX_CHUNK_BYTES = 256 * 1024 * 1024
_MAX_BLOB_CHUNKS = 100


@dataclass(frozen=True, slots=True)
class RowChunkPlan:
    """Requests that share a chunk, in commit order: of one elastic channel, or of named channels."""

    target: PipeTarget
    requests: tuple[AppendRequest, ...]

    @property
    def is_elastic_channel(self) -> bool:
        """True if its requests name no channel."""
        return self.requests[0].continuation is None


@dataclass(frozen=True, slots=True)
class StagedRowChunk:
    """A plan whose chunk is on the stage. Its offer has no channels yet."""

    plan: RowChunkPlan
    offer: ChunkOffer


@dataclass(eq=False, slots=True)
class RowChunkStager:
    """Builds blobs under unique names and writes them to the stage."""

    _stage: Store
    _target_resolver: TargetResolver
    _deployment_id: int
    _clock: Clock
    _counter: Iterator[int] = field(default_factory=itertools.count)

    def stage_all(self, plans: Sequence[RowChunkPlan]) -> list[StagedRowChunk]:
        """Write the rows of these plans to the stage. They are durable after its `sync`.

        Raises:
            StageUnavailable: If the stage cannot be written.
        """
        users: dict[str, list[RowChunkPlan]] = {}
        for plan in plans:
            users.setdefault(plan.target.sender.user, []).append(plan)
        return [
            staged
            for user, theirs in users.items()
            for start in range(0, len(theirs), _MAX_BLOB_CHUNKS)
            for staged in self._stage_blob(user, theirs[start : start + _MAX_BLOB_CHUNKS])
        ]

    def _stage_blob(self, user: str, plans: Sequence[RowChunkPlan]) -> Iterator[StagedRowChunk]:
        prefix = self._target_resolver.get_stage_prefix(user)
        path = make_blob_path(
            self._clock.now(),
            f"{prefix}_{self._deployment_id}",
            _BLOB_THREAD_ID,
            next(self._counter),
        )
        tables = [
            pa.concat_tables([each.converted_rows.table for each in plan.requests]).combine_chunks()
            for plan in plans
        ]
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
            times = [member.inserted_ms for member in plan.requests]
            offer = ChunkOffer(
                path=path,
                blob_md5=blob.md5,
                prefix=prefix,
                user=user,
                role=to_internal_name(role) if role else None,
                table=target.table.name,
                offset=chunk.offset,
                length=chunk.length,
                md5=chunk.md5,
                key_id=target.data_key.key_id,
                rows=chunk.rows,
                schema_version=schema.version,
                statistics=encode_stored_statistics(schema, collect_statistics(rows, schema)),
                first_insert_ms=min(times),
                last_insert_ms=max(times),
                channels=(),
            )
            yield StagedRowChunk(plan, offer)


def plan_chunks(requests: Sequence[AppendRequest]) -> list[RowChunkPlan]:
    """Group requests with rows by the properties that a chunk's rows must share.

    A second request of a channel gets a separate, later chunk, because one of the two will be
    rejected.
    """
    grouped: dict[tuple[object, ...], list[AppendRequest]] = {}
    sizes: dict[tuple[object, ...], int] = {}
    plans: list[RowChunkPlan] = []
    apart: list[RowChunkPlan] = []
    seen: set[tuple[int, str]] = set()
    for append in requests:
        if append.row_count == 0:
            continue
        channel = (append.target.table.table_id, append.channel)
        if append.needs_own_chunk or (append.continuation is not None and channel in seen):
            apart.append(RowChunkPlan(append.target, (append,)))
            continue
        seen.add(channel)
        key = (append.continuation is None, *append.target.chunk_key)
        size = append.converted_rows.size_bytes
        if sizes.get(key, 0) + size > _MAX_CHUNK_BYTES and key in grouped:
            full = grouped.pop(key)
            plans.append(RowChunkPlan(full[0].target, tuple(full)))
            sizes[key] = 0
        grouped.setdefault(key, []).append(append)
        sizes[key] = sizes.get(key, 0) + size
    plans += [RowChunkPlan(group[0].target, tuple(group)) for group in grouped.values()]
    return [*plans, *apart]


_log = logging.getLogger("snowmelt.ingest")

_MAX_CACHED_KEYS = 10_000


class ErrorRowCommitMismatch(Exception):
    """The transaction does not accept all requests whose rejected rows were staged together."""


class ErrorTableMoved(Exception):
    """The error table was altered or renamed after rejected rows were staged for it."""


@dataclass(frozen=True, slots=True)
class StagedErrorRows:
    """Rejected rows of requests, written to the stage."""

    staged_chunk: StagedRowChunk
    requests: tuple[AppendRequest, ...]


@dataclass(eq=False, slots=True)
class ErrorRowStager:
    """Stages rejected rows. Not thread-safe."""

    _database: Database
    _keyring: KeyRing
    _stager: RowChunkStager
    _clock: Clock
    _keys: dict[tuple[str, str], DataKey] = field(default_factory=dict)

    def stage_rejected_rows(self, requests: Sequence[AppendRequest]) -> list[StagedErrorRows]:
        """Write the rejected rows of requests to the stage if their tables have error tables.

        Raises:
            StageUnavailable: If the stage cannot be written.
        """
        sorted_out: dict[tuple[int, RowSender], list[AppendRequest]] = defaultdict(list)
        for each in requests:
            if each.converted_rows.rejected and each.target.table.error_table_id is not None:
                sorted_out[each.target.table.table_id, each.target.sender].append(each)
        found: list[StagedErrorRows] = []
        for (table_id, sender), sources in sorted_out.items():
            table: TableRecord | None = None
            # Read the current table, because the request's lookup may be seconds old.
            with self._database.reading() as connection, suppress(TableNotFound):
                table = find_error_table(connection, find_table_by_id(connection, table_id))
            if table is None:
                continue
            path = PipePath(table.name.database, table.name.schema, table.name.table)
            target = PipeTarget(path, table, sender, self._get_data_key(table, sender))
            joined = self._make_error_append_request(target, sources)
            if not joined.row_count:
                _log.warning(
                    "Rejected rows are lost: their columns do not fit error table %s.", table.name
                )
                continue
            plan = RowChunkPlan(target, (joined,))
            found += [
                StagedErrorRows(staged, tuple(sources)) for staged in self._stager.stage_all([plan])
            ]
        return found

    def _make_error_append_request(
        self, target: PipeTarget, requests: Sequence[AppendRequest]
    ) -> AppendRequest:
        now = self._clock.now()
        rows = [
            row
            for source in requests
            for row in make_error_table_rows(
                ErrorRowOrigin(
                    table=str(source.target.table.name),
                    protocol="rows",
                    source=source.channel,
                    rejected_at=now,
                    start_offset_token=source.start_offset_token,
                    offset_token=source.end_offset_token,
                ),
                source.converted_rows.rejected,
            )
        ]
        table = convert_error_table_rows(target.table.schema, rows).table
        return AppendRequest(
            target=target,
            channel=f"refused:{target.sender.user}",
            continuation=None,
            request_id="",
            start_offset_token=None,
            end_offset_token=None,
            converted_rows=ConvertedRows(table, table.nbytes, table.num_rows, 0, ()),
            inserted_ms=min(source.inserted_ms for source in requests),
            respond=lambda _: None,
        )

    def _get_data_key(self, table: TableRecord, sender: RowSender) -> DataKey:
        known = self._keys.get((table.incarnation, sender.user))
        if known is None:
            with self._database.writing() as connection:
                known = self._keyring.get_or_create_data_key(connection, table, sender.user)
            if len(self._keys) >= _MAX_CACHED_KEYS:
                self._keys.clear()
            self._keys[table.incarnation, sender.user] = known
        return known


def report_lost_rows(error_rows: StagedErrorRows, reason: str | None) -> None:
    """Log that rejected rows are lost, because their error table does not accept them."""
    _log.warning(
        "%d rejected rows of table %s are lost: %s",
        error_rows.staged_chunk.offer.rows,
        error_rows.requests[0].target.table.name,
        reason or f"table {error_rows.staged_chunk.offer.table} does not accept them",
    )
