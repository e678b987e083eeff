"""Page Pipes: state of each pipe, waiting files, failed files and loads."""

from __future__ import annotations

from snowmelt.catalog.objects.file_pipes import list_pipe_files
from snowmelt.catalog.views.history import fetch_loads
from snowmelt.catalog.views.pipes import PipeView, fetch_pipes, find_pipe_view
from snowmelt.server.console.layout import (
    ConsolePage,
    Region,
    age,
    data_table,
    empty,
    figures,
    format_bytes,
    format_number,
    format_quantity,
    href,
    link,
    pager,
    panel,
    pipe_path,
    state_mark,
)
from snowmelt.server.console.markup import EMPTY, Html, cut, tag
from snowmelt.server.console.pages.loads import render_loads
from snowmelt.server.console.request import PageRequest

_MAX_FAILED = 100
_STATE_NOTES = {
    "streaming": "accepts streamed rows",
    "paused": "ALTER PIPE … SET PIPE_EXECUTION_PAUSED = FALSE resumes it",
    "stalled": "stopped by an error; the service retries",
    "running": "loads files as they appear",
}


def show_pipes(page: PageRequest) -> ConsolePage:
    """Return the list of pipes."""
    found = fetch_pipes(page.connection, page.visibility, after=page.cursor)
    return ConsolePage(
        "Pipes",
        "Are files loaded as they appear, and which could not be loaded?",
        [
            Region("list", _render_list(page, found.rows)),
            pager("/pipes", found.next_cursor, page.query),
        ],
        section="Pipes",
        copies={"SQL": "SHOW PIPES IN ACCOUNT", "JSON": href("/api/v1/pipes", **page.query)},
    )


def _render_list(page: PageRequest, rows: list[PipeView]) -> Html:
    if not rows:
        return empty(
            "There is no pipe, or this role owns none. A pipe loads files as they appear:",
            'snowmelt sql "CREATE PIPE demo.public.events_files AUTO_INGEST = TRUE AS COPY'
            " demo.public.events FROM 'data/*.csv' PARSER CSV()\"",
        )
    return data_table(
        ("pipe", "state", "waiting files", "oldest", "last load", "failed files", "owner"),
        [
            (
                link(str(each.name), pipe_path(each.name)),
                state_mark(each.state),
                "–" if each.waiting_files is None else format_number(each.waiting_files),
                age(each.oldest_waiting_at, page.now) if each.oldest_waiting_at else "–",
                age(each.last_load_at, page.now),
                format_number(each.failed_files),
                each.owner,
            )
            for each in rows
        ],
        caption=f"{format_quantity(len(rows), 'pipe')} on this page",
        numeric="waiting files,failed files",
    )


def show_pipe(page: PageRequest) -> ConsolePage:
    """Return the page of one pipe."""
    pipe = find_pipe_view(page.connection, page.visibility, page.table_name)
    if pipe is None:
        raise page.not_found("pipe", page.table_name)
    error = EMPTY
    if pipe.last_error is not None:
        since = age(pipe.last_error_at, page.now)
        error = tag(
            "p",
            "The pipe is stopped by an error: ",
            pipe.last_error,
            " Last seen ",
            since,
            class_="error",
        )
    loads = fetch_loads(
        page.connection, page.visibility, stream_name=str(pipe.name), after=page.cursor, limit=20
    )
    definition = (
        tag("pre", tag("code", pipe.definition))
        if pipe.definition is not None
        else tag("p", "The definition is shown to the owner of the pipe.", class_="quiet")
    )
    path = pipe_path(pipe.name)
    return ConsolePage(
        f"Pipe {pipe.name}",
        "Does it load, what waits, and what could not be loaded?",
        [
            Region("error", error),
            Region("state", _render_state(page, pipe)),
            Region("failed", _render_failed_files(page, pipe)),
            Region("loads", panel("Loads", render_loads(page, loads.rows))),
            pager(path, loads.next_cursor, page.query),
            panel("Definition", definition),
        ],
        section="Pipes",
        copies={
            "SQL": f"SELECT SYSTEM$PIPE_STATUS('{pipe.name}')",
            "load failed files again": f"ALTER PIPE {pipe.name} REFRESH",
        },
    )


def _render_state(page: PageRequest, pipe: PipeView) -> Html:
    oldest = ""
    if pipe.oldest_waiting_at is not None:
        oldest = "the oldest since " + pipe.oldest_waiting_at.strftime("%Y-%m-%d %H:%M UTC")
    return figures(
        (
            ("State", state_mark(pipe.state), _STATE_NOTES[pipe.state]),
            ("Waiting files", format_number(pipe.waiting_files), oldest),
            ("Failed files", format_number(pipe.failed_files), "until they are loaded or deleted"),
            ("Last load", age(pipe.last_load_at, page.now), cut(pipe.last_file or "")),
            ("Last check", age(pipe.listed_at, page.now), "of the location of the files"),
            ("Owner", pipe.owner, "loads run as this role"),
        )
    )


def _render_failed_files(page: PageRequest, pipe: PipeView) -> Html:
    files = list_pipe_files(page.connection, pipe.pipe_id)
    if not files:
        return panel("Failed files", tag("p", "Every file was loaded.", class_="allwell"))
    shows_values = pipe.definition is not None
    rows = [
        (
            cut(each.path),
            each.state.lower(),
            format_bytes(each.size),
            age(each.at, page.now),
            cut(each.error) if shows_values else "shown to the owner of the pipe",
        )
        for each in list(reversed(files))[:_MAX_FAILED]
    ]
    return panel(
        "Failed files",
        data_table(
            ("file", "reason", "size", "since", "error"),
            rows,
            caption=f"{format_quantity(len(files), 'file')} that could not be loaded, newest first",
            numeric="size",
        ),
        tag(
            "p",
            "Correct a file, or its table, then: ",
            tag("code", f"ALTER PIPE {pipe.name} REFRESH"),
        ),
    )
