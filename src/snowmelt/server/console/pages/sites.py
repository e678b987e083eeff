"""Page Sites: role of this site, lag of each secondary, and instructions for the loss of a site."""

from __future__ import annotations

from snowmelt.catalog.objects.failover_groups import FailoverGroup, SiteRole, find_group
from snowmelt.catalog.views.sites import (
    DivergedChangeView,
    ReplicaView,
    can_see_sites,
    fetch_diverged_changes,
    list_replicas,
    measure_lag,
)
from snowmelt.errors import PrivilegeMissing
from snowmelt.schema.types import to_display_name
from snowmelt.server.console.layout import (
    ConsolePage,
    Region,
    age,
    copy_button,
    data_table,
    empty,
    figures,
    format_number,
    format_seconds,
    href,
    pager,
    panel,
    state_mark,
)
from snowmelt.server.console.markup import EMPTY, Html, cut, join, tag
from snowmelt.server.console.pages.overview import render_problems
from snowmelt.server.console.request import PageRequest
from snowmelt.server.console.site_findings import list_site_problems

_ROLE_NOTES = {
    SiteRole.PRIMARY: "accepts writes",
    SiteRole.CLOSING: "hands over to another site",
    SiteRole.SECONDARY: "follows the primary, rejects writes",
    SiteRole.FENCED: "was replaced, rejects writes",
}


def show_sites(page: PageRequest) -> ConsolePage:
    """Return the page Sites."""
    require_sites_view(page)
    group = find_group(page.connection)
    changes = fetch_diverged_changes(page.connection, after=page.cursor)
    return ConsolePage(
        "Sites",
        "Is the second site current, and what do I do if a site is lost?",
        [
            Region("state", _render_no_group() if group is None else _render_state(page, group)),
            EMPTY if group is None else _render_remedies(group),
            Region("diverged", _render_changes(page, changes.rows)),
            pager("/sites", changes.next_cursor, page.query),
        ],
        section="Sites",
        copies={
            "SQL": "SHOW FAILOVER GROUPS",
            "SQL, secondaries": "SHOW REPLICAS",
            "SQL, changes": "SHOW DIVERGED CHANGES",
            "JSON": href("/api/v1/sites"),
        },
    )


def require_sites_view(page: PageRequest) -> None:
    """Verify that the role may see the sites.

    Raises:
        PrivilegeMissing: If the role lacks MONITOR and FAILOVER on the account.
    """
    if not can_see_sites(page.connection, page.visibility):
        raise PrivilegeMissing(
            role=to_display_name(page.session.role), privilege="MONITOR", object="the account"
        )


def _render_no_group() -> Html:
    return empty(
        "No other site follows this installation. A second site gets all rows about a second later,"
        " and can replace this site if it is lost. Create a group here, then a replica at the second"
        " site:",
        "CREATE FAILOVER GROUP sites ALLOWED_ACCOUNTS = site2 SITE = site1 …",
        "CREATE FAILOVER GROUP sites AS REPLICA OF site1.sites URL = 'https://…' SITE = site2 …",
    )


def _render_state(page: PageRequest, group: FailoverGroup) -> Html:
    problems = list(list_site_problems(page))
    shown = render_problems(problems, page) if problems else EMPTY
    if group.role in {SiteRole.SECONDARY, SiteRole.FENCED}:
        return join(shown, _render_secondary(page, group, has_problem=bool(problems)))
    return join(shown, _render_primary(page, group, has_problem=bool(problems)))


def _render_primary(page: PageRequest, group: FailoverGroup, *, has_problem: bool) -> Html:
    replicas = list_replicas(page.connection, group, page.now)
    well = EMPTY
    if replicas and not has_problem:
        well = tag(
            "p",
            f"This site is the primary, and {format_number(len(replicas))} secondaries follow it."
            if len(replicas) > 1
            else f"This site is the primary, and its secondary {to_display_name(replicas[0].site)} is"
            f" {replicas[0].state}.",
            class_="allwell",
        )
    waiting = max((each.waiting_tokens or 0 for each in replicas), default=0)
    tokens = (
        ("after replication", "a source may delete rows that every secondary has")
        if group.protects_tokens
        else ("after commit", "a failover may lose rows that a source has deleted")
    )
    return join(
        well,
        figures(
            (
                _role_figure(group),
                ("Tokens are reported", *tokens),
                ("Channels that wait", format_number(waiting), "for a secondary to get their rows"),
                ("Epoch", format_number(group.epoch), "grows with each failover"),
            )
        ),
        panel("Secondaries", _render_replicas(page, replicas)),
    )


