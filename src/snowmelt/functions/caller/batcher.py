"""Splitting of Arrow column streams into batches by rows and bytes, and batch IDs.

Batches depend only on the rows: not on time, and not on how the stream is sliced. Every retry,
attempt and restart therefore produces the same batches, with the same query and batch IDs.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cryptography.hazmat.primitives.poly1305 import Poly1305
from numpy.typing import NDArray

from snowmelt.clock import SystemClock
from snowmelt.functions.caller.plan import QueryPosition
from snowmelt.functions.caller.rate_and_concurrency_limits import (
    SharedFile,
    delete_stale_files,
    ensure_private_folder,
    make_shared_file_name,
)
from snowmelt.functions.definition import ExternalFunction, Volatility

Int64Array: TypeAlias = NDArray[np.int64]

# Bytes of a row's brackets, commas and row number.
_ROW_OVERHEAD_BYTES = 10
# Maximum JSON size of a value. A decimal has digits, a sign, a point and possibly an exponent.
_MAX_JSON_BYTES = {
    pa.bool_(): 6,
    pa.int64(): 21,
    pa.float64(): 25,
    pa.date32(): 13,
}
_DEFAULT_MAX_JSON_BYTES = 42
_STRING_OVERHEAD_BYTES = 3
# Maximum number of rows per batch that are not sent and wait for its response.
_MAX_COVERED_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class CallBatch:
    """Adjacent rows of the stream, all or some of which are sent to the service.

    `columns` has the rows to send. `sent_positions` has their positions among the `rows` of the
    batch, or is None if all are sent.
    """

    ordinal: int
    rows: int
    columns: tuple[pa.Array, ...]
    sent_positions: Int64Array | None = None

    @property
    def sent_rows(self) -> int:
        """Number of rows to send."""
        return self.rows if self.sent_positions is None else len(self.sent_positions)


class CallBatcher:
    """Splitter of one stream. Single use.

    A batch ends after `max_rows` rows to send, or before the row that would exceed `max_bytes`. A
    larger row is a batch of its own. Sizes are upper bounds of the JSON, except for characters that
    need escapes.
    """

    def __init__(self, max_rows: int, max_bytes: int, *, skip_null_rows: bool = False) -> None:
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._skip_null_rows = skip_null_rows
        self._ordinal = 0
        self._start_batch()

    def _start_batch(self) -> None:
        self._slices: list[list[pa.Array]] = []
        self._sent_positions: list[Int64Array] = []
        self._rows = self._sent_rows = self._bytes = 0

    def split_batches(self, stream: Iterable[Sequence[pa.Array]]) -> Iterator[CallBatch]:
        """Yield the batches of a stream. Yields each batch when its last row arrives.

        Args:
            stream: Columns of equal length. A function without arguments needs one column, for the number
                of rows.
        """
        for columns in stream:
            if len(columns[0]):
                yield from self._add_rows(
                    _IncomingRows(columns, skip_null_rows=self._skip_null_rows)
                )
        if self._rows:
            yield self._finish_batch()

    def _add_rows(self, rows: _IncomingRows) -> Iterator[CallBatch]:
        row = start = 0
        while row < rows.row_count:
            left = rows.sent_rows - start
            taken = self._count_fitting_rows(
                rows, start, min(left, self._max_rows - self._sent_rows)
            )
            if self._sent_rows + taken == self._max_rows:
                end, full = rows.get_position(start + taken - 1) + 1, True
            elif taken < left:
                end, full = rows.get_position(start + taken), True
            else:
                end, full = rows.row_count, False
            most = row + _MAX_COVERED_ROWS - self._rows
            if self._skip_null_rows and end >= most:
                taken, end, full = rows.count_sent_before(most) - start, most, True
            self._append_rows(rows, (start, taken), (row, end))
            row, start = end, start + taken
            if full:
                yield self._finish_batch()

    def _count_fitting_rows(self, rows: _IncomingRows, start: int, max_rows: int) -> int:
        """Return how many of the next `max_rows` rows fit the batch."""
        room = self._max_bytes - self._bytes
        if max_rows == 0 or rows.estimate_bytes(start, start + max_rows) <= room:
            return max_rows
        fitting = int(
            np.searchsorted(
                rows.estimate_cumulative_bytes(start, start + max_rows), room, side="right"
            )
        )
        return fitting or int(self._sent_rows == 0)

    def _append_rows(
        self, rows: _IncomingRows, sent_slice: tuple[int, int], covered_rows: tuple[int, int]
    ) -> None:
        (start, taken), (row, end) = sent_slice, covered_rows
        if taken or not self._slices:
            self._slices.append([column.slice(start, taken) for column in rows.columns])
        if self._skip_null_rows:
            places = rows.get_positions(start, start + taken)
            self._sent_positions.append(places + (self._rows - row))
        self._bytes += rows.estimate_bytes(start, start + taken)
        self._sent_rows += taken
        self._rows += end - row

    def _finish_batch(self) -> CallBatch:
        columns = tuple(
            pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
            for pieces in zip(*self._slices, strict=True)
        )
        places = np.concatenate(self._sent_positions) if self._sent_rows < self._rows else None
        batch = CallBatch(self._ordinal, self._rows, columns, places)
        self._ordinal += 1
        self._start_batch()
        return batch


class _IncomingRows:
    """Rows of one record batch, with the positions and sizes of the rows to send."""

    def __init__(self, columns: Sequence[pa.Array], *, skip_null_rows: bool) -> None:
        self.row_count = len(columns[0])
        self._sent_positions: Int64Array | None = None
        if skip_null_rows and any(column.null_count for column in columns):
            valid = columns[0].is_valid()
            for column in columns[1:]:
                valid = pc.and_(valid, column.is_valid())
            self._sent_positions = np.flatnonzero(valid.to_numpy(zero_copy_only=False))
            columns = [column.filter(valid) for column in columns]
        self.columns = columns
        self.sent_rows = len(columns[0])
        self._fixed_bytes = _ROW_OVERHEAD_BYTES
        self._variable_width_offsets: list[tuple[int, NDArray[Any]]] = []
        for column in columns:
            ends = _get_value_offsets(column)
            if ends is None:
                self._fixed_bytes += _MAX_JSON_BYTES.get(column.type, _DEFAULT_MAX_JSON_BYTES)
            else:
                self._fixed_bytes += _STRING_OVERHEAD_BYTES
                # Hexadecimal is the longest text form of binary values.
                self._variable_width_offsets.append(
                    (2 if pa.types.is_binary(column.type) else 1, ends)
                )

    def get_position(self, sent_index: int) -> int:
        """Return the position of a row to send."""
        return sent_index if self._sent_positions is None else int(self._sent_positions[sent_index])

    def get_positions(self, start: int, end: int) -> Int64Array:
        """Return the positions of rows to send."""
        sent = self._sent_positions
        return np.arange(start, end) if sent is None else sent[start:end]

    def count_sent_before(self, row: int) -> int:
        """Return the number of rows to send before a row."""
        sent = self._sent_positions
        return row if sent is None else int(np.searchsorted(sent, row))

    def estimate_bytes(self, start: int, end: int) -> int:
        """Return the total size of the rows to send from `start` to `end`, in bytes."""
        size = self._fixed_bytes * (end - start)
        for factor, ends in self._variable_width_offsets:
            size += factor * int(ends[end] - ends[start])
        return size

    def estimate_cumulative_bytes(self, start: int, end: int) -> Int64Array:
        """Return the cumulative sizes of the rows to send from `start` to `end`, in bytes."""
        sizes = np.arange(1, end - start + 1, dtype=np.int64) * self._fixed_bytes
        for factor, ends in self._variable_width_offsets:
            sizes += factor * (ends[start + 1 : end + 1].astype(np.int64) - ends[start])
        return sizes


def _get_value_offsets(column: pa.Array) -> NDArray[Any] | None:
    """Return the value offsets of a string or binary column, or None for a fixed-width type."""
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        width: Any = np.int32
    elif pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        width = np.int64
    else:
        return None
    buffer = column.buffers()[1]
    offsets = np.frombuffer(buffer, width)
    return offsets[column.offset : column.offset + len(column) + 1]


_DIGEST_BYTES = 6
_TASKS_PER_FILE = 256
# Age at which a file is deleted. A file is useless after the end of its task.
_USES_FILE_TTL_S = 24 * 3600.0
_USES_PER_CLEANUP = 64


def make_query_id(session: str, execution: int | str) -> str:
    """Make the ID of a query, which is a root execution within a Spark session."""
    try:
        root = uuid.UUID(session)
    except ValueError:
        root = uuid.uuid5(uuid.NAMESPACE_URL, session)
    return str(uuid.uuid5(root, f"{execution}"))


def make_streaming_query_id(query: str, batch: int | str) -> str:
    """Make the ID of a batch of a streaming query. It stays the same after a restart.

    `query` is the UUID of the streaming query in its checkpoint.
    """
    return make_query_id(query, f"batch {batch}")


class BatchIdGenerator:
    """Generator of batch IDs for one use of a function at one position of a query.

    An ID consists of query, stage, partition, ordinal, and a digest of function, call site, number
    of the use and body. Different functions of a stage, two calls of a VOLATILE function, and rows
    that a shuffle delivers in another order therefore have different IDs.
    """

    def __init__(
        self, position: QueryPosition, function: ExternalFunction, *, folder: Path | None = None
    ) -> None:
        """Prepare IDs for a function. Uses of an IMMUTABLE function may share IDs and values."""
        self._prefix = f"{position.query_id}:{position.stage}:{position.partition}"
        signature = function.signature
        self._key_material = f"{position.query_id}\0{function.version}\0{signature.name}{signature.format_arguments()}"
        volatile = function.volatility is Volatility.VOLATILE
        if volatile and position.call_site:
            self._key_material += f"\0site {position.call_site}"
        self._use_counter = (
            _FunctionUseCounter(position, folder) if volatile and position.task_attempt_id else None
        )
        self._derive_key()

    def _derive_key(self) -> None:
        # Poly1305 with a key per query is a universal hash: different bodies collide only with
        # negligible probability, whatever they contain. It takes a fifth of the time of blake2b.
        self._key = hashlib.blake2b(
            self._key_material.encode("utf-8", "surrogatepass"), digest_size=32
        ).digest()

    def make_batch_id(self, ordinal: int, body: bytes) -> str:
        """Return the ID of a batch. `body` is the request body before compression."""
        if self._use_counter is not None:
            first = Poly1305.generate_tag(self._key, body) + ordinal.to_bytes(8)
            number, self._use_counter = self._use_counter.increment(first), None
            if number:
                self._key_material += f"\0use {number}"
                self._derive_key()
        digest = Poly1305.generate_tag(self._key, body)[:_DIGEST_BYTES].hex()
        return f"{self._prefix}:{ordinal}:{digest}"


class _FunctionUseCounter:
    """Counter of the function uses of a task attempt whose first batches are equal.

    The processes of the attempt share a file of digests. Uses get their numbers in any order. This
    is safe: such uses send the same rows to the same function, so at worst their values are
    swapped.
    """

    def __init__(self, position: QueryPosition, folder: Path | None) -> None:
        self._task_attempt_id = position.task_attempt_id
        # A file per group of tasks: every use reads a whole file, and one file per query would be
        # large.
        group = str(position.partition // _TASKS_PER_FILE)
        self._folder = folder or ensure_private_folder()
        name = make_shared_file_name("uses", position.query_id, str(position.stage), group)
        self._path = self._folder / name

    def increment(self, first_batch: bytes) -> int:
        """Count a use. Return the number of earlier uses that began with the same batch."""
        if secrets.randbelow(_USES_PER_CLEANUP) == 0:
            delete_stale_files(self._folder, "uses", SystemClock(), _USES_FILE_TTL_S)
        spoken = self._task_attempt_id.encode() + b"\0" + first_batch
        digest = hashlib.blake2b(spoken, digest_size=16).digest()
        with contextlib.closing(SharedFile(self._path)) as file:
            return file.append_key_and_count_previous(digest)
