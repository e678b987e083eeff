"""States of a primary, as differences to what a follower has.

A state is what one transaction of the catalog sees. The rows to send are those whose keys the triggers
have recorded since the follower's state, and those of registrations, which the triggers do not record:

* A table with new chunks has a greater `last_seq` than at the follower. Registrations of a table take
  sequences under the lock of its row, so a transaction that sees one also sees all smaller ones.
* A channel that has advanced is named in a new chunk, or in the key of a commit without rows.
* If clean-up has deleted some of the new chunks, all channels of their table are sent.
"""

from __future__ import annotations

import base64
import datetime as dt
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, BinaryIO, cast

import msgspec
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from snowmelt import failpoints
from snowmelt.backup.catalog_tables import RowConverter, read_last_id, stored_form
from snowmelt.backup.creation import BackupSource, make_sealing_converters
from snowmelt.catalog import model
from snowmelt.catalog.db.database import SCHEMA_VERSION
from snowmelt.catalog.db.dialect import encode_rows, make_rows_source
from snowmelt.catalog.db.replication_triggers import parse_row_key
from snowmelt.catalog.jobs import leases
from snowmelt.catalog.objects import failover_groups
from snowmelt.catalog.objects.failover_groups import FailoverGroup, SiteRole
from snowmelt.failpoints import Failpoint
from snowmelt.replication.protocol import (
    DeletedKeys,
    EndOfState,
    Frame,
    PullRequest,
    PullResponse,
    TableHeader,
    TableRows,
    write_frame,
)

# Larger states are read in pieces.
INLINE_BYTES = 1 << 20

_SPOOL_BYTES = 8 << 20
_ROWS_PER_FRAME = 2_000
_KEYS_PER_QUERY = 300
# How long clean-up waits for a follower that copies its first state, without a request of it.
_HOLD_S = 300.0
# A follower that was silent for this long gets a whole state, so that changes need not be kept for it.
_SLOT_TTL = dt.timedelta(days=1)

_CHANGED = model.changed_rows
_SLOTS = model.replica_slots
_CHANNELS = model.channels
_NAME_COLUMNS = ("table_id", "name")
_SELECT_UNNUMBERED = sa.select(_CHANGED.c.change_id).where(_CHANGED.c.point.is_(None)).limit(1)
_SELECT_SEQUENCES = sa.select(model.tables.c.table_id, model.tables.c.last_seq)
_SELECT_SEQUENCE_SUM = sa.select(sa.func.sum(model.tables.c.last_seq))
_decode_channels = msgspec.json.Decoder(list[tuple[str, int, int, str | None, str | None]]).decode


