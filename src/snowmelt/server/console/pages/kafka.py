"""Page Kafka: lag of topics by partition, rejected messages, and positions of loads with COPY."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.views.kafka import KafkaPartitionView, list_kafka_partitions
from snowmelt.schema.types import to_display_name
from snowmelt.server.console.layout import (
    ConsolePage,
    Region,
    age,
    channel_path,
    data_table,
    empty,
    figures,
    filter_form,
    format_number,
    format_quantity,
    href,
    link,
    panel,
    state_mark,
    table_link,
    table_path,
    text_field,
)
from snowmelt.server.console.markup import EMPTY, Html, cut, join, tag
from snowmelt.server.console.request import PageRequest

_MAX_SHOWN = 100
_MAX_POSITIONS = 200


def show_kafka(page: PageRequest) -> ConsolePage:
    """Return the page Kafka."""
    text = page.get("find")
    return ConsolePage(
        "Kafka",
        "Do the topics arrive, which partition lags, and what was rejected?",
        [
            filter_form("/kafka", text_field("find", "Topic or table contains", text)),
            Region("partitions", _render_partitions(page, text)),
            Region("positions", _render_positions(page)),
        ],
        section="Kafka",
        copies={
            "SQL (Spark)": "SELECT * FROM demo.information_schema.kafka_partitions ORDER BY lag DESC",
            "terminal, with the file of your connectors": "snowmelt kafka run connectors.toml",
            "JSON": href("/api/v1/kafka", **page.query),
        },
    )


def find_partitions(page: PageRequest, text: str) -> list[KafkaPartitionView]:
    """Return the visible partitions whose topic or table contains a text, by descending lag."""
    wanted = text.casefold()
    return [
        each
        for each in list_kafka_partitions(page.connection, page.visibility)
        if wanted in each.topic.casefold() or wanted in str(each.table).casefold()
    ]


def _render_partitions(page: PageRequest, text: str) -> Html:
    found = find_partitions(page, text)
    if not found and text:
        return empty("No topic or table with this text. Clear the filter to see all.")
    if not found:
        return empty(
            "No connector streams a topic into a table that this role may see. Start connectors:",
            "snowmelt kafka run connectors.toml",
        )
    stalled = [each for each in found if each.find_state(page.now) == "stalled"]
    lag = sum(each.lag for each in found)
    topics = {(each.topic, each.table) for each in found}
    return join(
        figures(
            (
                ("Messages that wait", format_number(lag), "in Kafka, not committed here"),
                (
                    "Stalled partitions",
                    format_number(len(stalled)),
                    "of the partitions below",
                ),
                ("Topics · partitions", f"{len(topics):,} · {len(found):,}", ""),
            )
        ),
        _render_stalled(stalled),
        panel("Topics", _render_topics(page, found)),
        panel("Partitions", _render_partition_table(page, found[:_MAX_SHOWN], len(found))),
        tag(
            "p",
            "Connectors store end offsets every 10 s (",
            tag("code", "lag_report_seconds"),
            "). Rejected messages are in the error table of the table, in the dead-letter topic of the"
            " connector, or in its file ",
            tag("code", "--errors"),
            ". The metrics of ",
            tag("code", "snowmelt kafka run"),
            " have the restarts and rejected messages of each connector.",
            class_="quiet",
        ),
    )


def _render_stalled(stalled: Sequence[KafkaPartitionView]) -> Html:
    if not stalled:
        return EMPTY
    return tag(
        "p",
        f"{format_quantity(len(stalled), 'partition')} had no commit for 5 minutes though messages wait."
        " Check that the process ",
        tag("code", "snowmelt kafka run"),
        " is running, and read its log. The process resumes after the committed offset, without loss"
        " and without duplicates.",
        class_="error",
    )


def _render_topics(page: PageRequest, found: Sequence[KafkaPartitionView]) -> Html:
    topics: dict[tuple[str, str], list[KafkaPartitionView]] = {}
    for each in found:
        topics.setdefault((each.topic, str(each.table)), []).append(each)
    rows = []
    for partitions in list(topics.values())[:_MAX_SHOWN]:
        first = partitions[0]
        states = {each.find_state(page.now) for each in partitions}
        state = next(each for each in ("stalled", "catching up", "current") if each in states)
        commits = [each.last_commit_at for each in partitions if each.last_commit_at]
        rows.append(
            (
                cut(first.topic),
                table_link(first.table),
                state_mark(state),
                format_number(sum(each.lag for each in partitions)),
                format_number(len(partitions)),
                age(max(commits, default=None), page.now),
                to_display_name(first.owner),
                link("rejected", f"{table_path(first.table)}/rejected"),
            )
        )
    return data_table(
        ("topic", "table", "state", "lag", "partitions", "last commit", "user", "messages"),
        rows,
        caption="Topics, the largest lag of a partition first",
        numeric="lag,partitions",
    )


def _render_partition_table(
    page: PageRequest, shown: Sequence[KafkaPartitionView], count: int
) -> Html:
    more = "" if count == len(shown) else f", {len(shown)} of {format_number(count)}"
    return data_table(
        ("topic", "partition", "state", "lag", "committed", "end", "last commit", "end seen"),
        [
            (
                cut(each.topic),
                link(str(each.partition), channel_path(each.table, each.channel)),
                state_mark(each.find_state(page.now)),
                format_number(each.lag),
                "–" if each.committed_offset is None else format_number(each.committed_offset),
                "–" if each.end_offset is None else format_number(each.end_offset),
                age(each.last_commit_at, page.now),
                age(each.end_offset_at, page.now),
            )
            for each in shown
        ],
        caption=f"Partitions, the largest lag first{more}; offsets need SELECT or INSERT",
        numeric="partition,lag,committed,end",
    )


def _render_positions(page: PageRequest) -> Html:
    if not page.visibility.is_account_visible:
        return EMPTY
    positions = model.stream_offsets
    query = sa.select(positions).order_by(
        positions.c.stream, positions.c.topic, positions.c.partition
    )
    rows = page.connection.execute(query.limit(_MAX_POSITIONS)).all()
    if not rows:
        return EMPTY
    return panel(
        "Loaded with COPY",
        data_table(
            ("stream", "topic", "partition", "next offset", "updated"),
            [
                (
                    row.stream,
                    row.topic,
                    format_number(row.partition),
                    format_number(row.next_offset),
                    age(row.updated_at, page.now),
                )
                for row in rows
            ],
            caption="Positions of streams, by partition",
            numeric="partition,next offset",
        ),
    )
