"""Pages Loads (with files and rejected records) and Migrations."""

from __future__ import annotations

from snowmelt.catalog.jobs.load_history import LoadFileState
from snowmelt.catalog.views.history import (
    WITH_REJECTS,
    LoadView,
    fetch_load_files,
    fetch_loads,
    fetch_maintenance_runs,
    fetch_migrations,
    find_load_view,
)
from snowmelt.server.console.layout import (
    ConsolePage,
    Region,
    age,
    bar_chart,
    choice_field,
    data_table,
    empty,
    figures,
    filter_form,
    format_bytes,
    format_number,
    format_quantity,
    format_seconds,
    href,
    link,
    pager,
    panel,
    segment,
    state_mark,
    table_link,
)
from snowmelt.server.console.markup import EMPTY, Html, cut, tag
from snowmelt.server.console.pages.runs import (
    format_count,
    format_rejects,
    render_load_table,
    render_run_table,
)
from snowmelt.server.console.request import PageRequest

_STATES = (
    ("", "all"),
    ("running", "running"),
    ("committed", "committed"),
    ("failed", "failed"),
    (WITH_REJECTS, "with rejected records"),
)
_FILE_STATES = {
    LoadFileState.LOADED: "loaded",
    LoadFileState.PARTIALLY_LOADED: "loaded partly",
    LoadFileState.FAILED: "failed",
}


def show_loads(page: PageRequest) -> ConsolePage:
    """Return the list of loads."""
    state = page.get("state")
    found = fetch_loads(page.connection, page.visibility, state=state, after=page.cursor)
    return ConsolePage(
        "Loads",
        "Were the files loaded, and what was rejected?",
        [
            filter_form("/loads", choice_field("state", "Show", state, _STATES)),
            Region("list", render_loads(page, found.rows)),
            pager("/loads", found.next_cursor, page.query),
        ],
        section="Loads",
        copies={
            "terminal": "snowmelt loads list",
            "JSON": href("/api/v1/loads", **page.query),
        },
    )


def render_loads(page: PageRequest, rows: list[LoadView]) -> Html:
    """Return the list of loads as a table."""
    if not rows:
        if page.get("state"):
            return empty("No load matches this filter. Show all with the filter “all”.")
        return empty(
            "No load is recorded here. Load files with COPY:",
            "snowmelt copy \"COPY demo.public.events FROM 'data/*.csv' PARSER CSV()\"",
        )
    return render_load_table(page, rows, with_table=True)


def show_load(page: PageRequest) -> ConsolePage:
    """Return the page of one load."""
    load = find_load_view(page.connection, page.visibility, page.names[0])
    if load is None:
        raise page.not_found("load", page.names[0])
    files = fetch_load_files(page.connection, load, page.visibility, after=page.cursor)
    path = f"/loads/{segment(load.load_id)}"
    rejects = EMPTY
    if load.reject_table is not None and load.rejects != 0:
        rejects = tag(
            "p",
            link("Rejected records of this load", f"{path}/rejects"),
            " with record, column, reason, data and file, from ",
            table_link(load.reject_table),
        )
    elif load.rejects:
        rejects = tag(
            "p",
            "The rejected records were not stored. To store them, add REJECTED DATA AS TABLE to the"
            " statement.",
            class_="quiet",
        )
    statement = (
        tag("pre", tag("code", load.statement))
        if load.statement is not None
        else tag("p", "The statement is shown to roles with SELECT on the table.", class_="quiet")
    )
    message = tag("p", load.message, class_="error") if load.message else EMPTY
    return ConsolePage(
        f"Load {load.load_id}",
        "Did it come in, and what was rejected?",
        [
            message,
            Region("state", _render_state(page, load)),
            rejects,
            Region(
                "files",
                panel(
                    "Files",
                    data_table(
                        ("file", "state", "size", "rows", "rejects", "first error"),
                        [
                            (
                                each.path,
                                state_mark(_FILE_STATES[LoadFileState(each.state)]),
                                format_bytes(each.size),
                                format_number(each.rows),
                                format_number(each.rejects),
                                cut(each.first_error or ""),
                            )
                            for each in files.rows
                        ],
                        caption="Files, most rejects first",
                        numeric="size,rows,rejects",
                    )
                    if files.rows
                    else empty("No file is recorded for this load."),
                ),
            ),
            pager(path, files.next_cursor, page.query),
            panel("Statement", statement),
        ],
        section="Loads",
    )


def _render_state(page: PageRequest, load: LoadView) -> Html:
    seconds = load.seconds
    speed = load.bytes / seconds if load.bytes and seconds else None
    return figures(
        (
            ("State", state_mark(load.state), f"role {load.role}"),
            ("Table", table_link(load.table), ""),
            ("Started", age(load.started_at, page.now), f"took {format_seconds(seconds)}"),
            ("Rows", format_count(load.rows), f"of {format_quantity(load.files, 'file')}"),
            (
                "Rejected records",
                format_rejects(load),
                f"the first: {cut(load.first_error)}" if load.first_error else "",
            ),
            (
                "Bytes",
                format_bytes(load.bytes),
                "" if speed is None else f"{format_bytes(speed)}/s",
            ),
        )
    )


def show_migrations(page: PageRequest) -> ConsolePage:
    """Return the page of migrations, compactions and expirations."""
    found = fetch_migrations(page.connection, page.visibility, after=page.cursor)
    recent = list(reversed(found.rows))
    chart = bar_chart(
        [float(each.rows or 0) for each in recent],
        title="Rows of each migration",
        unit="rows",
        labels=[each.started_at.strftime("%m-%d %H:%M UTC") for each in recent] or ["", ""],
    )
    table = (
        render_run_table(page, found.rows, with_table=True)
        if found.rows
        else empty(
            "No migration has run yet. The service migrates automatically. To migrate now:",
            "snowmelt migrate",
        )
    )
    maintenance = fetch_maintenance_runs(page.connection, page.visibility, limit=20)
    return ConsolePage(
        "Migrations",
        "Does the migration catch up, and did a run fail?",
        [
            Region("list", Html(chart + table)),
            pager("/migrations", found.next_cursor, page.query),
            Region(
                "maintenance",
                panel(
                    "Compactions and expirations",
                    render_run_table(page, maintenance.rows, with_table=True)
                    if maintenance.rows
                    else empty("No compaction has run yet.", "snowmelt maintain"),
                ),
            ),
        ],
        section="Migrations",
        copies={
            "terminal": "snowmelt migrations list",
            "JSON": href("/api/v1/migrations", **page.query),
        },
    )
