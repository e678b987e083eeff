"""Page Channels: the list with states and owners, and one channel with commits and history."""

from __future__ import annotations

from dataclasses import replace

from snowmelt.catalog.objects.failover_groups import find_reported_channels
from snowmelt.catalog.streaming.channels import ChannelEvent, list_channel_history
from snowmelt.catalog.views.channel_states import ChannelCondition
from snowmelt.catalog.views.channels import (
    ChannelFilter,
    ChannelView,
    count_channels,
    fetch_channels,
    find_channel_view,
    find_other_channel_of_client,
)
from snowmelt.catalog.views.freshness import LATE
from snowmelt.catalog.views.kafka import STALLED
from snowmelt.catalog.views.paging import MAX_COUNT
from snowmelt.catalog.views.tables import ChunkView, find_table_view, list_recent_chunks
from snowmelt.clock import to_epoch_ms
from snowmelt.server.console.layout import (
    MAX_SHORT,
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
    format_seconds,
    href,
    link,
    pager,
    panel,
    short_code,
    since,
    state_mark,
    table_link,
    table_path,
    text_field,
)
from snowmelt.server.console.markup import EMPTY, Child, Html, cut, join, tag
from snowmelt.server.console.pages.channel_reasons import explain_channel
from snowmelt.server.console.pages.tables import describe_expectation
from snowmelt.server.console.pages.trace import trace_path
from snowmelt.server.console.request import PageRequest

_ORDERS = (
    ("name", "name"),
    ("lag", "longest without a commit"),
    ("recent", "latest commit"),
    ("rejected", "most rejected rows"),
    ("owner", "owner"),
    ("token", "offset token"),
)
_CHOICES = (
    ("", "all"),
    ("late", "late or stalled"),
    ("rejected", "with rejected rows"),
    ("bookkeeping", "bookkeeping of connectors"),
)
_STATE_NOTES = {
    "never": "nothing committed yet",
    "quiet": "silent for longer than usual",
    "stalled": "messages wait in Kafka",
    "bookkeeping": "offsets of a connector, no rows",
}
_MAX_CHART_CHUNKS = 60
_MAX_CHUNK_ROWS = 15
HIDDEN = "hidden: needs SELECT or INSERT"


def show_channels(page: PageRequest) -> ConsolePage:
    """Return the list of channels."""
    text, order = page.get("find"), page.get("sort", "name")
    only = page.get("only")
    chosen = ChannelFilter(
        text=text,
        only_rejected=only == "rejected",
        late_at=page.now if only == "late" else None,
        is_bookkeeping=only == "bookkeeping",
    )
    found = fetch_channels(
        page.connection,
        page.visibility,
        chosen=chosen,
        now=page.now,
        order=order,
        after=page.cursor,
    )
    controls = filter_form(
        "/channels",
        text_field("find", "Name, table, owner or token contains", text, autocomplete="off"),
        choice_field("sort", "Sort by", order, _ORDERS),
        choice_field("only", "Show", only, _CHOICES),
    )
    return ConsolePage(
        "Channels",
        "Which channel is late, and whose is it?",
        [
            controls,
            EMPTY if only else Region("late", _render_late_count(page, chosen)),
            Region("list", _render_list(page, found.rows, chosen)),
            pager("/channels", found.next_cursor, page.query),
        ],
        section="Channels",
        copies={
            "terminal": "snowmelt channels list",
            "SQL": "SHOW CHANNELS",
            "JSON": href("/api/v1/channels", **page.query),
        },
    )


def _render_late_count(page: PageRequest, chosen: ChannelFilter) -> Html:
    late = replace(chosen, late_at=page.now)
    count = count_channels(page.connection, page.visibility, late)
    if not count:
        return EMPTY
    text = f"{MAX_COUNT:,}+" if count > MAX_COUNT else format_quantity(count, "channel")
    shown = link(f"{text} late or stalled", "/channels", find=chosen.text, only="late", sort="lag")
    return tag("p", state_mark(LATE), " ", shown)


