"""Page Tables: the list, and one table with columns, files, chunks, runs and grants."""

from __future__ import annotations

import json

from snowmelt.catalog.objects.tables import find_table_by_id
from snowmelt.catalog.security.access_control import list_grants
from snowmelt.catalog.statements.tables import format_duration
from snowmelt.catalog.streaming.chunks import measure_backlog
from snowmelt.catalog.views.channels import ChannelFilter, count_channels, fetch_channels
from snowmelt.catalog.views.history import (
    RunView,
    fetch_loads,
    fetch_maintenance_runs,
    fetch_migrations,
)
from snowmelt.catalog.views.tables import (
    ChunkView,
    TableView,
    fetch_tables,
    find_table_view,
    list_recent_chunks,
    list_table_names,
)
from snowmelt.errors import SnowmeltError
from snowmelt.schema.types import to_display_name
from snowmelt.server.console.layout import (
    ConsolePage,
    Region,
    age,
    bar_chart,
    channel_link,
    choice_field,
    data_table,
    empty,
    figures,
    filter_form,
    format_bytes,
    format_number,
    format_quantity,
    href,
    link,
    pager,
    panel,
    state_mark,
    table_link,
    table_path,
    text_field,
)
from snowmelt.server.console.markup import EMPTY, Html, join, tag
from snowmelt.server.console.pages.runs import render_load_table, render_run_table
from snowmelt.server.console.request import PageRequest
from snowmelt.table.warehouse_paths import open_warehouse

_ORDERS = (("name", "name"), ("backlog", "most waiting chunks"), ("newest", "newest"))
_MAX_SNAPSHOTS = 10
_MAX_LOADS = 10


def show_tables(page: PageRequest) -> ConsolePage:
    """Return the list of tables."""
    text, order = page.get("find"), page.get("sort", "name")
    found = fetch_tables(
        page.connection, page.visibility, text=text, order=order, after=page.cursor
    )
    controls = filter_form(
        "/tables",
        text_field("find", "Name contains", text, autocomplete="off"),
        choice_field("sort", "Sort by", order, _ORDERS),
    )
    return ConsolePage(
        "Tables",
        "Which table, and is it fresh?",
        [
            controls,
            Region("list", _render_list(page, found.rows)),
            pager("/tables", found.next_cursor, page.query),
        ],
        section="Tables",
        copies={"SQL": "SHOW TABLES IN ACCOUNT", "JSON": href("/api/v1/tables", **page.query)},
    )


def _render_list(page: PageRequest, rows: list[TableView]) -> Html:
    if not rows:
        return empty(
            "No table matches, or this role may see none. Create one:",
            'snowmelt sql "CREATE TABLE demo.public.events (id NUMBER, what VARCHAR)"',
        )
    return data_table(
        (
            "table",
            "state",
            "last commit",
            "channels",
            "chunks",
            "waiting chunks",
            "owner",
            "created",
        ),
        [
            (
                table_link(each.name),
                state_mark(each.find_freshness_state(page.now)),
                age(each.last_commit_at, page.now),
                format_number(each.channels),
                format_number(each.chunks),
                format_number(each.waiting_chunks),
                each.owner,
                age(each.created_at, page.now),
            )
            for each in rows
        ],
        caption=f"{format_quantity(len(rows), 'table')} on this page",
        numeric="channels,chunks,waiting chunks",
    )


def find_visible_table(page: PageRequest) -> TableView:
    """Return the table in the path.

    Raises:
        PageNotFound: If the table does not exist, or the role may not see it.
    """
    table = find_table_view(page.connection, page.visibility, page.table_name)
    if table is None:
        raise page.not_found("table", page.table_name)
    return table


