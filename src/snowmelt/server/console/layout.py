"""Render the HTML document of a page, and its tables, figures, charts and forms."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import quote, urlencode

from snowmelt.schema.types import TableName, to_display_name
from snowmelt.server.console.assets import asset_url
from snowmelt.server.console.markup import EMPTY, Child, Html, cut, join, tag
from snowmelt.server.console.sessions import OPEN_USER, Session

MOUNT_PATH = "/console"
SECTIONS = (
    ("Overview", "/", "o"),
    ("Channels", "/channels", "c"),
    ("Tables", "/tables", "t"),
    ("Loads", "/loads", "l"),
    ("Pipes", "/pipes", "p"),
    ("Kafka", "/kafka", "a"),
    ("Migrations", "/migrations", "m"),
    ("Checks", "/checks", "k"),
    ("Query tables", "/query", "q"),
    ("Select from a file", "/select", "s"),
    ("Functions", "/functions", "f"),
    ("Sites", "/sites", "i"),
)
# ID of the element to which the browser scrolls after a form was sent.
RESULT = "result"
_CHART_WIDTH, _CHART_HEIGHT = 600, 90
# Maximum characters of a token or name in a list. The HTML title has the whole text.
MAX_SHORT = 40
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class Region:
    """A section of a live page. The service sends the section again when its content changes."""

    name: str
    content: Html


Block: TypeAlias = "Html | Region"


@dataclass(frozen=True, slots=True)
class ConsolePage:
    """A page of the console.

    `question` is the subtitle: a question that the page answers. `copies` maps labels to equivalent
    commands, statements and URLs.
    """

    title: str
    question: str
    blocks: Sequence[Block]
    section: str = ""
    copies: Mapping[str, str] = field(default_factory=dict)
    copies_title: str = "This page as command, SQL and JSON"
    status: int = 200

    @property
    def regions(self) -> dict[str, Html]:
        """Regions of the page by name."""
        return {each.name: each.content for each in self.blocks if isinstance(each, Region)}


def href(path: str, **query: object) -> str:
    """Return the URL of a page. Omits parameters with empty values."""
    given = {name: str(value) for name, value in query.items() if value not in (None, "", False)}
    return f"{MOUNT_PATH}{path}" + (f"?{urlencode(given)}" if given else "")


def segment(name: str) -> str:
    """Return a name as one segment of a path."""
    return quote(name, safe="")


def table_path(name: TableName) -> str:
    """Return the path of a table's page."""
    return "/tables/" + "/".join(map(segment, (name.database, name.schema, name.table)))


def pipe_path(name: TableName) -> str:
    """Return the path of a pipe's page."""
    return table_path(name).replace("/tables/", "/pipes/", 1)


def channel_path(table: TableName, channel: str) -> str:
    """Return the path of a channel's page."""
    return f"{table_path(table).replace('/tables/', '/channels/', 1)}/{segment(channel)}"


def channel_link(table: TableName, channel: str) -> Html:
    """Return a link to a channel's page. Shortens a long name; the title has the whole name."""
    shown = cut(channel, MAX_SHORT)
    title = None if shown == channel else channel
    return tag("a", shown, href=href(channel_path(table, channel)), title=title)


def short_code(text: str) -> Html:
    """Return a token as shortened code with a copy button. The title has the whole token."""
    shown = cut(text, MAX_SHORT)
    code = tag("code", shown, title=None if shown == text else text)
    return tag("span", code, " ", copy_button(text))


def table_link(name: TableName | None) -> Html:
    """Return a link to a table's page, or a dash for a deleted table."""
    if name is None:
        return Html("–")
    database, schema, table = map(cut, name.display_name)
    # Allow line breaks after the points of a name, for narrow columns.
    point = Html(".<wbr>")
    return tag("a", database, point, schema, point, table, href=href(table_path(name)))