def _render_list(page: PageRequest, rows: list[ChannelView], chosen: ChannelFilter) -> Html:
    if not rows:
        if chosen != ChannelFilter():
            return empty("No channel matches this filter. Show all with an empty filter.")
        return empty(
            "No channel is open yet, or this role may see none. A client opens one:",
            'client.open_channel("events-0", table="demo.public.events")',
        )
    count = count_channels(page.connection, page.visibility, chosen)
    shown = f"{MAX_COUNT:,}+ channels" if count > MAX_COUNT else format_quantity(count, "channel")
    return data_table(
        ("channel", "state", "last commit", "owner", "table", "offset token", "rows", "rejected"),
        [
            (
                channel_link(each.table, each.name),
                state_mark(each.state),
                age(each.last_commit_at, page.now),
                each.owner,
                table_link(each.table),
                _render_token(each),
                format_number(each.rows),
                _render_rejected(each),
            )
            for each in rows
        ],
        caption=f"{shown}; {len(rows)} on this page",
        numeric="rows,rejected",
    )


def show_channel(page: PageRequest) -> ConsolePage:
    """Return the page of one channel."""
    table = find_table_view(page.connection, page.visibility, page.table_name)
    name = page.names[3]
    found = None
    if table is not None:
        found = find_channel_view(page.connection, page.visibility, table.table_id, name, page.now)
    if table is None or found is None:
        raise page.not_found("channel", f"{name} of {page.table_name}")
    channel, condition = found
    events = list_channel_history(page.connection, table.table_id, name, limit=100)
    chunks = [
        chunk
        for chunk in list_recent_chunks(page.connection, table.table_id)
        if any(each[0] == name for each in chunk.channels)
    ]
    return ConsolePage(
        f"Channel {channel.name}",
        "Is it behind, why, and who owns it?",
        [
            Region(
                "state",
                join(_render_reason(page, channel, condition), _render_state(page, channel)),
            ),
            _render_trace_link(page, channel),
            Region("commits", _render_commits(page, channel, chunks)),
            Region("history", _render_history(page, events)),
        ],
        section="Channels",
        copies={
            "resume": f'client.open_channel("{channel.name}", table="{channel.table}")'
            ".latest_committed_offset_token()",
            "SQL": f"SHOW CHANNELS IN TABLE {channel.table}",
        },
    )


def _render_reason(page: PageRequest, channel: ChannelView, condition: ChannelCondition) -> Html:
    explained = explain_channel(
        channel,
        condition,
        page.now,
        lambda: find_other_channel_of_client(page.connection, page.visibility, channel),
    )
    if explained is None:
        return EMPTY
    return tag(
        "div",
        tag("p", explained.reason),
        tag("p", explained.remedy, class_="remedy"),
        class_="why error" if channel.state in {LATE, STALLED} else "why",
    )


def _render_state(page: PageRequest, channel: ChannelView) -> Html:
    note = _STATE_NOTES.get(channel.state)
    if note is None:
        note = describe_expectation(channel.freshness_s)
    errors: tuple[tuple[str, Child, str], ...] = ()
    if channel.last_error_at is not None:
        errors = (
            ("Last rejection", age(channel.last_error_at, page.now), channel.last_error or ""),
        )
    return figures(
        (
            ("State", state_mark(channel.state), note),
            (
                "Last commit",
                age(channel.last_commit_at, page.now),
                ""
                if channel.last_commit_at is None
                else channel.last_commit_at.strftime("%Y-%m-%d %H:%M:%S UTC"),
            ),
            ("Offset token", _render_token(channel), _describe_token(page, channel)),
            ("Owner", channel.owner, "user who opened it last"),
            ("Table", table_link(channel.table), ""),
            (
                "Rows",
                format_number(channel.rows),
                "not counted: several channels share a chunk"
                if channel.rows is None
                else format_bytes(channel.bytes),
            ),
            (
                "Rejected rows",
                _render_rejected(channel),
                "by the service or its client"
                if channel.rejected_rows is not None
                else "the client does not report the rows that it rejects",
            ),
            *errors,
            (
                "Opened",
                age(channel.opened_at, page.now),
                f"opening {format_number(channel.client_sequencer + 1)} of this channel",
            ),
        )
    )