def show_table(page: PageRequest) -> ConsolePage:
    """Return the page of one table."""
    table = find_visible_table(page)
    path = table_path(table.name)
    links = tag(
        "p",
        link("Sample rows", f"{path}/rows"),
        " · ",
        link("Rejected rows", f"{path}/rejected"),
        " · ",
        link("Trace a row or token", f"{path}/trace"),
        " · ",
        link("Query it", "/query", sql=f"SELECT * FROM {table.name} LIMIT 20"),
    )
    migrations = fetch_migrations(
        page.connection, page.visibility, table_id=table.table_id, limit=60
    ).rows
    maintenance = fetch_maintenance_runs(
        page.connection, page.visibility, table_id=table.table_id, limit=20
    ).rows
    return ConsolePage(
        f"Table {table.name}",
        "What is in it, how fresh is it, and what happened to it?",
        [
            links,
            Region("state", _render_state(page, table)),
            Region("commits", _render_commits(list_recent_chunks(page.connection, table.table_id))),
            Region("runs", _render_runs(page, migrations, maintenance)),
            Region("channels", _render_channels(page, table)),
            Region("loads", _render_loads(page, table)),
            _render_columns(page, table),
            _render_snapshots(page, table),
            _render_grants(page, table),
        ],
        section="Tables",
        copies={
            "SQL": f"DESCRIBE TABLE {table.name}",
            "Python": f'client.open_channel("channel-0", table="{table.name}")',
            "Spark": f'lake.sql("SELECT * FROM {table.name}")',
        },
    )


def _render_state(page: PageRequest, table: TableView) -> Html:
    backlog = measure_backlog(page.connection, table.table_id)
    names = list_table_names(
        page.connection, [table.error_table_id] if table.error_table_id else []
    )
    error_table = names.get(table.error_table_id or 0)
    return figures(
        (
            (
                "State",
                state_mark(table.find_freshness_state(page.now)),
                describe_expectation(table.freshness_s),
            ),
            ("Last commit", age(table.last_commit_at, page.now), "of any channel or load"),
            (
                "Waiting for migration",
                format_quantity(backlog.chunks, "chunk"),
                f"{format_quantity(backlog.rows, 'row')}, {format_bytes(backlog.bytes)}",
            ),
            (
                "Oldest waiting",
                age(backlog.oldest_registered_at, page.now)
                if backlog.oldest_registered_at
                else "none",
                "waiting rows can be queried",
            ),
            ("Channels", format_number(table.channels), _render_late_channels(page, table)),
            ("Committed chunks", format_number(table.chunks), "last commit sequence"),
            (
                "Error table",
                table_link(error_table) if error_table else "none",
                "" if error_table else "ALTER TABLE … SET ERROR_TABLE keeps rejected rows",
            ),
        )
    )


def _render_late_channels(page: PageRequest, table: TableView) -> Html:
    late = ChannelFilter(table_id=table.table_id, late_at=page.now)
    count = count_channels(page.connection, page.visibility, late)
    if not count:
        return EMPTY
    found = {"find": str(table.name), "only": "late", "sort": "lag"}
    return link(f"{format_number(count)} late or stalled", "/channels", **found)


def describe_expectation(freshness_s: int | None) -> str:
    """Return a sentence about the FRESHNESS of a table."""
    if freshness_s is None:
        return "no expectation: ALTER TABLE … SET FRESHNESS = '5 minutes' sets one"
    return f"a commit is expected every {format_duration(freshness_s)}"


def _render_commits(chunks: list[ChunkView]) -> Html:
    if not chunks:
        return panel(
            "Commits",
            empty("No chunk is registered, or all chunks were deleted after their migration."),
        )
    recent = list(reversed(chunks[:60]))
    labels = [each.registered_at.strftime("%H:%M:%S UTC") for each in recent]
    bad = [each for each in chunks if each.quarantine_reason]
    return panel(
        "Commits",
        bar_chart(
            [float(each.rows) for each in recent],
            title="Rows of the newest commits",
            unit="rows",
            labels=labels,
        ),
        [
            tag(
                "p",
                state_mark("wrong"),
                f" Chunk {each.seq} is quarantined: {each.quarantine_reason}",
                class_="error",
            )
            for each in bad
        ],
    )