class StateSource:
    """Answers the requests of followers."""

    def __init__(self, source: BackupSource) -> None:
        self._source = source

    def has_news(self, request: PullRequest) -> bool:
        """Return True if an answer would have changes, or something else that the follower must know."""
        with self._source.database.reading() as connection:
            group = failover_groups.find_group(connection)
            slots = {slot.site: slot for slot in failover_groups.list_slots(connection)}
            return (
                group is None
                or request.site not in slots
                or request.point is None
                or request.closes
                or bool(request.reported)
                or not group.is_primary
                or group.epoch != request.epoch
                or group.point != request.point
                or (group.kind == "FAILOVER" and slots[request.site].protected_from is None)
                or _has_unnumbered_changes(connection, request.sequences)
            )

    def respond(self, request: PullRequest) -> tuple[PullResponse, BinaryIO | None]:
        """Confirm what the follower has, and return the next state and the file with its content.

        The caller closes the file.

        Raises:
            UserError: If the group does not allow the site.
            GroupConflict: If `begin_state` or `export_state` raises it.
        """
        response = self.begin_state(request)
        return response, self.export_state(request, response) if response.has_changes else None

    def begin_state(self, request: PullRequest) -> PullResponse:
        """Confirm what the follower has, and number the next state.

        If the response has changes, `export_state` adds them.

        Raises:
            UserError: If the group does not allow the site.
            GroupConflict: If the group has another name, or the request claims a promotion in a replication
                group.
        """
        with self._source.database.writing() as connection:
            group = failover_groups.find_group(connection, lock=True)
            if group is None or group.name != request.group:
                raise failover_groups.GroupConflict(
                    reason=f"This installation is not in a group {request.group}"
                )
            if group.role not in {SiteRole.PRIMARY, SiteRole.CLOSING}:
                is_heir = (
                    group.handed_to == request.site
                    and group.epoch == request.epoch
                    and group.point == request.point
                )
                return PullResponse(
                    role=group.role, epoch=group.epoch, group=group.name, handed_over=is_heir
                )
            failover_groups.require_known_sites(group.settings, request.site)
            if request.epoch > group.epoch:
                failover_groups.require_failover(group, request.site)
                # The follower was promoted, so this site is not the primary any longer.
                failover_groups.fence(connection, request.url)
                return PullResponse(role=SiteRole.FENCED, epoch=group.epoch, group=group.name)
            response = self._number_state(connection, group, request)
            failpoints.hit_failpoint(Failpoint.REPLICA_CONFIRMED)
        if response.handed_over:
            failpoints.hit_failpoint(Failpoint.REPLICA_RESIGNED)
        elif request.closes:
            failpoints.hit_failpoint(Failpoint.REPLICA_CLOSED)
        return response

    def export_state(self, request: PullRequest, response: PullResponse) -> BinaryIO | None:
        """Add the content of the state to the response, or return a file with a large one.

        Works in another process than `begin_state`, too. The caller closes the file.

        Raises:
            GroupConflict: If the site has another epoch than at `begin_state`.
        """
        file = cast("BinaryIO", tempfile.SpooledTemporaryFile(_SPOOL_BYTES))  # noqa: SIM115 - the caller closes it
        try:
            with self._source.database.reading() as connection:
                self._export(connection, request, response, file)
        except BaseException:
            file.close()
            raise
        response.content_bytes = file.tell()
        if response.content_bytes <= INLINE_BYTES:
            file.seek(0)
            response.content = file.read()
            file.close()
            return None
        return file

    def _number_state(
        self, connection: sa.Connection, group: FailoverGroup, request: PullRequest
    ) -> PullResponse:
        now = self._source.clock.now()
        known = {slot.site: slot for slot in failover_groups.list_slots(connection)}
        slot = known.get(request.site)
        is_whole = (
            request.point is None
            or request.epoch != group.epoch
            or slot is None
            or slot.point is None
            or request.point < slot.point
        )
        deployment = connection.execute(sa.select(model.deployment)).one()
        response = PullResponse(
            role=group.role,
            epoch=group.epoch,
            group=group.name,
            kind=group.kind,
            deployment_id=deployment.deployment_id,
            sequencer_floor=deployment.sequencer_floor or 0,
            point=group.point,
            since=None if is_whole else request.point,
            sites=tuple(sorted({*group.settings.allowed_sites, group.site})),
            tokens=group.settings.tokens,
            protected_from=None if slot is None else slot.protected_from,
            state_at=model.to_microseconds(now),
            warehouse_root=self._source.warehouse.to_address(""),
            catalog_version=SCHEMA_VERSION,
        )
        if request.keeps:
            self._hold_objects(connection, request.site, now)
            connection.execute(
                sa.update(_SLOTS).where(_SLOTS.c.site == request.site).values(requested_at=now)
            )
            response.site_number = request.site_number
            return response
        if not is_whole:
            failover_groups.save_reported_channels(connection, request.site, request.reported)
        is_current = not is_whole and request.point == group.point
        has_changes = (
            is_whole or not is_current or _has_unnumbered_changes(connection, request.sequences)
        )
        if request.closes and is_current and group.kind == "FAILOVER":
            if group.role is SiteRole.PRIMARY:
                failover_groups.close_primary(connection)
                # What was committed before is in the next state.
                has_changes = True
            elif not has_changes:
                failover_groups.fence(connection, request.url, handed_to=request.site)
                response.role = SiteRole.FENCED
                response.handed_over = True
                return response
        protects = is_current and group.kind == "FAILOVER" and response.protected_from is None
        if has_changes or protects:
            response.point += 1
            connection.execute(
                sa.update(_CHANGED).where(_CHANGED.c.point.is_(None)).values(point=response.point)
            )
            failover_groups.update_group(connection, point=response.point)
        if protects:
            failover_groups.protect_tokens(connection, request.site, response.point)
            response.protected_from = response.point
        if is_whole:
            self._hold_objects(connection, request.site, now)
        else:
            self._release_objects(connection, request.site, now)
        response.site_number = failover_groups.record_request(
            connection,
            request.site,
            number=request.site_number,
            url=request.url,
            # A follower may repeat the request before this one, but no earlier one.
            point=response.point if is_whole else request.point,
            now=now,
        )
        delete_confirmed_changes(connection, now)
        response.has_changes = has_changes or protects
        return response

    def _hold_objects(self, connection: sa.Connection, site: str, now: dt.datetime) -> None:
        leases.acquire_backup_lease(connection, _hold_name(site), ttl_s=_HOLD_S, now=now)

    def _release_objects(self, connection: sa.Connection, site: str, now: dt.datetime) -> None:
        query = sa.select(model.leases.c.name).where(
            model.leases.c.name == f"backup {_hold_name(site)}",
            model.leases.c.expires_at.is_not(None),
        )
        if connection.execute(query).first() is not None:
            lease = leases.acquire_backup_lease(
                connection, _hold_name(site), ttl_s=_HOLD_S, now=now
            )
            leases.release_lease(connection, lease)

    def _export(
        self,
        connection: sa.Connection,
        request: PullRequest,
        response: PullResponse,
        file: BinaryIO,
    ) -> None:
        group = failover_groups.find_group(connection)
        if group is None or group.epoch != response.epoch:
            raise failover_groups.GroupConflict(
                reason="This site got another epoch during the request"
            )
        key = X25519PublicKey.from_public_bytes(base64.b64decode(request.public_key))
        converters = make_sealing_converters(connection, self._source, key)
        frames: Iterator[Frame]
        if response.since is None:
            frames = _export_all(connection, converters)
        else:
            frames = _export_changes(connection, response.since, request.sequences, converters)
        count = 0
        for frame in frames:
            write_frame(file, frame)
            count += 1
        write_frame(file, EndOfState(count))


