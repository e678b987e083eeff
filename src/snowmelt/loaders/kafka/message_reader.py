"""Reader of messages: partitions with start offsets, or partitions shared in a consumer group."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import methodcaller
from typing import NamedTuple, TypeAlias

import confluent_kafka as ck

from snowmelt.errors import BrokersSilent, KafkaSourceConflict, PhaseFailed
from snowmelt.load.kafka.connection import KafkaConnection, fetch_offset_bounds, list_partitions

_LOG = logging.getLogger(__name__)
_POLL_TIMEOUT_S = 0.05
_MAX_POLL_MESSAGES = 10_000
_TIME_REQUEST_TIMEOUT_S = 10.0
_OUT_OF_RANGE = {ck.KafkaError._AUTO_OFFSET_RESET, ck.KafkaError.OFFSET_OUT_OF_RANGE}  # noqa: SLF001
_PARTITION_EOF = ck.KafkaError._PARTITION_EOF  # noqa: SLF001
_MISSING = {
    ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
    ck.KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    ck.KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    ck.KafkaError.TOPIC_AUTHORIZATION_FAILED,
    ck.KafkaError.GROUP_AUTHORIZATION_FAILED,
}
_get_place = methodcaller("topic"), methodcaller("partition")


class TopicPlace(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return the text for errors."""
        return f"topic {self.topic}, partition {self.partition}"


Places: TypeAlias = "Sequence[TopicPlace]"


class PlaceProgress:
    """Position and end of a partition that is being read."""

    __slots__ = ("end_offset", "next_offset")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.end_offset: int | None = None


