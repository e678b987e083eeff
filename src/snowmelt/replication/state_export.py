"""Export states of a primary, as changes since a follower's state.

A state consists of the rows that one transaction of the catalog reads. Triggers record the keys of
changed rows. The export has the rows whose keys were recorded since the follower's state. It finds
new chunks by the commit sequences of their tables, and the channels that they advance by the chunks.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, cast

import msgspec
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from snowmelt import failpoints
from snowmelt.backup.catalog_tables import RowConverter, read_last_id, stored_form
from snowmelt.backup.creation import BackupSource, make_sealing_converters
from snowmelt.catalog import model
from snowmelt.catalog.db.database import SCHEMA_VERSION
from snowmelt.catalog.db.dialect import encode_array, in_array
from snowmelt.catalog.db.replication_triggers import parse_row_key
from snowmelt.catalog.jobs import leases
from snowmelt.catalog.objects import failover_groups
from snowmelt.catalog.objects.failover_groups import FailoverGroup, SiteRole
from snowmelt.errors import ObjectMissing
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

# The follower reads larger states in ranges.
INLINE_BYTES = 1 << 20
# A further request for blobs costs the primary as much as a hundred small blobs.
_INLINE_BLOB_BYTES = 4 << 20
_INLINE_READ_S = 0.1

_SPOOL_BYTES = 8 << 20
_ROWS_PER_FRAME = 2_000
_KEYS_PER_QUERY = 300
# While a follower copies its first state, garbage collection is suspended until this long after its
# last request.
_HOLD_S = 300.0
# A follower without requests for this long gets a whole state later, so that its changes need not
# be retained.
_SLOT_TTL = dt.timedelta(days=1)

_channels_decoder = msgspec.json.Decoder(list[tuple[str, int, int, str | None, str | None]])

_CHANGED = model.changed_rows
_SLOTS = model.replica_slots
_GROUPS = model.failover_groups
_UNCHANGED = sa.select(_GROUPS.c.point).where(
    _GROUPS.c.role == SiteRole.PRIMARY,
    _GROUPS.c.epoch == sa.bindparam("epoch"),
    _GROUPS.c.point == sa.bindparam("point"),
    ~sa.exists().where(_CHANGED.c.point.is_(None)),
)
# Building a statement takes longer than executing it, so frequent ones are built once.
_CHANNELS_OF_NEW_CHUNKS = tuple(
    sa.select(chunks.c.channels).where(
        chunks.c.table_id == sa.bindparam("table_id"), chunks.c.seq > sa.bindparam("seq")
    )
    for chunks in (model.chunks, model.chunk_ledger)
)
_STORED_CHUNKS = stored_form(model.chunks)
_NEW_CHUNKS = sa.select(_STORED_CHUNKS).where(
    _STORED_CHUNKS.c.table_id == sa.bindparam("table_id"),
    _STORED_CHUNKS.c.seq > sa.bindparam("seq"),
    _STORED_CHUNKS.c.retired_at.is_(None),
)
_CHANGED_KEYS = (
    sa.select(_CHANGED.c.table_name, _CHANGED.c.row_key)
    .where(sa.or_(_CHANGED.c.point > sa.bindparam("since"), _CHANGED.c.point.is_(None)))
    .distinct()
)
_NUMBER_CHANGES = (
    sa.update(_CHANGED).where(_CHANGED.c.point.is_(None)).values(point=sa.bindparam("next_point"))
)
_UNNUMBERED_CHANGE = sa.select(_CHANGED.c.change_id).where(_CHANGED.c.point.is_(None)).limit(1)
_EXPIRE_SLOTS = (
    sa.update(_SLOTS).where(_SLOTS.c.requested_at < sa.bindparam("before")).values(point=None)
)
_LOWEST_POINT = sa.select(sa.func.min(_SLOTS.c.point))
_DELETE_CHANGES = sa.delete(_CHANGED).where(_CHANGED.c.point <= sa.bindparam("lowest"))
_TEMPORARY_HOLD = sa.select(model.leases.c.name).where(
    model.leases.c.name == sa.bindparam("name"), model.leases.c.expires_at.is_not(None)
)


class StateSource:
    """Source of states for followers. `confirm` and `export` may run in different processes."""

    def __init__(self, source: BackupSource) -> None:
        self._source = source

    def has_news(self, request: PullRequest) -> bool:
        """Return True if the response would have changes or other news for the follower."""
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
                or _has_unnumbered_changes(connection)
            )

    def is_unchanged(self, request: PullRequest) -> bool:
        """Return True if nothing has changed since `has_news` returned False. Polled while waiting."""
        values = {"epoch": request.epoch, "point": request.point}
        with self._source.database.reading() as connection:
            return connection.execute(_UNCHANGED, values).first() is not None

    def confirm(self, request: PullRequest) -> PullResponse:
        """Record the follower's confirmed state, and begin the next state.

        If the response has changes, `export` must add them.

        Raises:
            UserError: If the group does not allow the site.
            GroupConflict: If the group has another name, or if a follower with a newer epoch cannot
                have been promoted.
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
                # The follower was promoted, so this site must stop being the primary.
                failover_groups.fence(connection, request.url)
                return PullResponse(role=SiteRole.FENCED, epoch=group.epoch, group=group.name)
            response = self._begin_state(connection, group, request)
            failpoints.hit_failpoint(Failpoint.REPLICA_CONFIRMED)
        if response.handed_over:
            failpoints.hit_failpoint(Failpoint.REPLICA_RESIGNED)
        elif request.closes:
            failpoints.hit_failpoint(Failpoint.REPLICA_CLOSED)
        return response

    def export(self, request: PullRequest, response: PullResponse) -> BinaryIO | None:
        """Add the changes to a response that has some.

        Returns a file with the content, which the caller must close, or None if the response
        contains it.
        """
        file = cast("BinaryIO", tempfile.SpooledTemporaryFile(_SPOOL_BYTES))  # noqa: SIM115 - the caller closes it
        try:
            with self._source.database.reading() as connection:
                new_blobs = self._export(connection, request, response, file)
            response.blobs = self._read_blobs(new_blobs)
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

    def _begin_state(
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
        has_changes = is_whole or not is_current or _has_unnumbered_changes(connection)
        if request.closes and is_current and group.kind == "FAILOVER":
            if group.role is SiteRole.PRIMARY:
                failover_groups.close_primary(connection)
                # The next state contains all commits before the close.
                has_changes = True
            elif not has_changes:
                failover_groups.fence(connection, request.url, handed_to=request.site)
                response.role = SiteRole.FENCED
                response.handed_over = True
                return response
        protects = is_current and group.kind == "FAILOVER" and response.protected_from is None
        if has_changes or protects:
            response.point += 1
            connection.execute(_NUMBER_CHANGES, {"next_point": response.point})
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
            # A follower may repeat the previous request, but no earlier one.
            point=response.point if is_whole else request.point,
            now=now,
        )
        delete_confirmed_changes(connection, now)
        response.has_changes = has_changes or protects
        return response

    def _hold_objects(self, connection: sa.Connection, site: str, now: dt.datetime) -> None:
        leases.acquire_backup_lease(connection, _hold_name(site), ttl_s=_HOLD_S, now=now)

    def _release_objects(self, connection: sa.Connection, site: str, now: dt.datetime) -> None:
        name = f"backup {_hold_name(site)}"
        if connection.execute(_TEMPORARY_HOLD, {"name": name}).first() is not None:
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
    ) -> dict[str, int]:
        """Write the frames. Return the paths of blobs of new chunks with the ends of their chunks."""
        key = X25519PublicKey.from_public_bytes(base64.b64decode(request.public_key))
        converters = make_sealing_converters(connection, self._source, key)
        new_blobs: dict[str, int] = {}
        frames: Iterator[Frame]
        if response.since is None:
            frames = _export_all(connection, converters)
        else:
            frames = _export_changes(
                connection, response.since, request.sequences, converters, new_blobs
            )
        count = 0
        for frame in frames:
            write_frame(file, frame)
            count += 1
        write_frame(file, EndOfState(count))
        return new_blobs

    def _read_blobs(self, ends: Mapping[str, int]) -> dict[str, bytes]:
        """Read blobs from the start of `ends`. The follower requests the others."""
        found: dict[str, bytes] = {}
        remaining = _INLINE_BLOB_BYTES
        # A bucket may respond slowly, and further requests read it in parallel.
        until = self._source.clock.monotonic() + _INLINE_READ_S
        for path, end in ends.items():
            if remaining <= 0 or self._source.clock.monotonic() > until:
                break
            if end > _INLINE_BLOB_BYTES:
                continue
            with contextlib.suppress(ObjectMissing):
                found[path] = self._source.stage.get(path)
                remaining -= len(found[path])
        return found


