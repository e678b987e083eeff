"""Connection to Kafka brokers: settings, consumers, partition lists, offset bounds and commits."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

from snowmelt.errors import BrokersSilent, LoadRefused, PhaseFailed
from snowmelt.load.kafka.partition_ranges_and_results import PartitionEnd

_Response = TypeVar("_Response")

_LOG = logging.getLogger(__name__)
# Asked again so often: meanwhile a signal may end the waiting.
_REQUEST_TIMEOUT_S = 5.0
_MAX_ATTEMPTS = 4
_COMMIT_TIMEOUT_S = 3.0
_UNAVAILABLE_ERRORS = {
    ck.KafkaError._TRANSPORT,  # noqa: SLF001
    ck.KafkaError._TIMED_OUT,  # noqa: SLF001
    ck.KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
    ck.KafkaError._RESOLVE,  # noqa: SLF001
    ck.KafkaError._AUTHENTICATION,  # noqa: SLF001
}
# librdkafka reads ahead; its own limit, 64 MiB, is all that a task may have.
_READ_AHEAD_KIB = 16 * 1024
_FETCH_BYTES = 4 * 1024 * 1024
_FETCH_WAIT_MS = 100


@dataclass(frozen=True, slots=True)
class KafkaConnection:
    """Brokers, group and further settings of librdkafka. The group is told of progress only."""

    brokers: str
    group: str
    settings: Mapping[str, object] = field(default_factory=dict)

    def make_consumer(self, on_error: Callable[[ck.KafkaError], None]) -> ck.Consumer:
        """Make a consumer that is told its partitions and where to begin in them.

        Raises:
            LoadRefused: librdkafka does not know a setting, or its value.
        """
        settings: dict[str, object] = {
            "queued.max.messages.kbytes": _READ_AHEAD_KIB,
            # The end of a partition is known when a fetch that waits has come back.
            "fetch.wait.max.ms": _FETCH_WAIT_MS,
            "fetch.max.bytes": _FETCH_BYTES,
            "max.partition.fetch.bytes": _FETCH_BYTES,
            **self.settings,
            "bootstrap.servers": self.brokers,
            "group.id": self.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            # A jump to where messages still are would go unnoticed.
            "auto.offset.reset": "error",
            "error_cb": on_error,
        }
        try:
            return ck.Consumer(settings, logger=_LOG)
        except (ck.KafkaException, TypeError, ValueError) as error:
            reason = error.args[0].str() if isinstance(error, ck.KafkaException) else str(error)
            raise LoadRefused(what="KafkaSource", reason=reason) from error

    def commit_offsets(self, partition_ends: Iterable[PartitionEnd]) -> None:
        """Tell the group where loads have come to; waits a few seconds at most.

        Nothing relies on it: that it failed is logged.
        """
        places = [
            ck.TopicPartition(end.topic, end.partition, end.next_offset) for end in partition_ends
        ]
        wanted = [ck.ConsumerGroupTopicPartitions(self.group, places)]
        silent = {"bootstrap.servers": self.brokers, "error_cb": lambda _: None}
        settings: dict[str, Any] = {**self.settings, **silent}
        try:
            admin = AdminClient(settings, logger=_LOG)
            told = admin.alter_consumer_group_offsets(wanted, request_timeout=_COMMIT_TIMEOUT_S)
            told[self.group].result(timeout=2 * _COMMIT_TIMEOUT_S)
        except (ck.KafkaException, TimeoutError, TypeError, ValueError) as error:
            _LOG.warning("group %s was not told of offsets: %s", self.group, error)


def parse_librdkafka_settings(text: str, *, strict: bool, parameter: str) -> dict[str, object]:
    """Read settings of librdkafka, as a JSON object or as `name=value;name=value`.

    What cannot be read is left out with a warning unless `strict`.

    Raises:
        LoadRefused: It cannot be read, and `strict`. The text is not shown: it may be secret.
    """
    try:
        if text.strip().startswith("{"):
            return dict(json.loads(text))
        pairs = [pair.partition("=") for pair in text.split(";") if pair.strip()]
        if all(name.strip() and equals for name, equals, _ in pairs):
            return {name.strip(): value.strip() for name, _, value in pairs}
    except ValueError:
        pass
    reason = f"{parameter} is neither a JSON object nor name=value;name=value"
    if strict:
        raise LoadRefused(what="KafkaSource", reason=reason)
    _LOG.warning("%s: it is not used", reason)
    return {}


def list_partitions(consumer: ck.Consumer, topic: str) -> tuple[int, ...]:
    """Return the partitions of a topic.

    Raises:
        PhaseFailed: There is no such topic.
        BrokersSilent: No broker answers.
    """
    found = _request_with_retry(
        f"topic {topic}",
        lambda: consumer.list_topics(topic, timeout=_REQUEST_TIMEOUT_S).topics[topic],
    )
    if found.error is not None or not found.partitions:
        reason = "it has no partitions" if found.error is None else found.error.str()
        raise PhaseFailed(reason=f"topic {topic}: {reason}")
    return tuple(sorted(found.partitions))


def fetch_offset_bounds(consumer: ck.Consumer, topic: str, partition: int) -> tuple[int, int]:
    """Return the first offset that a partition has, and the one behind its last.

    Raises:
        PhaseFailed: There is no such partition.
        BrokersSilent: No broker answers.
    """
    place = ck.TopicPartition(topic, partition)

    def request() -> tuple[int, int]:
        low, high = consumer.get_watermark_offsets(place, timeout=_REQUEST_TIMEOUT_S)
        return low, high

    return _request_with_retry(f"topic {topic}, partition {partition}", request)


def fetch_end_offsets(connection: KafkaConnection, topic: str) -> dict[int, int]:
    """Return the offset behind the last message of each partition.

    Raises:
        PhaseFailed: If the topic does not exist.
        BrokersSilent: If no broker answers.
    """
    consumer = connection.make_consumer(lambda _: None)
    try:
        return {
            number: fetch_offset_bounds(consumer, topic, number)[1]
            for number in list_partitions(consumer, topic)
        }
    finally:
        consumer.close()


def _request_with_retry(label: str, request: Callable[[], _Response]) -> _Response:
    left = _MAX_ATTEMPTS
    while True:
        try:
            return request()
        except ck.KafkaException as error:
            left -= 1
            reason = error.args[0].str()
            if error.args[0].code() not in _UNAVAILABLE_ERRORS:
                raise PhaseFailed(reason=f"{label}: {reason}") from error
            if not left:
                raise BrokersSilent(what=label, reason=reason) from error
