"""The failover group of an installation: its role, its followers, and which offset tokens are safe.

One site is the primary, the others follow it. A promotion makes a follower the primary of a new
epoch: all client sequencers of the new epoch are above those of the old one, so every client must
reopen its channels. A primary that receives a higher epoch is fenced.

An offset token is reported only when a follower has it (`find_reported_channels`). A source may delete what
it has sent up to a reported token, so a promotion must never lose one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import msgspec
import sqlalchemy as sa

from snowmelt import failpoints
from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import encode_rows, make_insert, make_rows_source
from snowmelt.catalog.db.replication_triggers import record_changes, reject_writes, remove_triggers
from snowmelt.errors import ConflictError, NotFound, UserError
from snowmelt.failpoints import Failpoint

# The client sequencers of an epoch are at least its number times this constant.
SEQUENCERS_PER_EPOCH = 2**32
# Maximum number of sites. A site begins only epochs whose remainder modulo this number is the
# number of the site, so two sites never begin the same epoch.
MAX_SITES = 16
# A follower whose last request is older than this counts as unavailable.
FOLLOWER_TTL_S = 10.0
# Why a channel cannot be opened yet.
NOT_REPLICATED = "not every secondary has the last commit of the channel yet"

_GROUPS = model.failover_groups
_SLOTS = model.replica_slots
_CHANGED = model.changed_rows
_REPORTED = model.reported_channels
_CHANNELS = model.channels
_DIVERGED = model.diverged_changes
_CHANNEL_STATE = ("client_sequencer", "row_sequencer", "offset_token")


class SiteRole(StrEnum):
    """Role of this site in its failover group."""

    PRIMARY = "primary"
    CLOSING = "closing"
    SECONDARY = "secondary"
    FENCED = "fenced"


class TokenMode(StrEnum):
    """Which offset tokens a primary reports: those that a follower has, or all committed ones."""

    REPLICATED = "REPLICATED"
    COMMITTED = "COMMITTED"


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a group at this site.

    `user` and `private_key` (the path of its file) authenticate this site at the primary.
    `addresses` are the URLs at which clients and other sites reach this site.
    """

    allowed_sites: tuple[str, ...] = ()
    tokens: TokenMode = TokenMode.REPLICATED
    addresses: tuple[str, ...] = ()
    user: str | None = None
    private_key: str | None = None
    ca_file: str | None = None
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class FailoverGroup:
    """The group of this site. Columns are described in `catalog.model`."""

    name: str
    kind: str
    role: SiteRole
    site: str
    site_number: int
    epoch: int
    point: int
    protected_from: int | None
    promotable_from: int | None
    primary_url: str | None
    settings: GroupSettings
    owner: str
    created_at: dt.datetime
    state_at: dt.datetime | None
    applied_at: dt.datetime | None
    last_error: str | None
    handed_to: str | None
    suspended: bool
    switch_requested: bool

    @property
    def is_primary(self) -> bool:
        """True if this site accepts writes."""
        return self.role is SiteRole.PRIMARY

    @property
    def is_promotable(self) -> bool:
        """True if a promotion loses no reported offset token."""
        return self.promotable_from is not None and self.point >= self.promotable_from

    @property
    def protects_tokens(self) -> bool:
        """True if only replicated offset tokens are reported."""
        return (
            self.kind == "FAILOVER"
            and self.protected_from is not None
            and self.settings.tokens is TokenMode.REPLICATED
        )


@dataclass(frozen=True, slots=True)
class ReplicaSlot:
    """A site that follows this one."""

    site: str
    site_number: int
    url: str | None
    point: int | None
    protected_from: int | None
    requested_at: dt.datetime


class ReportedChannel(msgspec.Struct, frozen=True, array_like=True):
    """The state of a channel that a follower has."""

    channel_id: int
    client_sequencer: int
    row_sequencer: int
    offset_token: str | None


# A statement for each request of a follower. Building one takes longer than executing it.
_SELECT_GROUP = sa.select(_GROUPS)
_SELECT_GROUP_LOCKED = _SELECT_GROUP.with_for_update()
_SELECT_SLOTS = sa.select(_SLOTS).order_by(_SLOTS.c.site)


