"""Reads partitions from offset to offset, in batches of messages, until a bound is reached."""

from __future__ import annotations

import logging
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import groupby
from operator import methodcaller
from typing import TYPE_CHECKING

import confluent_kafka as ck
import pyarrow as pa

from snowmelt.errors import PhaseFailed
from snowmelt.load.kafka.connection import bounds_of
from snowmelt.load.kafka.partitions import EndReason, Gap, MessagePlace, Stream, StreamEnd

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from snowmelt.clock import Clock
    from snowmelt.load.kafka.connection import Connection
    from snowmelt.load.phases import Records

_LOG = logging.getLogger(__name__)
_MOST_MESSAGES = 5_000
_BATCH_BYTES = 4 * 1024 * 1024
_WAIT_S = 0.1
# Without a bound in time: how long nothing may come before the load is given up.
_SILENCE_S = 60.0
_MOST_RUNS = 500_000
_OUT_OF_RANGE = {ck.KafkaError._AUTO_OFFSET_RESET, ck.KafkaError.OFFSET_OUT_OF_RANGE}  # noqa: SLF001
_AT_END = ck.KafkaError._PARTITION_EOF  # noqa: SLF001
_DOWN = ck.KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001
_HOPELESS = {
    ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
    ck.KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    ck.KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    ck.KafkaError.TOPIC_AUTHORIZATION_FAILED,
    ck.KafkaError.GROUP_AUTHORIZATION_FAILED,
}
_ERROR_OF, _OFFSET_OF, _VALUE_OF = map(methodcaller, ("error", "offset", "value"))


@dataclass(frozen=True, slots=True)
class Bounds:
    """When reading ends, besides at end offsets; seconds, None for never.

    With `tells_idle` an empty batch is handed on several times a second when nothing comes.
    """

    duration_s: float | None = None
    eof_timeout_s: float | None = None
    stop_on_eof: bool = False
    tells_idle: bool = False


@dataclass(slots=True)
class _Partition:
    stream: Stream
    next: int
    messages: int = 0
    size: int = 0
    skipped: int = 0
    gaps: list[Gap] = field(default_factory=list)
    reason: EndReason | None = None

    @property
    def place(self) -> ck.TopicPartition:
        return ck.TopicPartition(self.stream.topic, self.stream.partition or 0, self.next)

    def __str__(self) -> str:
        return f"topic {self.stream.topic}, partition {self.stream.partition}"


