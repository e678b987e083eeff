"""Page Trace: trace of a token or row to commit, blob, migration, native files and snapshots."""

from __future__ import annotations

import shlex
from typing import Any

from snowmelt.errors import PrivilegeMissing, SnowmeltError
from snowmelt.schema.types import TableName, to_display_name
from snowmelt.server.console.layout import (
    ConsolePage,
    channel_path,
    data_table,
    empty,
    figures,
    filter_form,
    format_bytes,
    format_number,
    format_quantity,
    link,
    panel,
    short_code,
    table_link,
    table_path,
    text_field,
)
from snowmelt.server.console.markup import Html, cut, join, tag
from snowmelt.server.console.pages.action import ActionRequest
from snowmelt.server.console.pages.tables import find_visible_table
from snowmelt.server.console.request import PageRequest
from snowmelt.server.console.workers import TraceTask

_LIMIT = 10
_STATES = {
    "waiting": "The rows wait on the stage for migration. Queries read them there.",
    "native": "The rows are in a native file.",
    "changed": "A later run, statement or engine replaced the files with the rows.",
    "quarantined": "The blob cannot be decoded. Queries of the table fail until it is restored.",
    "discarded": "The chunk was discarded. Its rows are lost.",
}
# Texts about the migration, by the state of the chunk, so that both always agree.
_MIGRATIONS = {"waiting": "not yet", "quarantined": "excluded", "discarded": "excluded"}


def trace_path(table: TableName) -> str:
    """Return the path of the page that traces rows of a table."""
    return f"{table_path(table)}/trace"


async def show_trace(request: ActionRequest) -> ConsolePage:
    """Return the forms, and the trace for the parameters in the URL."""
    given = request.query
    channel, token = given.get("channel", ""), given.get("token", "")
    condition = given.get("where", "")

    def find_table(page: PageRequest) -> TableName:
        table = find_visible_table(page)
        sees = page.visibility.can_read if condition else page.visibility.can_see_tokens
        if not sees(table.table_id):
            raise PrivilegeMissing(
                role=page.session.role, privilege="SELECT", object=str(table.name)
            )
        return table.name

    name = await request.read(find_table)
    blocks = [tag("p", "Table ", table_link(name)), _render_forms(name, channel, token, condition)]
    copies = {}
    if channel or condition:
        task = TraceTask(str(name), "" if condition else channel, token, condition, _LIMIT)
        blocks.append(await _render_trace(request, name, task))
        chosen = ["--where", condition] if condition else ["--channel", to_display_name(channel)]
        if token and not condition:
            chosen += ["--token", token]
        copies = {"terminal": shlex.join(["snowmelt", "trace", str(name), *chosen])}
    return ConsolePage(
        f"Trace in {name}",
        "Where is this row or token, and how did it get there?",
        blocks,
        section="Tables",
        copies=copies,
    )


def _render_forms(name: TableName, channel: str, token: str, condition: str) -> Html:
    path = trace_path(name)
    return join(
        filter_form(
            path,
            text_field("channel", "Channel", channel, required=True),
            text_field("token", f"Offset token (empty: the last {_LIMIT} commits)", token),
            label="Trace a channel",
        ),
        filter_form(
            path,
            text_field(
                "where", "Rows with (SQL condition, such as id = 7)", condition, required=True
            ),
            label="Trace rows",
        ),
    )


async def _render_trace(request: ActionRequest, name: TableName, task: TraceTask) -> Html:
    try:
        found = await request.parts.workers.trace(task)
    except SnowmeltError as error:
        return tag("p", str(error), class_="error", role="alert")
    if not found:
        return empty(f"No row of {name} satisfies this condition.")
    if task.condition:
        return join(*(_render_row(name, row) for row in found))
    return join(*(_render_chunk(name, chunk) for chunk in reversed(found)))


def _render_row(name: TableName, row: dict[str, Any]) -> Html:
    values = row["values"]
    origin = ""
    if row["loads"]:
        origin = "It was loaded by " + ", ".join(
            each or "a load older than the records of native files" for each in row["loads"]
        )
    elif len(row["chunks"]) > 1:
        origin = f"It comes from one of {len(row['chunks'])} chunks, because its file is sorted."
    elif not row["chunks"]:
        origin = "Its origin is not recorded: the file is older than the lineage."
    return panel(
        f"Row {format_number(row['row'])} of its file",
        data_table(
            list(values),
            [[cut("NULL" if each is None else str(each)) for each in values.values()]],
            caption=f"Values, in {row['path']}",
        ),
        tag("p", origin) if origin else None,
        [_render_chunk(name, chunk) for chunk in row["chunks"][:_LIMIT]],
    )


def _render_chunk(name: TableName, chunk: dict[str, Any]) -> Html:
    blob, state = chunk["blob"], chunk["state"]
    migration = _MIGRATIONS.get(state, "done")
    run = ""
    if chunk["migration"] is not None and migration == "done":
        at = chunk["migrated_at"]
        run = f"run {chunk['migration']}, committed {_shorten(at) if at else 'at an unknown time'}"
    steps = figures(
        (
            ("Committed", _shorten(chunk["registered_at"]), format_quantity(chunk["rows"], "row")),
            ("Rows are", state, _STATES.get(state, "")),
            ("Migration", migration, run),
            (
                "Blob",
                tag("code", cut(blob["path"])),
                f"{format_bytes(blob['length'])} at byte {blob['offset']}, MD5 {blob['md5']}",
            ),
        )
    )
    return panel(
        f"Chunk {format_number(chunk['seq'])}",
        steps,
        _render_channels(name, chunk["channels"]),
        _render_files(chunk["files"]),
    )


def _render_channels(name: TableName, channels: list[dict[str, Any]]) -> Html:
    rows = [
        (
            link(each["channel"], channel_path(name, _to_internal(each["channel"]))),
            each["user"] or "not known",
            short_code(each["start_token"]) if each["start_token"] else "none",
            short_code(each["end_token"]) if each["end_token"] else "none",
            format_number(each["client_sequencer"]),
            format_number(each["row_sequencer"]),
        )
        for each in channels
    ]
    columns = ("channel", "user", "first token", "last token", "client sequencer", "row sequencer")
    return data_table(
        columns, rows, caption="Channels in this chunk", numeric="client sequencer,row sequencer"
    )


def _render_files(files: list[dict[str, Any]]) -> Html | None:
    if not files:
        return None
    rows = [
        (
            tag("code", each["path"]),
            "sorted with others" if each["rows"] is None else "{:,} to {:,}".format(*each["rows"]),
            "–" if each["row_groups"] is None else ", ".join(map(str, each["row_groups"])),
            _shorten(each["added_at"]),
            _describe_file_state(each),
        )
        for each in files
    ]
    columns = ("native file", "rows in it", "row groups", "added", "now")
    return data_table(columns, rows, caption="Native files with these rows, oldest first")


def _describe_file_state(file: dict[str, Any]) -> str:
    if file["removed_at"] is not None:
        what = "changed" if file["rows_changed"] else "compacted"
        return f"{what} by run {file['removed_by']}"
    snapshots = file["snapshots"]
    if not snapshots:
        return "current"
    return f"in {format_quantity(len(snapshots), 'snapshot')}, the newest {snapshots[-1]}"


def _to_internal(displayed: str) -> str:
    quoted = displayed.startswith('"')
    return displayed[1:-1].replace('""', '"') if quoted else displayed


def _shorten(instant: str) -> str:
    return f"{instant[:19].replace('T', ' ')} UTC"
