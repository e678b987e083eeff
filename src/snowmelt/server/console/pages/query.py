"""Pages for SQL queries, rows of tables, and replay of rejected rows.

A query reads one snapshot, with the limits of the statement API.
"""

from __future__ import annotations

import re
import shlex
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from snowmelt.catalog.statements.executor import is_query
from snowmelt.catalog.views.history import WITH_REJECTS, LoadView, fetch_loads, find_load_view
from snowmelt.catalog.views.tables import list_table_names
from snowmelt.clock import SystemClock
from snowmelt.errors import PrivilegeMissing, SnowmeltError, StatementFailed
from snowmelt.schema.types import TableName, quote_literal, to_display_name, to_internal_name
from snowmelt.server.console.layout import (
    RESULT,
    ConsolePage,
    channel_path,
    data_table,
    empty,
    form,
    format_quantity,
    format_seconds,
    link,
    panel,
    segment,
    table_path,
)
from snowmelt.server.console.markup import EMPTY, Child, Html, cut, join, tag
from snowmelt.server.console.pages.action import ActionRequest
from snowmelt.server.console.pages.runs import render_load_table
from snowmelt.server.console.pages.tables import find_visible_table
from snowmelt.server.console.request import PageRequest
from snowmelt.wire.statements import StatementResponse, decode_rows

_MAX_SHOWN_ROWS = 1_000
_SAMPLE_ROWS = 20
_OBJECT_TABLE = re.compile(r"\bS3Object\b", re.IGNORECASE)
_MAX_LOADS = 20


