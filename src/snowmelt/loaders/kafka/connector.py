"""Streams topics into tables, row by row, each partition through its own channel.

Partition 1 of topic T is written through channel `T:P1`, whose offset token is the offset of the last
message. A new process resumes after the committed offset, so a crash neither loses nor duplicates a row.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from snowmelt.client.channel import Channel, OnError
from snowmelt.clock import Clock
from snowmelt.errors import (
    BrokersSilent,
    BufferFull,
    ChannelFenced,
    ChannelInvalid,
    InvalidRow,
    KafkaMessageRejected,
    KafkaSourceConflict,
    SchemaRegistryUnavailable,
    UserError,
)
from snowmelt.load.kafka.connection import KafkaConnection, fetch_offset_bounds
from snowmelt.load.kafka.partition_ranges_and_results import MessagePosition
from snowmelt.loaders.kafka.dead_letters import DeadLetterTopic, RejectedMessage
from snowmelt.loaders.kafka.decoders import make_row_builder
from snowmelt.loaders.kafka.message_reader import MessageReader, TopicPlace, find_offsets_at
from snowmelt.loaders.kafka.message_rows import METADATA_COLUMN, MessageInvalid, list_headers
from snowmelt.loaders.kafka.source_identity import SourceIdentity, fetch_source_identities
from snowmelt.loaders.kafka.stream_options import (
    KafkaConnectorOptions,
    make_channel_name,
    make_end_channel_name,
    make_source_channel_name,
)
from snowmelt.schema.conversion.row_converter import RowError

if TYPE_CHECKING:
    import confluent_kafka as ck

    from snowmelt.client.client import Client

_LOG = logging.getLogger(__name__)
# Interval between two searches for new partitions.
_PARTITION_CHECK_INTERVAL_S = 300.0
# Delay before the next attempt if the brokers did not respond.
_BROKER_RETRY_DELAY_S = 5.0
_REGISTRY_RETRY_DELAY_S = 1.0
_REOPEN_DELAY_S = 1.0
# `max_client_lag` of a connector's client. It is short, because the connector itself buffers rows
# (`buffer_seconds`).
MAX_CLIENT_LAG = dt.timedelta(seconds=0.1)
# Offset token that precedes the first offset (0), so that all messages are loaded.
_BEFORE_FIRST_OFFSET = "-1"


@dataclass(slots=True)
class _MessageBuffer:
    """Buffered messages of one partition. `retry_at` is set while a schema cannot be fetched."""

    since: float = 0.0
    size_bytes: int = 0
    messages: list[ck.Message] = field(default_factory=list)
    retry_at: float | None = None


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """Progress of a partition. `lag` is the number of messages that are not committed yet."""

    place: TopicPlace
    committed_offset: int | None
    end_offset: int | None

    @property
    def lag(self) -> int | None:
        """Messages behind the committed offset; None if the end is unknown."""
        if self.end_offset is None:
            return None
        committed = -1 if self.committed_offset is None else self.committed_offset
        return max(self.end_offset - committed - 1, 0)


class KafkaConnector:
    """Connector of one or more topics, for one thread.

    Args:
        options: Topics, tables, formats and limits.
        client: Client of the service. The caller closes it.
        connection: Brokers and consumer group.
        clock: Source of time.
        on_rejected: Called with each rejected message, before its offset is committed.
    """

    def __init__(
        self,
        options: KafkaConnectorOptions,
        client: Client,
        connection: KafkaConnection,
        clock: Clock,
        on_rejected: Callable[[RejectedMessage], None],
    ) -> None:
        self._options = options
        self._client = client
        self._connection = connection
        self._clock = clock
        self._on_rejected = on_rejected
        self._channels: dict[TopicPlace, Channel] = {}
        # For each partition: the channel of its end offsets, and the last end offset that was
        # inserted.
        self._end_channels: dict[TopicPlace, tuple[Channel, int]] = {}
        self._lag_report_at = 0.0
        self._buffers: dict[TopicPlace, _MessageBuffer] = {}
        self._rows = make_row_builder(options)
        self._identities: dict[str, SourceIdentity] = {}
        self._reader: MessageReader | None = None
        self._dead_letters = (
            DeadLetterTopic(connection, options.dead_letter_topic, options.name)
            if options.dead_letter_topic
            else None
        )

    def run(self, stop: threading.Event) -> None:
        """Stream until `stop` is set; then all messages that were read are committed.

        Raises:
            ChannelFenced: If another process streams the same topic into the table, unless both are
                members of a group.
            TableNotFound: If a table does not exist or the role lacks INSERT on it.
            PhaseFailed: If a topic does not exist.
            KafkaSourceConflict: If a topic or the cluster was replaced.
            KafkaMessageRejected: If a message was rejected and errors are not tolerated.
            RemoteError: If the service does not respond in time; unavailable brokers are awaited.
        """
        while not stop.is_set():
            try:
                self._stream_until_reopen(stop)
            except ChannelInvalid as error:
                # For example, the table was recreated. The next round opens the channels again and
                # reads uncommitted messages again.
                _LOG.warning("%s", error)
                stop.wait(_REOPEN_DELAY_S)
            except ChannelFenced as error:
                if not self._options.uses_group:
                    raise
                # Another member of the group opened the channel. Join the group again.
                _LOG.warning("%s", error)
                stop.wait(_REOPEN_DELAY_S)
            except BrokersSilent as error:
                _LOG.warning("%s The connector tries again; no message is lost.", error)
                stop.wait(_BROKER_RETRY_DELAY_S)
        with contextlib.suppress(ChannelInvalid, ChannelFenced):
            for channel in self._channels.values():
                channel.close()
            for channel, _ in self._end_channels.values():
                channel.close()

    def list_lags(self) -> list[PartitionLag]:
        """Return the progress of the partitions that this connector reads, without a request."""
        reader = self._reader
        if reader is None:
            return []
        lags = []
        for place, progress in list(reader.progress.items()):
            channel = self._channels.get(place)
            token = None if channel is None else channel.status().committed_token
            committed = int(token) if token and token.lstrip("-").isdecimal() else None
            lags.append(PartitionLag(place, committed, progress.end_offset))
        return lags

    def _stream_until_reopen(self, stop: threading.Event) -> None:
        self._buffers.clear()
        self._channels.clear()
        self._end_channels.clear()
        self._reader = reader = MessageReader(
            self._connection,
            self._options.topics,
            self._open_channels,
            self._release_channels,
            uses_group=self._options.uses_group,
            fails_on_gap=self._options.on_gap == "fail",
        )
        try:
            reader.open()
            check_at = self._clock.monotonic() + _PARTITION_CHECK_INTERVAL_S
            while not stop.is_set():
                for place, messages in reader.read_messages():
                    self._buffer_messages(place, messages)
                self._flush_buffers(reader)
                self._check_channels()
                reader.update_end_offsets()
                self._report_lags(reader)
                if self._clock.monotonic() >= check_at:
                    check_at += _PARTITION_CHECK_INTERVAL_S
                    if reader.has_new_partitions():
                        break
            self._flush_buffers(reader, flush_all=True)
            self._client.flush()
        finally:
            reader.close()

    def _open_channels(
        self, consumer: ck.Consumer, places: Sequence[TopicPlace]
    ) -> dict[TopicPlace, int]:
        """Open a channel for each partition; return the offsets to continue from."""
        self._check_sources(consumer, places)
        starts: dict[TopicPlace, int] = {}
        new: list[TopicPlace] = []
        for place in places:
            channel = self._open_channel(place)
            token = channel.latest_committed_offset_token()
            if token is None:
                new.append(place)
            else:
                starts[place] = _parse_offset_token(channel, token) + 1
        if new and self._options.start_time is not None:
            at_ms = int(self._options.start_time.timestamp() * 1000)
            starts.update(find_offsets_at(consumer, new, at_ms))
        else:
            starts.update({place: fetch_offset_bounds(consumer, *place)[0] for place in new})
        # Start at the first existing message instead of offset 0. Messages that retention deleted
        # before it are no gap, because none was read.
        for place, start in starts.items():
            if start == 0:
                starts[place] = fetch_offset_bounds(consumer, *place)[0]
        return starts

    def _open_channel(self, place: TopicPlace, offset_token: str | None = None) -> Channel:
        self._channels[place] = channel = self._client.open_channel(
            make_channel_name(*place),
            table=self._options.find_table(place.topic),
            on_error=OnError.CONTINUE,
            compatibility="strict",
            schema_evolution=self._options.evolve,
            offset_token=offset_token,
        )
        return channel

    def _check_sources(self, consumer: ck.Consumer, places: Sequence[TopicPlace]) -> None:
        """Compare the IDs of cluster and topics with those of earlier connectors.

        Raises:
            KafkaSourceConflict: If one differs, unless `on_new_source` is `restart`.
        """
        topics = tuple(
            {place.topic: None for place in places if place.topic not in self._identities}
        )
        if not topics:
            return
        for topic, current in fetch_source_identities(self._connection, consumer, topics).items():
            self._check_source(topic, current, places)
            self._identities[topic] = current

    def _check_source(
        self, topic: str, current: SourceIdentity, places: Sequence[TopicPlace]
    ) -> None:
        name, table = make_source_channel_name(topic), self._options.find_table(topic)
        with contextlib.closing(self._client.open_channel(name, table=table)) as channel:
            token = channel.latest_committed_offset_token()
        difference = None
        if token is not None:
            difference = SourceIdentity.parse(token).find_difference(current)
            if difference is None and current.topic_id is None:
                return
        if difference is not None:
            if self._options.on_new_source != "restart":
                raise KafkaSourceConflict(topic=topic, reason=difference)
            _LOG.warning("Topic %s starts from its beginning: %s.", topic, difference)
            # Reset the channels before writing the identity. After a crash in between, the next
            # start resets them again.
            for place in places:
                if place.topic == topic:
                    self._open_channel(place, _BEFORE_FIRST_OFFSET)
        if token != str(current):
            self._client.open_channel(name, table=table, offset_token=str(current)).close()

    def _release_channels(self, places: Sequence[TopicPlace]) -> None:
        """Commit and close the channels of partitions that another member of the group gets."""
        for place in places:
            buffer = self._buffers.pop(place, None)
            channel = self._channels.pop(place, None)
            self._end_channels.pop(place, None)
            if channel is None:
                continue
            try:
                if buffer is not None and buffer.retry_at is None:
                    self._insert_messages(channel, buffer)
                channel.close()
            except (ChannelFenced, ChannelInvalid, BufferFull, SchemaRegistryUnavailable) as error:
                # The next owner reads these messages again.
                _LOG.info("%s: %s", place, error)

    def _report_lags(self, reader: MessageReader) -> None:
        """Commit the end offsets that have changed as offset tokens of channels without rows."""
        interval_s, now = self._options.lag_report_seconds, self._clock.monotonic()
        if not interval_s or now < self._lag_report_at:
            return
        self._lag_report_at = now + interval_s
        for place, progress in reader.progress.items():
            end_offset = progress.end_offset
            if end_offset is None or place not in self._channels:
                continue
            channel, reported = self._end_channels.get(place, (None, -1))
            try:
                if channel is None:
                    name = make_end_channel_name(*place)
                    table = self._options.find_table(place.topic)
                    channel = self._client.open_channel(name, table=table)
                if end_offset != reported:
                    token = str(end_offset)
                    channel.insert_all_or_rejected([], (token, token), lambda _: [])
            except (ChannelFenced, ChannelInvalid, BufferFull) as error:
                # The next report opens the channel again and stores the offset.
                _LOG.info("End offset of %s was not stored: %s", place, error)
                self._end_channels.pop(place, None)
                continue
            self._end_channels[place] = channel, end_offset

    def _check_channels(self) -> None:
        # The service may reject rows after the insert returns. Do not wait for the next insert,
        # because there may be no further message.
        for channel in self._channels.values():
            channel.state.check_valid()

    def _buffer_messages(self, place: TopicPlace, messages: list[ck.Message]) -> None:
        waiting = self._buffers.get(place)
        if waiting is None:
            waiting = self._buffers[place] = _MessageBuffer(self._clock.monotonic())
        waiting.messages += messages
        waiting.size_bytes += sum(len(each.value() or b"") for each in messages)

    def _flush_buffers(self, reader: MessageReader, *, flush_all: bool = False) -> None:
        options, now = self._options, self._clock.monotonic()
        # Flush all partitions together, so that their rows are uploaded in one blob.
        flush_all = flush_all or any(
            each.retry_at is None and now - each.since >= options.buffer_seconds
            for each in self._buffers.values()
        )
        for place, waiting in list(self._buffers.items()):
            is_due = (
                flush_all
                or waiting.retry_at is not None
                or len(waiting.messages) >= options.buffer_rows
                or waiting.size_bytes >= options.buffer_bytes
            )
            if not is_due or (waiting.retry_at is not None and now < waiting.retry_at):
                continue
            try:
                self._insert_messages(self._channels[place], waiting)
            except SchemaRegistryUnavailable as error:
                self._wait_for_registry(reader, place, waiting, error)
                continue
            del self._buffers[place]
            if waiting.retry_at is not None:
                reader.resume([place])

    def _wait_for_registry(
        self,
        reader: MessageReader,
        place: TopicPlace,
        waiting: _MessageBuffer,
        error: SchemaRegistryUnavailable,
    ) -> None:
        """Pause the partition, and retry it after `_REGISTRY_RETRY_DELAY_S`. Others continue."""
        if waiting.retry_at is None:
            _LOG.warning("%s waits: %s", place, error)
            reader.pause([place])
        waiting.retry_at = self._clock.monotonic() + _REGISTRY_RETRY_DELAY_S

    def _insert_messages(self, channel: Channel, buffer: _MessageBuffer) -> None:
        messages = buffer.messages
        has_metadata = (
            self._options.metadata.is_enabled
            and channel.state.target.schema.column(METADATA_COLUMN) is not None
        )
        push_time_ms = int(self._clock.now().timestamp() * 1000)
        rows: list[Any] = []
        row_numbers: list[int] = []
        invalid: list[RowError] = []
        make_row = self._rows.make_row
        for number, message in enumerate(messages):
            try:
                row = make_row(message, push_time_ms, with_metadata=has_metadata)
            except MessageInvalid as error:
                text = (message.value() or b"").decode(errors="backslashreplace")
                invalid.append(RowError(number, text, InvalidRow(str(error))))
                continue
            if row is not None:
                rows.append(row)
                row_numbers.append(number)

        def report(row_errors: list[RowError]) -> list[RowError]:
            if not row_errors and not invalid:
                return []
            found = [replace(each, row_index=row_numbers[each.row_index]) for each in row_errors]
            found += invalid
            found.sort(key=lambda each: each.row_index)
            self._report_rejected(messages, found, {each.row_index for each in invalid})
            return found

        tokens = str(messages[0].offset()), str(messages[-1].offset())
        while True:
            try:
                channel.insert_all_or_rejected(rows, tokens, report)
            except BufferFull:
                # The channel accepted no row. Wait until its buffered rows are committed.
                channel.wait_for_commit()
            else:
                return

    def _report_rejected(
        self, messages: list[ck.Message], errors: list[RowError], undecoded: set[int]
    ) -> None:
        rejected = []
        for each in errors:
            message = messages[each.row_index]
            position = MessagePosition(
                message.topic() or "", message.partition() or 0, message.offset() or 0
            )
            rejected.append(
                RejectedMessage(
                    position,
                    message.value() or b"",
                    str(each.error),
                    message.key(),
                    tuple(list_headers(message)),
                    "message_invalid" if each.row_index in undecoded else each.error.code,
                )
            )
        if not self._options.tolerates_errors:
            first = rejected[0]
            raise KafkaMessageRejected(position=str(first.position), reason=first.reason)
        if self._dead_letters is not None:
            self._dead_letters.deliver(rejected)
        for each_message in rejected:
            self._on_rejected(each_message)


def _parse_offset_token(channel: Channel, token: str) -> int:
    if not token.isdecimal() and token != _BEFORE_FIRST_OFFSET:
        reason = (
            f"Invalid offset token {token!r} of channel {channel.name}: expected an offset. "
            "Drop the channel, or set an offset with `snowmelt channels set-token`."
        )
        raise UserError(reason)
    return int(token)