class GroupConflict(ConflictError, code="failover_group_conflict"):
    """{reason}."""


def find_group(connection: sa.Connection, *, lock: bool = False) -> FailoverGroup | None:
    """Return the group of this installation, None if there is none."""
    row = connection.execute(_SELECT_GROUP_LOCKED if lock else _SELECT_GROUP).first()
    if row is None:
        return None
    values = {name: getattr(row, name) for name in FailoverGroup.__dataclass_fields__}
    values["role"] = SiteRole(row.role)
    values["settings"] = msgspec.json.decode(row.settings, type=GroupSettings)
    return FailoverGroup(**values)


def is_writable(connection: sa.Connection) -> bool:
    """Return True if this installation accepts writes: it has no group, or is the primary."""
    group = find_group(connection)
    return group is None or group.is_primary


def lock_group(connection: sa.Connection, name: str) -> FailoverGroup:
    """Lock and return the group with this name.

    Raises:
        NotFound: If there is none.
    """
    group = find_group(connection, lock=True)
    if group is None or group.name != name:
        raise NotFound(kind="Failover group", name=name)
    return group


def lock_creation(connection: sa.Connection) -> None:
    """Wait for other transactions that create or drop a group, so that this one sees their group."""
    if connection.dialect.name == "postgresql":
        # Without a group there is no row to lock. On SQLite, no other writer runs.
        connection.exec_driver_sql(f"LOCK TABLE {_GROUPS.name} IN SHARE ROW EXCLUSIVE MODE")


def create_group(
    connection: sa.Connection,
    name: str,
    kind: str,
    settings: GroupSettings,
    *,
    site: str,
    owner: str,
    now: dt.datetime,
    primary_url: str | None = None,
) -> None:
    """Make this installation the primary of a new group, or a follower of the primary at a URL.

    The users and roles of the primary replace the users and roles of a follower.

    Raises:
        GroupConflict: If it already has a group, or a future follower has databases or buckets.
    """
    lock_creation(connection)
    group = find_group(connection)
    if group is not None:
        raise GroupConflict(
            reason=f"Group {group.name} already exists, and an installation has at most one group. Drop "
            f"it first: DROP FAILOVER GROUP {group.name}"
        )
    is_primary = primary_url is None
    if not is_primary:
        _require_empty(connection)
    connection.execute(
        sa.insert(_GROUPS).values(
            name=name,
            kind=kind,
            settings=msgspec.json.encode(settings).decode(),
            role=SiteRole.PRIMARY if is_primary else SiteRole.SECONDARY,
            site=site,
            site_number=1 if is_primary else 0,
            epoch=read_epoch(connection) if is_primary else -1,
            point=0,
            owner=owner,
            created_at=now,
            primary_url=primary_url,
        )
    )
    if is_primary:
        record_changes(connection)
    else:
        reject_writes(connection)


def _require_empty(connection: sa.Connection) -> None:
    for kind, table in (("database", model.databases), ("bucket", model.buckets)):
        query = sa.select(table.c.name).limit(1)
        if table is model.buckets:
            # Ignore buckets of existing locations, which the service itself creates.
            query = query.where(table.c.backend.is_(None))
        row = connection.execute(query).first()
        if row is not None:
            raise GroupConflict(
                reason=f"This installation has the {kind} {row.name}. A replica needs an empty "
                "installation: use another --data-dir, or an installation that never had objects"
            )


def drop_group(connection: sa.Connection) -> None:
    """Remove the group. The installation keeps its state, and accepts writes.

    A follower that has a state of the primary begins a new epoch, so clients of the primary must
    reopen their channels before they can write to it.
    """
    group = find_group(connection, lock=True)
    remove_triggers(connection)
    if group is not None and not group.is_primary and group.epoch >= 0:
        _begin_epoch(connection, _next_epoch(group.epoch, group.site_number))
    for table in (_SLOTS, _CHANGED, _REPORTED, _GROUPS):
        connection.execute(sa.delete(table))


