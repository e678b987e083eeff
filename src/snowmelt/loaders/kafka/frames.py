"""Load Kafka topics in frames: each frame is one COPY of the messages that have arrived.

The end offsets of a frame are part of its commit.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from snowmelt.backoff import Backoff
from snowmelt.errors import BrokersSilent, LoadFailed, LoadOvertaken, PhaseFailed
from snowmelt.loaders.copy_job import CopyContext, CopyResult, TaskRunner, run_copy

_LOG = logging.getLogger(__name__)
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
    """Yield the result of each frame that has messages, until `stop` is set.

    With `once`, frames end at the current end offsets, and the function returns when the messages
    up to them are loaded. Without `once`, a frame is retried if the brokers are unavailable.

    If another process commits the messages of a frame first, the frame loads nothing. The next
    frame starts at the end offsets of that commit.

    Raises:
        LoadFailed: If a frame cannot be loaded, for example with too many rejects. Earlier frames are
            committed.
        BrokersSilent: If no broker answers, with `once`.
        LoadRefused: If the topic, a parameter or the parser is invalid.
    """
    ends = _fetch_frame_end_offsets(options) if once else None
    if ends is not None and not any(ends.values()):
        return  # No partition has ever had a message.
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
            _LOG.warning("%s The next frame tries again; no message is lost.", error)
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
