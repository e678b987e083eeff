"""Functions: external functions, their services and settings."""

from __future__ import annotations

from snowmelt.catalog.objects.external_functions import (
    list_api_integrations,
    list_external_functions,
)
from snowmelt.catalog.security.access_control import VisibleObjects
from snowmelt.schema.types import to_display_name
from snowmelt.server.console.layout import ConsolePage, data_table, empty, panel
from snowmelt.server.console.markup import Html, cut, tag
from snowmelt.server.console.request import PageRequest


def show_functions(page: PageRequest) -> ConsolePage:
    """Return the page."""
    return ConsolePage(
        "Functions",
        "Which services does SQL call, and how?",
        [_render_functions(page), _render_integrations(page), _explain_calls()],
        section="Functions",
        copies={"SQL": "SHOW EXTERNAL FUNCTIONS IN ACCOUNT"},
    )


def _render_functions(page: PageRequest) -> Html:
    visible = VisibleObjects(page.connection, page.session.role)
    found = [
        each
        for each in list_external_functions(page.connection)
        if visible.includes_schema_object(*each.securable, each.schema_id, each.database_id)
    ]
    if not found:
        return empty(
            "There is no external function, or this role may use none. The tutorial makes one:",
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


def _explain_calls() -> Html:
    return panel(
        "Calls",
        tag(
            "p",
            "Spark sessions record their calls, with attempts, errors and times. They show them:",
        ),
        tag("pre", tag("code", 'lake.sql("SELECT * FROM information_schema.function_calls")')),
    )