def update_settings(
    connection: sa.Connection, group: FailoverGroup, settings: GroupSettings
) -> None:
    """Replace the settings. Sites that are not in the new list of allowed sites lose their slot."""
    update_group(connection, settings=msgspec.json.encode(settings).decode())
    gone = [slot.site for slot in list_slots(connection) if slot.site not in settings.allowed_sites]
    if gone and group.is_primary:
        for table in (_SLOTS, _REPORTED):
            connection.execute(sa.delete(table).where(table.c.site.in_(gone)))
        if not any(slot.protected_from for slot in list_slots(connection)):
            # No remaining site confirms tokens, so report all committed tokens.
            update_group(connection, protected_from=None)


def update_group(connection: sa.Connection, **values: object) -> None:
    """Set columns of the group."""
    connection.execute(sa.update(_GROUPS).values(**values))


def read_epoch(connection: sa.Connection) -> int:
    """Return the epoch of the client sequencers of this installation; 0 is the first."""
    floor = connection.execute(sa.select(model.deployment.c.sequencer_floor)).scalar()
    return (floor or 0) // SEQUENCERS_PER_EPOCH


# Followers.


def list_slots(connection: sa.Connection) -> list[ReplicaSlot]:
    """Return the followers by name."""
    rows = connection.execute(_SELECT_SLOTS)
    return [ReplicaSlot(*(getattr(row, name) for name in ReplicaSlot.__slots__)) for row in rows]


def record_request(
    connection: sa.Connection,
    site: str,
    *,
    number: int,
    url: str | None,
    point: int | None,
    now: dt.datetime,
) -> int:
    """Record that a follower has a state, and return the number of its site.

    Raises:
        GroupConflict: If the group already has `MAX_SITES - 1` sites.
    """
    group = find_group(connection)
    known = {slot.site: slot.site_number for slot in list_slots(connection)}
    if site not in known:
        taken = {*known.values(), 0 if group is None else group.site_number}
        if not number or number in taken:
            free = [each for each in range(1, MAX_SITES) if each not in taken]
            if not free:
                raise GroupConflict(reason=f"A group has at most {MAX_SITES - 1} sites")
            number = free[0]
        known[site] = number
    values = {"site_number": known[site], "url": url, "point": point, "requested_at": now}
    connection.execute(_upsert_slot(connection.dialect.name), {"site": site, **values})
    return known[site]


@cache
def _upsert_slot(dialect: str) -> sa.Insert:
    names = ("site_number", "url", "point", "requested_at")
    insert = make_insert(dialect, _SLOTS).values(
        {name: sa.bindparam(name) for name in ("site", *names)}
    )
    return insert.on_conflict_do_update(
        index_elements=["site"], set_={name: insert.excluded[name] for name in names}
    )


def save_reported_channels(
    connection: sa.Connection, site: str, reported: Iterable[ReportedChannel]
) -> None:
    """Record states of channels that a follower has. An older state never replaces a newer one."""
    rows = [(site, *msgspec.structs.astuple(each)) for each in reported]
    if rows:
        statement = _upsert_reported_channels(connection.dialect.name)
        names = tuple(column.name for column in _REPORTED.c)
        connection.execute(
            statement,
            [dict(zip(names, row, strict=True)) for row in rows]
            if connection.dialect.name == "sqlite"
            else encode_rows(names, rows),
        )


@cache
def _upsert_reported_channels(dialect: str) -> sa.Insert:
    insert = make_insert(dialect, _REPORTED)
    if dialect != "sqlite":
        columns = [sa.column(each.name, each.type) for each in _REPORTED.c]
        given = make_rows_source(dialect, *columns)
        insert = insert.from_select([each.name for each in columns], sa.select(*given.c))
    new = insert.excluded
    return insert.on_conflict_do_update(
        index_elements=["site", "channel_id"],
        set_={name: new[name] for name in _CHANNEL_STATE},
        where=sa.tuple_(_REPORTED.c.client_sequencer, _REPORTED.c.row_sequencer)
        <= sa.tuple_(new.client_sequencer, new.row_sequencer),
    )


