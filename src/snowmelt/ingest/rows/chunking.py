"""Requests that wait become chunks, and chunks a blob for each user."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from snowmelt.blob.layout import blob_path
from snowmelt.blob.writer import ChunkSource, build_blob
from snowmelt.catalog.verdicts import ChunkOffer
from snowmelt.schema.statistics import collect
from snowmelt.schema.types import internal_name
from snowmelt.wire.eps import to_wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from snowmelt.catalog.verdicts import ChannelAdvance
    from snowmelt.clock import Clock
    from snowmelt.ingest.rows.appends import Append
    from snowmelt.ingest.rows.places import Target
    from snowmelt.ingest.rows.targets import Targets
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
        path = blob_path(
            self._clock.now(),
            f"{prefix}_{self._deployment_id}",
            _THREAD_ID,
            next(self._counter),
        )
        tables = [_rows(plan) for plan in plans]
        blob = build_blob(
            path,
            [
                ChunkSource(rows, plan.target.table.schema, plan.target.data_key.key)
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
                statistics=_encoder.encode(to_wire(schema, collect(rows, schema))),
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
