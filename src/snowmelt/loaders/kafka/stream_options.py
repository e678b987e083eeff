"""Options of a Kafka stream (topics, tables, formats, limits), and names derived from them."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, field
from enum import StrEnum

from snowmelt.errors import ConfigurationError


class MessageFormat(StrEnum):
    """Encoding of a message key or value."""

    JSON = "json"
    STRING = "string"
    BYTES = "bytes"
    AVRO = "avro"
    PROTOBUF = "protobuf"


@dataclass(frozen=True, slots=True)
class MetadataOptions:
    """Selection of the parts of RECORD_METADATA."""

    is_enabled: bool = True
    has_topic: bool = True
    has_position: bool = True
    has_timestamp: bool = True
    has_push_time: bool = True


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """Address of a schema registry and how to authenticate; `user` is `name:password`."""

    url: str = ""
    user: str = field(default="", repr=False)
    ca_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConnectorOptions:
    """Topics, tables, formats and flush limits of a connector.

    Attributes:
        name: Name of the connector, for logs and dead letters.
        topics: Topics to stream.
        table: Table of topics that `topic_tables` does not map.
        topic_tables: Pairs of topic (or regular expression) and table. The first match counts.
        location: `database.schema` of short table names and of tables named after their topic.
        evolve: Unknown fields become columns; NOT NULL is dropped where fields are missing.
        metadata: Parts of RECORD_METADATA, for tables that have this column.
        content_column: Column that gets the whole value as a document. Empty: fields are columns.
        key_column: Column of the key; `*` for the fields of the key; empty for none.
        key_format: Format of keys.
        value_format: Format of values.
        change_events: `debezium`: values are change events. Empty: values are rows.
        registry: Schema registry of Avro and Protobuf.
        tombstones: `ignore` messages without a value, or load each as a `row`.
        tolerates_errors: False: the first rejected message ends the connector.
        dead_letter_topic: Topic for rejected messages.
        start_time: Where partitions without a committed offset start. None: at their beginning.
        on_gap: `report` or `fail` if unread messages were deleted.
        on_new_source: `fail` or `restart` if the topic or the cluster was replaced.
        uses_group: Share the partitions with the other members of the consumer group.
        lag_report_seconds: Interval at which end offsets are stored for SQL. 0: never.
        buffer_seconds: Maximum time before a flush.
        buffer_rows: Maximum messages per flush and partition.
        buffer_bytes: Maximum bytes per flush and partition.
    """

    topics: tuple[str, ...]
    name: str = "snowmelt"
    table: str = ""
    topic_tables: tuple[tuple[str, str], ...] = ()
    location: str = ""
    evolve: bool = False
    metadata: MetadataOptions = MetadataOptions()
    content_column: str = ""
    key_column: str = ""
    key_format: MessageFormat = MessageFormat.STRING
    value_format: MessageFormat = MessageFormat.JSON
    change_events: str = ""
    registry: RegistryOptions = RegistryOptions()
    tombstones: str = "ignore"
    tolerates_errors: bool = True
    dead_letter_topic: str = ""
    start_time: dt.datetime | None = None
    on_gap: str = "report"
    on_new_source: str = "fail"
    uses_group: bool = False
    lag_report_seconds: float = 0.0
    buffer_seconds: float = 1.0
    buffer_rows: int = 10_000
    buffer_bytes: int = 20_000_000

    def find_table(self, topic: str) -> str:
        """Return the table of a topic.

        Raises:
            ConfigurationError: If no table is configured for it.
        """
        for pattern, table in self.topic_tables:
            if pattern == topic or _matches(pattern, topic):
                return self._qualify(table)
        if self.table:
            return self._qualify(self.table)
        if self.location and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_$]*", topic):
            return self._qualify(topic)
        reason = (
            f"topic {topic} has no table: set `table`, or map it as `topic_tables = {topic}:TABLE`"
        )
        raise ConfigurationError(setting="topic_tables", reason=reason)

    def _qualify(self, table: str) -> str:
        is_short = self.location and "." not in table.replace('"."', ".")
        return f"{self.location}.{table}" if is_short else table


def make_channel_name(topic: str, partition: int) -> str:
    """Return the channel of a partition, quoted: topics are case-sensitive."""
    return _quote(f"{topic}:P{partition}")


def make_end_channel_name(topic: str, partition: int) -> str:
    """Return the channel whose offset token is the end offset of a partition."""
    return _quote(f"{topic}:P{partition}:end")


def make_source_channel_name(topic: str) -> str:
    """Return the channel whose offset token identifies the cluster and the topic."""
    return _quote(f"{topic}:source")


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _matches(pattern: str, topic: str) -> bool:
    try:
        return re.fullmatch(pattern, topic) is not None
    except re.error as error:
        reason = f"{pattern!r} is not a regular expression: {error}"
        raise ConfigurationError(setting="topic_tables", reason=reason) from error
