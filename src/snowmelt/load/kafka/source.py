"""The load source KafkaSource: partitions as inputs, messages as records."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import confluent_kafka as ck

from snowmelt.clock import Clock, SystemClock
from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.kafka.connection import (
    KafkaConnection,
    fetch_offset_bounds,
    list_partitions,
    parse_librdkafka_settings,
)
from snowmelt.load.kafka.consumer import PartitionConsumer, ReadBounds
from snowmelt.load.kafka.partition_ranges_and_results import (
    SAVED_OFFSET,
    MessagePosition,
    PartitionEnd,
    PartitionRange,
    parse_partition_ranges,
)
from snowmelt.load.phase_definition import define_phase
from snowmelt.load.phase_protocols import Records
from snowmelt.load.portion import InputFile, Portion


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSourceOptions:
    """The parameters of KafkaSource.

    Attributes:
        duration: Maximum duration of reading a portion.
        eof_timeout: Maximum time without messages in a portion.
        executionparallelism: Number of portions. None: one per partition.
        on_gap: "report" logs gaps and stores them in `PartitionEnd.gaps`; "fail" fails the load.
        zero_length: "skip" or "keep" empty messages.
    """

    stream: str
    brokers: str = "localhost:9092"
    duration: dt.timedelta | None = None
    stop_on_eof: bool = False
    eof_timeout: dt.timedelta | None = None
    executionparallelism: int | None = None
    group_id: str = "snowmelt"
    kafka_conf: str = ""
    kafka_topic_conf: str = ""
    kafka_conf_secret: str = field(default="", repr=False)
    fail_on_conf_parse_error: bool = False
    on_gap: str = "report"
    zero_length: str = "skip"


class KafkaSource:
    """Source of Kafka messages.

    The path of an input consists of its resolved partition ranges. After `read_records` of a
    portion, `ends` has the results of its partitions, which the commit stores.
    """

    def __init__(self, options: KafkaSourceOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._ranges = parse_partition_ranges(options.stream)
        self._connection = KafkaConnection(
            options.brokers, options.group_id, _collect_settings(options)
        )
        self._saved_offsets: Mapping[tuple[str, int], int] = {}
        self._consumer: PartitionConsumer | None = None
        self._cancelled = False
        self.ends: tuple[PartitionEnd, ...] = ()
        _check_options(options, self._ranges)

    def resume(self, saved_offsets: Mapping[tuple[str, int], int]) -> None:
        """Set the offsets for SAVED_OFFSET: the last load's ends, by topic and partition."""
        self._saved_offsets = saved_offsets

    def files(self) -> Sequence[InputFile]:
        """List the partitions with their start offsets.

        With `stop_on_eof`, omits partitions without new messages.

        Raises:
            PhaseFailed: If a topic or partition does not exist, or an end offset is not reachable.
            BrokersSilent: If no broker answers.
        """
        consumer = self._connection.make_consumer(lambda _: None)
        with contextlib.closing(consumer):
            wanted = [
                replace(stream, partition=partition)
                for stream in self._ranges
                for partition in self._list_requested_partitions(consumer, stream)
            ]
            resolved = [self._resolve_offsets(consumer, stream) for stream in wanted]
        found = [each for each in resolved if each is not None]
        if not found:
            return ()
        shares = min(self._options.executionparallelism or len(found), len(found))
        return tuple(
            InputFile(",".join(map(str, found[number::shares]))) for number in range(shares)
        )

    def read_records(self, portion: Portion) -> Iterator[Records]:
        """Yield the messages of the portion's partitions.

        Raises:
            PhaseFailed: If a partition cannot be read or was recreated, or (with `on_gap` "fail")
                if Kafka deleted messages before they were read.
        """
        self.ends = ()
        options = self._options
        reading = self._consumer = PartitionConsumer(
            self._connection,
            parse_partition_ranges(portion.file.path),
            ReadBounds(
                _to_seconds(options.duration), _to_seconds(options.eof_timeout), options.stop_on_eof
            ),
            self._clock,
            keep_empty=options.zero_length.lower() == "keep",
        )
        # `cancel` may have been called before this consumer existed.
        if self._cancelled:
            reading.cancelled = True
        yield from reading.read_batches()
        ends = reading.list_partition_ends()
        for end in ends if options.on_gap.lower() == "fail" else ():
            for gap in end.gaps:
                reason = f"topic {end.topic}, partition {end.partition}: messages {gap.start} to {gap.end - 1} were deleted before they were read"
                raise PhaseFailed(reason=reason)
        self.ends = ends

    def locate(self, record_number: int) -> MessagePosition | None:
        """Return the position of a message in the current portion by its 1-based number.

        Returns None if the position is unknown or was evicted.
        """
        return None if self._consumer is None else self._consumer.runs.locate_message(record_number)

    def cancel(self) -> None:
        """Stop reading, as if the input had ended. Thread-safe."""
        self._cancelled = True
        if self._consumer is not None:
            self._consumer.cancelled = True

    def report(self, partition_ends: Sequence[PartitionEnd]) -> None:
        """Commit offsets to the consumer group, for monitoring only. Failures are logged."""
        self._connection.commit_offsets(partition_ends)

    def _list_requested_partitions(
        self, consumer: ck.Consumer, partition_range: PartitionRange
    ) -> Sequence[int]:
        there = list_partitions(consumer, partition_range.topic)
        if partition_range.partition is None:
            return there
        if partition_range.partition not in there:
            reason = f"topic {partition_range.topic} has partitions {there[0]} to {there[-1]}, not {partition_range.partition}"
            raise PhaseFailed(reason=reason)
        return (partition_range.partition,)

    def _resolve_offsets(
        self, consumer: ck.Consumer, partition_range: PartitionRange
    ) -> PartitionRange | None:
        """Resolve the offsets. With `stop_on_eof`, return None if there are no new messages.

        Does not check that the start offset still exists; reading does.
        """
        topic, partition = partition_range.topic, partition_range.partition or 0
        low, high = fetch_offset_bounds(consumer, topic, partition)
        start, options = partition_range.start, self._options
        if start == SAVED_OFFSET:
            start = self._saved_offsets.get((topic, partition), low)
        elif start < 0:
            start = low
        is_bounded = options.duration or options.eof_timeout or options.stop_on_eof
        if partition_range.end is not None and partition_range.end > high and not is_bounded:
            reason = f"topic {topic}, partition {partition} ends at offset {high}, before {partition_range.end}. Add duration or stop_on_eof"
            raise PhaseFailed(reason=reason)
        is_done = partition_range.end is not None and partition_range.end <= start <= high
        if options.stop_on_eof and (start == high or is_done):
            return None
        # An earlier load may have read beyond the end.
        end = None if partition_range.end is None else max(partition_range.end, start)
        return replace(partition_range, start=start, end=end)