def _render_runs(page: PageRequest, migrations: list[RunView], maintenance: list[RunView]) -> Html:
    parts = []
    if migrations:
        recent = list(reversed(migrations))
        parts.append(
            bar_chart(
                [float(each.rows or 0) for each in recent],
                title="Rows of the last migrations",
                unit="rows",
                labels=[each.started_at.strftime("%m-%d %H:%M UTC") for each in recent],
            )
        )
    else:
        parts.append(empty("No migration has run yet. Waiting rows can be queried."))
    rows = sorted([*migrations[:10], *maintenance], key=lambda each: each.started_at, reverse=True)
    if rows:
        parts.append(render_run_table(page, rows, with_table=False))
    return panel("Migrations and compactions", parts)


def _render_channels(page: PageRequest, table: TableView) -> Html:
    found = fetch_channels(
        page.connection,
        page.visibility,
        chosen=ChannelFilter(table_id=table.table_id),
        now=page.now,
        order="lag",
        limit=10,
    )
    if not found.rows:
        return panel("Channels", empty("No channel is open."))
    return panel(
        "Channels, longest without a commit first",
        data_table(
            ("channel", "state", "owner", "last commit", "rows", "rejected"),
            [
                (
                    channel_link(table.name, each.name),
                    state_mark(each.state),
                    each.owner,
                    age(each.last_commit_at, page.now),
                    format_number(each.rows),
                    format_number(each.rejected_rows),
                )
                for each in found.rows
            ],
            caption="Ten channels of this table",
            numeric="rows,rejected",
        ),
    )


def _render_loads(page: PageRequest, table: TableView) -> Html:
    found = fetch_loads(page.connection, page.visibility, table_id=table.table_id, limit=_MAX_LOADS)
    if not found.rows:
        return panel("Loads", empty("No file was loaded into this table."))
    return panel("Loads", render_load_table(page, found.rows, with_table=False))


def _render_columns(page: PageRequest, table: TableView) -> Html:
    record = find_table_by_id(page.connection, table.table_id)
    return panel(
        "Columns",
        data_table(
            ("column", "type", "NOT NULL", "field ID"),
            [
                (
                    each.display_name,
                    each.sql_type,
                    "" if each.nullable else "NOT NULL",
                    format_number(each.ordinal),
                )
                for each in record.schema.columns
            ],
            caption=f"Version {record.schema.version} of the schema",
            numeric="field ID",
        ),
    )


def _render_snapshots(page: PageRequest, table: TableView) -> Html:
    """Return a table of the newest snapshots in the metadata file of the native table."""
    record = find_table_by_id(page.connection, table.table_id)
    if record.pointer is None:
        return panel("Native files", empty("No native file yet: all rows are in chunks."))
    try:
        warehouse = open_warehouse(page.parts.settings.warehouse_url)
        metadata = json.loads(warehouse.store.get(warehouse.to_path(record.pointer)))
    except (SnowmeltError, OSError, ValueError) as error:
        return panel(
            "Native files",
            tag("p", f"The metadata file cannot be read: {error}", class_="error"),
        )
    snapshots = metadata.get("snapshots", [])[-_MAX_SNAPSHOTS:]
    rows = [
        (
            str(each["snapshot-id"]),
            each.get("summary", {}).get("operation", ""),
            format_number(_number(each, "total-records")),
            format_number(_number(each, "total-data-files")),
            format_bytes(_number(each, "total-files-size")),
        )
        for each in reversed(snapshots)
    ]
    return panel(
        "Native files",
        data_table(
            ("snapshot", "operation", "rows", "files", "bytes"),
            rows,
            caption="Snapshots of the Iceberg table, newest first",
            numeric="rows,files,bytes",
        ),
    )


def _number(snapshot: dict[str, dict[str, str]], name: str) -> float:
    text = snapshot.get("summary", {}).get(name, "0")
    return float(text) if text.isdigit() else 0.0


def _render_grants(page: PageRequest, table: TableView) -> Html:
    grants = list_grants(page.connection, kind="TABLE", object_id=table.table_id)
    by_role: dict[str, list[str]] = {}
    for grant in grants:
        by_role.setdefault(grant.role, []).append(grant.privilege)
    return panel(
        "Grants",
        data_table(
            ("role", "privileges"),
            [
                (to_display_name(role), join(", ".join(privileges)))
                for role, privileges in sorted(by_role.items())
            ],
            caption="Privileges on this table; roles also need USAGE on its schema and database",
        ),
    )
