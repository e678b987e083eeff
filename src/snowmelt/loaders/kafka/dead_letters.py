"""Dead-letter topic for rejected messages, with the headers that Kafka Connect writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import confluent_kafka as ck

from snowmelt.errors import BrokersSilent
from snowmelt.load.kafka.partition_ranges_and_results import MessagePosition

if TYPE_CHECKING:
    from snowmelt.load.kafka.connection import KafkaConnection

_DELIVERY_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class RejectedMessage:
    """A message that is not a valid row: position, value, reason, key and headers."""

    position: MessagePosition
    data: bytes
    reason: str
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    code: str = "invalid_row"


class DeadLetterTopic:
    """Producer of rejected messages. A message is delivered before its offset is committed."""

    def __init__(self, connection: KafkaConnection, topic: str, connector: str) -> None:
        self._topic = topic
        self._connector = connector
        self._failure = ""
        self._producer = connection.make_producer()

    def deliver(self, rejected: Sequence[RejectedMessage]) -> None:
        """Produce messages and wait until the brokers have them.

        Raises:
            BrokersSilent: If a message was not delivered. A retry repeats the delivered messages.
        """
        self._failure = ""
        for each in rejected:
            self._producer.produce(
                self._topic,
                each.data or None,
                each.key,
                headers=[*each.headers, *self._make_headers(each)],
                on_delivery=self._check_delivery,
            )
            self._producer.poll(0)
        left = self._producer.flush(_DELIVERY_TIMEOUT_S)
        if left or self._failure:
            self._producer.purge()
            reason = self._failure or f"{left} messages were not delivered"
            raise BrokersSilent(what=f"dead-letter topic {self._topic}", reason=reason)

    def _make_headers(self, rejected: RejectedMessage) -> list[tuple[str, bytes]]:
        position = rejected.position
        texts = {
            "topic": position.topic,
            "partition": str(position.partition),
            "offset": str(position.offset),
            "connector.name": self._connector,
            "stage": "VALUE_CONVERTER" if rejected.code == "message_invalid" else "TASK_PUT",
            "exception.class.name": rejected.code,
            "exception.message": rejected.reason,
        }
        return [(f"__connect.errors.{name}", text.encode()) for name, text in texts.items()]

    def _check_delivery(self, error: ck.KafkaError | None, _: ck.Message) -> None:
        if error is not None:
            self._failure = error.str()
