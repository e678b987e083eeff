"""Lists of loads, migrations and compactions, which several pages show."""

from __future__ import annotations

from collections.abc import Sequence

from snowmelt.catalog.jobs.run_history import RunState
from snowmelt.catalog.views.history import LoadView, RunView
from snowmelt.server.console.layout import (
    age,
    data_table,
    format_bytes,
    format_number,
    format_seconds,
    link,
    segment,
    state_mark,
    table_link,
)
from snowmelt.server.console.markup import Child, Html, cut
from snowmelt.server.console.request import PageRequest


def render_load_table(page: PageRequest, loads: Sequence[LoadView], *, with_table: bool) -> Html:
    """Return a table of loads."""
    columns = ["load", "state", "started", "took", "files", "rows", "rejects", "bytes"]
    rows: list[list[Child]] = [
        [
            link(each.load_id[:12], f"/loads/{segment(each.load_id)}"),
            state_mark(each.state),
            age(each.started_at, page.now),
            format_seconds(each.seconds),
            format_count(each.files),
            format_count(each.rows),
            _render_rejects(each),
            format_bytes(each.bytes),
        ]
        for each in loads
    ]
    numeric = "took,files,rows,rejects,bytes"
    return _render(columns, rows, loads, "Loads, newest first", numeric, with_table=with_table)


def render_run_table(page: PageRequest, runs: Sequence[RunView], *, with_table: bool) -> Html:
    """Return a table of migrations, compactions and expirations."""
    columns = ["run", "state", "started", "took", "rows", "files", "bytes", "message"]
    rows: list[list[Child]] = [
        [
            each.kind,
            state_mark(each.state),
            age(each.started_at, page.now),
            format_seconds(each.seconds),
            format_count(each.rows),
            format_count(each.files),
            format_bytes(each.bytes),
            cut(each.message or ""),
        ]
        for each in runs
    ]
    caption = "Runs on native files, newest first"
    return _render(columns, rows, runs, caption, "took,rows,files,bytes", with_table=with_table)


def format_count(number: int | None) -> str:
    """Return a number of a run, or a dash if the run has not ended."""
    return "–" if number is None else format_number(number)


def format_rejects(load: LoadView) -> str:
    """Return the number of rejected records, or a dash for a load that failed before counting."""
    if load.state in {RunState.FAILED, RunState.LOST} and not load.rejects:
        return "–"
    return format_count(load.rejects)


def _render_rejects(load: LoadView) -> Child:
    text = format_rejects(load)
    if not load.rejects or load.reject_table is None:
        return text
    return link(text, f"/loads/{segment(load.load_id)}/rejects")


def _render(
    columns: list[str],
    rows: list[list[Child]],
    views: Sequence[LoadView | RunView],
    caption: str,
    numeric: str,
    *,
    with_table: bool,
) -> Html:
    if with_table:
        columns.insert(1, "table")
        for row, each in zip(rows, views, strict=True):
            row.insert(1, table_link(each.table))
    return data_table(columns, rows, caption=caption, numeric=numeric)
