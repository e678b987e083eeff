"""Consumer that reads partition ranges in batches of messages until a bound is reached."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import methodcaller

import confluent_kafka as ck
import pyarrow as pa

from snowmelt.clock import Clock
from snowmelt.errors import PhaseFailed
from snowmelt.load.kafka.connection import KafkaConnection, fetch_offset_bounds
from snowmelt.load.kafka.partition_ranges_and_results import (
    EndReason,
    MessagePosition,
    OffsetGap,
    PartitionEnd,
    PartitionRange,
)
from snowmelt.load.phase_protocols import Records

_LOG = logging.getLogger(__name__)
_MAX_BATCH_MESSAGES = 5_000
_BATCH_BYTES = 4 * 1024 * 1024
_POLL_TIMEOUT_S = 0.1
# Without a time bound, the load fails after this time without messages.
_IDLE_TIMEOUT_S = 60.0
_MAX_RUNS = 500_000
_OUT_OF_RANGE = {ck.KafkaError._AUTO_OFFSET_RESET, ck.KafkaError.OFFSET_OUT_OF_RANGE}  # noqa: SLF001
_PARTITION_EOF = ck.KafkaError._PARTITION_EOF  # noqa: SLF001
_ALL_BROKERS_DOWN = ck.KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001
_PERMANENT_ERRORS = {
    ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
    ck.KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    ck.KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    ck.KafkaError.TOPIC_AUTHORIZATION_FAILED,
    ck.KafkaError.GROUP_AUTHORIZATION_FAILED,
}
_get_error, _get_offset, _get_value = map(methodcaller, ("error", "offset", "value"))


@dataclass(frozen=True, slots=True)
class ReadBounds:
    """Bounds of reading, in addition to end offsets.

    Attributes:
        duration_s: Maximum duration. None: no limit.
        eof_timeout_s: Maximum time without messages. None: no limit.
        stop_on_eof: Stop at the end of each partition.
        yields_when_idle: Yield an empty batch about every 0.1 s while no messages arrive.
    """

    duration_s: float | None = None
    eof_timeout_s: float | None = None
    stop_on_eof: bool = False
    yields_when_idle: bool = False


@dataclass(slots=True)
class _PartitionState:
    partition_range: PartitionRange
    next_offset: int
    message_count: int = 0
    size_bytes: int = 0
    skipped_messages: int = 0
    gaps: list[OffsetGap] = field(default_factory=list)
    end_reason: EndReason | None = None

    @property
    def has_reached_end(self) -> bool:
        end = self.partition_range.end
        return end is not None and self.next_offset >= end

    @property
    def topic_partition(self) -> ck.TopicPartition:
        return ck.TopicPartition(
            self.partition_range.topic, self.partition_range.partition or 0, self.next_offset
        )

    def __str__(self) -> str:
        return f"topic {self.partition_range.topic}, partition {self.partition_range.partition}"


class PartitionConsumer:
    """Single-use reader of partition ranges. Each range has a partition and a start offset.

    Empty messages are skipped and counted unless `keep_empty`. Null messages (tombstones) are always
    skipped.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        ranges: Sequence[PartitionRange],
        bounds: ReadBounds,
        clock: Clock,
        *,
        keep_empty: bool = False,
    ) -> None:
        self._clock = clock
        self._bounds = bounds
        self._keep_empty = keep_empty
        self._partitions: dict[tuple[str | None, int | None], _PartitionState] = {
            (each.topic, each.partition): _PartitionState(each, each.start) for each in ranges
        }
        self.runs = OffsetRuns()
        self._average_message_bytes = 100.0
        self._broker_error: str | None = None
        self._consumer = connection.make_consumer(self._record_broker_error)
        self.cancelled = False

    def read_batches(self) -> Generator[Records, None, None]:
        """Yield batches of messages, none of them null. Closes the consumer at the end.

        Raises:
            PhaseFailed: If a partition is missing or was recreated, or if no message arrives for
                60 s without a time bound.
        """
        try:
            self._assign_partitions()
            started = heard = self._clock.monotonic()
            while not self.cancelled and self._list_open_partitions():
                most = min(max(_BATCH_BYTES / self._average_message_bytes, 1), _MAX_BATCH_MESSAGES)
                found = self._consumer.consume(int(most), _POLL_TIMEOUT_S)
                now = self._clock.monotonic()
                if found:
                    heard, self._broker_error = now, None
                values = self._collect_values(found)
                if values or self._bounds.yields_when_idle:
                    yield pa.array(values, pa.binary())
                self._check_time_bounds(now - started, now - heard)
        finally:
            self._consumer.close()

    def list_partition_ends(self) -> tuple[PartitionEnd, ...]:
        """Return the results of the partitions whose reading has ended."""
        return tuple(
            PartitionEnd(
                topic=each.partition_range.topic,
                partition=each.partition_range.partition or 0,
                start_offset=each.partition_range.start,
                next_offset=each.next_offset,
                message_count=each.message_count,
                size_bytes=each.size_bytes,
                skipped_messages=each.skipped_messages,
                gaps=tuple(each.gaps),
                end_reason=each.end_reason,
            )
            for each in self._partitions.values()
            if each.end_reason is not None
        )

    def _assign_partitions(self) -> None:
        for each in self._partitions.values():
            self._skip_gap(each)
            if each.has_reached_end:
                each.end_reason = EndReason.END_OFFSET
        self._consumer.assign([each.topic_partition for each in self._list_open_partitions()])

    def _list_open_partitions(self) -> list[_PartitionState]:
        return [each for each in self._partitions.values() if each.end_reason is None]

    def _collect_values(self, messages_found: Sequence[ck.Message]) -> list[bytes]:
        values: list[bytes] = []
        for key, group in groupby(
            messages_found, key=lambda each: (each.topic(), each.partition())
        ):
            each, messages = self._partitions[key], list(group)
            if not self._try_accept_batch(each, messages, values):
                for message in messages:
                    self._accept_message(each, message, values)
        if values:
            self._average_message_bytes = max(sum(map(len, values)) / len(values), 1.0)
        return values

    def _try_accept_batch(
        self, partition: _PartitionState, messages: Sequence[ck.Message], values: list[bytes]
    ) -> bool:
        """Accept a whole batch. Return False if its messages must be accepted one by one.

        This is the case for errors, missing offsets and empty messages, and at the end offset.
        """
        if partition.end_reason is not None or any(map(_get_error, messages)):
            return False
        offsets, contents = list(map(_get_offset, messages)), list(map(_get_value, messages))
        first, behind, end = offsets[0], offsets[-1] + 1, partition.partition_range.end
        if behind - first != len(offsets) or not all(contents):
            return False
        if end is not None and behind >= end:
            return False
        partition.next_offset = behind
        partition.message_count += len(contents)
        partition.size_bytes += sum(map(len, contents))
        self.runs.append_messages(partition.partition_range, first, len(contents))
        values += contents
        return True

    def _accept_message(
        self, partition: _PartitionState, message: ck.Message, values: list[bytes]
    ) -> None:
        # The type allows None, but received messages have offsets.
        offset, error, value = message.offset() or 0, message.error(), message.value()
        if partition.end_reason is not None:
            return
        if error is not None:
            self._handle_partition_error(partition, error, offset)
            return
        end = partition.partition_range.end
        if end is None or offset < end:
            partition.next_offset = offset + 1
            if value or (self._keep_empty and value is not None):
                self.runs.append_messages(partition.partition_range, offset, 1)
                values.append(value)
                partition.message_count += 1
                partition.size_bytes += len(value)
            else:
                partition.skipped_messages += 1
        if end is not None and offset + 1 >= end:
            partition.next_offset = end
            self._finish_partition(partition, EndReason.END_OFFSET)

    def _handle_partition_error(
        self, partition: _PartitionState, error: ck.KafkaError, offset: int
    ) -> None:
        code = error.code()
        if code == _PARTITION_EOF:
            # Transaction markers use offsets after the last message.
            partition.next_offset = max(partition.next_offset, offset)
            if partition.has_reached_end:
                self._finish_partition(partition, EndReason.END_OFFSET)
            elif self._bounds.stop_on_eof:
                self._finish_partition(partition, EndReason.END_OF_STREAM)
        elif code in _OUT_OF_RANGE:
            if not self._skip_gap(partition):
                offset = partition.next_offset
                reason = f"{partition} has no offset {offset}. Check if the topic was recreated"
                raise PhaseFailed(reason=reason)
            self._consumer.seek(partition.topic_partition)
        elif code in _PERMANENT_ERRORS or error.fatal():
            raise PhaseFailed(reason=f"{partition}: {error.str()}")
        else:
            self._broker_error = error.str()

    def _skip_gap(self, partition: _PartitionState) -> bool:
        """Skip messages that Kafka deleted before they were read. Return True if there are any."""
        # The end offset may be stale, so only a failed read proves that an offset is after the end.
        wanted, first = partition.partition_range, partition.next_offset
        low, _ = fetch_offset_bounds(self._consumer, wanted.topic, wanted.partition or 0)
        if first >= low:
            return False
        text = "%s: messages %d to %d were deleted before they were read"
        _LOG.warning(text, partition, first, low - 1)
        partition.gaps.append(OffsetGap(first, low))
        partition.next_offset = low
        return True

    def _finish_partition(self, partition: _PartitionState, reason: EndReason) -> None:
        partition.end_reason = reason
        self._consumer.pause([partition.topic_partition])

    def _record_broker_error(self, error: ck.KafkaError) -> None:
        if error.code() == _ALL_BROKERS_DOWN or error.fatal():
            self._broker_error = error.str()

    def _check_time_bounds(self, elapsed_s: float, idle_s: float) -> None:
        duration_s, eof_timeout_s = self._bounds.duration_s, self._bounds.eof_timeout_s
        if duration_s is not None and elapsed_s >= duration_s:
            reason = EndReason.DEADLINE
        elif eof_timeout_s is not None and idle_s >= eof_timeout_s:
            reason = EndReason.END_OF_STREAM
        elif duration_s is None and eof_timeout_s is None and idle_s >= _IDLE_TIMEOUT_S:
            waiting = ", ".join(
                f"{each} at offset {each.next_offset}" for each in self._list_open_partitions()
            )
            why = f": {self._broker_error}" if self._broker_error else ""
            raise PhaseFailed(
                reason=f"no message arrived for {_IDLE_TIMEOUT_S:.0f} s from {waiting}{why}"
            )
        else:
            return
        for each in self._list_open_partitions():
            ended_by = reason if self._broker_error is None else EndReason.NETWORK_ERROR
            self._finish_partition(each, ended_by)


class OffsetRuns:
    """Offsets of the yielded messages, stored as runs of consecutive offsets."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._starts: list[tuple[PartitionRange, int]] = []
        self._count = 0
        self._last: tuple[PartitionRange | None, int] = (None, 0)

    def append_messages(self, partition_range: PartitionRange, offset: int, count: int) -> None:
        """Append messages with consecutive offsets."""
        last, behind = self._last
        if partition_range is not last or offset != behind:
            if len(self._firsts) == _MAX_RUNS:
                del self._firsts[: _MAX_RUNS // 2], self._starts[: _MAX_RUNS // 2]
            self._firsts.append(self._count + 1)
            self._starts.append((partition_range, offset))
        self._count += count
        self._last = partition_range, offset + count

    def locate_message(self, record_number: int) -> MessagePosition | None:
        """Return the position of a message by its number from 1, or None if it was evicted."""
        run = bisect_right(self._firsts, record_number) - 1
        if run < 0 or record_number > self._count:
            return None
        stream, offset = self._starts[run]
        return MessagePosition(
            stream.topic, stream.partition or 0, offset + record_number - self._firsts[run]
        )