def _check_options(options: KafkaSourceOptions, ranges: Sequence[PartitionRange]) -> None:
    ends = all(stream.end is not None for stream in ranges)
    if not (options.duration or options.stop_on_eof or ends):
        reason = (
            "reading is unbounded. Set duration, stop_on_eof, or an end offset for each partition"
        )
    elif options.on_gap.lower() not in {"report", "fail"}:
        reason = f"invalid on_gap: expected report or fail, got {options.on_gap}"
    elif options.zero_length.lower() not in {"skip", "keep"}:
        reason = f"invalid zero_length: expected skip or keep, got {options.zero_length}"
    elif options.executionparallelism is not None and options.executionparallelism < 1:
        reason = f"executionparallelism must be 1 or more, got {options.executionparallelism}"
    elif any(stream.partition is None and stream.end is not None for stream in ranges):
        reason = "an end offset requires a partition, not *"
    else:
        return
    raise LoadRefused(what="KafkaSource", reason=reason)


def _collect_settings(options: KafkaSourceOptions) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in ("kafka_topic_conf", "kafka_conf", "kafka_conf_secret"):
        text = getattr(options, name)
        found |= parse_librdkafka_settings(
            text, strict=options.fail_on_conf_parse_error, parameter=name
        )
    return found


def _to_seconds(interval: dt.timedelta | None) -> float | None:
    return None if interval is None else interval.total_seconds()


KAFKA_SOURCE = define_phase("KafkaSource", KafkaSourceOptions, KafkaSource)