def protect_tokens(connection: sa.Connection, site: str, point: int) -> None:
    """From state `point` on, report only tokens that the follower `site` has.

    Tokens that were reported earlier are in that state, and the follower cannot be promoted before
    it has applied the state. So these tokens count as confirmed.
    """
    if connection.dialect.name == "postgresql":
        # A registration that commits beside this transaction would be reported until this transaction
        # commits, and not afterwards: the reported token would go back. On SQLite, no other writer
        # runs.
        connection.exec_driver_sql(f"LOCK TABLE {_CHANNELS.name} IN SHARE MODE")
    connection.execute(sa.delete(_REPORTED).where(_REPORTED.c.site == site))
    names = ("channel_id", *_CHANNEL_STATE)
    columns = (_CHANNELS.c[name] for name in names)
    connection.execute(
        sa.insert(_REPORTED).from_select(
            ("site", *names), sa.select(sa.literal(site, sa.Text), *columns)
        )
    )
    connection.execute(sa.update(_SLOTS).where(_SLOTS.c.site == site).values(protected_from=point))
    update_group(connection, protected_from=point)


def find_reported_channels(
    connection: sa.Connection, names: Collection[tuple[int, str]]
) -> dict[tuple[int, str], ReportedChannel] | None:
    """Return the states of channels that all followers have, given as (table ID, name).

    None if all committed tokens may be reported: there is no group, or the group does not protect
    tokens. The result omits a channel that any follower lacks, because that follower may be
    promoted.
    """
    group = find_group(connection)
    if group is None or not group.protects_tokens:
        return None
    sites = [slot.site for slot in list_slots(connection) if slot.protected_from is not None]
    states: dict[tuple[int, str], list[ReportedChannel]] = {}
    for table_id in sorted({table_id for table_id, _ in names}):
        wanted = [name for each, name in names if each == table_id]
        query = (
            sa.select(_CHANNELS.c.name, _REPORTED)
            .join(_REPORTED, _REPORTED.c.channel_id == _CHANNELS.c.channel_id)
            .where(
                _CHANNELS.c.table_id == table_id,
                _CHANNELS.c.name.in_(wanted),
                _REPORTED.c.site.in_(sites),
            )
        )
        for row in connection.execute(query):
            state = ReportedChannel(
                row.channel_id, row.client_sequencer, row.row_sequencer, row.offset_token
            )
            states.setdefault((table_id, row.name), []).append(state)
    return {
        key: min(each, key=lambda state: (state.client_sequencer, state.row_sequencer))
        for key, each in states.items()
        if len(each) == len(sites)
    }


def are_tokens_protected(connection: sa.Connection) -> bool:
    """Return True if an offset token is reported only when all followers have it."""
    group = find_group(connection)
    return group is not None and group.protects_tokens


def find_unreported_channels(
    connection: sa.Connection, positions: Collection[tuple[int, str, int]]
) -> set[tuple[int, str]]:
    """Return the channels whose last commit a follower lacks, although tokens are protected.

    Channels are given as (table ID, name, row sequencer).
    """
    reported = find_reported_channels(
        connection, [(table_id, name) for table_id, name, _ in positions]
    )
    if reported is None:
        return set()
    return {
        (table_id, name)
        for table_id, name, row_sequencer in positions
        if row_sequencer > 0
        and (
            (found := reported.get((table_id, name))) is None or found.row_sequencer < row_sequencer
        )
    }


@dataclass(frozen=True, slots=True)
class ReplicationLag:
    """Replication lag in seconds. A value that does not apply to this site is None."""

    group: str
    role: SiteRole
    behind_s: float | None
    silent_s: float | None


def measure_replication_lag(connection: sa.Connection, now: dt.datetime) -> ReplicationLag | None:
    """Return the age of a secondary's state, or the longest time since a follower's last request.

    None without a group.
    """
    group = find_group(connection)
    if group is None:
        return None
    behind_s = silent_s = None
    if group.role is SiteRole.SECONDARY and group.state_at is not None:
        behind_s = (now - group.state_at).total_seconds()
    if group.is_primary:
        silent_s = max(
            ((now - slot.requested_at).total_seconds() for slot in list_slots(connection)),
            default=None,
        )
    return ReplicationLag(group.name, group.role, behind_s, silent_s)


# Promotion and fencing.


