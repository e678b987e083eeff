"""Views of the catalog as JSON, with the rows, filters and cursors of the pages."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from snowmelt.catalog.jobs.leases import list_services
from snowmelt.catalog.objects.failover_groups import SiteRole, find_group
from snowmelt.catalog.views.channels import ChannelFilter, fetch_channels
from snowmelt.catalog.views.history import fetch_loads, fetch_maintenance_runs, fetch_migrations
from snowmelt.catalog.views.paging import PAGE_ROWS, Page
from snowmelt.catalog.views.pipes import fetch_pipes
from snowmelt.catalog.views.sites import fetch_diverged_changes, list_replicas, measure_lag
from snowmelt.catalog.views.tables import TableView, fetch_tables
from snowmelt.errors import RequestMalformed
from snowmelt.schema.types import TableName
from snowmelt.server.console.findings import list_findings
from snowmelt.server.console.pages.checks import require_account_view
from snowmelt.server.console.pages.kafka import find_partitions
from snowmelt.server.console.pages.sites import require_sites_view
from snowmelt.server.console.request import PageRequest

JSON_PATH = "/api/v1"
JsonView: TypeAlias = Callable[[PageRequest], dict[str, object]]


def find_view(path: str) -> JsonView | None:
    """Return the view at a path below `JSON_PATH`, or None if there is none."""
    return _VIEWS.get(path)


def _read_limit(page: PageRequest) -> int:
    text = page.get("limit", str(PAGE_ROWS))
    if not text.isdigit() or len(text) > 6:
        raise RequestMalformed(reason=f"limit is {text[:80]!r}. Use a number up to 1000")
    return int(text)


def _overview(page: PageRequest) -> dict[str, object]:
    activity = page.parts.activity.read() if page.visibility.is_account_visible else None
    tables = fetch_tables(page.connection, page.visibility, order="backlog", limit=20)
    services = list_services(page.connection) if page.visibility.is_account_visible else []
    return {
        "at": _to_json(page.now),
        "role": page.session.role,
        "findings": _to_json(list_findings(page)),
        "activity": _to_json(activity),
        "tables": _add_states(tables.rows, page),
        "services": [{**_to_json(each), "running": each.is_running(page.now)} for each in services],
    }


def _channels(page: PageRequest) -> dict[str, object]:
    only = page.get("only")
    chosen = ChannelFilter(
        text=page.get("find"),
        only_rejected=only == "rejected",
        late_at=page.now if only == "late" else None,
        is_bookkeeping=only == "bookkeeping",
    )
    found = fetch_channels(
        page.connection,
        page.visibility,
        chosen=chosen,
        now=page.now,
        order=page.get("sort", "name"),
        after=page.cursor,
        limit=_read_limit(page),
    )
    return _page_to_json("channels", found)


def _tables(page: PageRequest) -> dict[str, object]:
    found = fetch_tables(
        page.connection,
        page.visibility,
        text=page.get("find"),
        order=page.get("sort", "name"),
        after=page.cursor,
        limit=_read_limit(page),
    )
    return {"tables": _add_states(found.rows, page), "next": found.next_cursor}


def _loads(page: PageRequest) -> dict[str, object]:
    found = fetch_loads(
        page.connection,
        page.visibility,
        state=page.get("state"),
        after=page.cursor,
        limit=_read_limit(page),
    )
    return _page_to_json("loads", found)


def _pipes(page: PageRequest) -> dict[str, object]:
    found = fetch_pipes(
        page.connection, page.visibility, after=page.cursor, limit=_read_limit(page)
    )
    return _page_to_json("pipes", found)


def _migrations(page: PageRequest) -> dict[str, object]:
    found = fetch_migrations(
        page.connection, page.visibility, after=page.cursor, limit=_read_limit(page)
    )
    return _page_to_json("migrations", found)


def _maintenance(page: PageRequest) -> dict[str, object]:
    found = fetch_maintenance_runs(
        page.connection, page.visibility, after=page.cursor, limit=_read_limit(page)
    )
    return _page_to_json("maintenance", found)


def _checks(page: PageRequest) -> dict[str, object]:
    require_account_view(page)
    results = page.parts.checks.read()
    findings = list(results.findings)
    if page.visibility.with_tokens is not None:
        findings = [msgspec.structs.replace(each, detail="") for each in findings]
    return {
        "running": results.is_running,
        "checked_at": _to_json(results.checked_at),
        "tables": results.tables,
        "rows": results.rows,
        "findings": msgspec.to_builtins(findings),
        "installation": msgspec.to_builtins(results.installation),
        "failures": list(results.failures),
    }


def _kafka(page: PageRequest) -> dict[str, object]:
    found = find_partitions(page, page.get("find"))[: _read_limit(page)]
    return {
        "partitions": [{**_to_json(each), "state": each.find_state(page.now)} for each in found]
    }


def _sites(page: PageRequest) -> dict[str, object]:
    require_sites_view(page)
    group = find_group(page.connection)
    found = fetch_diverged_changes(page.connection, after=page.cursor, limit=_read_limit(page))
    if group is None:
        summary, replicas = None, []
    else:
        replicas = list_replicas(page.connection, group, page.now) if group.is_primary else []
        summary = {
            "name": group.name,
            "kind": group.kind,
            "site": group.site,
            "role": group.role.value,
            "epoch": group.epoch,
            "behind_s": measure_lag(group, page.now),
            "promotable": group.is_promotable if group.role is SiteRole.SECONDARY else None,
            "last_error": group.last_error,
        }
    return {
        "group": summary,
        "replicas": _to_json(replicas),
        **_page_to_json("diverged_changes", found),
    }


_VIEWS: dict[str, JsonView] = {
    "/overview": _overview,
    "/channels": _channels,
    "/tables": _tables,
    "/loads": _loads,
    "/pipes": _pipes,
    "/migrations": _migrations,
    "/maintenance": _maintenance,
    "/checks": _checks,
    "/kafka": _kafka,
    "/sites": _sites,
}


def _page_to_json(name: str, page: Page[Any]) -> dict[str, object]:
    return {name: _to_json(page.rows), "next": page.next_cursor}


def _add_states(rows: Sequence[TableView], page: PageRequest) -> list[Any]:
    return [{**_to_json(each), "state": each.find_freshness_state(page.now)} for each in rows]


def _to_json(value: Any) -> Any:
    if isinstance(value, TableName):
        return str(value)
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat(timespec="milliseconds")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (each.name for each in dataclasses.fields(value))
        return {name: _to_json(getattr(value, name)) for name in names}
    if isinstance(value, list | tuple):
        return [_to_json(each) for each in value]
    return value