async def show_query(request: ActionRequest) -> ConsolePage:
    """Return the form, and the result of a sent query."""
    text = request.fields.get("sql") or request.query.get("sql", "")
    result = EMPTY
    request.parts.queries.warm_up()
    if request.fields:
        result = await _render_result(request, text)
    settings = request.parts.settings
    limits = (
        f"DuckDB, in a process with {settings.query_memory_bytes >> 20} MiB and"
        f" {settings.query_timeout_s:g} s; one query per user. Run queries that are rejected here with Spark."
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
        fragment=RESULT,
    )
    return ConsolePage(
        "Query tables",
        "What is in a table, right now?",
        [editor, tag("p", limits, class_="quiet"), tag("div", result, id=RESULT)],
        section="Query tables",
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
        pointer = EMPTY
        if _OBJECT_TABLE.search(text):
            pointer = join(
                " S3Object is an object of a bucket: ", link("Select from a file", "/select"), "."
            )
        return tag("p", str(error), pointer, class_="error", role="alert")
    took = format_seconds(SystemClock().monotonic() - began)
    return panel(
        "Result",
        tag("p", f"{format_quantity(len(rows), 'row')} in {took}."),
        render_rows(columns, rows, f"Result, {format_quantity(len(rows), 'row')}"),
    )


async def run_query(
    request: ActionRequest, text: str
) -> tuple[Sequence[str], list[tuple[object, ...]]]:
    """Return columns and rows of a query, run as the role of the session.

    Raises:
        SnowmeltError: If the query fails or exceeds a limit.
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
    """Return rows as a table. Shortens long values."""
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
    """Return a page with the first rows of a table."""
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
    """Return a page with the rejected records of one load."""
    load = await request.read(_find_load)
    text = (
        "SELECT row_number AS record, column_name, rejected_reason, rejected_data, file_name FROM"
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


@dataclass(frozen=True, slots=True)
class _RejectedRows:
    """Locations of a table's rejected rows: its error table, and loads with rejected records."""

    table: TableName
    error_table: TableName | None
    can_read: bool
    loads: Html


async def show_rejected(request: ActionRequest) -> ConsolePage:
    """Return the rejected rows of a table, and replay rows if the form was sent.

    If the request names a channel, the page has only the rows of this channel.
    """
    found = await request.read(_find_rejected_rows)
    name, error_table, channel = found.table, found.error_table, request.query.get("channel", "")
    path = f"{table_path(name)}/rejected"
    title, question = (
        f"Rejected rows of {name}",
        "What was rejected, why, and can it be inserted again?",
    )
    blocks: list[Html] = [_back(name)]
    copies: dict[str, str] = {}
    if channel:
        title = f"Rejected rows of channel {channel}"
        all_rows = link(f"all rejected rows of {name}", path)
        to_channel = link(f"Channel {channel}", channel_path(name, channel))
        blocks = [tag("p", to_channel, " · ", all_rows)]
    if error_table is None:
        blocks.append(
            empty(
                "Rows that channels of this table reject are not stored. Set an error table:",
                f'snowmelt sql "ALTER TABLE {name} SET ERROR_TABLE = {name}_errors"',
            )
        )
    else:
        if request.fields and not found.can_read:
            raise PrivilegeMissing(
                role=request.session.role, privilege="SELECT", object=str(error_table)
            )
        if request.fields:
            is_dry = request.fields.get("how") != "replay"
            blocks.append(await _replay(request, name, is_dry=is_dry))
        text = _select_rejected(error_table, name, channel)
        if not channel:
            blocks.append(
                form(
                    path,
                    request.session,
                    tag(
                        "p",
                        "Remove the cause of the rejection first. Each row is inserted at most once.",
                    ),
                    tag("button", "Dry run", name="how", value="dry-run"),
                    " ",
                    tag("button", "Replay", name="how", value="replay"),
                )
            )
        if found.can_read:
            blocks.append(await _render_rejected(request, name, text))
        copies = {"terminal": f"snowmelt replay {name} --dry-run", "SQL": text}
    if not channel:
        blocks.append(found.loads)
    return ConsolePage(title, question, blocks, section="Tables", copies=copies)


def _select_rejected(error_table: TableName, table: TableName, channel: str) -> str:
    """Return the statement that selects rejected rows. Excludes the marks of replayed rows."""
    chosen = f"table_name = {quote_literal(str(table))} AND protocol IN ('sdk', 'rows', 'copy')"
    if channel:
        # Clients store a channel's name in SQL notation, and the row API stores the internal name.
        names = ", ".join(map(quote_literal, dict.fromkeys((channel, to_display_name(channel)))))
        chosen = f"{chosen} AND protocol <> 'copy' AND source IN ({names})"
    return (
        "SELECT refused_at, protocol, source, column_name, reason, row_data, offset_token"
        f" FROM {error_table} WHERE {chosen} ORDER BY refused_at DESC LIMIT 100"
    )


async def _render_rejected(request: ActionRequest, table: TableName, text: str) -> Html:
    try:
        _, rows = await run_query(request, text)
    except SnowmeltError as error:
        return tag("p", str(error), class_="error", role="alert")
    if not rows:
        return empty("The error table has no matching row.")
    cells: list[list[Child]] = []
    for at, protocol, source, column, reason, row, token in rows:
        name = str(source)
        if protocol == "copy":
            origin = join("load ", link(name, f"/loads/{segment(name)}"))
        else:
            channel = to_internal_name(name) if name.startswith('"') else name
            origin = join("channel ", link(channel, channel_path(table, channel)))
        when = f"{str(at)[:19]} UTC"
        data = "" if row is None else tag("code", cut(str(row)), title=str(row)[:2_000])
        cells.append(
            [when, origin, *map(_render_value, (column, reason)), data, _render_value(token)]
        )
    columns = ("rejected at", "origin", "column", "reason", "row", "offset token or file")
    count = format_quantity(len(rows), "row")
    return data_table(columns, cells, caption=f"Error table, {count}, newest first")


def _find_rejected_rows(page: PageRequest) -> _RejectedRows:
    table = find_visible_table(page)
    ids = [table.error_table_id] if table.error_table_id else []
    error_table = list_table_names(page.connection, ids).get(table.error_table_id or 0)
    can_read = table.error_table_id is not None and page.visibility.can_read(table.error_table_id)
    found = fetch_loads(
        page.connection,
        page.visibility,
        table_id=table.table_id,
        state=WITH_REJECTS,
        limit=_MAX_LOADS,
    )
    loads = empty("No load rejected a record of this table.")
    if found.rows:
        loads = join(
            tag(
                "p",
                "The number of rejects is a link to the records if the statement kept them with REJECTED DATA AS"
                " TABLE.",
            ),
            render_load_table(page, found.rows, with_table=False),
        )
    return _RejectedRows(table.name, error_table, can_read, panel("Rejected by loads", loads))


async def _replay(request: ActionRequest, name: TableName, *, is_dry: bool) -> Html:
    try:
        said = await request.parts.workers.replay(request.session, str(name), is_dry=is_dry)
    except SnowmeltError as error:
        return tag("p", str(error), class_="error", role="alert")
    return panel("Dry run" if is_dry else "Replay", tag("pre", tag("code", said)))


def _back(name: TableName) -> Html:
    return tag("p", link(f"Table {name}", table_path(name)))