def link(text: str, path: str, **query: object) -> Html:
    """Return a link within the console."""
    return tag("a", cut(text), href=href(path, **query))


def render_document(
    page: ConsolePage, session: Session | None, *, is_live: bool, path: str
) -> bytes:
    """Return the HTML document of a page."""
    main = tag(
        "main",
        tag("h1", page.title),
        tag("p", page.question, class_="question"),
        (
            tag("section", each.content, id=f"live-{each.name}", data_live=each.name)
            if isinstance(each, Region)
            else each
            for each in page.blocks
        ),
        _render_copies(page),
        id="main",
        tabindex="-1",
    )
    body = tag(
        "body",
        tag("a", "Skip to content", class_="skip", href="#main"),
        _render_header(page, session),
        tag("p", "", id="connection", role="status", hidden=True),
        main,
        _render_footer(session),
        data_live_path=path if is_live else None,
        data_mount=MOUNT_PATH,
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{page.title} · Snowmelt"),
        tag("link", rel="icon", href="data:,"),
        tag("link", rel="stylesheet", href=asset_url("console.css")),
        tag("script", src=asset_url("console.js"), defer=True),
    )
    return b"<!doctype html>\n" + tag("html", head, body, lang="en").encode()


def _render_header(page: ConsolePage, session: Session | None) -> Html:
    if session is None:
        return tag("header", tag("strong", "Snowmelt", class_="brand"))
    items = [
        tag(
            "li",
            tag(
                "a",
                name,
                href=href(path),
                aria_current="page" if name == page.section else None,
                data_key=key,
            ),
        )
        for name, path, key in SECTIONS
    ]
    return tag(
        "header",
        tag("strong", "Snowmelt", class_="brand"),
        tag("nav", tag("ul", items), aria_label="Pages"),
        _render_account(session),
    )


def _render_account(session: Session) -> Html:
    if session.user == OPEN_USER:
        return tag(
            "p", "no login: this machine only · role ", tag("b", session.role), class_="account"
        )
    options = [
        tag("option", to_display_name(role), value=role, selected=role == session.role)
        for role in session.roles
    ]
    return tag(
        "div",
        tag("span", f"{to_display_name(session.user)} as "),
        form(
            "/role",
            session,
            tag("select", options, name="role", aria_label="Role"),
            tag("button", "Switch"),
            class_="inline",
        ),
        form("/logout", session, tag("button", "Log out"), class_="inline"),
        class_="account",
    )


def _render_footer(session: Session | None) -> Html:
    if session is None:
        return tag("footer", "Snowmelt")
    return tag(
        "footer",
        tag(
            "span",
            "Keys: g and a letter go to a page (",
            ", ".join(f"{key} {name}" for name, _, key in SECTIONS),
            "), / filters, p pauses.",
            class_="keys",
        ),
    )


def _render_copies(page: ConsolePage) -> Html:
    if not page.copies:
        return EMPTY
    rows = [
        tag("div", tag("dt", name), tag("dd", tag("code", text), copy_button(text)))
        for name, text in page.copies.items()
    ]
    return tag(
        "details",
        tag("summary", page.copies_title),
        tag("dl", rows, class_="copies"),
    )


def copy_button(text: str) -> Html:
    """Return a button that copies a text. The button is visible only with JavaScript."""
    return tag("button", "Copy", type="button", data_copy=text, class_="copy", hidden=True)


def form(
    path: str, session: Session, *children: Child, class_: str | None = None, fragment: str = ""
) -> Html:
    """Return a form that is sent by POST with the session's CSRF token.

    The browser scrolls to the element with the ID `fragment` of the response.
    """
    return tag(
        "form",
        tag("input", type="hidden", name="csrf", value=session.csrf),
        children,
        method="post",
        action=href(path) + (f"#{fragment}" if fragment else ""),
        class_=class_,
    )


