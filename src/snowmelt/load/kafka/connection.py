"""How brokers are reached."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import confluent_kafka as ck

from snowmelt.errors import LoadRefused, PhaseFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_LOG = logging.getLogger(__name__)
_ANSWER_S = 20.0
# librdkafka reads ahead; its own limit, 64 MiB, is all that a task may have.
_READ_AHEAD_KIB = 16 * 1024
_FETCH_BYTES = 4 * 1024 * 1024
_FETCH_WAIT_MS = 100


@dataclass(frozen=True, slots=True)
class Connection:
    """Brokers, group and further settings of librdkafka. The group is told of progress only."""

    brokers: str
    group: str
    settings: Mapping[str, object] = field(default_factory=dict)

    def consumer(self, on_error: Callable[[ck.KafkaError], None]) -> ck.Consumer:
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


def settings_of(text: str, *, strict: bool, parameter: str) -> dict[str, object]:
    """Read settings of librdkafka, as a JSON object or as `name=value;name=value`.

    What cannot be read is left out with a warning unless `strict`.

    Raises:
        LoadRefused: It cannot be read, and `strict`. The text is not shown: it may be secret.
    """
    found = _json(text) if text.strip().startswith("{") else _pairs(text)
    if found is not None:
        return found
    reason = f"{parameter} is neither a JSON object nor name=value;name=value"
    if strict:
        raise LoadRefused(what="KafkaSource", reason=reason)
    _LOG.warning("%s: it is not used", reason)
    return {}


def _json(text: str) -> dict[str, object] | None:
    try:
        return dict(json.loads(text))
    except ValueError:
        return None


def _pairs(text: str) -> dict[str, object] | None:
    pairs = [pair.partition("=") for pair in text.split(";") if pair.strip()]
    if all(name.strip() and equals for name, equals, _ in pairs):
        return {name.strip(): value.strip() for name, _, value in pairs}
    return None


def partitions_of(consumer: ck.Consumer, topic: str) -> tuple[int, ...]:
    """Return the partitions of a topic.

    Raises:
        PhaseFailed: There is no such topic, or no broker answers.
    """
    try:
        found = consumer.list_topics(topic, timeout=_ANSWER_S).topics[topic]
    except ck.KafkaException as error:
        raise _failed(f"topic {topic}", error) from error
    if found.error is not None or not found.partitions:
        reason = "it has no partitions" if found.error is None else found.error.str()
        raise PhaseFailed(reason=f"topic {topic}: {reason}")
    return tuple(sorted(found.partitions))


def bounds_of(consumer: ck.Consumer, topic: str, partition: int) -> tuple[int, int]:
    """Return the first offset that a partition has, and the one behind its last.

    Raises:
        PhaseFailed: There is no such partition, or no broker answers.
    """
    place = ck.TopicPartition(topic, partition)
    try:
        low, high = consumer.get_watermark_offsets(place, timeout=_ANSWER_S)
    except ck.KafkaException as error:
        raise _failed(f"topic {topic}, partition {partition}", error) from error
    return low, high


def _failed(what: str, error: ck.KafkaException) -> PhaseFailed:
    return PhaseFailed(reason=f"{what}: {error.args[0].str()}")
