"""Connection to Kafka brokers: settings, consumers, partitions, offset bounds and commits."""

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
# Timeout of one attempt. It is short, because signals are handled only between attempts.
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
# Read-ahead of a consumer. The default of librdkafka is 64 MiB.
_READ_AHEAD_KIB = 16 * 1024
_FETCH_BYTES = 4 * 1024 * 1024
_FETCH_WAIT_MS = 100


@dataclass(frozen=True, slots=True)
class KafkaConnection:
    """Brokers, consumer group and librdkafka settings. The group serves only to report progress."""

    brokers: str
    group: str
    settings: Mapping[str, object] = field(default_factory=dict)

    def make_consumer(self, on_error: Callable[[ck.KafkaError], None]) -> ck.Consumer:
        """Return a consumer. Raise LoadRefused for invalid settings."""
        settings: dict[str, object] = {
            "queued.max.messages.kbytes": _READ_AHEAD_KIB,
            # librdkafka reports the end of a partition only after this wait.
            "fetch.wait.max.ms": _FETCH_WAIT_MS,
            "fetch.max.bytes": _FETCH_BYTES,
            "max.partition.fetch.bytes": _FETCH_BYTES,
            **self.settings,
            "bootstrap.servers": self.brokers,
            "group.id": self.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            # Other values would silently skip missing messages.
            "auto.offset.reset": "error",
            "error_cb": on_error,
        }
        try:
            return ck.Consumer(settings, logger=_LOG)
        except (ck.KafkaException, TypeError, ValueError) as error:
            reason = error.args[0].str() if isinstance(error, ck.KafkaException) else str(error)
            raise LoadRefused(what="KafkaSource", reason=reason) from error

    def make_producer(self) -> ck.Producer:
        """Return an idempotent producer. Raise LoadRefused for invalid settings."""
        settings: dict[str, object] = {
            **{name: self.settings[name] for name in self.settings if _is_shared_setting(name)},
            "bootstrap.servers": self.brokers,
            "enable.idempotence": True,
            "error_cb": lambda _: None,
        }
        try:
            return ck.Producer(settings, logger=_LOG)
        except (ck.KafkaException, TypeError, ValueError) as error:
            reason = error.args[0].str() if isinstance(error, ck.KafkaException) else str(error)
            raise LoadRefused(what="Kafka producer", reason=reason) from error

    def commit_offsets(self, partition_ends: Iterable[PartitionEnd]) -> None:
        """Commit offsets to the group, for monitoring only. Failures are logged.

        Waits at most 6 s.
        """
        places = [
            ck.TopicPartition(end.topic, end.partition, end.next_offset) for end in partition_ends
        ]
        wanted = [ck.ConsumerGroupTopicPartitions(self.group, places)]
        silent = {"bootstrap.servers": self.brokers, "error_cb": lambda _: None}
        settings: dict[str, Any] = {**self.settings, **silent}
        try:
            admin = AdminClient(settings, logger=_LOG)
            futures = admin.alter_consumer_group_offsets(wanted, request_timeout=_COMMIT_TIMEOUT_S)
            futures[self.group].result(timeout=2 * _COMMIT_TIMEOUT_S)
        except (ck.KafkaException, TimeoutError, TypeError, ValueError) as error:
            _LOG.warning("Cannot commit offsets to group %s: %s", self.group, error)


def _is_shared_setting(name: str) -> bool:
    """Return True for a setting that both consumers and producers have."""
    return name.startswith(("sasl.", "ssl.", "security.", "socket.", "client.", "broker."))


def parse_librdkafka_settings(text: str, *, strict: bool, parameter: str) -> dict[str, object]:
    """Parse librdkafka settings from a JSON object or `name=value;name=value`.

    Args:
        text: The settings. Never logged, because they may be secret.
        strict: Raise an error for an invalid text. False: log a warning and return no settings.
        parameter: Name of the load parameter, for messages.

    Raises:
        LoadRefused: If the text is invalid and `strict` is True.
    """
    try:
        if text.strip().startswith("{"):
            return dict(json.loads(text))
        pairs = [pair.partition("=") for pair in text.split(";") if pair.strip()]
        if all(name.strip() and equals for name, equals, _ in pairs):
            return {name.strip(): value.strip() for name, _, value in pairs}
    except ValueError:
        pass
    reason = f"invalid {parameter}: expected a JSON object or name=value;name=value"
    if strict:
        raise LoadRefused(what="KafkaSource", reason=reason)
    _LOG.warning("%s. It is ignored", reason)
    return {}


def list_partitions(consumer: ck.Consumer, topic: str) -> tuple[int, ...]:
    """Return the partitions of a topic.

    Raises:
        PhaseFailed: If the topic does not exist.
        BrokersSilent: If no broker answers.
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
    """Return the first offset of a partition and its end offset (exclusive).

    Raises:
        PhaseFailed: If the partition does not exist.
        BrokersSilent: If no broker answers.
    """
    place = ck.TopicPartition(topic, partition)

    def request() -> tuple[int, int]:
        low, high = consumer.get_watermark_offsets(place, timeout=_REQUEST_TIMEOUT_S)
        return low, high

    return _request_with_retry(f"topic {topic}, partition {partition}", request)


def fetch_end_offsets(connection: KafkaConnection, topic: str) -> dict[int, int]:
    """Return the end offset (exclusive) of each partition.

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