def filter_form(path: str, *children: Child, label: str | None = None) -> Html:
    """Return a form that is sent by GET. If a page has two such forms, each needs a label."""
    return tag(
        "form",
        children,
        tag("button", "Show"),
        method="get",
        action=href(path),
        class_="filter",
        role="search",
        aria_label=label,
    )


def text_field(name: str, label: str, value: str, **more: str | int | bool | None) -> Html:
    """Return a labeled text field."""
    return tag(
        "label", tag("span", label), tag("input", name=name, value=value, type="text", **more)
    )


def choice_field(name: str, label: str, value: str, choices: Iterable[tuple[str, str]]) -> Html:
    """Return a labeled drop-down list. `choices` has the value and the text of each option."""
    options = [tag("option", text, value=each, selected=each == value) for each, text in choices]
    return tag("label", tag("span", label), tag("select", options, name=name))


def data_table(
    columns: Sequence[str], rows: Iterable[Sequence[Child]], *, caption: str, numeric: str = ""
) -> Html:
    """Return a table. `numeric` has the names of the numeric columns, separated by commas."""
    is_number = [column in numeric.split(",") for column in columns]
    head = tag(
        "tr",
        (
            tag("th", column, scope="col", class_="n" if number else None)
            for column, number in zip(columns, is_number, strict=True)
        ),
    )
    body = [
        tag(
            "tr",
            (
                tag("td", cell, class_="n" if number else None)
                for cell, number in zip(row, is_number, strict=True)
            ),
        )
        for row in rows
    ]
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption, class_="quiet"),
            tag("thead", head),
            tag("tbody", body),
        ),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption,
    )


def pager(path: str, cursor: str | None, query: Mapping[str, str]) -> Html:
    """Return links to the next and the first page of a list."""
    given = {name: value for name, value in query.items() if name != "after"}
    parts = []
    if query.get("after"):
        parts.append(tag("a", "First page", href=href(path, **given)))
    if cursor is not None:
        parts.append(tag("a", "Next page", href=href(path, **given, after=cursor), rel="next"))
    return tag("p", parts, class_="pager") if parts else EMPTY


def figures(items: Iterable[tuple[str, Child, Child]]) -> Html:
    """Return a list of figures, each given as (name, value, note)."""
    return tag(
        "dl",
        (
            tag("div", tag("dt", name), tag("dd", value), tag("dd", note, class_="note"))
            for name, value, note in items
        ),
        class_="figures",
    )


def bar_chart(values: Sequence[float], *, title: str, unit: str, labels: Sequence[str]) -> Html:
    """Return a bar chart, and a collapsed table with its values."""
    if not values or max(values) <= 0:
        return tag("p", f"{title}: none in this time.", class_="empty")
    most = max(values)
    width = _CHART_WIDTH / len(values)
    bars = []
    for number, value in enumerate(values):
        if value <= 0:
            continue
        height = max(value / most * _CHART_HEIGHT, 1.0)
        bars.append(
            tag(
                "rect",
                x=f"{number * width:.1f}",
                y=f"{_CHART_HEIGHT - height:.1f}",
                width=f"{max(width - 1, 0.6):.1f}",
                height=f"{height:.1f}",
            )
        )
    picture = tag(
        "svg",
        bars,
        viewBox=f"0 0 {_CHART_WIDTH} {_CHART_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{title}: at most {format_number(most)} {unit}",
        class_="chart",
    )
    rows = [
        (label, format_number(value)) for label, value in zip(labels, values, strict=True) if value
    ]
    return tag(
        "figure",
        tag("figcaption", f"{title}; highest {format_number(most)} {unit}"),
        picture,
        tag("p", tag("span", labels[0]), tag("span", labels[-1]), class_="axis"),
        tag(
            "details",
            tag("summary", "As a table"),
            data_table(("from", unit), rows[-60:], caption=title, numeric=unit),
        ),
    )


