"""The cluster and topic that a table is streamed from, so that a replaced one is recognized.

The identity is the offset token of channel `TOPIC:source` of the table: IDs of cluster and topic. It is
written when the first connector opens the topic, and compared by each later one.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

from snowmelt.load.kafka.connection import KafkaConnection

_LOG = logging.getLogger(__name__)
_REQUEST_TIMEOUT_S = 5.0
_NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """IDs of a cluster and a topic. An ID is None if the brokers do not report it."""

    cluster_id: str | None
    topic_id: str | None = None

    def __str__(self) -> str:
        """Return the offset token."""
        return f"cluster={self.cluster_id or ''} topic={self.topic_id or ''}"

    @classmethod
    def parse(cls, token: str) -> SourceIdentity:
        """Parse an offset token."""
        parts = dict(part.partition("=")[::2] for part in token.split(" "))
        return cls(parts.get("cluster") or None, parts.get("topic") or None)

    def find_difference(self, current: SourceIdentity) -> str | None:
        """Return how the current source differs from this one, or None if it may be the same."""
        for kind, before, now in (
            ("cluster", self.cluster_id, current.cluster_id),
            ("topic", self.topic_id, current.topic_id),
        ):
            if before is not None and now is not None and before != now:
                return f"the ID of the {kind} was {before} and is now {now}"
        return None


def fetch_source_identities(
    connection: KafkaConnection, consumer: ck.Consumer, topics: tuple[str, ...]
) -> dict[str, SourceIdentity]:
    """Return the identity of each topic. The consumer must have a connection."""
    cluster_id = consumer.list_topics(topics[0], timeout=_REQUEST_TIMEOUT_S).cluster_id
    topic_ids: dict[str, str] = {}
    settings: dict[str, Any] = {
        **connection.settings,
        "bootstrap.servers": connection.brokers,
        "error_cb": lambda _: None,
    }
    # Brokers before Kafka 2.8 have no topic IDs, and an ACL may deny the request.
    with suppress(ck.KafkaException, TimeoutError):
        admin = AdminClient(settings, logger=_LOG)
        futures = admin.describe_topics(
            ck.TopicCollection(list(topics)), request_timeout=_REQUEST_TIMEOUT_S
        )
        for topic, future in futures.items():
            with suppress(ck.KafkaException):
                topic_id = str(future.result(2 * _REQUEST_TIMEOUT_S).topic_id)
                if topic_id and topic_id != _NO_TOPIC_ID:
                    topic_ids[topic] = topic_id
    return {topic: SourceIdentity(cluster_id or None, topic_ids.get(topic)) for topic in topics}
