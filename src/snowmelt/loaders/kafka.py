"""Kafka topics into tables, row by row through channels or frame by frame through COPY.

Rows: partition 1 of topic T is written through channel `T:P1`, whose offset token is the offset of
the last message. A new process resumes after the committed offset, so a crash neither loses nor
duplicates a row.

Frames: each frame is one COPY of the messages that have arrived. The end offsets of a frame are
part of its commit.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from snowmelt.backoff import Backoff
from snowmelt.client.channel import Channel, OnError
from snowmelt.clock import Clock
from snowmelt.errors import (
    BrokersSilent,
    ChannelInvalid,
    LoadFailed,
    LoadOvertaken,
    PhaseFailed,
    UserError,
)
from snowmelt.json.exact import parse_row
from snowmelt.load.kafka.connection import KafkaConnection, fetch_offset_bounds, list_partitions
from snowmelt.load.kafka.consumer import PartitionConsumer, ReadBounds
from snowmelt.load.kafka.partition_ranges_and_results import MessagePosition, PartitionRange
from snowmelt.loaders.copy_job import CopyContext, CopyResult, TaskRunner, run_copy
from snowmelt.schema.conversion.row_converter import RowError

if TYPE_CHECKING:
    from snowmelt.client.client import Client

_LOG = logging.getLogger(__name__)
# The consumer is recreated at intervals, which finds new partitions.
_CONSUMER_LIFETIME_S = 300.0
# Added to the timeout of the brokers.
_BROKER_RETRY_DELAY_S = 5.0
_REOPEN_DELAY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConnectorOptions:
    """Topic, table and flush limits of a connector."""

    topic: str
    table: str
    buffer_seconds: float = 1.0
    buffer_rows: int = 10_000
    buffer_bytes: int = 20_000_000


@dataclass(frozen=True, slots=True)
class RejectedMessage:
    """A message that is not a valid row: position, bytes and reason."""

    position: MessagePosition
    data: bytes
    reason: str


@dataclass(slots=True)
class _MessageBuffer:
    """Buffered messages of one partition."""

    since: float = 0.0
    size_bytes: int = 0
    positions: list[MessagePosition] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)


class KafkaConnector:
    """Streams a topic. Rejected messages go to `on_refused` and count as processed."""

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
        self._channels: dict[int, Channel] = {}
        self._buffers: dict[int, _MessageBuffer] = {}

    def run(self, stop: threading.Event) -> None:
        """Stream until `stop` is set; then all messages that were read are committed.

        Raises:
            ChannelFenced: If another process streams the same topic into the table.
            TableNotFound: If the table does not exist or the role lacks INSERT on it.
            PhaseFailed: If the topic does not exist or was recreated.
            RemoteError: If the service does not answer in time; unavailable brokers are awaited.
        """
        while not stop.is_set():
            try:
                self._stream_until_reopen(stop)
            except ChannelInvalid as error:
                # For example if the table was recreated: uncommitted messages are read again.
                _LOG.warning("%s", error)
                stop.wait(_REOPEN_DELAY_S)
            except BrokersSilent as error:
                _LOG.warning("%s Nothing is lost: it is tried again.", error)
                stop.wait(_BROKER_RETRY_DELAY_S)
        with contextlib.suppress(ChannelInvalid):
            for channel in self._channels.values():
                channel.close()

    def _stream_until_reopen(self, stop: threading.Event) -> None:
        self._buffers.clear()
        streams = self._open_channels()
        bounds = ReadBounds(duration_s=_CONSUMER_LIFETIME_S, yields_when_idle=True)
        reading = PartitionConsumer(self._connection, streams, bounds, self._clock)
        record = 0
        with contextlib.closing(reading.read_batches()) as batches:
            for batch in batches:
                for value in batch.to_pylist():
                    record += 1
                    self._buffer_message(reading.runs.locate_message(record), value)
                self._flush_buffers(stop.is_set())
                if stop.is_set():
                    break
                self._check_channels()
        self._flush_buffers(flush_all=True)
        self._client.flush()

    def _open_channels(self) -> list[PartitionRange]:
        """Open a channel for each partition; return the positions to continue from."""
        topic = self._options.topic
        consumer = self._connection.make_consumer(_ignore_error)
        try:
            streams = []
            for partition in list_partitions(consumer, topic):
                channel = self._open_channel(partition)
                token = channel.latest_committed_offset_token()
                start = (
                    fetch_offset_bounds(consumer, topic, partition)[0]
                    if token is None
                    else _parse_offset_token(channel, token) + 1
                )
                streams.append(PartitionRange(topic, partition, start))
        finally:
            consumer.close()
        return streams

    def _open_channel(self, partition: int) -> Channel:
        # In quotes: topics differ by capitals, and names in SQL do not.
        self._channels[partition] = channel = self._client.open_channel(
            f'"{self._options.topic}:P{partition}"',
            table=self._options.table,
            on_error=OnError.SKIP_BATCH,
            compatibility="strict",
        )
        return channel

    def _check_channels(self) -> None:
        # A rejection follows the insert, and the next message may come much later.
        for channel in self._channels.values():
            channel.state.check_valid()

    def _buffer_message(self, position: MessagePosition | None, value: bytes) -> None:
        if position is None:
            raise ValueError("a message that has just come has no place")
        waiting = self._buffers.setdefault(
            position.partition, _MessageBuffer(self._clock.monotonic())
        )
        waiting.positions.append(position)
        waiting.values.append(value)
        waiting.size_bytes += len(value)

    def _flush_buffers(self, flush_all: bool) -> None:
        options, now = self._options, self._clock.monotonic()
        for partition, waiting in list(self._buffers.items()):
            if (
                flush_all
                or now - waiting.since >= options.buffer_seconds
                or len(waiting.values) >= options.buffer_rows
                or waiting.size_bytes >= options.buffer_bytes
            ):
                del self._buffers[partition]
                self._insert_messages(partition, waiting)

    def _insert_messages(self, partition: int, buffer: _MessageBuffer) -> None:
        rows: list[Mapping[str, object]] = []
        kept: list[int] = []
        for number, value in enumerate(buffer.values):
            row = parse_row(value)
            if isinstance(row, str):
                self._on_rejected(RejectedMessage(buffer.positions[number], value, row))
            else:
                rows.append(row)
                kept.append(number)
        tokens = str(buffer.positions[0].offset), str(buffer.positions[-1].offset)
        errors = self._insert_all_or_none(partition, rows, tokens)
        if errors:
            for error in errors:
                number = kept[error.row_index]
                refused = RejectedMessage(
                    buffer.positions[number], buffer.values[number], str(error.error)
                )
                self._on_rejected(refused)
            bad = {error.row_index for error in errors}
            good = [row for number, row in enumerate(rows) if number not in bad]
            self._insert_all_or_none(partition, good, tokens)

    def _insert_all_or_none(
        self, partition: int, rows: list[Mapping[str, object]], tokens: tuple[str, str]
    ) -> list[RowError]:
        """Insert all rows, or none if some are rejected; return these."""
        start, end = tokens
        return self._channels[partition].insert_rows(rows, end, start_offset_token=start).errors


def _parse_offset_token(channel: Channel, token: str) -> int:
    if not token.isdecimal():
        reason = f"channel {channel.name} has offset token {token!r}, which is no offset of Kafka: drop the channel, or give it one"
        raise UserError(reason)
    return int(token)


def _ignore_error(_: object) -> None:
    """Ignore an error that the caller receives as a result."""


# Frames: each frame is one COPY.
_INITIAL_BACKOFF_S, _MAX_BACKOFF_S = 1.0, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaFrameOptions:
    """Topic, table and COPY options of frames; `parser`, `filters` and `rest` are as in the statement.

    A frame takes `seconds`: it loads the messages that have arrived, then waits. Its end offsets are part of
    its commit, so a crash repeats nothing; they are stored per table and `stream_name`.
    """

    topic: str
    table: str
    brokers: str
    parser: str = "KafkaJSONParser()"
    filters: tuple[str, ...] = ()
    rest: str = ""
    seconds: float = 10.0
    settings: str = ""
    group: str = "snowmelt"
    on_gap: str = "report"
    stream_name: str = ""

    def build_copy_statement(
        self, parallelism: int, end_offsets: Mapping[int, int] | None = None
    ) -> str:
        """Return the COPY of a frame.

        Args:
            parallelism: Number of portions that share the partitions.
            end_offsets: End offsets by partition, exclusive. None: all messages of all partitions.
        """
        streams = [f"{self.topic}|*|-3"]
        if end_offsets is not None:
            streams = [f"{self.topic}|{number}|-3|{end}" for number, end in end_offsets.items()]
        parameters = {
            "stream": ",".join(streams),
            "brokers": self.brokers,
            "group_id": self.group,
            "kafka_conf": self.settings,
            "on_gap": self.on_gap,
        }
        given = ", ".join(
            f"{name}={_quote_literal(text)}" for name, text in parameters.items() if text
        )
        duration = f"duration=INTERVAL '{self.seconds} seconds'"
        source = f"KafkaSource({given}, {duration}, stop_on_eof=true, executionparallelism={parallelism})"
        filters = "".join(f" FILTER {each}" for each in self.filters)
        named = f" STREAM NAME {_quote_literal(self.stream_name)}" if self.stream_name else ""
        return f"COPY {self.table} SOURCE {source}{filters} PARSER {self.parser} {self.rest}{named}"


def run_frames(
    options: KafkaFrameOptions,
    context: CopyContext,
    runner: TaskRunner,
    stop: threading.Event,
    *,
    once: bool = False,
) -> Iterator[CopyResult]:
    """Yield the result of each frame until `stop` is set; frames without messages have no effect.

    With `once`, frames end at the current end offsets, and the function returns when these are loaded.
    Otherwise unavailable brokers are awaited and logged.

    If another process runs the same frames and is faster, its messages are not loaded again, and the next
    frame begins where it ended.

    Raises:
        LoadFailed: If a frame cannot be loaded, for example with too many rejects. Earlier frames are
            committed.
        BrokersSilent: If no broker answers, with `once`.
        LoadRefused: If the topic, a parameter or the parser is invalid.
    """
    ends = _fetch_frame_end_offsets(options) if once else None
    if ends is not None and not any(ends.values()):
        return  # no partition has ever had a message
    text = options.build_copy_statement(runner.parallelism, ends)
    patience = Backoff(
        math.inf, context.clock, initial_delay_s=_INITIAL_BACKOFF_S, max_delay_s=_MAX_BACKOFF_S
    )
    while not stop.is_set():
        ends_at = context.clock.monotonic() + options.seconds
        try:
            copied = run_copy(context, text, runner)
            patience.reset()
            if copied.load_id is not None:
                yield copied
            elif once:
                return
            if once and copied.totals.bytes:
                continue
        except LoadOvertaken:
            patience.reset()
        except BrokersSilent as error:
            if once:
                raise
            ends_at = context.clock.monotonic() + (patience.next_delay_s() or 0.0)
            _LOG.warning("%s Nothing is lost: it is tried again.", error)
        stop.wait(max(ends_at - context.clock.monotonic(), 0.0))


def _fetch_frame_end_offsets(options: KafkaFrameOptions) -> dict[int, int]:
    from snowmelt.load.kafka.connection import (
        KafkaConnection,
        fetch_end_offsets,
        parse_librdkafka_settings,
    )

    settings = parse_librdkafka_settings(options.settings, strict=False, parameter="kafka_conf")
    try:
        return fetch_end_offsets(
            KafkaConnection(options.brokers, options.group, settings), options.topic
        )
    except PhaseFailed as error:
        where = f"KafkaSource({options.topic})"
        raise LoadFailed(where=where, reason=str(error).rstrip(".")) from error


def _quote_literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