def empty(sentence: str, *lines: str) -> Html:
    """Return the text for an empty list: a sentence, and commands that create an entry."""
    commands = tag("pre", tag("code", "\n".join(lines))) if lines else EMPTY
    return tag("div", tag("p", sentence), commands, class_="empty")


def age(at: dt.datetime | None, now: dt.datetime) -> Html:
    """Return the age of a timestamp, with the timestamp as title."""
    if at is None:
        return Html("never")
    utc = at.astimezone(dt.UTC)
    return tag(
        "time",
        f"{format_seconds((now - at).total_seconds())} ago",
        datetime=utc.isoformat(timespec="milliseconds"),
        title=utc.strftime("%Y-%m-%d %H:%M:%S UTC"),
    )


def since(at: dt.datetime, now: dt.datetime) -> str:
    """Return a timestamp and its age, such as `07:13:53 UTC (25 min ago)`."""
    utc = at.astimezone(dt.UTC)
    form = "%H:%M:%S UTC" if utc.date() == now.astimezone(dt.UTC).date() else "%Y-%m-%d %H:%M UTC"
    return f"{utc.strftime(form)} ({format_seconds((now - at).total_seconds())} ago)"


def end_sentence(text: str) -> str:
    """Return a text with a full stop, unless it ends a sentence already."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def format_seconds(seconds: float | None) -> str:
    """Return a duration in the largest suitable unit."""
    if seconds is None:
        return "–"
    seconds = max(seconds, 0.0)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for limit, divisor, unit in ((60, 1, "s"), (3600, 60, "min"), (86_400, 3600, "h")):
        if seconds < limit:
            return (
                f"{seconds / divisor:.1f} {unit}"
                if seconds / divisor < 10
                else (f"{seconds / divisor:.0f} {unit}")
            )
    return f"{seconds / 86_400:.0f} d"


def format_number(number: float | None) -> str:
    """Return a number with thousands separators, or from 10 million on with a unit prefix."""
    if number is None:
        return "not known"
    if abs(number) >= 1e7:
        for factor, unit in _UNITS:
            if abs(number) >= factor:
                return f"{number / factor:.1f} {unit}"
    if number == int(number):
        return f"{int(number):,}"
    return f"{number:,.1f}" if abs(number) >= 1 else f"{number:.2f}"


def format_quantity(number: float | None, noun: str) -> str:
    """Return a number and its noun, in the plural unless the number is 1. None becomes a dash."""
    if number is None:
        return f"– {noun}s"
    return f"{format_number(number)} {noun}{'' if number == 1 else 's'}"


def format_bytes(size: float | None) -> str:
    """Format a size in bytes."""
    if size is None:
        return "–"
    for factor, unit in _UNITS:
        if size >= factor:
            return f"{size / factor:.1f} {unit}B"
    return f"{size:.0f} B"


def state_mark(state: str) -> Html:
    """Return a state as a word with a shape, so that its color is not the only sign."""
    kind = {
        "committed": "ok",
        "fine": "ok",
        "running": "busy",
        "catching up": "busy",
        "copying": "busy",
        "closing": "note",
        "not connected": "note",
        "not run yet": "note",
        "silent": "bad",
        "fenced": "bad",
        "note": "note",
        "quiet": "note",
        "never": "note",
        "failed": "bad",
        "lost": "bad",
        "wrong": "bad",
        "late": "bad",
        "crashed": "bad",
        "committed partly": "note",
        "committed with rejects": "note",
        "paused": "note",
        "stalled": "bad",
        "bookkeeping": "note",
        "loaded partly": "note",
    }.get(state, "ok")
    shape = {"ok": "●", "busy": "◐", "note": "▲", "bad": "■"}[kind]
    return tag("span", tag("span", shape, aria_hidden="true"), f" {state}", class_=f"state {kind}")


def panel(title: str, *children: Child) -> Html:
    """Return a section of a page with a heading."""
    return tag("section", tag("h2", title), join(*children), class_="panel")
