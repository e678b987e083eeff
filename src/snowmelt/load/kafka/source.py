"""KafkaSource: partitions as inputs, messages as records."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from snowmelt.clock import SystemClock
from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.definition import Definition, Parameter
from snowmelt.load.kafka.connection import Connection, bounds_of, partitions_of, settings_of
from snowmelt.load.kafka.consumer import Bounds, Reading
from snowmelt.load.kafka.partitions import SAVED, Stream, StreamEnd, parse_streams
from snowmelt.load.portion import InputFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import confluent_kafka as ck

    from snowmelt.clock import Clock
    from snowmelt.load.kafka.partitions import MessagePlace
    from snowmelt.load.phases import Records
    from snowmelt.load.portion import Portion


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions:
    """The parameters of KafkaSource. Intervals bound the reading of each portion by itself.

    `on_gap` is "report" (the gap is in `StreamEnd.gaps`, and logged) or "fail"; `zero_length` is
    "skip" or "keep". Each of `executionparallelism` portions reads a share of the partitions;
    one portion for each partition if it is not given.
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
    """Messages of partitions; the path of an input is its streams, as they were resolved.

    After `read_records` of a portion has ended, `ends` tells what was read, for the commit.
    """

    def __init__(self, options: KafkaOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._streams = parse_streams(options.stream)
        self._connection = Connection(options.brokers, options.group_id, _settings(options))
        self._saved: Mapping[tuple[str, int], int] = {}
        self._reading: Reading | None = None
        self._cancelled = False
        self.ends: tuple[StreamEnd, ...] = ()
        _check(options, self._streams)

    def resume(self, saved: Mapping[tuple[str, int], int]) -> None:
        """Say where the last load ended, by topic and partition, for streams that start there."""
        self._saved = saved

    def files(self) -> Sequence[InputFile]:
        """List the partitions with the offsets they are read from.

        With `stop_on_eof` a partition that has nothing new before its end is not among them.

        Raises:
            PhaseFailed: A topic or partition does not exist, or an offset is not there (any
                more, with `on_gap` "fail").
            BrokersSilent: No broker answers.
        """
        consumer = self._connection.consumer(_ignore)
        try:
            found = [
                resolved
                for stream in self._streams
                for partition in self._wanted(consumer, stream)
                if (resolved := self._resolved(consumer, replace(stream, partition=partition)))
            ]
        finally:
            consumer.close()
        if not found:
            return ()
        shares = min(self._options.executionparallelism or len(found), len(found))
        return tuple(
            InputFile(",".join(map(str, found[number::shares]))) for number in range(shares)
        )

    def read_records(self, portion: Portion) -> Iterator[Records]:
        """Yield the messages of the portion's partitions.

        Raises:
            PhaseFailed: Partitions cannot be read, were made anew, or (with `on_gap` "fail")
                have lost messages that were not read.
        """
        self.ends = ()
        options = self._options
        reading = self._reading = Reading(
            self._connection,
            parse_streams(portion.file.path),
            Bounds(_seconds(options.duration), _seconds(options.eof_timeout), options.stop_on_eof),
            self._clock,
            keep_empty=options.zero_length.lower() == "keep",
        )
        # Whoever cancelled before this has found nothing to end.
        if self._cancelled:
            reading.cancelled = True
        yield from reading.batches()
        ends = reading.ends()
        if options.on_gap.lower() == "fail":
            _refuse_gaps(ends)
        self.ends = ends

    def locate(self, record: int) -> MessagePlace | None:
        """Return where message number `record`, from 1, of the portion that is read lies.

        None if that is not known (any more).
        """
        return None if self._reading is None else self._reading.locate(record)

    def cancel(self) -> None:
        """Make reading end soon, or as soon as it begins, as if there were nothing more; any thread may."""
        self._cancelled = True
        if self._reading is not None:
            self._reading.cancelled = True

    def report(self, ends: Sequence[StreamEnd]) -> None:
        """Tell the group how far loads have come, for those who watch it; failures are logged."""
        self._connection.tell(ends)

    def _wanted(self, consumer: ck.Consumer, stream: Stream) -> Sequence[int]:
        there = partitions_of(consumer, stream.topic)
        if stream.partition is None:
            return there
        if stream.partition not in there:
            reason = f"topic {stream.topic} has partitions {there[0]} to {there[-1]}, not {stream.partition}"
            raise PhaseFailed(reason=reason)
        return (stream.partition,)

    def _resolved(self, consumer: ck.Consumer, stream: Stream) -> Stream | None:
        """Find where a stream starts, None where nothing is new.

        That the start is still there is looked at when it is read.
        """
        topic, partition = stream.topic, stream.partition or 0
        low, high = bounds_of(consumer, topic, partition)
        start = stream.start
        if start < 0:
            start = self._saved.get((topic, partition), low) if start == SAVED else low
        if stream.end is not None and stream.end > high and not self._ends_in_time():
            reason = f"topic {topic}, partition {partition} ends at offset {high}, before {stream.end}: say duration or stop_on_eof, too"
            raise PhaseFailed(reason=reason)
        is_done = stream.end is not None and stream.end <= start <= high
        if self._options.stop_on_eof and (start == high or is_done):
            return None
        # What was read already may lie beyond the end.
        end = None if stream.end is None else max(stream.end, start)
        return replace(stream, start=start, end=end)

    def _ends_in_time(self) -> bool:
        options = self._options
        return bool(options.duration or options.eof_timeout or options.stop_on_eof)


def _refuse_gaps(ends: Sequence[StreamEnd]) -> None:
    for end in ends:
        for gap in end.gaps:
            reason = f"topic {end.topic}, partition {end.partition}: messages {gap.start} to {gap.end - 1} were gone before they were read"
            raise PhaseFailed(reason=reason)


def _check(options: KafkaOptions, streams: Sequence[Stream]) -> None:
    ends = all(stream.end is not None for stream in streams)
    if not (options.duration or options.stop_on_eof or ends):
        reason = "nothing ends it: say duration, stop_on_eof, or an end offset for each partition"
    elif options.on_gap.lower() not in {"report", "fail"}:
        reason = f"on_gap is report or fail, not {options.on_gap}"
    elif options.zero_length.lower() not in {"skip", "keep"}:
        reason = f"zero_length is skip or keep, not {options.zero_length}"
    elif options.executionparallelism is not None and options.executionparallelism < 1:
        reason = f"executionparallelism is 1 or more, not {options.executionparallelism}"
    elif any(stream.partition is None and stream.end is not None for stream in streams):
        reason = "an end offset is that of one partition, not of all"
    else:
        return
    raise LoadRefused(what="KafkaSource", reason=reason)


def _settings(options: KafkaOptions) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in ("kafka_topic_conf", "kafka_conf", "kafka_conf_secret"):
        text = getattr(options, name)
        found |= settings_of(text, strict=options.fail_on_conf_parse_error, parameter=name)
    return found


def _seconds(interval: dt.timedelta | None) -> float | None:
    return None if interval is None else interval.total_seconds()


def _ignore(_: object) -> None:
    """Whoever asks gets the error as an answer."""


def _make(**given: object) -> KafkaSource:
    return KafkaSource(KafkaOptions(**given))  # type: ignore[arg-type]


_KINDS = {
    "stream": str,
    "brokers": str,
    "duration": dt.timedelta,
    "stop_on_eof": bool,
    "eof_timeout": dt.timedelta,
    "executionparallelism": int,
    "group_id": str,
    "kafka_conf": str,
    "kafka_topic_conf": str,
    "kafka_conf_secret": str,
    "fail_on_conf_parse_error": bool,
    "on_gap": str,
    "zero_length": str,
}
KAFKA_SOURCE = Definition(
    "KafkaSource",
    _make,
    tuple(Parameter(name, kind, name == "stream") for name, kind in _KINDS.items()),
)