def delete_confirmed_changes(connection: sa.Connection, now: dt.datetime) -> None:
    """Delete recorded changes that every follower has. Silent followers get whole states later."""
    connection.execute(
        sa.update(_SLOTS).where(_SLOTS.c.requested_at < now - _SLOT_TTL).values(point=None)
    )
    lowest = connection.execute(sa.select(sa.func.min(_SLOTS.c.point))).scalar()
    if lowest is None:
        connection.execute(sa.delete(_CHANGED))
    else:
        connection.execute(sa.delete(_CHANGED).where(_CHANGED.c.point <= lowest))


def _hold_name(site: str) -> str:
    return f"replica {site}"


def _has_unnumbered_changes(connection: sa.Connection, sequences: Mapping[int, int]) -> bool:
    """Return True if the catalog has changes that are in no state, or chunks that a follower lacks.

    A follower that has all recorded changes has the same tables, and their sequences only grow. So
    equal sums mean equal sequences.
    """
    if connection.execute(_SELECT_UNNUMBERED).first() is not None:
        return True
    total = connection.execute(_SELECT_SEQUENCE_SUM).scalar()
    return (total or 0) != sum(sequences.values())


def _export_all(
    connection: sa.Connection, converters: Mapping[str, RowConverter]
) -> Iterator[Frame]:
    for table in model.list_portable_tables():
        stored = stored_form(table)
        yield _make_header(connection, table)
        query = sa.select(stored)
        if table is model.chunks:
            # Clean-up deletes their blobs; their rows are in native files.
            query = query.where(stored.c.retired_at.is_(None))
        found = connection.execution_options(yield_per=_ROWS_PER_FRAME).execute(query).mappings()
        yield from _make_row_frames(found, converters.get(table.name))


def _export_changes(
    connection: sa.Connection,
    since: int,
    sequences: Mapping[int, int],
    converters: Mapping[str, RowConverter],
) -> Iterator[Frame]:
    query = (
        sa.select(_CHANGED.c.table_name, _CHANGED.c.row_key)
        .where(sa.or_(_CHANGED.c.point > since, _CHANGED.c.point.is_(None)))
        .distinct()
    )
    keys: dict[str, set[tuple[Any, ...]]] = {}
    for name, key in connection.execute(query):
        keys.setdefault(name, set()).add(parse_row_key(model.metadata.tables[name], key))
    new_chunks = _find_new_chunks(connection, sequences)
    keys.setdefault(model.tables.name, set()).update((each.table_id,) for each in new_chunks)
    advanced = _AdvancedChannels()
    advanced.names.update(key[:2] for key in keys.get(model.rowless_commits.name, ()))
    for table in model.list_portable_tables():
        if table is model.channels:
            continue
        changed = keys.get(table.name, ())
        has_new = table is model.chunks and new_chunks
        if not changed and not has_new:
            continue
        yield _make_header(connection, table)
        yield from _export_keys(connection, table, changed, converters.get(table.name))
        if has_new:
            yield from _export_new_chunks(connection, new_chunks, advanced)
    # The chunks name the channels.
    channels = keys.get(model.channels.name, set())
    channels |= advanced.find_keys(connection)
    if channels:
        yield _make_header(connection, model.channels)
        yield from _export_keys(connection, model.channels, channels, None)


