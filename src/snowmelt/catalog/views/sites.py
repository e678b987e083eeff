"""Sites of a failover group, and the diverged changes of a former primary."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.model.records import FAILOVER, PUBLIC
from snowmelt.catalog.objects.failover_groups import (
    FailoverGroup,
    SiteRole,
    list_slots,
)
from snowmelt.catalog.security.access_control import has_account_privilege
from snowmelt.catalog.views.paging import PAGE_ROWS, Order, Page, fetch_page
from snowmelt.catalog.views.visibility import Visibility

# The alerts SnowmeltReplicaBehind and SnowmeltReplicaSilent have the same limits.
MAX_LAG_S = 60.0
MAX_SILENCE_S = 60.0
# A secondary that is at most this far behind is current: while rows stream, some always wait.
MAX_CURRENT_LAG_S = 5.0
_CHANNELS, _REPORTED, _TABLES = model.channels, model.reported_channels, model.tables
_DIVERGED = model.diverged_changes


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """State of a secondary, as recorded at the primary.

    `state` is `current` (at most 5 s behind), `catching up`, `copying` (its first state), `silent`, or `not connected`
    (it has sent no request). `waiting_tokens` is the number of channels whose committed offset
    token the secondary lacks; None if offset tokens do not wait for it. `behind_s` is the time
    since it certainly had every row; 0 if it has every row, None if it never had a state.
    """

    site: str
    state: str
    url: str | None = None
    states_behind: int | None = None
    requested_at: dt.datetime | None = None
    waiting_tokens: int | None = None
    behind_s: float | None = None

    def measure_silence(self, now: dt.datetime) -> float | None:
        """Return the seconds since the secondary's last request, or None if it has sent none."""
        return None if self.requested_at is None else (now - self.requested_at).total_seconds()


@dataclass(frozen=True, slots=True)
class DivergedChangeView:
    """A change that only a former primary had when it was replaced. `detail` is JSON."""

    at: dt.datetime
    epoch: int
    kind: str
    table_name: str
    channel: str | None
    path: str | None
    detail: str


def can_see_sites(connection: sa.Connection, visibility: Visibility) -> bool:
    """Return True if the role may see the sites: it has MONITOR or FAILOVER on the account."""
    return visibility.is_account_visible or has_account_privilege(
        connection, (visibility.role, PUBLIC), FAILOVER
    )


def list_replicas(
    connection: sa.Connection, group: FailoverGroup, now: dt.datetime
) -> list[ReplicaView]:
    """Return the secondaries of a primary by name, including allowed ones that have sent no request."""
    found = {site: ReplicaView(site, "not connected") for site in group.settings.allowed_sites}
    for slot in list_slots(connection):
        behind = None if slot.point is None else group.point - slot.point
        waiting, oldest_at = None, None
        if slot.protected_from is not None and group.protects_tokens:
            waiting, oldest_at = _find_waiting_tokens(connection, slot.site)
        behind_s = None if behind is None else 0.0
        if behind or waiting or (now - slot.requested_at).total_seconds() > MAX_CURRENT_LAG_S:
            # The secondary lacks the oldest waiting commit, and may lack all commits since its last
            # request.
            since = min(oldest_at or slot.requested_at, slot.requested_at)
            behind_s = None if behind is None else max((now - since).total_seconds(), 0.0)
        if (now - slot.requested_at).total_seconds() > MAX_SILENCE_S:
            state = "silent"
        elif behind is None:
            state = "copying"
        else:
            state = "current" if (behind_s or 0.0) <= MAX_CURRENT_LAG_S else "catching up"
        found[slot.site] = ReplicaView(
            slot.site, state, slot.url, behind, slot.requested_at, waiting, behind_s
        )
    return [found[site] for site in sorted(found)]


def measure_lag(group: FailoverGroup, now: dt.datetime) -> float | None:
    """Return the age of a secondary's state in seconds; None if the site has no state of a primary."""
    if group.role is not SiteRole.SECONDARY or group.state_at is None:
        return None
    return (now - group.state_at).total_seconds()


def fetch_diverged_changes(
    connection: sa.Connection, *, after: str | None = None, limit: int = PAGE_ROWS
) -> Page[DivergedChangeView]:
    """Return a page of changes that only a former primary had, newest first.

    Raises:
        RequestMalformed: If the cursor is invalid.
    """
    names = DivergedChangeView.__slots__
    return fetch_page(
        connection,
        sa.select(*(_DIVERGED.c[name] for name in names)),
        Order(_DIVERGED.c.change_id, _DIVERGED.c.change_id, is_descending=True),
        lambda row: DivergedChangeView(*(getattr(row, name) for name in names)),
        after=after,
        limit=limit,
    )


def count_diverged_changes(connection: sa.Connection, since: dt.datetime) -> int:
    """Return the number of diverged changes that were recorded since a time."""
    query = sa.select(sa.func.count()).where(_DIVERGED.c.at >= since)
    return connection.execute(query).scalar_one()


def _find_waiting_tokens(connection: sa.Connection, site: str) -> tuple[int, dt.datetime | None]:
    """Return how many channels have a committed offset token that a site lacks, and the oldest commit."""
    has_state = sa.and_(_REPORTED.c.channel_id == _CHANNELS.c.channel_id, _REPORTED.c.site == site)
    query = (
        sa.select(
            sa.func.count(), sa.func.min(_CHANNELS.c.last_commit_at, type_=model.UtcTimestamp)
        )
        .select_from(
            _CHANNELS.join(_TABLES, _TABLES.c.table_id == _CHANNELS.c.table_id).outerjoin(
                _REPORTED, has_state
            )
        )
        .where(_TABLES.c.dropped_at.is_(None), _CHANNELS.c.offset_token.is_not(None))
        .where(_REPORTED.c.offset_token.is_distinct_from(_CHANNELS.c.offset_token))
    )
    count, oldest_at = connection.execute(query).one()
    return count, oldest_at
