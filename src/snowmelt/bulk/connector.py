"""A topic of Kafka into a table, row by row: a channel for each partition.

Partition 1 of topic T is written through channel `T:P1`, whose offset token is the offset of the
last message: whoever starts goes on behind the committed one, and a crash neither loses nor
doubles a row.
"""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING

from snowmelt.client.channel import OnError
from snowmelt.errors import BrokersSilent, ChannelInvalid, UserError
from snowmelt.load.kafka.connection import bounds_of, partitions_of
from snowmelt.load.kafka.reading import Bounds, Reading
from snowmelt.load.kafka.streams import MessagePlace, Stream

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from snowmelt.client.channel import Channel
    from snowmelt.client.client import Client
    from snowmelt.clock import Clock
    from snowmelt.load.kafka.connection import Connection
    from snowmelt.schema.rows import RowError

_LOG = logging.getLogger(__name__)
# A consumer is made anew now and then, which finds partitions that were added.
_READING_S = 300.0
# Added to the time that brokers were given to answer.
_SILENT_S = 5.0
_REOPENED_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorOptions:
    """What is streamed where to, and when rows that wait here are handed to their channel."""

    topic: str
    table: str
    buffer_seconds: float = 1.0
    buffer_rows: int = 10_000
    buffer_bytes: int = 20_000_000


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that is no row of the table: where it lies, its bytes, and why."""

    place: MessagePlace
    data: bytes
    reason: str


@dataclass(slots=True)
class _Waiting:
    """Messages of one partition that wait."""

    since: float = 0.0
    size: int = 0
    places: list[MessagePlace] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)


class Connector:
    """Streams a topic. What is refused is told to `on_refused`, and counts as done."""

    def __init__(
        self,
        options: ConnectorOptions,
        client: Client,
        connection: Connection,
        clock: Clock,
        on_refused: Callable[[Refused], None],
    ) -> None:
        self._options = options
        self._client = client
        self._connection = connection
        self._clock = clock
        self._on_refused = on_refused
        self._channels: dict[int, Channel] = {}
        self._waiting: dict[int, _Waiting] = {}

    def run(self, stop: threading.Event) -> None:
        """Stream until `stop` is set; everything that was read is committed then.

        Raises:
            ChannelFenced: Another process streams the same topic into the table.
            TableNotFound: The table does not exist, or nothing may be inserted into it.
            PhaseFailed: The topic does not exist, or was made anew.
            RemoteError: The service does not answer for too long; brokers are waited for.
        """
        while not stop.is_set():
            try:
                self._stream(stop)
            except ChannelInvalid as error:
                # Such as when the table was created again: what is not committed is read again.
                _LOG.warning("%s", error)
                stop.wait(_REOPENED_S)
            except BrokersSilent as error:
                _LOG.warning("%s Nothing is lost: it is tried again.", error)
                stop.wait(_SILENT_S)
        with contextlib.suppress(ChannelInvalid):
            for channel in self._channels.values():
                channel.close()

    def _stream(self, stop: threading.Event) -> None:
        self._waiting.clear()
        streams = self._opened()
        bounds = Bounds(duration_s=_READING_S, tells_idle=True)
        reading = Reading(self._connection, streams, bounds, self._clock)
        record = 0
        with contextlib.closing(reading.batches()) as batches:
            for batch in batches:
                for value in batch.to_pylist():
                    record += 1
                    self._keep(reading.locate(record), value)
                self._hand_on(stop.is_set())
                if stop.is_set():
                    break
                self._check_channels()
        self._hand_on(everything=True)
        self._client.flush()

    def _opened(self) -> list[Stream]:
        """Open a channel for each partition; return where to go on."""
        topic = self._options.topic
        consumer = self._connection.consumer(_ignore)
        try:
            streams = []
            for partition in partitions_of(consumer, topic):
                channel = self._open(partition)
                token = channel.latest_committed_offset_token()
                start = (
                    bounds_of(consumer, topic, partition)[0]
                    if token is None
                    else _offset(channel, token) + 1
                )
                streams.append(Stream(topic, partition, start))
        finally:
            consumer.close()
        return streams

    def _open(self, partition: int) -> Channel:
        # In quotes: topics differ by capitals, and names in SQL do not.
        self._channels[partition] = channel = self._client.open_channel(
            f'"{self._options.topic}:P{partition}"',
            table=self._options.table,
            on_error=OnError.SKIP_BATCH,
            compatibility="strict",
        )
        return channel

    def _check_channels(self) -> None:
        # A refusal comes after the insert call, and the next message may be long in coming.
        for channel in self._channels.values():
            channel.state.check_valid()

    def _keep(self, place: MessagePlace | None, value: bytes) -> None:
        if place is None:
            raise ValueError("a message that has just come has no place")
        waiting = self._waiting.setdefault(place.partition, _Waiting(self._clock.monotonic()))
        waiting.places.append(place)
        waiting.values.append(value)
        waiting.size += len(value)

    def _hand_on(self, everything: bool) -> None:
        options, now = self._options, self._clock.monotonic()
        for partition, waiting in list(self._waiting.items()):
            if (
                everything
                or now - waiting.since >= options.buffer_seconds
                or len(waiting.values) >= options.buffer_rows
                or waiting.size >= options.buffer_bytes
            ):
                del self._waiting[partition]
                self._insert(partition, waiting)

    def _insert(self, partition: int, waiting: _Waiting) -> None:
        rows: list[Mapping[str, object]] = []
        kept: list[int] = []
        for number, value in enumerate(waiting.values):
            row = _row(value)
            if isinstance(row, str):
                self._on_refused(Refused(waiting.places[number], value, row))
            else:
                rows.append(row)
                kept.append(number)
        tokens = str(waiting.places[0].offset), str(waiting.places[-1].offset)
        errors = self._tried(partition, rows, tokens)
        if errors:
            for error in errors:
                number = kept[error.row_index]
                refused = Refused(waiting.places[number], waiting.values[number], str(error.error))
                self._on_refused(refused)
            bad = {error.row_index for error in errors}
            good = [row for number, row in enumerate(rows) if number not in bad]
            self._tried(partition, good, tokens)

    def _tried(
        self, partition: int, rows: list[Mapping[str, object]], tokens: tuple[str, str]
    ) -> list[RowError]:
        """Insert all rows, or none if some are refused; return those."""
        start, end = tokens
        return self._channels[partition].insert_rows(rows, end, start_offset_token=start).errors


def _row(value: bytes) -> Mapping[str, object] | str:
    """Return the row that a message is, or why it is none."""
    try:
        row = json.loads(value, parse_float=Decimal)
    except ValueError as error:
        return f"it is not JSON: {error}"
    return row if isinstance(row, dict) else "it is JSON, but no object"


def _offset(channel: Channel, token: str) -> int:
    if not token.isdecimal():
        reason = f"channel {channel.name} has offset token {token!r}, which is no offset of Kafka: drop the channel, or give it one"
        raise UserError(reason)
    return int(token)


def _ignore(_: object) -> None:
    """Whoever asks gets the error as an answer."""
