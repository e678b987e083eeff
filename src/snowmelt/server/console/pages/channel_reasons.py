"""Reasons for late, stalled and silent channels, with remedies."""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from snowmelt.catalog.statements.tables import format_duration
from snowmelt.catalog.views.channel_states import BOOKKEEPING, ChannelCondition
from snowmelt.catalog.views.channels import ChannelView
from snowmelt.catalog.views.freshness import FRESH, LATE, NEVER
from snowmelt.schema.types import to_display_name
from snowmelt.server.console.layout import format_quantity, format_seconds, since
from snowmelt.server.console.markup import cut


@dataclass(frozen=True, slots=True)
class ChannelReason:
    """Reason for a channel's state, and a remedy. Both are sentences."""

    reason: str
    remedy: str


def explain_channel(
    channel: ChannelView,
    condition: ChannelCondition,
    now: dt.datetime,
    find_other: Callable[[], ChannelView | None],
) -> ChannelReason | None:
    """Return the reason why a channel is not fresh, or None if it is fresh.

    `find_other` returns another channel to which the client has committed since then.
    """
    if condition.state == FRESH:
        return None
    if condition.state == BOOKKEEPING:
        return _explain_bookkeeping(channel, now)
    if condition.partition is not None:
        partition = condition.partition
        return ChannelReason(
            f"The channel is stalled: {format_quantity(partition.lag, 'message')} of partition"
            f" {partition.partition} of Kafka topic {partition.topic}"
            f" {'waits' if partition.lag == 1 else 'wait'}, and its connector"
            f" {_describe_silence(channel, now)}.",
            "Check that the process `snowmelt kafka run` is running, and read its log. The process"
            " resumes after the committed offset, without loss and without duplicates.",
        )
    owner = to_display_name(channel.owner)
    table, drop = condition.table, ""
    what = f"The channel is {condition.state}: it {_describe_silence(channel, now)}"
    if condition.state == LATE and channel.freshness_s is not None:
        expected = format_duration(channel.freshness_s)
        what += f", and a commit is expected every {expected}"
        drop = (
            f" If the channel has ended, drop it: {_make_drop_command(channel)}. To expect no commits"
            f" of any channel of the table: ALTER TABLE {channel.table} UNSET FRESHNESS"
        )
    elif condition.usual_gap_s is not None:
        usual = format_seconds(condition.usual_gap_s)
        what += f". Since it was opened, it committed every {usual} on average"
    if condition.state == NEVER:
        return ChannelReason(
            f"{what}.",
            f"Check that the client of user {owner} inserts rows and flushes them.{drop}",
        )
    rejected = _describe_rejection(channel, now)
    if rejected:
        return ChannelReason(
            f"{what}. {rejected}",
            f"Correct the rows that the client of user {owner} sends, or alter the table.",
        )
    other = find_other()
    if other is not None and other.last_commit_at is not None:
        other_s = (now - other.last_commit_at).total_seconds()
        return ChannelReason(
            f"{what}. Its client is running: it committed to channel {other.name} of table"
            f" {other.table} {format_seconds(other_s)} ago.",
            f"Check the source of this channel, from which the client of user {owner} gets no"
            f" rows.{drop}",
        )
    if table.find_freshness_state(now) == FRESH and table.last_commit_at is not None:
        other_s = (now - table.last_commit_at).total_seconds()
        what += (
            f". The table as a whole is fresh, with a commit {format_seconds(other_s)} ago: only this"
            " channel is silent for longer than usual"
        )
    else:
        what += ". No other channel and no load of the table has committed since then"
    return ChannelReason(
        f"{what}.",
        f"Check that the client of user {owner} is running and that its source has rows, and read its"
        f" log. After a restart, the client resumes after the offset token.{drop}",
    )


def _explain_bookkeeping(channel: ChannelView, now: dt.datetime) -> ChannelReason:
    written = "The connector has written no offset yet"
    if channel.last_commit_at is not None:
        silent_s = (now - channel.last_commit_at).total_seconds()
        written = f"The last write was {format_seconds(silent_s)} ago"
    return ChannelReason(
        f"A Kafka connector keeps an offset in this channel, which has no rows. {written}.",
        "The page Kafka shows whether the connector commits. Drop the channel only with its topic.",
    )


def _make_drop_command(channel: ChannelView) -> str:
    words = ("snowmelt", "channels", "drop", channel.name, "--table", str(channel.table))
    return shlex.join(words)


def _describe_silence(channel: ChannelView, now: dt.datetime) -> str:
    if channel.last_commit_at is None:
        return f"has committed nothing since it was opened at {since(channel.opened_at, now)}"
    return f"has committed nothing since {since(channel.last_commit_at, now)}"


def _describe_rejection(channel: ChannelView, now: dt.datetime) -> str:
    """Return a sentence about the last rejection, or an empty text if a commit followed it."""
    at = channel.last_error_at
    if at is None or (channel.last_commit_at is not None and at < channel.last_commit_at):
        return ""
    ago = format_seconds((now - at).total_seconds())
    reason = cut(channel.last_error or "the reason is shown to roles with SELECT on the table")
    return f"Its last rows were rejected {ago} ago: {reason}"
