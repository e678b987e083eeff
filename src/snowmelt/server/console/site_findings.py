"""Find problems of a failover group. The remedies are those of the runbook."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from snowmelt.catalog.objects.failover_groups import FailoverGroup, SiteRole, find_group
from snowmelt.catalog.views.sites import (
    MAX_LAG_S,
    ReplicaView,
    count_diverged_changes,
    list_replicas,
    measure_lag,
)
from snowmelt.schema.types import to_display_name
from snowmelt.server.console.findings import NOTE, WRONG
from snowmelt.server.console.layout import format_quantity, format_seconds, href
from snowmelt.server.console.request import ConsoleProblem, PageRequest

_DAY = dt.timedelta(days=1)


def list_site_problems(page: PageRequest) -> Iterator[ConsoleProblem]:
    """Yield the problems of the failover group that this site can detect."""
    group = find_group(page.connection)
    if group is None:
        return
    if group.is_primary:
        for replica in list_replicas(page.connection, group, page.now):
            yield from _check_replica(page, group, replica)
    else:
        yield from _check_follower(page, group)
    changes = count_diverged_changes(page.connection, page.now - _DAY)
    if changes:
        yield ConsoleProblem(
            NOTE,
            "Another site replaced this site as the primary. Only this site has"
            f" {format_quantity(changes, 'change')} from before.",
            "Clients send their rows again. Read the list of diverged changes, and run"
            " its loads again.",
            path=href("/sites"),
        )


def _check_replica(
    page: PageRequest, group: FailoverGroup, replica: ReplicaView
) -> Iterator[ConsoleProblem]:
    site, name = to_display_name(replica.site), to_display_name(group.name)
    remove = f"ALTER FAILOVER GROUP {name} REMOVE {site} FROM ALLOWED_ACCOUNTS"
    if replica.state == "not connected":
        yield ConsoleProblem(
            NOTE,
            f"Site {site} may follow this site, but it has sent no request yet.",
            f"Set it up as the page Sites shows. If there is no such site: {remove}",
            path=href("/sites"),
        )
    elif replica.state == "silent":
        silent = format_seconds(replica.measure_silence(page.now))
        waiting = ""
        if replica.waiting_tokens:
            waiting = (
                f" {format_quantity(replica.waiting_tokens, 'offset token')} of this site cannot be"
                " reported to clients until it responds; the rows are committed here."
            )
        yield ConsoleProblem(
            WRONG,
            f"Site {site} has sent no request for {silent}.{waiting}",
            "Start the service of the site, and check the network between the sites. If the site stays"
            f" unavailable, remove it from the group, which ends the protection: {remove}",
            since=replica.requested_at,
            has_duration=True,
            path=href("/sites"),
        )


def _check_follower(page: PageRequest, group: FailoverGroup) -> Iterator[ConsoleProblem]:
    name, path = to_display_name(group.name), href("/sites")
    lag_s = measure_lag(group, page.now)
    age = "" if lag_s is None else f" Its state is {format_seconds(lag_s)} old."
    primary = group.primary_url or "of its group"
    if group.role is SiteRole.CLOSING:
        yield ConsoleProblem(
            NOTE,
            "This site hands over to another site, and rejects writes.",
            "Wait for the handover. If the other site stops, this site accepts writes again after 10 s.",
            path=path,
        )
    elif group.suspended:
        yield ConsoleProblem(
            NOTE,
            f"This site does not follow its primary: it is suspended.{age}",
            f"To follow again: ALTER FAILOVER GROUP {name} RESUME",
            since=group.state_at,
            has_duration=True,
            path=path,
        )
    elif group.last_error is not None:
        yield ConsoleProblem(
            WRONG,
            f"This site cannot follow the primary {primary}: {group.last_error}{age}",
            "Remove the cause. This site retries automatically. If the primary is lost, make this site"
            f" the primary: ALTER FAILOVER GROUP {name} PRIMARY",
            since=group.state_at,
            has_duration=True,
            path=path,
        )
    elif group.role is SiteRole.FENCED:
        yield ConsoleProblem(
            WRONG,
            "Another site replaced this site as the primary, and this site does not follow it yet."
            " It rejects writes.",
            "Wait until this site follows. Clients with the addresses of both sites find the new"
            " primary.",
            path=path,
        )
    elif lag_s is None:
        yield ConsoleProblem(
            NOTE,
            "This site is copying the first state of its primary. It has no tables until the copy is"
            " complete.",
            "Wait. The service copies the state automatically.",
            since=group.created_at,
            path=path,
        )
    elif lag_s > MAX_LAG_S:
        yield ConsoleProblem(
            WRONG,
            f"The state of this site is {format_seconds(lag_s)} old, and queries here return it.",
            "Compare the rate of new bytes at the primary with the bandwidth between the sites, and"
            " read the log of this service.",
            since=group.state_at,
            has_duration=True,
            path=path,
        )