def delete_confirmed_changes(connection: sa.Connection, now: dt.datetime) -> None:
    """Delete recorded changes that all followers have confirmed.

    Followers that sent no request for a day are excluded. They get a whole state later.
    """
    # The lock orders this after the first request of a follower. Otherwise the changes since its state
    # could be deleted.
    failover_groups.find_group(connection, lock=True)
    connection.execute(_EXPIRE_SLOTS, {"before": now - _SLOT_TTL})
    lowest = connection.execute(_LOWEST_POINT).scalar()
    if lowest is None:
        connection.execute(sa.delete(_CHANGED))
    else:
        connection.execute(_DELETE_CHANGES, {"lowest": lowest})


def _hold_name(site: str) -> str:
    return f"replica {site}"


def _has_unnumbered_changes(connection: sa.Connection) -> bool:
    return connection.execute(_UNNUMBERED_CHANGE).first() is not None


def _export_all(
    connection: sa.Connection, converters: Mapping[str, RowConverter]
) -> Iterator[Frame]:
    for table in model.list_portable_tables():
        stored = stored_form(table)
        yield _make_header(connection, table)
        query = sa.select(stored)
        if table is model.chunks:
            # Omit retired chunks: their rows are in native files, and their blobs will be deleted.
            query = query.where(stored.c.retired_at.is_(None))
        found = connection.execution_options(yield_per=_ROWS_PER_FRAME).execute(query)
        yield from _make_row_frames(found, converters.get(table.name))


