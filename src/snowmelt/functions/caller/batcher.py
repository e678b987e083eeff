"""A stream of Arrow columns cut into batches by rows and bytes, never by time.

Where the cuts are depends on the rows alone: however the stream is sliced, and however often it
is read again, the batches are the same, and so are their ids.
"""

from __future__ import annotations

import hashlib
import secrets
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cryptography.hazmat.primitives.poly1305 import Poly1305

from snowmelt.clock import SystemClock
from snowmelt.functions.caller.shared_files import HostFile, file_name, private_folder, remove_old
from snowmelt.functions.definition import Volatility

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import TypeAlias

    from numpy.typing import NDArray

    from snowmelt.functions.caller.plan import Place
    from snowmelt.functions.definition import ExternalFunction

if TYPE_CHECKING:
    Integers: TypeAlias = NDArray[np.int64]

# Brackets, commas and the row's number.
_ROW_BYTES = 10
# The longest JSON of a value; a decimal has its digits, a sign, a point and perhaps an exponent.
_FIXED_BYTES = {
    pa.bool_(): 6,
    pa.int64(): 21,
    pa.float64(): 25,
    pa.date32(): 13,
}
_OTHER_BYTES = 42
_QUOTES = 3
# Rows that are not sent wait for the batch they are in: so many at most.
_MOST_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that follow each other in the stream, and those of them that a service is to see.

    `columns` hold the rows to be sent. `places` says where each of them stands among the batch's
    `rows`; None where all are sent.
    """

    ordinal: int
    rows: int
    columns: tuple[pa.Array, ...]
    places: Integers | None = None

    @property
    def sent(self) -> int:
        """How many rows are to be sent."""
        return self.rows if self.places is None else len(self.places)


class Batcher:
    """Cuts one stream; used once.

    A batch ends after `max_rows` rows to be sent, or before the row that would make it larger than
    `max_bytes`; a row that alone is larger is a batch. Bytes are an upper bound of the JSON,
    but for characters that need escapes.
    """

    def __init__(self, max_rows: int, max_bytes: int, *, strict: bool = False) -> None:
        """Prepare.

        Args:
            max_rows: Most rows that a batch sends.
            max_bytes: Most bytes that a batch sends.
            strict: Rows with a NULL are not sent.
        """
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._strict = strict
        self._ordinal = 0
        self._begin()

    def _begin(self) -> None:
        self._pieces: list[list[pa.Array]] = []
        self._places: list[Integers] = []
        self._rows = self._sent = self._bytes = 0

    def batches(self, stream: Iterable[Sequence[pa.Array]]) -> Iterator[Batch]:
        """Return the batches of a stream, each as soon as its last row is there.

        Args:
            stream: Columns of as many rows each. A function without arguments still needs a
                column, which says how many rows there are.
        """
        for columns in stream:
            if len(columns[0]):
                yield from self._add(_Rows(columns, strict=self._strict))
        if self._rows:
            yield self._batch()

    def _add(self, rows: _Rows) -> Iterator[Batch]:
        row = start = 0
        while row < rows.count:
            left = rows.sent - start
            taken = self._fitting(rows, start, min(left, self._max_rows - self._sent))
            if self._sent + taken == self._max_rows:
                end, full = rows.place(start + taken - 1) + 1, True
            elif taken < left:
                end, full = rows.place(start + taken), True
            else:
                end, full = rows.count, False
            most = row + _MOST_ROWS - self._rows
            if self._strict and end >= most:
                taken, end, full = rows.sent_before(most) - start, most, True
            self._take(rows, (start, taken), (row, end))
            row, start = end, start + taken
            if full:
                yield self._batch()

    def _fitting(self, rows: _Rows, start: int, most: int) -> int:
        """Return how many of the next `most` rows the batch has room for."""
        room = self._max_bytes - self._bytes
        if most == 0 or rows.bytes_between(start, start + most) <= room:
            return most
        fitting = int(np.searchsorted(rows.bytes_up_to(start, start + most), room, side="right"))
        return fitting or int(self._sent == 0)

    def _take(self, rows: _Rows, sent: tuple[int, int], covered: tuple[int, int]) -> None:
        (start, taken), (row, end) = sent, covered
        if taken or not self._pieces:
            self._pieces.append([column.slice(start, taken) for column in rows.columns])
        if self._strict:
            places = rows.places_between(start, start + taken)
            self._places.append(places + (self._rows - row))
        self._bytes += rows.bytes_between(start, start + taken)
        self._sent += taken
        self._rows += end - row

    def _batch(self) -> Batch:
        columns = tuple(
            pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
            for pieces in zip(*self._pieces, strict=True)
        )
        places = np.concatenate(self._places) if self._sent < self._rows else None
        batch = Batch(self._ordinal, self._rows, columns, places)
        self._ordinal += 1
        self._begin()
        return batch


class _Rows:
    """Rows of one arrival: those to be sent, their places, and their sizes."""

    def __init__(self, columns: Sequence[pa.Array], *, strict: bool) -> None:
        self.count = len(columns[0])
        self._places: Integers | None = None
        if strict and any(column.null_count for column in columns):
            valid = columns[0].is_valid()
            for column in columns[1:]:
                valid = pc.and_(valid, column.is_valid())
            self._places = np.flatnonzero(valid.to_numpy(zero_copy_only=False))
            columns = [column.filter(valid) for column in columns]
        self.columns = columns
        self.sent = len(columns[0])
        self._fixed = _ROW_BYTES
        self._ends: list[tuple[int, NDArray[Any]]] = []
        for column in columns:
            ends = _ends(column)
            if ends is None:
                self._fixed += _FIXED_BYTES.get(column.type, _OTHER_BYTES)
            else:
                self._fixed += _QUOTES
                # Hexadecimal is the longest form of bytes.
                self._ends.append((2 if pa.types.is_binary(column.type) else 1, ends))

    def place(self, sent: int) -> int:
        """Return the row that a row to be sent is."""
        return sent if self._places is None else int(self._places[sent])

    def places_between(self, start: int, end: int) -> Integers:
        """Return the rows that some of the rows to be sent are."""
        return np.arange(start, end) if self._places is None else self._places[start:end]

    def sent_before(self, row: int) -> int:
        """Return how many of the rows before one are to be sent."""
        return row if self._places is None else int(np.searchsorted(self._places, row))

    def bytes_between(self, start: int, end: int) -> int:
        """Return the size of some of the rows to be sent, in bytes."""
        size = self._fixed * (end - start)
        for factor, ends in self._ends:
            size += factor * int(ends[end] - ends[start])
        return size

    def bytes_up_to(self, start: int, end: int) -> Integers:
        """Return the size from the first of some rows to each of them, in bytes."""
        sizes = np.arange(1, end - start + 1, dtype=np.int64) * self._fixed
        for factor, ends in self._ends:
            sizes += factor * (ends[start + 1 : end + 1].astype(np.int64) - ends[start])
        return sizes


def _ends(column: pa.Array) -> NDArray[Any] | None:
    """Return the offsets of texts and bytes; None for types of fixed width."""
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        width: Any = np.int32
    elif pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        width = np.int64
    else:
        return None
    buffer = column.buffers()[1]
    offsets = np.frombuffer(buffer, width)
    return offsets[column.offset : column.offset + len(column) + 1]


# --- Ids of queries and batches: the same again for every retry, attempt and restart.

_DIGEST_BYTES = 6
_TASKS_OF_A_FILE = 256
# A file is of no use once its task is over.
_USES_KEPT_S = 24 * 3600.0
_CLEANED_ONE_IN = 64


def query_id(session: str, execution: int | str) -> str:
    """Return the id of a query.

    Args:
        session: The Spark session's UUID.
        execution: The id of the query's root execution within the session.
    """
    return _named(session, f"{execution}")


def streaming_query_id(query: str, batch: int | str) -> str:
    """Return the id of a streaming query's batch, which a restart of the query does not change.

    Args:
        query: The streaming query's own UUID, kept with its checkpoint.
        batch: The number of the micro-batch.
    """
    return _named(query, f"batch {batch}")


def _named(space: str, name: str) -> str:
    try:
        root = uuid.UUID(space)
    except ValueError:
        root = uuid.uuid5(uuid.NAMESPACE_URL, space)
    return str(uuid.uuid5(root, name))


class BatchIds:
    """Ids of the batches that one use of a function makes at one place of a query.

    An id says query, stage, partition and ordinal, and a digest of function, site, number of the
    use and body: uses of several functions in a stage, two calls of one VOLATILE function, or rows
    that a shuffle brings in another order the second time, never share one.
    """

    def __init__(
        self, place: Place, function: ExternalFunction, *, folder: Path | None = None
    ) -> None:
        """Prepare.

        Args:
            place: In the query.
            function: What is called. Uses of an IMMUTABLE one may share ids: they share values.
            folder: Where processes of a task count their uses; this user's private one if None.
        """
        self._prefix = f"{place.query_id}:{place.stage}:{place.partition}"
        signature = function.signature
        self._spoken = (
            f"{place.query_id}\0{function.version}\0{signature.name}{signature.arguments_text()}"
        )
        volatile = function.volatility is Volatility.VOLATILE
        if volatile and place.site:
            self._spoken += f"\0site {place.site}"
        self._uses = _Uses(place, folder) if volatile and place.task else None
        self._set_key()

    def _set_key(self) -> None:
        # Poly1305 under a key of the query's own is a universal hash: two bodies that differ meet
        # with chance only, whatever they hold. It takes a fifth of the time of blake2b.
        self._key = hashlib.blake2b(
            self._spoken.encode("utf-8", "surrogatepass"), digest_size=32
        ).digest()

    def of(self, ordinal: int, body: bytes) -> str:
        """Return the id of a batch.

        Args:
            ordinal: Of the batch among those at this place, from 0.
            body: As it is sent, before compression.
        """
        if self._uses is not None:
            first = Poly1305.generate_tag(self._key, body) + ordinal.to_bytes(8)
            number, self._uses = self._uses.next(first), None
            if number:
                self._spoken += f"\0use {number}"
                self._set_key()
        digest = Poly1305.generate_tag(self._key, body)[:_DIGEST_BYTES].hex()
        return f"{self._prefix}:{ordinal}:{digest}"


class _Uses:
    """Numbers of the uses that begin with the same batch in one attempt at a task.

    The processes of the attempt share a file of digests. Which use gets which number is chance.
    That does no harm: they ask the same function for the same rows, so their values may change
    places between two attempts.
    """

    def __init__(self, place: Place, folder: Path | None) -> None:
        self._task = place.task
        # A file of all tasks of a query would be read from end to end too often.
        group = str(place.partition // _TASKS_OF_A_FILE)
        self._folder = folder or private_folder()
        name = file_name("uses", place.query_id, str(place.stage), group)
        self._path = self._folder / name

    def next(self, first_batch: bytes) -> int:
        """Return how many uses began with the same batch before, and count this one."""
        if secrets.randbelow(_CLEANED_ONE_IN) == 0:
            remove_old(self._folder, "uses", SystemClock(), _USES_KEPT_S)
        spoken = self._task.encode() + b"\0" + first_batch
        file = HostFile(self._path)
        try:
            return file.count(hashlib.blake2b(spoken, digest_size=16).digest())
        finally:
            file.close()