class Reading:
    """One run over partitions, whose streams have a partition and an offset to start at.

    Messages without content are skipped and counted, unless `keep_empty`; those that are null
    (tombstones) always are.
    """

    def __init__(
        self,
        connection: Connection,
        streams: Sequence[Stream],
        bounds: Bounds,
        clock: Clock,
        *,
        keep_empty: bool = False,
    ) -> None:
        self._clock = clock
        self._bounds = bounds
        self._keep_empty = keep_empty
        self._partitions: dict[tuple[str | None, int | None], _Partition] = {
            (each.topic, each.partition): _Partition(each, each.start) for each in streams
        }
        self._runs = _Runs()
        self._average = 100.0
        self._down: str | None = None
        self._consumer = connection.consumer(self._noticed)
        self.cancelled = False

    def batches(self) -> Generator[Records, None, None]:
        """Yield messages, none of them null; closes the consumer at the end.

        Raises:
            PhaseFailed: A partition is gone or was made anew, or nothing comes for a minute
                where nothing else bounds the time.
        """
        try:
            self._start()
            started = heard = self._clock.monotonic()
            while not self.cancelled and self._open():
                most = int(min(max(_BATCH_BYTES / self._average, 1), _MOST_MESSAGES))
                found = self._consumer.consume(most, _WAIT_S)
                now = self._clock.monotonic()
                if found:
                    heard, self._down = now, None
                values = self._taken(found)
                if values or self._bounds.tells_idle:
                    yield pa.array(values, pa.binary())
                self._check_time(now - started, now - heard)
        finally:
            self._consumer.close()

    def ends(self) -> tuple[StreamEnd, ...]:
        """Return what was read of each partition; all of them have ended."""
        return tuple(
            StreamEnd(
                topic=each.stream.topic,
                partition=each.stream.partition or 0,
                start_offset=each.stream.start,
                next_offset=each.next,
                messages=each.messages,
                size=each.size,
                skipped=each.skipped,
                gaps=tuple(each.gaps),
                reason=each.reason,
            )
            for each in self._partitions.values()
            if each.reason is not None
        )

    def locate(self, record: int) -> MessagePlace | None:
        """Return where the message lies that was handed on as number `record`, from 1.

        None if it is long ago.
        """
        return self._runs.locate(record)

    def _start(self) -> None:
        for each in self._partitions.values():
            self._skip_gap(each)
            if each.stream.end is not None and each.next >= each.stream.end:
                each.reason = EndReason.END_OFFSET
        self._consumer.assign([each.place for each in self._open()])

    def _open(self) -> list[_Partition]:
        return [each for each in self._partitions.values() if each.reason is None]

    def _taken(self, found: Sequence[ck.Message]) -> list[bytes]:
        values: list[bytes] = []
        for key, group in groupby(found, key=_partition_of):
            each, messages = self._partitions[key], list(group)
            if not self._took_all(each, messages, values):
                for message in messages:
                    self._take(each, message, values)
        if values:
            self._average = max(sum(map(len, values)) / len(values), 1.0)
        return values

    def _took_all(
        self, each: _Partition, messages: Sequence[ck.Message], values: list[bytes]
    ) -> bool:
        """Take messages at once, if there is nothing about any of them; tell whether."""
        if each.reason is not None or any(map(_ERROR_OF, messages)):
            return False
        offsets, contents = list(map(_OFFSET_OF, messages)), list(map(_VALUE_OF, messages))
        first, behind, end = offsets[0], offsets[-1] + 1, each.stream.end
        if behind - first != len(offsets) or not all(contents):
            return False
        if end is not None and behind >= end:
            return False
        each.next = behind
        each.messages += len(contents)
        each.size += sum(map(len, contents))
        self._runs.add(each.stream, first, len(contents))
        values += contents
        return True

    def _take(self, each: _Partition, message: ck.Message, values: list[bytes]) -> None:
        # Librdkafka types it as one that may be missing; in a message it is not.
        offset, error, value = message.offset() or 0, message.error(), message.value()
        if each.reason is not None:
            return
        if error is not None:
            self._happened(each, error, offset)
            return
        end = each.stream.end
        if end is None or offset < end:
            each.next = offset + 1
            if value or (self._keep_empty and value is not None):
                self._runs.add(each.stream, offset, 1)
                values.append(value)
                each.messages += 1
                each.size += len(value)
            else:
                each.skipped += 1
        if end is not None and offset + 1 >= end:
            each.next = end
            self._finish(each, EndReason.END_OFFSET)

    def _happened(self, each: _Partition, error: ck.KafkaError, offset: int) -> None:
        code = error.code()
        if code == _AT_END:
            # Behind the last message may lie offsets of transactions, which are none.
            each.next = max(each.next, offset)
            if each.stream.end is not None and each.next >= each.stream.end:
                self._finish(each, EndReason.END_OFFSET)
            elif self._bounds.stop_on_eof:
                self._finish(each, EndReason.END_OF_STREAM)
        elif code in _OUT_OF_RANGE:
            if not self._skip_gap(each):
                reason = f"{each} has no offset {each.next}: was the topic made anew?"
                raise PhaseFailed(reason=reason)
            self._consumer.seek(each.place)
        elif code in _HOPELESS or error.fatal():
            raise PhaseFailed(reason=f"{each}: {error.str()}")
        else:
            self._down = error.str()

    def _skip_gap(self, each: _Partition) -> bool:
        """Go to the first offset that is there, if it is behind the next one; tell whether."""
        # What is said of the last one may be late: only a refusal to read there counts.
        low, _ = bounds_of(self._consumer, each.stream.topic, each.stream.partition or 0)
        if each.next >= low:
            return False
        _LOG.warning(
            "%s: messages %d to %d were gone before they were read", each, each.next, low - 1
        )
        each.gaps.append(Gap(each.next, low))
        each.next = low
        return True

    def _finish(self, each: _Partition, reason: EndReason) -> None:
        each.reason = reason
        self._consumer.pause([each.place])

    def _noticed(self, error: ck.KafkaError) -> None:
        if error.code() == _DOWN or error.fatal():
            self._down = error.str()

    def _check_time(self, passed: float, silent: float) -> None:
        bounds = self._bounds
        if bounds.duration_s is not None and passed >= bounds.duration_s:
            reason = EndReason.DEADLINE if self._down is None else EndReason.NETWORK_ERROR
        elif bounds.eof_timeout_s is not None and silent >= bounds.eof_timeout_s:
            reason = EndReason.END_OF_STREAM if self._down is None else EndReason.NETWORK_ERROR
        elif bounds.duration_s is None and bounds.eof_timeout_s is None and silent >= _SILENCE_S:
            waiting = ", ".join(f"{each} at offset {each.next}" for each in self._open())
            why = f": {self._down}" if self._down else ""
            raise PhaseFailed(reason=f"nothing came for {_SILENCE_S:.0f} seconds of {waiting}{why}")
        else:
            return
        for each in self._open():
            self._finish(each, reason)


class _Runs:
    """Which messages were handed on, as runs of offsets that follow one another."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._starts: list[tuple[Stream, int]] = []
        self._count = 0
        self._last: tuple[Stream | None, int] = (None, 0)

    def add(self, stream: Stream, offset: int, count: int) -> None:
        """Note the next messages, whose offsets follow one another."""
        last, behind = self._last
        if stream is not last or offset != behind:
            if len(self._firsts) == _MOST_RUNS:
                del self._firsts[: _MOST_RUNS // 2], self._starts[: _MOST_RUNS // 2]
            self._firsts.append(self._count + 1)
            self._starts.append((stream, offset))
        self._count += count
        self._last = stream, offset + count

    def locate(self, record: int) -> MessagePlace | None:
        """Return where message number `record` lies, None if it is not known any more."""
        run = bisect_right(self._firsts, record) - 1
        if run < 0 or record > self._count:
            return None
        stream, offset = self._starts[run]
        return MessagePlace(
            stream.topic, stream.partition or 0, offset + record - self._firsts[run]
        )


def _partition_of(message: ck.Message) -> tuple[str | None, int | None]:
    return message.topic(), message.partition()
