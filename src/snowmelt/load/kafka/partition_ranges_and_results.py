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
    """Offsets `start` (inclusive) to `end` (exclusive) of a partition.

    `start` may be EARLIEST_OFFSET, or SAVED_OFFSET for the end of the last load. `partition` None
    means all partitions of the topic.
    """

    topic: str
    partition: int | None
    start: int = EARLIEST_OFFSET
    end: int | None = None

    def __str__(self) -> str:
        """Return the syntax of the parameter `stream`."""
        partition = _ALL_PARTITIONS if self.partition is None else self.partition
        end = "" if self.end is None else f"|{self.end}"
        return f"{self.topic}|{partition}|{self.start}{end}"


class EndReason(StrEnum):
    """Reason why reading a partition ended."""

    END_OFFSET = "END_OFFSET"
    END_OF_STREAM = "END_OF_STREAM"
    DEADLINE = "DEADLINE"
    NETWORK_ERROR = "NETWORK_ERROR"


@dataclass(frozen=True, slots=True)
class OffsetGap:
    """Offsets `start` to `end` (exclusive) that Kafka deleted before they were read."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    """Result of reading one partition. Picklable. The next load starts at `next_offset`.

    `message_count` and `size_bytes` exclude the `skipped_messages`, which are empty or null.
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
    """Position of a message."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        """Return the text for errors."""
        return f"topic {self.topic}, partition {self.partition}, offset {self.offset}"


def parse_partition_ranges(text: str) -> tuple[PartitionRange, ...]:
    """Parse a comma-separated list of `topic[|partition[|start[|end]]]`.

    The partition may be `*`, which is the default.

    Raises:
        LoadRefused: If the syntax is invalid, a range ends before it starts, or a partition
            repeats.
    """
    streams = tuple(_parse_partition_range(each.strip()) for each in text.split(","))
    for number, stream in enumerate(streams):
        for other in streams[:number]:
            if stream.topic == other.topic and (
                stream.partition == other.partition or None in {stream.partition, other.partition}
            ):
                raise _make_syntax_error(
                    text, f"partition {stream.partition} of {stream.topic} is given twice"
                )
    return streams


def _parse_partition_range(text: str) -> PartitionRange:
    topic, *rest = (part.strip() for part in text.split("|"))
    if not topic or len(rest) > 3:
        raise _make_syntax_error(
            text, "expected topic|partition|start or topic|partition|start|end"
        )
    try:
        numbers = [
            None if part == _ALL_PARTITIONS and not at else int(part)
            for at, part in enumerate(rest)
        ]
    except ValueError:
        raise _make_syntax_error(text, "partition, start and end must be integers") from None
    partition, start, end = (*numbers, None, None, None)[:3]
    start = EARLIEST_OFFSET if start is None else start
    if (start < 0 and start not in {EARLIEST_OFFSET, SAVED_OFFSET}) or (partition or 0) < 0:
        reason = f"start must be an offset, {EARLIEST_OFFSET} (earliest) or {SAVED_OFFSET} (end of the last load)"
        raise _make_syntax_error(text, reason)
    if end is not None and end < max(start, 0):
        raise _make_syntax_error(text, "it ends before it starts")
    return PartitionRange(topic, partition, start, end)


def _make_syntax_error(text: str, reason: str) -> LoadRefused:
    return LoadRefused(what=f"Stream {text!r}", reason=reason)