def _render_replicas(page: PageRequest, replicas: list[ReplicaView]) -> Html:
    if not replicas:
        return empty("The group allows no other site. Allow one:", "ALTER FAILOVER GROUP … ADD …")
    return data_table(
        ("site", "state", "behind", "last request", "waiting tokens", "address"),
        [
            (
                to_display_name(each.site),
                state_mark(each.state),
                "–" if each.behind_s is None else f"{each.behind_s:,.0f} s",
                age(each.requested_at, page.now),
                "–" if each.waiting_tokens is None else format_number(each.waiting_tokens),
                cut(each.url or ""),
            )
            for each in replicas
        ],
        caption="Sites that follow this site, or may follow it",
        numeric="behind,waiting tokens",
    )


def _render_secondary(page: PageRequest, group: FailoverGroup, *, has_problem: bool) -> Html:
    lag_s = measure_lag(group, page.now)
    well = EMPTY
    if not has_problem and lag_s is not None:
        well = tag(
            "p",
            f"This site has the state of its primary of {format_seconds(lag_s)} ago.",
            class_="allwell",
        )
    can_replace = (
        ("yes", "it has all rows that were reported to clients")
        if group.is_promotable
        else ("not without loss", "it lacks rows that were reported to clients")
    )
    if group.kind != "FAILOVER":
        can_replace = ("no", "replicas of a replication group stay replicas")
    return join(
        well,
        figures(
            (
                _role_figure(group),
                (
                    "Behind the primary",
                    "–" if lag_s is None else f"{lag_s:,.0f} s",
                    "time since the primary had this state; its page Sites shows the rows",
                ),
                ("Can be the primary", *can_replace),
                ("Follows", cut(group.primary_url or "–"), ""),
                ("Epoch", format_number(group.epoch), "grows with each failover"),
            )
        ),
    )


def _role_figure(group: FailoverGroup) -> tuple[str, Html, str]:
    return (
        f"Site {to_display_name(group.site)} of {to_display_name(group.name)}",
        state_mark(group.role.value),
        _ROLE_NOTES[group.role],
    )


def _render_remedies(group: FailoverGroup) -> Html:
    """Return the instructions for a failover, which runs at the secondary."""
    if group.kind != "FAILOVER":
        return EMPTY
    alter = f"ALTER FAILOVER GROUP {to_display_name(group.name)}"
    if group.role is SiteRole.FENCED:
        return EMPTY
    where = "here" if group.role is SiteRole.SECONDARY else "at the secondary"
    steps: tuple[tuple[str, str | None], ...] = (
        (
            (
                "Make sure that the primary is lost. Stop its service if you can reach it, so that no"
                " client writes to it."
            ),
            None,
        ),
        (
            (
                f"Run this statement {where}, with the privilege FAILOVER. It is rejected if the"
                " secondary lacks rows that were reported to clients."
            ),
            f"{alter} PRIMARY",
        ),
        (
            "If it was rejected, wait for the primary to return, or accept the loss of those rows:",
            f"{alter} PRIMARY FORCE",
        ),
        (
            (
                "Clients with the addresses of both sites find the new primary. Give its address to"
                " the others, and start loads and connectors there."
            ),
            None,
        ),
        (
            (
                "Start the service of the old site again when it is repaired. It follows the new primary,"
                " and its page Sites lists the changes that only it had."
            ),
            None,
        ),
    )
    planned = f"{alter} PRIMARY PLANNED"
    return join(
        panel(
            "If the primary is lost",
            tag(
                "ol",
                (
                    tag(
                        "li",
                        what,
                        tag("div", tag("code", text), " ", copy_button(text)) if text else None,
                    )
                    for what, text in steps
                ),
            ),
        ),
        panel(
            "Planned switch",
            tag("p", f"The primary runs, and nothing is lost. Run this statement {where}:"),
            tag("p", tag("code", planned), " ", copy_button(planned)),
        ),
    )


def _render_changes(page: PageRequest, rows: list[DivergedChangeView]) -> Html:
    if not rows:
        if page.cursor is None:
            return EMPTY
        return empty("There are no further changes.")
    return panel(
        "Diverged changes",
        tag(
            "p",
            "Only this site had these changes when another site replaced it. Clients send rows of"
            " channels again. Run loads again. Blobs of other rows stay on the stage for a day.",
        ),
        data_table(
            ("recorded", "kind", "table", "channel", "file", "detail"),
            [
                (
                    age(each.at, page.now),
                    each.kind,
                    cut(each.table_name),
                    cut(each.channel or ""),
                    cut(each.path or ""),
                    tag("code", cut(_hide_tokens(page, each))),
                )
                for each in rows
            ],
            caption="Changes that only this site had, newest first",
        ),
    )


def _hide_tokens(page: PageRequest, change: DivergedChangeView) -> str:
    """Return the detail of a change. Only ACCOUNTADMIN sees its offset tokens."""
    if page.visibility.with_tokens is None:
        return change.detail
    return "hidden: needs the role ACCOUNTADMIN"