def _export_changes(
    connection: sa.Connection,
    since: int,
    sequences: Mapping[int, int],
    converters: Mapping[str, RowConverter],
    new_blobs: dict[str, int],
) -> Iterator[Frame]:
    keys = _read_changed_keys(connection, since)
    table_ids = [table_id for (table_id,) in keys.get(model.tables, ())]
    advanced = keys.setdefault(model.channels, set())
    advanced |= _find_advanced_channels(
        connection, table_ids, sequences, keys.get(model.rowless_commits, ())
    )
    for table in model.list_portable_tables():
        changed = sorted(keys.get(table, ()))
        is_chunks = table is model.chunks
        if not changed and not (is_chunks and table_ids):
            continue
        stored = stored_form(table)
        yield _make_header(connection, table)
        convert = converters.get(table.name)
        missing = set(changed)
        names = [column.name for column in table.primary_key]
        places = [table.c.keys().index(name) for name in names]
        key_columns = [stored.c[name] for name in names]
        for start in range(0, len(changed), _KEYS_PER_QUERY):
            some = changed[start : start + _KEYS_PER_QUERY]
            condition = (
                key_columns[0].in_([key[0] for key in some])
                if len(names) == 1
                else sa.tuple_(*key_columns).in_(some)
            )
            rows = connection.execute(sa.select(stored).where(condition)).all()
            missing -= {tuple(row[place] for place in places) for row in rows}
            yield _make_row_frame(rows, convert)
        if is_chunks:
            yield from _export_new_chunks(connection, table_ids, sequences, new_blobs)
        if missing:
            yield DeletedKeys([list(key) for key in missing])


def _read_changed_keys(
    connection: sa.Connection, since: int
) -> dict[sa.Table, set[tuple[Any, ...]]]:
    keys: dict[sa.Table, set[tuple[Any, ...]]] = {}
    for name, key in connection.execute(_CHANGED_KEYS, {"since": since}):
        table = model.metadata.tables[name]
        keys.setdefault(table, set()).add(parse_row_key(table, key))
    return keys


def _find_advanced_channels(
    connection: sa.Connection,
    table_ids: Iterable[int],
    sequences: Mapping[int, int],
    rowless: Iterable[tuple[Any, ...]],
) -> set[tuple[int]]:
    """Return the keys of the channels that registrations have advanced since the follower's state.

    The chunk of a registration is in `chunks` until garbage collection deletes it, and in the ledger
    after its migration. A registration without rows is in `rowless_commits`.
    """
    names: dict[int, set[str]] = {}
    for table_id, channel, *_ in rowless:
        names.setdefault(table_id, set()).add(channel)
    for table_id in table_ids:
        some = names.setdefault(table_id, set())
        after = {"table_id": table_id, "seq": sequences.get(table_id, 0)}
        for query in _CHANNELS_OF_NEW_CHUNKS:
            for encoded in connection.execute(query, after).scalars().all():
                some.update(name for name, *_ in _channels_decoder.decode(encoded))
    channels = model.channels
    return {
        (channel_id,)
        for table_id, some in names.items()
        for channel_id in connection.execute(
            sa.select(channels.c.channel_id).where(
                channels.c.table_id == table_id,
                in_array(channels.c.name, encode_array(sorted(some))),
            )
        ).scalars()
    }


def _make_header(connection: sa.Connection, table: sa.Table) -> TableHeader:
    columns = tuple(str(column.name) for column in table.c)
    return TableHeader(str(table.name), columns, read_last_id(connection, table))


def _export_new_chunks(
    connection: sa.Connection,
    table_ids: Iterable[int],
    sequences: Mapping[int, int],
    new_blobs: dict[str, int],
) -> Iterator[Frame]:
    for table_id in table_ids:
        after = {"table_id": table_id, "seq": sequences.get(table_id, 0)}
        for rows in connection.execute(_NEW_CHUNKS, after).partitions(_ROWS_PER_FRAME):
            for row in rows:
                if row.quarantine_reason is None:
                    path = f"{row.prefix}/{row.path}"
                    new_blobs[path] = max(row.offset + row.length, new_blobs.get(path, 0))
            yield _make_row_frame(rows, None)


def _make_row_frames(rows: sa.Result[Any], convert: RowConverter | None) -> Iterator[Frame]:
    for some in rows.partitions(_ROWS_PER_FRAME):
        yield _make_row_frame(some, convert)


def _make_row_frame(rows: Sequence[sa.Row[Any]], convert: RowConverter | None) -> Frame:
    if convert is None:
        return TableRows([list(row) for row in rows])
    return TableRows([list(convert(dict(row._mapping)).values()) for row in rows])  # noqa: SLF001 - public, in spite of its name
