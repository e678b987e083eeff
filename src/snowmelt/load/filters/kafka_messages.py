"""Filters that turn Kafka messages into a byte stream, with delimiters or length prefixes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.errors import LoadRefused
from snowmelt.load.phase_definition import PhaseDefinition, PhaseParameter
from snowmelt.load.phase_protocols import Records, join_records

_LENGTH_BYTES = 4


class KafkaInsertDelimiters:
    """A filter that writes the delimiter after every message.

    With `mode` "between", it writes the delimiter only between messages. A message that contains the
    delimiter becomes two records.
    """

    ends_records: ClassVar[bool] = True

    def __init__(self, delimiter: str, mode: str = "append") -> None:
        if not delimiter:
            raise LoadRefused(what="KafkaInsertDelimiters", reason="the delimiter is empty")
        if mode.lower() not in {"append", "between"}:
            reason = f"invalid mode: expected append or between, got {mode}"
            raise LoadRefused(what="KafkaInsertDelimiters", reason=reason)
        self._delimiter = delimiter.encode()
        self._between = mode.lower() == "between"

    def run_records(self, records: Iterator[Records]) -> Iterator[bytes]:
        """Yield the messages and delimiters."""
        delimiter, empty = pa.scalar(self._delimiter), pa.scalar(b"")
        first = self._between
        for batch in records:
            if not len(batch):
                continue
            order = (empty, batch) if self._between else (batch, empty)
            data = join_records(pc.binary_join_element_wise(*order, delimiter))
            yield data[len(self._delimiter) :] if first else data
            first = False


class KafkaInsertLengths:
    """A filter that writes the length before every message, as 4 bytes, big-endian."""

    ends_records: ClassVar[bool] = True

    def run_records(self, records: Iterator[Records]) -> Iterator[bytes]:
        """Yield the lengths and messages."""
        for batch in records:
            count = len(batch)
            if not count:
                continue
            lengths = pc.binary_length(batch).to_numpy().astype(">u4")
            offsets = np.arange(0, _LENGTH_BYTES * (count + 1), _LENGTH_BYTES, dtype=np.int32)
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(lengths)]
            before = pa.Array.from_buffers(pa.binary(), count, buffers)
            yield join_records(pc.binary_join_element_wise(before, batch, pa.scalar(b"")))


KAFKA_INSERT_DELIMITERS = PhaseDefinition(
    "KafkaInsertDelimiters",
    KafkaInsertDelimiters,
    (PhaseParameter("delimiter", str, required=True), PhaseParameter("mode", str)),
)
KAFKA_INSERT_LENGTHS = PhaseDefinition("KafkaInsertLengths", KafkaInsertLengths)