def promote(connection: sa.Connection, *, force: bool, now: dt.datetime) -> int:
    """Make this follower the primary of a new epoch, and return the epoch.

    Raises:
        GroupConflict: If this site is the primary, or reported offset tokens could be lost and `force` is
            not set.
    """
    group = find_group(connection, lock=True)
    if group is None or group.role not in {SiteRole.SECONDARY, SiteRole.FENCED}:
        raise GroupConflict(reason="This site is already the primary")
    if group.kind != "FAILOVER":
        raise GroupConflict(
            reason=f"Group {group.name} is a replication group, whose replicas are never promoted. Use "
            "a failover group"
        )
    if not (force or group.is_promotable):
        raise GroupConflict(
            reason="This site may lack rows that the primary has reported as committed. Wait until this "
            "site is promotable, or accept the loss with ALTER FAILOVER GROUP … PRIMARY FORCE"
        )
    if group.epoch < 0:
        raise GroupConflict(
            reason="This site has no state of the primary yet. Wait until SHOW FAILOVER GROUPS shows the first one"
        )
    epoch = _next_epoch(group.epoch, group.site_number)
    record_changes(connection)
    _begin_epoch(connection, epoch)
    failpoints.hit_failpoint(Failpoint.REPLICA_PROMOTING)
    for table in (_SLOTS, _CHANGED, _REPORTED):
        connection.execute(sa.delete(table))
    update_group(
        connection,
        role=SiteRole.PRIMARY,
        epoch=epoch,
        protected_from=None,
        promotable_from=None,
        primary_url=None,
        handed_to=None,
        switch_requested=False,
        # It follows the next primary.
        suspended=False,
        state_at=now,
        last_error=None,
    )
    return epoch


def close_primary(connection: sa.Connection) -> None:
    """Reject writes at the primary, so that a follower can copy its last state."""
    reject_writes(connection)
    update_group(connection, role=SiteRole.CLOSING)


def reopen_primary(connection: sa.Connection) -> None:
    """Accept writes again, because the followers are unavailable during a planned switch."""
    group = find_group(connection, lock=True)
    if group is not None and group.role is SiteRole.CLOSING:
        record_changes(connection)
        update_group(connection, role=SiteRole.PRIMARY)


def fence(
    connection: sa.Connection, primary_url: str | None, *, handed_to: str | None = None
) -> None:
    """Reject writes, because another site is the primary of a newer epoch.

    `handed_to` is the follower that has the last state and becomes the primary.
    """
    # Services that start together fence the site together. Only one at a time can replace the triggers.
    find_group(connection, lock=True)
    reject_writes(connection)
    update_group(
        connection,
        role=SiteRole.FENCED,
        primary_url=primary_url,
        handed_to=handed_to,
        protected_from=None,
        promotable_from=None,
    )


def _begin_epoch(connection: sa.Connection, epoch: int) -> None:
    floor = epoch * SEQUENCERS_PER_EPOCH
    connection.execute(sa.update(model.deployment).values(sequencer_floor=floor))
    connection.execute(sa.update(_CHANNELS).values(client_sequencer=floor))


def _next_epoch(epoch: int, site_number: int) -> int:
    """Return the lowest epoch above `epoch` that this site may begin."""
    following = epoch + 1
    return following + (site_number - following) % MAX_SITES


def list_diverged_changes(connection: sa.Connection) -> list[sa.Row[tuple[object, ...]]]:
    """Return the changes that only this site had when it lost the role of primary, oldest first."""
    return list(connection.execute(sa.select(_DIVERGED).order_by(_DIVERGED.c.change_id)))


def require_failover(group: FailoverGroup, site: str) -> None:
    """Check that the group allows the promotion of a site.

    Raises:
        GroupConflict: If it is a replication group, whose replicas are never promoted.
    """
    if group.kind != "FAILOVER":
        raise GroupConflict(
            reason=f"Site {site} claims a higher epoch, and group {group.name} is a replication group, "
            "whose replicas are never promoted"
        )


def require_known_sites(settings: GroupSettings, site: str) -> None:
    """Check that a site may follow.

    Raises:
        UserError: If the group does not allow it.
    """
    if site not in settings.allowed_sites:
        raise UserError(
            f"Site {site} may not follow this group. ALTER FAILOVER GROUP … ADD {site} TO "
            "ALLOWED_ACCOUNTS allows it."
        )