def _describe_token(page: PageRequest, channel: ChannelView) -> str:
    """Return what a source may do after the token: with a secondary that lacks the rows, nothing yet."""
    key = (channel.table_id, channel.name)
    reported = find_reported_channels(page.connection, [key])
    if reported is None:
        return "resume after it"
    known = reported.get(key)
    if known is not None and known.row_sequencer >= channel.row_sequencer:
        return "resume after it; every secondary has its rows"
    if known is None or known.offset_token is None or channel.is_token_hidden:
        return "committed here; not reported to clients until every secondary has its rows"
    token = cut(known.offset_token, MAX_SHORT)
    return f"committed here; clients receive {token} until every secondary has the rows"


def _render_trace_link(page: PageRequest, channel: ChannelView) -> Html:
    if not page.visibility.can_see_tokens(channel.table_id):
        return EMPTY
    to_last = link(
        "Trace its last commits to blobs and native files",
        trace_path(channel.table),
        channel=channel.name,
    )
    return tag("p", to_last)


def _render_token_trace(channel: ChannelView, token: str | None) -> Html | str:
    if token is None:
        return "none"
    shown = cut(token, MAX_SHORT)
    path = trace_path(channel.table)
    return tag("a", shown, href=href(path, channel=channel.name, token=token), title=token)


def _render_commits(page: PageRequest, channel: ChannelView, chunks: list[ChunkView]) -> Html:
    name = channel.name
    if not chunks:
        return panel(
            "Recent commits",
            empty(
                "The channel has not committed yet."
                if channel.last_commit_at is None
                else f"The last commit of the channel was at {since(channel.last_commit_at, page.now)}."
                " The newest 200 chunks of the table have no rows of it."
            ),
            _render_trace_link(page, channel),
        )
    recent = list(reversed(chunks[:_MAX_CHART_CHUNKS]))
    labels = [each.registered_at.strftime("%H:%M:%S UTC") for each in recent]
    latencies = [_latency_s(each) or 0.0 for each in recent]
    shows_tokens = page.visibility.can_see_tokens(channel.table_id)
    rows = [
        (
            format_number(chunk.seq),
            age(chunk.registered_at, page.now),
            format_number(chunk.rows),
            format_seconds(_latency_s(chunk)),
            _render_token_trace(
                channel, next(each[2] for each in chunk.channels if each[0] == name)
            )
            if shows_tokens
            else HIDDEN,
            "native file" if chunk.is_migrated else "chunk on the stage",
            tag("code", cut(chunk.path), class_="path", title=chunk.path),
        )
        for chunk in chunks[:_MAX_CHUNK_ROWS]
    ]
    return panel(
        "Recent commits",
        bar_chart(latencies, title="Insert to query of each commit", unit="s", labels=labels),
        data_table(
            (
                "sequence",
                "committed",
                "rows of the whole chunk",
                "insert to query",
                "token",
                "rows are in",
                "blob",
            ),
            rows,
            caption="Newest commits, and where their rows are",
            numeric="sequence,rows of the whole chunk,insert to query",
        ),
    )


def _latency_s(chunk: ChunkView) -> float | None:
    if chunk.first_insert_ms is None:
        return None
    return max(to_epoch_ms(chunk.registered_at) - chunk.first_insert_ms, 0) / 1000


def _render_history(page: PageRequest, events: list[ChannelEvent]) -> Html:
    if not events:
        return panel("History", empty("No event is younger than history_retention_s."))
    return panel(
        "History",
        data_table(
            ("event", "when", "user", "client", "took over from", "client sequencer"),
            [
                (
                    each.event,
                    age(each.at, page.now),
                    each.user,
                    each.client_prefix,
                    _render_previous(each),
                    format_number(each.client_sequencer),
                )
                for each in events
            ],
            caption="Opens, drops and fences, newest first",
            numeric="client sequencer",
        ),
    )


def _render_previous(event: ChannelEvent) -> Html:
    if event.previous_owner is None:
        return EMPTY
    user = event.previous_user or "unknown user"
    return tag("span", f"{user}, client {event.previous_owner}: fenced")


def _render_rejected(channel: ChannelView) -> Html | str:
    text = format_number(channel.rejected_rows)
    if not channel.rejected_rows:
        return text
    return link(text, f"{table_path(channel.table)}/rejected", channel=channel.name)


def _render_token(channel: ChannelView) -> Html:
    if channel.is_token_hidden:
        return tag("span", HIDDEN, class_="quiet")
    if channel.offset_token is None:
        return tag("span", "none", class_="quiet")
    return short_code(channel.offset_token)