class MessageReader:
    """Reader of messages of partitions. Single-use, for one thread.

    Args:
        connection: Brokers and consumer group.
        topics: Topics to read.
        start: Called with partitions to read. Returns the offset of each; None is the beginning.
        release: Called with partitions that the group takes away, before another member gets them.
        uses_group: Share the partitions with the group. False: read all of them.
        fails_on_gap: Raise an error if messages were deleted before they were read.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        topics: tuple[str, ...],
        start: Callable[[ck.Consumer, Places], dict[TopicPlace, int]],
        release: Callable[[Places], None],
        *,
        uses_group: bool,
        fails_on_gap: bool,
    ) -> None:
        self._topics = topics
        self._start = start
        self._release = release
        self._uses_group = uses_group
        self._fails_on_gap = fails_on_gap
        self._callback_error: BaseException | None = None
        self._paused: set[TopicPlace] = set()
        self._has_gap = False
        self.progress: dict[TopicPlace, PlaceProgress] = {}
        self._consumer = connection.make_consumer(lambda _: None)

    def open(self) -> None:
        """Assign the partitions, or join the group.

        Raises:
            PhaseFailed: If a topic does not exist.
            BrokersSilent: If no broker responds.
        """
        found = [
            TopicPlace(topic, partition)
            for topic in self._topics
            for partition in list_partitions(self._consumer, topic)
        ]
        if self._uses_group:
            self._consumer.subscribe(
                list(self._topics), on_assign=self._on_assign, on_revoke=self._on_revoke
            )
        else:
            self._assign(found)

    def close(self) -> None:
        """Leave the group and close the consumer."""
        self._consumer.close()
        self._raise_callback_error()

    def has_new_partitions(self) -> bool:
        """Return True if a topic has partitions that are not read.

        Always False with a consumer group, which finds new partitions itself.
        """
        return not self._uses_group and any(
            TopicPlace(topic, partition) not in self.progress
            for topic in self._topics
            for partition in list_partitions(self._consumer, topic)
        )

    def read_messages(self) -> Iterator[tuple[TopicPlace, list[ck.Message]]]:
        """Wait up to 0.05 s for messages, and yield them by partition.

        Raises:
            KafkaSourceConflict: If a partition does not have the offset to continue from.
            PhaseFailed: If a topic does not exist, or if unread messages were deleted and that is an
                error.
        """
        found = self._consumer.consume(_MAX_POLL_MESSAGES, _POLL_TIMEOUT_S)
        self._raise_callback_error()
        by_topic, by_partition = _get_place
        for (topic, partition), group in groupby(
            found, key=lambda m: (by_topic(m), by_partition(m))
        ):
            messages = list(group)
            place = TopicPlace(topic or "", partition or 0)
            progress = self.progress.get(place)
            if progress is None:
                continue
            if any(each.error() for each in messages):
                messages = [each for each in messages if self._accept(place, progress, each)]
            if messages:
                progress.next_offset = (messages[-1].offset() or 0) + 1
                yield place, messages
        if self._has_gap:
            self._continue_after_gap()

    def pause(self, places: Iterable[TopicPlace]) -> None:
        """Stop fetching some partitions. Their fetched messages are fetched again later."""
        paused = list(places)
        self._paused.update(paused)
        self._consumer.pause([ck.TopicPartition(*each) for each in paused])

    def resume(self, places: Iterable[TopicPlace]) -> None:
        """Fetch some partitions again."""
        resumed = list(places)
        self._paused.difference_update(resumed)
        self._consumer.resume([ck.TopicPartition(*each) for each in resumed])

    def update_end_offsets(self) -> None:
        """Update the end offsets from the last fetches, without a request."""
        for place, progress in self.progress.items():
            try:
                low, high = self._consumer.get_watermark_offsets(
                    ck.TopicPartition(*place), cached=True
                )
            except ck.KafkaException:
                continue
            if low >= 0 and high >= 0:
                progress.end_offset = max(high, progress.next_offset)

    def _assign(self, places: Places) -> None:
        starts = self._start(self._consumer, places)
        self.progress.update({place: PlaceProgress(at) for place, at in starts.items()})
        self._consumer.assign([ck.TopicPartition(*place, at) for place, at in starts.items()])

    def _on_assign(self, _: ck.Consumer, assigned: list[ck.TopicPartition]) -> None:
        try:
            self._assign([TopicPlace(each.topic, each.partition) for each in assigned])
        except BaseException as error:  # noqa: BLE001 - librdkafka's thread of control: raised after it
            self._callback_error = error

    def _on_revoke(self, _: ck.Consumer, revoked: list[ck.TopicPartition]) -> None:
        places = [TopicPlace(each.topic, each.partition) for each in revoked]
        try:
            self._release([each for each in places if each in self.progress])
        except BaseException as error:  # noqa: BLE001 - as above
            self._callback_error = error
        for each in places:
            self.progress.pop(each, None)
            self._paused.discard(each)

    def _raise_callback_error(self) -> None:
        error, self._callback_error = self._callback_error, None
        if error is not None:
            raise error

    def _accept(self, place: TopicPlace, progress: PlaceProgress, message: ck.Message) -> bool:
        error = message.error()
        if error is None:
            return True
        if error.code() in _OUT_OF_RANGE:
            self._skip_gap(place, progress)
        elif error.code() in _MISSING or error.fatal():
            raise PhaseFailed(reason=f"{place}: {error.str()}")
        elif error.code() != _PARTITION_EOF:
            _LOG.warning("%s: %s", place, error.str())
        return False

    def _skip_gap(self, place: TopicPlace, progress: PlaceProgress) -> None:
        low, high = fetch_offset_bounds(self._consumer, *place)
        first = progress.next_offset
        if first >= low:
            reason = f"partition {place.partition} ends at offset {high}, before the committed offset {first - 1}"
            raise KafkaSourceConflict(topic=place.topic, reason=reason)
        text = f"{place}: messages {first} to {low - 1} were deleted before they were read"
        if self._fails_on_gap:
            raise PhaseFailed(reason=text)
        _LOG.warning("%s", text)
        progress.next_offset = low
        self._has_gap = True

    def _continue_after_gap(self) -> None:
        """Assign all partitions again, because librdkafka cannot seek from a missing offset.

        All messages that were consumed have been yielded, so no message is read twice.
        """
        self._has_gap = False
        self._consumer.assign(
            [ck.TopicPartition(*place, each.next_offset) for place, each in self.progress.items()]
        )
        if self._paused:
            self.pause(self._paused)


def find_offsets_at(consumer: ck.Consumer, places: Places, at_ms: int) -> dict[TopicPlace, int]:
    """Return the first offset of each partition whose message is not older than a time.

    A partition without such a message starts at its end.

    Raises:
        BrokersSilent: If no broker responds.
    """
    wanted = [ck.TopicPartition(*place, at_ms) for place in places]
    try:
        found = consumer.offsets_for_times(wanted, timeout=_TIME_REQUEST_TIMEOUT_S)
    except ck.KafkaException as error:
        raise BrokersSilent(what="offsets of a time", reason=error.args[0].str()) from error
    return {
        place: each.offset if each.offset >= 0 else fetch_offset_bounds(consumer, *place)[1]
        for each in found
        for place in [TopicPlace(each.topic, each.partition)]
    }
