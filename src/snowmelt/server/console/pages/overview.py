"""Page Overview: problems with remedies, throughput, freshness, backlog and services."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.jobs.leases import list_services
from snowmelt.catalog.views.activity import BUCKET_S, Activity
from snowmelt.catalog.views.freshness import is_bookkeeping_channel
from snowmelt.catalog.views.tables import fetch_tables
from snowmelt.server.console.findings import list_findings
from snowmelt.server.console.layout import (
    ConsolePage,
    Region,
    age,
    bar_chart,
    data_table,
    empty,
    figures,
    format_number,
    format_quantity,
    format_seconds,
    href,
    panel,
    since,
    state_mark,
    table_link,
)
from snowmelt.server.console.markup import EMPTY, Html, join, tag
from snowmelt.server.console.pages.checks import render_check_summary
from snowmelt.server.console.request import ConsoleProblem, PageRequest

_BARS = 60


def show_overview(page: PageRequest) -> ConsolePage:
    """Return the page Overview."""
    activity = page.parts.activity.read() if page.visibility.is_account_visible else None
    return ConsolePage(
        "Overview",
        "Is anything wrong, and what do I do?",
        [
            Region("findings", _render_findings(page)),
            Region("checks", _render_checks(page)),
            Region("figures", _render_figures(page, activity)),
            Region("chart", EMPTY if activity is None else _render_chart(activity)),
            Region("tables", _render_tables(page)),
            Region("services", _render_services(page)),
        ],
        section="Overview",
        copies={
            "terminal": "snowmelt top",
            "checks": "snowmelt doctor",
            "JSON": href("/api/v1/overview"),
        },
    )


def _render_findings(page: PageRequest) -> Html:
    found = list_findings(page)
    if not found:
        return tag("p", "The catalog shows no problem.", class_="allwell")
    return render_problems(found, page)


def render_problems(found: Iterable[ConsoleProblem], page: PageRequest) -> Html:
    """Return problems as a list, each with its remedy."""
    return tag("ul", (_render_finding(each, page) for each in found), class_="findings")


def _render_checks(page: PageRequest) -> Html:
    return render_check_summary(page) if page.visibility.is_account_visible else EMPTY


def _render_finding(finding: ConsoleProblem, page: PageRequest) -> Html:
    began = EMPTY
    if finding.since is not None and not finding.has_duration:
        at = since(finding.since, page.now)
        began = join(" Since ", tag("time", at, datetime=finding.since.isoformat()), ".")
    details = EMPTY if finding.path is None else join(" ", tag("a", "Details", href=finding.path))
    return tag(
        "li",
        tag("p", state_mark(finding.severity), ": ", finding.sentence, began, details),
        tag("p", finding.remedy, class_="remedy"),
        class_=finding.severity,
    )


def _render_figures(page: PageRequest, activity: Activity | None) -> Html:
    tables, channels, waiting, oldest = _count(page)
    items: list[tuple[str, str | Html, str]] = []
    if activity is not None:
        items += [
            ("Rows per second", format_number(activity.rows_per_s), "mean of 5 min"),
            (
                "Insert to query",
                f"{format_seconds(activity.p50_s)} · {format_seconds(activity.p99_s)}",
                "p50 · p99 of 5 min",
            ),
            (
                "Rows rejected by channels",
                f"{format_number(activity.rejected_per_minute)}/min",
                f"{format_number(activity.rejected_total)} in total",
            ),
            ("Last commit", age(activity.last_commit_at, page.now), "of any channel"),
        ]
    items += [
        (
            "Waiting for migration",
            format_quantity(waiting, "chunk"),
            "none"
            if oldest is None
            else f"oldest {format_seconds((page.now - oldest).total_seconds())}",
        ),
        ("Tables · channels", f"{format_number(tables)} · {format_number(channels)}", ""),
    ]
    return figures(items)


def _count(page: PageRequest) -> tuple[int, int, int, dt.datetime | None]:
    tables, channels, chunks = model.tables, model.channels, model.chunks
    waiting = tables.c.last_seq - tables.c.migrated_seq
    query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(waiting), 0)).where(
        tables.c.dropped_at.is_(None)
    )
    restrict = page.visibility.restrict
    count, backlog = page.connection.execute(restrict(query, tables.c.table_id)).one()
    query = sa.select(sa.func.count()).select_from(
        channels.join(tables, channels.c.table_id == tables.c.table_id)
    )
    query = query.where(tables.c.dropped_at.is_(None), sa.not_(is_bookkeeping_channel()))
    query = restrict(query, channels.c.table_id)
    opened = page.connection.execute(query).scalar_one()
    oldest = sa.select(sa.func.min(chunks.c.registered_at, type_=model.UtcTimestamp)).select_from(
        tables.join(
            chunks,
            sa.and_(
                chunks.c.table_id == tables.c.table_id, chunks.c.seq == tables.c.migrated_seq + 1
            ),
        )
    )
    oldest = restrict(oldest.where(tables.c.dropped_at.is_(None)), tables.c.table_id)
    return count, opened, int(backlog), page.connection.execute(oldest).scalar()


def _render_chart(activity: Activity) -> Html:
    per_bar = len(activity.rows_by_bucket) // _BARS
    buckets = activity.rows_by_bucket
    values = [sum(buckets[at : at + per_bar]) for at in range(0, len(buckets), per_bar)]
    span_s = per_bar * BUCKET_S
    labels = [
        (activity.at - dt.timedelta(seconds=span_s * (len(values) - number))).strftime("%H:%M UTC")
        for number in range(len(values))
    ]
    return bar_chart(values, title="Rows of each minute", unit="rows", labels=labels)


def _render_tables(page: PageRequest) -> Html:
    found = fetch_tables(page.connection, page.visibility, order="backlog", limit=10)
    if not found.rows:
        return empty(
            "There is no table yet, or this role may see none. Create one:",
            'snowmelt sql "CREATE DATABASE demo"',
            'snowmelt sql "CREATE TABLE demo.public.events (id NUMBER, what VARCHAR)"',
        )
    rows = [
        (
            table_link(each.name),
            state_mark(each.find_freshness_state(page.now)),
            format_number(each.channels),
            age(each.last_commit_at, page.now),
            format_number(each.waiting_chunks),
        )
        for each in found.rows
    ]
    return panel(
        "Tables with the most waiting chunks",
        data_table(
            ("table", "state", "channels", "last commit", "waiting chunks"),
            rows,
            caption="Ten tables, most waiting chunks first",
            numeric="channels,waiting chunks",
        ),
    )


def _render_services(page: PageRequest) -> Html:
    if not page.visibility.is_account_visible:
        return EMPTY
    rows = [
        (
            each.url,
            each.host,
            each.version,
            state_mark("fine" if each.is_running(page.now) else "crashed"),
            age(each.started_at, page.now),
        )
        for each in list_services(page.connection)
    ]
    table = data_table(
        ("address", "host", "version", "state", "started"), rows, caption="Services of this catalog"
    )
    return panel("Services", table)
