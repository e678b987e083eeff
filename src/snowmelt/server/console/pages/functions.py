"""Page Functions: external functions with their services, settings and calls."""

from __future__ import annotations

import datetime as dt

from snowmelt.catalog.model.records import ACCOUNTADMIN
from snowmelt.catalog.objects.external_functions import (
    can_use_function,
    list_api_integrations,
    list_external_functions,
)
from snowmelt.catalog.security.access_control import VisibleObjects
from snowmelt.errors import SnowmeltError
from snowmelt.schema.types import to_display_name
from snowmelt.server.console.layout import (
    ConsolePage,
    choice_field,
    data_table,
    empty,
    filter_form,
    format_bytes,
    format_number,
    format_seconds,
    panel,
    state_mark,
)
from snowmelt.server.console.markup import Html, cut, join, tag
from snowmelt.server.console.pages.action import ActionRequest
from snowmelt.server.console.request import PageRequest
from snowmelt.server.console.workers import CallsResult, CallsTask, FailedCall

_DAYS = (("1", "today"), ("7", "the last 7 days"), ("30", "the last 30 days"))


async def show_functions(request: ActionRequest) -> ConsolePage:
    """Return functions and integrations, and the calls of the number of days in the URL."""
    text = request.query.get("days", "1")
    days = int(text) if text in dict(_DAYS) else 1
    listed = await request.read(
        lambda page: join(_render_functions(page), _render_integrations(page))
    )
    names, today = await request.read(_find_callable)
    task = CallsTask(names, today - dt.timedelta(days=days - 1))
    try:
        calls = _render_calls(await request.parts.workers.read_calls(task))
    except SnowmeltError as error:
        calls = tag("p", str(error), class_="error", role="alert")
    chosen = filter_form("/functions", choice_field("days", "Calls of", str(days), _DAYS))
    return ConsolePage(
        "Functions",
        "Which services does SQL call, and do they answer?",
        [chosen, calls, listed],
        section="Functions",
        copies={
            "SQL": "SHOW EXTERNAL FUNCTIONS IN ACCOUNT",
            "calls (Spark)": f"lake.calls(days={days})",
        },
    )


def _find_callable(page: PageRequest) -> tuple[list[str] | None, dt.date]:
    """Return the functions whose calls the role may see (None: all), and the current date."""
    if page.session.role == ACCOUNTADMIN:
        return None, page.now.date()
    names = [
        str(each.name)
        for each in list_external_functions(page.connection)
        if can_use_function(page.connection, page.session.role, each)
    ]
    return names, page.now.date()


def _render_calls(found: CallsResult) -> Html:
    if not found.functions:
        return panel("Calls", empty("No function of this role was called in this time."))
    rows = [
        (
            each.function,
            state_mark("failed" if each.failed else "fine"),
            format_number(each.batches),
            format_number(each.rows),
            format_number(each.retried),
            format_number(each.failed),
            format_number(each.row_errors),
            f"{format_seconds(each.p50_ms / 1000)} · {format_seconds(each.p99_ms / 1000)}",
            f"{format_bytes(each.bytes_sent)} · {format_bytes(each.bytes_received)}",
        )
        for each in found.functions
    ]
    columns = (
        *("function", "state", "batches", "rows", "retried", "failed", "row errors"),
        *("p50 · p99", "sent · received"),
    )
    numeric = "batches,rows,retried,failed,row errors,p50 · p99,sent · received"
    caption = "Batches of rows that were sent to services"
    if not found.is_complete:
        caption += "; the oldest ones are omitted"
    return panel(
        "Calls",
        data_table(columns, rows, caption=caption, numeric=numeric),
        _render_failed_calls(found.failed) if found.failed else None,
    )


def _render_failed_calls(failed: list[FailedCall]) -> Html:
    rows = [
        (
            each.started_at[:19].replace("T", " "),
            each.function,
            format_number(each.attempts),
            "no response" if each.status is None else str(each.status),
            cut(each.error),
            tag("code", each.batch_id),
        )
        for each in failed
    ]
    columns = ("started (UTC)", "function", "attempts", "HTTP status", "error", "batch")
    return data_table(columns, rows, caption="Failed batches, newest first", numeric="attempts")


def _render_functions(page: PageRequest) -> Html:
    visible = VisibleObjects(page.connection, page.session.role)
    found = [
        each
        for each in list_external_functions(page.connection)
        if visible.includes_schema_object(*each.securable, each.schema_id, each.database_id)
    ]
    if not found:
        return empty(
            "There is no external function, or this role may use none. The tutorial creates one:",
            "docs/tutorials/first-external-function.md",
        )
    rows = [
        (
            str(each.name),
            cut(each.function.url),
            to_display_name(each.function.integration),
            str(each.function.volatility),
            _limit(each.function.max_batch_rows, "rows"),
            _limit(each.function.max_in_flight, "calls"),
            _limit(each.function.rate_limit, "per s"),
            each.owner,
        )
        for each in found
    ]
    columns = (
        "function",
        "service",
        "integration",
        "volatility",
        "batch",
        "in flight",
        "rate",
        "owner",
    )
    return panel("External functions", data_table(columns, rows, caption="Functions of this role"))


def _limit(number: float | None, unit: str) -> str:
    return "default" if number is None else f"{number:g} {unit}"


def _render_integrations(page: PageRequest) -> Html:
    visible = VisibleObjects(page.connection, page.session.role)
    found = [
        each
        for each in list_api_integrations(page.connection)
        if visible.includes_account_object("INTEGRATION", each.integration_id)
    ]
    if not found:
        return empty("There is no integration, or this role may use none.")
    rows = [
        (each.integration.name, "yes" if each.integration.enabled else "no", each.owner)
        for each in found
    ]
    return panel(
        "Integrations",
        data_table(("integration", "enabled", "owner"), rows, caption="Integrations of this role"),
    )
