"""Query: SQL over one snapshot, with the limits of the statement API; rows of tables; replay."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Sequence

import msgspec

from snowmelt.catalog.statements.executor import is_query
from snowmelt.catalog.views.history import LoadView, find_load_view
from snowmelt.catalog.views.tables import list_table_names
from snowmelt.clock import SystemClock
from snowmelt.errors import PrivilegeMissing, SnowmeltError, StatementFailed
from snowmelt.schema.types import TableName
from snowmelt.server.console.layout import (
    ConsolePage,
    data_table,
    empty,
    form,
    format_number,
    format_seconds,
    link,
    panel,
    segment,
    table_path,
)
from snowmelt.server.console.markup import EMPTY, Html, cut, tag
from snowmelt.server.console.pages.action import ActionRequest
from snowmelt.server.console.pages.tables import find_visible_table
from snowmelt.server.console.request import PageRequest
from snowmelt.wire.statements import StatementResponse, decode_rows

_MAX_SHOWN_ROWS = 1_000
_SAMPLE_ROWS = 20


async def show_query(request: ActionRequest) -> ConsolePage:
    """Return the form, and the result of what was sent."""
    text = request.fields.get("sql") or request.query.get("sql", "")
    result = EMPTY
    request.parts.queries.warm_up()
    if request.fields:
        result = await _render_result(request, text)
    settings = request.parts.settings
    limits = (
        f"DuckDB, in a process with {settings.query_memory_bytes >> 20} MiB and"
        f" {settings.query_timeout_s:g} s; one query per user. Spark runs what is refused here."
    )
    editor = form(
        "/query",
        request.session,
        tag(
            "label",
            tag("span", "SELECT over one table (Ctrl-Enter runs it)"),
            tag("textarea", text, name="sql", rows="5", spellcheck="false", required=True),
        ),
        tag("button", "Run"),
    )
    return ConsolePage(
        "Query",
        "What is in a table, right now?",
        [editor, tag("p", limits, class_="quiet"), result],
        section="Query",
        copies={} if not text else {"terminal": f"snowmelt sql {shlex.quote(text)}"},
    )


async def _render_result(request: ActionRequest, text: str) -> Html:
    began = SystemClock().monotonic()
    try:
        if not is_query(text):
            raise StatementFailed(
                reason="only queries run here: a SELECT over one table. Other statements run with"
                " `snowmelt sql`"
            )
        columns, rows = await run_query(request, text)
    except SnowmeltError as error:
        return tag("p", str(error), class_="error", role="alert")
    took = format_seconds(SystemClock().monotonic() - began)
    return panel(
        "Result",
        tag("p", f"{format_number(len(rows))} rows in {took}."),
        render_rows(columns, rows, f"Result, {len(rows)} rows"),
    )


async def run_query(
    request: ActionRequest, text: str
) -> tuple[Sequence[str], list[tuple[object, ...]]]:
    """Return columns and rows of a query, run as the role of the session.

    Raises:
        SnowmeltError: If it fails, or exceeds a limit.
    """
    body = await request.parts.queries.run(
        text,
        user=request.session.user or "(this machine)",
        role=request.session.role,
        namespace=[],
        handle=str(uuid.uuid4()),
    )
    response = msgspec.json.decode(body, type=StatementResponse)
    return decode_rows(response)


def render_rows(columns: Sequence[str], rows: Sequence[Sequence[object]], caption: str) -> Html:
    """Return rows as a table; long values are cut."""
    if not rows:
        return empty("No row.")
    return data_table(
        columns,
        [[_render_value(value) for value in row] for row in rows[:_MAX_SHOWN_ROWS]],
        caption=caption,
    )


def _render_value(value: object) -> Html | str:
    if value is None:
        return tag("span", "NULL", class_="quiet")
    return cut(value.hex() if isinstance(value, bytes) else str(value))


async def show_rows(request: ActionRequest) -> ConsolePage:
    """Return some rows of a table."""
    table = await request.read(find_visible_table)
    text = f"SELECT * FROM {table.name} LIMIT {_SAMPLE_ROWS}"
    return ConsolePage(
        f"Rows of {table.name}",
        "What do the rows look like?",
        [_back(table.name), await _render_result(request, text)],
        section="Tables",
        copies={"SQL": text},
    )


async def show_rejects(request: ActionRequest) -> ConsolePage:
    """Return the rejected records of one load."""
    load = await request.read(_find_load)
    text = (
        "SELECT file_name, row_number, column_name, rejected_reason, rejected_data FROM"
        f" {load.reject_table} WHERE load_id = '{load.load_id}' ORDER BY file_name, row_number LIMIT"
        f" {_MAX_SHOWN_ROWS}"
    )
    return ConsolePage(
        f"Rejected records of load {load.load_id}",
        "Which record of which file was rejected, and why?",
        [
            tag("p", link(f"Load {load.load_id}", f"/loads/{segment(load.load_id)}")),
            await _render_result(request, text),
        ],
        section="Loads",
        copies={"SQL": text},
    )


def _find_load(page: PageRequest) -> LoadView:
    load = find_load_view(page.connection, page.visibility, page.names[0])
    if load is None or load.reject_table is None:
        raise page.not_found("table with the rejected records of load", page.names[0])
    return load


async def show_rejected(request: ActionRequest) -> ConsolePage:
    """Return rows of the error table of a table, and replay them if the form was sent."""
    name, error_table, can_read = await request.read(_find_error_table)
    title = f"Rejected rows of {name}"
    question = "What was rejected, why, and may it go in again?"
    if error_table is None:
        blocks = [
            _back(name),
            empty(
                "No error table keeps the rejected rows of this table. Set one:",
                f'snowmelt sql "ALTER TABLE {name} SET ERROR_TABLE = {name}_errors"',
            ),
        ]
        return ConsolePage(title, question, blocks, section="Tables")
    done = EMPTY
    if request.fields and not can_read:
        raise PrivilegeMissing(
            role=request.session.role, privilege="SELECT", object=str(error_table)
        )
    if request.fields:
        done = await _replay(request, name, is_dry=request.fields.get("how") != "replay")
    text = (
        "SELECT refused_at, column_name, reason, row_data, source, offset_token, protocol"
        f" FROM {error_table} LIMIT 100"
    )
    controls = form(
        f"{table_path(name)}/rejected",
        request.session,
        tag("p", "Each row goes in at most once. Remove the reason first."),
        tag("button", "Show what would go in", name="how", value="dry-run"),
        " ",
        tag("button", "Replay", name="how", value="replay"),
    )
    rows = await _render_result(request, text) if can_read else EMPTY
    return ConsolePage(
        title,
        question,
        [_back(name), done, controls, rows],
        section="Tables",
        copies={"terminal": f"snowmelt replay {name} --dry-run", "SQL": text},
    )


def _find_error_table(page: PageRequest) -> tuple[TableName, TableName | None, bool]:
    table = find_visible_table(page)
    names = list_table_names(
        page.connection, [table.error_table_id] if table.error_table_id else []
    )
    can_read = table.error_table_id is not None and page.visibility.can_read(table.error_table_id)
    return table.name, names.get(table.error_table_id or 0), can_read


async def _replay(request: ActionRequest, name: TableName, *, is_dry: bool) -> Html:
    try:
        said = await request.parts.workers.replay(request.session, str(name), is_dry=is_dry)
    except SnowmeltError as error:
        return tag("p", str(error), class_="error", role="alert")
    return panel("Would go in" if is_dry else "Replayed", tag("pre", tag("code", said)))


def _back(name: TableName) -> Html:
    return tag("p", link(f"Table {name}", table_path(name)))