def _export_keys(
    connection: sa.Connection,
    table: sa.Table,
    keys: Collection[tuple[Any, ...]],
    convert: RowConverter | None,
) -> Iterator[Frame]:
    """Yield the rows of some keys, and the keys without a row."""
    stored = stored_form(table)
    missing = set(keys)
    names = [column.name for column in table.primary_key]
    key_columns = [stored.c[name] for name in names]
    remaining = iter(keys)
    while some := list(islice(remaining, _KEYS_PER_QUERY)):
        condition = (
            key_columns[0].in_([key[0] for key in some])
            if len(names) == 1
            else sa.tuple_(*key_columns).in_(some)
        )
        rows = connection.execute(sa.select(stored).where(condition)).mappings().all()
        missing -= {tuple(row[name] for name in names) for row in rows}
        yield from _make_row_frames(rows, convert)
    if missing:
        yield DeletedKeys([list(key) for key in missing])


@dataclass(frozen=True, slots=True)
class _NewChunks:
    """Sequences of a table that a follower lacks: from `start`, exclusive, to `end`, inclusive."""

    table_id: int
    start: int
    end: int


def _find_new_chunks(connection: sa.Connection, sequences: Mapping[int, int]) -> list[_NewChunks]:
    return [
        _NewChunks(table_id, sequences.get(table_id, 0), last_seq)
        for table_id, last_seq in connection.execute(_SELECT_SEQUENCES)
        if last_seq > sequences.get(table_id, 0)
    ]


@dataclass(slots=True)
class _AdvancedChannels:
    """Channels that registrations have advanced: names with their table IDs, and whole tables."""

    names: set[tuple[int, str]] = field(default_factory=set)
    table_ids: set[int] = field(default_factory=set)

    def find_keys(self, connection: sa.Connection) -> set[tuple[Any, ...]]:
        """Return the primary keys of the channels that exist."""
        found: set[tuple[Any, ...]] = set()
        if self.names:
            given = make_rows_source(
                connection.dialect.name,
                sa.column("table_id", sa.BigInteger),
                sa.column("name", sa.Text),
            )
            same = sa.and_(
                _CHANNELS.c.table_id == given.c.table_id, _CHANNELS.c.name == given.c.name
            )
            query = sa.select(_CHANNELS.c.channel_id).select_from(given.join(_CHANNELS, same))
            found.update(
                map(tuple, connection.execute(query, encode_rows(_NAME_COLUMNS, self.names)))
            )
        if self.table_ids:
            query = sa.select(_CHANNELS.c.channel_id).where(
                _CHANNELS.c.table_id.in_(sorted(self.table_ids))
            )
            found.update(map(tuple, connection.execute(query)))
        return found


def _make_header(connection: sa.Connection, table: sa.Table) -> TableHeader:
    columns = tuple(str(column.name) for column in table.c)
    return TableHeader(str(table.name), columns, read_last_id(connection, table))


def _export_new_chunks(
    connection: sa.Connection, new_chunks: Iterable[_NewChunks], advanced: _AdvancedChannels
) -> Iterator[Frame]:
    stored = stored_form(model.chunks)
    names = [column.name for column in stored.c]
    channels_at, retired_at = names.index("channels"), names.index("retired_at")
    for each in new_chunks:
        query = sa.select(stored).where(
            stored.c.table_id == each.table_id,
            stored.c.seq > each.start,
            stored.c.seq <= each.end,
        )
        count = 0
        if each.end - each.start > _ROWS_PER_FRAME:
            query = query.execution_options(yield_per=_ROWS_PER_FRAME)
        for rows in connection.execute(query).partitions(_ROWS_PER_FRAME):
            count += len(rows)
            for row in rows:
                for channel, *_ in _decode_channels(row[channels_at]):
                    advanced.names.add((each.table_id, channel))
            yield TableRows([list(row) for row in rows if row[retired_at] is None])
        if count < each.end - each.start:
            advanced.table_ids.add(each.table_id)


def _make_row_frames(
    rows: Iterable[Mapping[Any, Any]] | Sequence[Mapping[Any, Any]], convert: RowConverter | None
) -> Iterator[Frame]:
    remaining = iter(rows)
    while some := list(islice(remaining, _ROWS_PER_FRAME)):
        converted = (
            [dict(row) for row in some] if convert is None else [convert(dict(row)) for row in some]
        )
        yield TableRows([list(row.values()) for row in converted])
