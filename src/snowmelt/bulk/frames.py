"""A topic of Kafka into a table, frame after frame: each frame is one COPY."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.bulk.copying import copy_into
from snowmelt.errors import BrokersSilent, LoadFailed, LoadOvertaken, PhaseFailed
from snowmelt.retry import Patience

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Mapping

    from snowmelt.bulk.copying import Copied, CopyContext, Runner

_LOG = logging.getLogger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """What is loaded from where to where; `parser`, `filters` and `rest` as in the statement.

    A frame takes `seconds`: what has come meanwhile is loaded at once, the rest of the time is
    waited. Where the last frame ended is part of its commit, so that a crash repeats nothing;
    tables keep it for each `stream_name`.
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

    def statement(self, parallelism: int, ends: Mapping[int, int] | None = None) -> str:
        """Return the COPY of a frame.

        Args:
            parallelism: Portions that share the partitions.
            ends: Offset to end before, by partition; None: whatever is there of all partitions.
        """
        streams = [f"{self.topic}|*|-3"]
        if ends is not None:
            streams = [f"{self.topic}|{number}|-3|{end}" for number, end in ends.items()]
        parameters = {
            "stream": ",".join(streams),
            "brokers": self.brokers,
            "group_id": self.group,
            "kafka_conf": self.settings,
            "on_gap": self.on_gap,
        }
        given = ", ".join(f"{name}={_quoted(text)}" for name, text in parameters.items() if text)
        duration = f"duration=INTERVAL '{self.seconds} seconds'"
        source = f"KafkaSource({given}, {duration}, stop_on_eof=true, executionparallelism={parallelism})"
        filters = "".join(f" FILTER {each}" for each in self.filters)
        named = f" STREAM NAME {_quoted(self.stream_name)}" if self.stream_name else ""
        return f"COPY {self.table} SOURCE {source}{filters} PARSER {self.parser} {self.rest}{named}"


def run_frames(
    frames: Frames, context: CopyContext, run: Runner, stop: threading.Event, *, once: bool = False
) -> Iterator[Copied]:
    """Yield what each frame did, until `stop` is set; frames without messages do nothing.

    With `once` frames end at the offsets that partitions end at when this begins; then all of
    them are loaded. Otherwise brokers that do not answer are waited for, however long it takes;
    that they do not is logged.

    Another process that runs the same frames may be faster; then its messages are not loaded
    here, and the next frame begins where it ended.

    Raises:
        LoadFailed: A frame could not be loaded, such as when too much was rejected. The frames
            before it are there.
        BrokersSilent: No broker answers, and `once`.
        LoadRefused: The topic, a parameter or the parser is refused.
    """
    ends = _ends_of(frames) if once else None
    if ends is not None and not any(ends.values()):
        return  # no partition has ever had a message
    text = frames.statement(run.parallelism, ends)
    patience = Patience(math.inf, context.clock, first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S)
    while not stop.is_set():
        ends_at = context.clock.monotonic() + frames.seconds
        try:
            copied = copy_into(context, text, run)
            patience.renew()
            if copied.load_id is not None:
                yield copied
            elif once:
                return
            if once and copied.totals.bytes:
                continue
        except LoadOvertaken:
            patience.renew()
        except BrokersSilent as error:
            if once:
                raise
            ends_at = context.clock.monotonic() + (patience.next_pause_s() or 0.0)
            _LOG.warning("%s Nothing is lost: it is tried again.", error)
        stop.wait(max(ends_at - context.clock.monotonic(), 0.0))


def _ends_of(frames: Frames) -> dict[int, int]:
    from snowmelt.load.kafka.connection import Connection, end_offsets, settings_of

    settings = settings_of(frames.settings, strict=False, parameter="kafka_conf")
    try:
        return end_offsets(Connection(frames.brokers, frames.group, settings), frames.topic)
    except PhaseFailed as error:
        where = f"KafkaSource({frames.topic})"
        raise LoadFailed(where=where, reason=str(error).rstrip(".")) from error


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
