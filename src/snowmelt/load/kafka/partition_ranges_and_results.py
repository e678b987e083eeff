"""Partition ranges to read, and the result of reading each partition."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from snowmelt.errors import LoadRefused

EARLIEST_OFFSET = -2
SAVED_OFFSET = -3
_ALL_PARTITIONS = "*"


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Messages of a partition from offset `start` up to before `end`.

    `start` may be EARLIEST, or SAVED for where the last load ended; `partition` is None for all
    partitions of the topic. The text is as in the parameter `stream`.
    """

    topic: str
    partition: int | None
    start: int = EARLIEST_OFFSET
    end: int | None = None

    def __str__(self) -> str:
        """Write it as it is parsed."""
        partition = _ALL_PARTITIONS if self.partition is None else self.partition
        end = "" if self.end is None else f"|{self.end}"
        return f"{self.topic}|{partition}|{self.start}{end}"


class EndReason(StrEnum):
    """Why reading of a partition ended."""

    END_OFFSET = "END_OFFSET"
    END_OF_STREAM = "END_OF_STREAM"
    DEADLINE = "DEADLINE"
    NETWORK_ERROR = "NETWORK_ERROR"


@dataclass(frozen=True, slots=True)
class OffsetGap:
    """Offsets from `start` up to before `end` that retention had removed before they were read."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    """What was read of one partition; the next load begins at `next_offset`. Picklable.

    `message_count` and `size_bytes` (bytes) count what was handed on, `skipped_messages` messages without content.
    """

    topic: str
    partition: int
    start_offset: int
    next_offset: int
    message_count: int
    size_bytes: int
    skipped_messages: int
    gaps: tuple[OffsetGap, ...]
    end_reason: EndReason


@dataclass(frozen=True, slots=True)
class MessagePosition:
    """Where a message lies."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        """Say it for an error."""
        return f"topic {self.topic}, partition {self.partition}, offset {self.offset}"


def parse_partition_ranges(text: str) -> tuple[PartitionRange, ...]:
    """Read `topic|partition|start[|end]`, several with commas between.

    The partition may be `*`, and may be left out with what follows.

    Raises:
        LoadRefused: It is not written so, ends before it starts, or names a partition twice.
    """
    streams = tuple(_parse_partition_range(each.strip()) for each in text.split(","))
    for number, stream in enumerate(streams):
        for other in streams[:number]:
            if stream.topic == other.topic and (
                stream.partition == other.partition or None in {stream.partition, other.partition}
            ):
                raise _make_syntax_error(
                    text, f"partition {stream.partition} of {stream.topic} is there twice"
                )
    return streams


def _parse_partition_range(text: str) -> PartitionRange:
    topic, *rest = (part.strip() for part in text.split("|"))
    if not topic or len(rest) > 3:
        raise _make_syntax_error(
            text, "it is written topic|partition|start or topic|partition|start|end"
        )
    try:
        numbers = [
            None if part == _ALL_PARTITIONS and not at else int(part)
            for at, part in enumerate(rest)
        ]
    except ValueError:
        raise _make_syntax_error(text, "partition, start and end are whole numbers") from None
    partition, start, end = (*numbers, None, None, None)[:3]
    start = EARLIEST_OFFSET if start is None else start
    if (start < 0 and start not in {EARLIEST_OFFSET, SAVED_OFFSET}) or (partition or 0) < 0:
        reason = f"start is an offset, {EARLIEST_OFFSET} (earliest) or {SAVED_OFFSET} (where the last load ended)"
        raise _make_syntax_error(text, reason)
    if end is not None and end < max(start, 0):
        raise _make_syntax_error(text, "it ends before it starts")
    return PartitionRange(topic, partition, start, end)


def _make_syntax_error(text: str, reason: str) -> LoadRefused:
    return LoadRefused(what=f"Stream {text!r}", reason=reason)
