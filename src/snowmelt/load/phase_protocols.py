"""Protocols of load phases (source, filter, parser) and the data that they exchange.

`snowmelt.load.udx` adapts classes that were written for Vertica's SDK to these protocols. A parser
receives a `ParseTarget` and a `ByteReader`, and yields `ParsedBatch` objects of rows and rejects.
Phases that know record boundaries exchange `Records`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from snowmelt.load.portion import InputFile, Portion
from snowmelt.schema.types import TableSchema

# --- What a parser is asked for and what it hands on: columns of good rows, and rejected records.


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """What a load says of one column; None means as the statement or the parser says.

    `format` is a date format, or HEX, OCTAL or BITSTRING for binary columns. `trim` is the
    character taken off both ends. Of a text that is too long, `enforce_length` rejects the row;
    otherwise it is cut.
    """

    delimiter: str | None = None
    enclosed_by: str | None = None
    escape: str | None = None
    null: str | None = None
    trim: str | None = None
    format: str | None = None
    enforce_length: bool | None = None


@dataclass(frozen=True, slots=True)
class ParseTarget:
    """The columns that a parser has to fill, in order, and what the load says of each.

    `schema` holds the parsed columns, those that are not stored among them; its columns are
    found by name in formats that have names, and by position in those that have none.
    `options` is keyed by internal column name.
    """

    schema: TableSchema
    options: Mapping[str, ColumnOptions] = field(default_factory=dict)
    enforce_length: bool = False


@dataclass(frozen=True, slots=True)
class ParseReject:
    """One record that did not become a row.

    `record` counts from 1 in its portion, `offset` is where it begins among the bytes that the
    parser was given; `column` is the one that is to blame, if it is one.
    """

    record: int
    offset: int
    data: bytes
    reason: str
    column: str | None = None


@dataclass(frozen=True, slots=True)
class ParsedBatch:
    """What became of some consecutive records.

    `rows` is in native form (`snowmelt.schema.iceberg_table_form`) of the target's schema, good rows only
    and in order; `records` counts good and rejected ones together (`records == rows + rejects`).
    """

    rows: pa.Table
    rejects: tuple[ParseReject, ...]
    records: int


# --- Bytes with the limits of their records beside them: what flows where the side channel is used.

# A batch of whole records, each an element of type `binary`, none of them null: one buffer of
# bytes and one of offsets, handed on without a copy. A record may be empty.
Records: TypeAlias = pa.BinaryArray


# --- What a filter or parser reads from: the bytes of the phase before it, as they come.


class ByteReader:
    """Bytes that arrive in pieces, to be read piece by piece or by number.

    `offset` counts the bytes that were read so far. Not for several threads at once.
    """

    def __init__(self, slices: Iterable[bytes]) -> None:
        self._slices = iter(slices)
        self._buffer = bytearray()
        self._ended = False
        self.offset = 0

    def read(self, size: int | None = None) -> bytes:
        """Return the next piece as it comes, or exactly `size` bytes; fewer only at the end.

        Empty means that nothing more will come.
        """
        if size is None:
            data = bytes(self._buffer) if self._buffer else self._pull()
            self._buffer.clear()
        else:
            self._fill(size)
            data = bytes(memoryview(self._buffer)[:size])
            del self._buffer[:size]
        self.offset += len(data)
        return data

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes without reading them; fewer only at the end."""
        self._fill(size)
        return bytes(memoryview(self._buffer)[:size])

    @property
    def at_end(self) -> bool:
        """Whether nothing more will come; waits for the phase before to tell."""
        self._fill(1)
        return not self._buffer

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces that are left, none of them empty."""
        while data := self.read():
            yield data

    def close(self) -> None:
        """Read no further: whatever the pieces come from may end. What is held is dropped."""
        self._ended = True
        self._buffer.clear()
        close = getattr(self._slices, "close", None)
        if close is not None:
            close()

    def _fill(self, size: int) -> None:
        while len(self._buffer) < size and (piece := self._pull()):
            self._buffer += piece

    def _pull(self) -> bytes:
        if not self._ended:
            for piece in self._slices:
                if piece:
                    return piece
            self._ended = True
        return b""


class Source(Protocol):
    """Where bytes come from; made by name with parameters, on the driver and in each task."""

    def files(self) -> Sequence[InputFile]:
        """List the inputs, on the driver.

        Raises:
            PhaseFailed: There is none, or they cannot be listed.
        """

    def read(self, portion: Portion) -> Iterator[bytes]:
        """Yield the bytes of a portion and, as long as it is asked, those that follow them.

        Raises:
            PhaseFailed: The file cannot be read, or has changed since it was listed.
        """


@runtime_checkable
class RecordSource(Protocol):
    """A source that knows where its records end: what begins the side channel."""

    def files(self) -> Sequence[InputFile]:
        """List the inputs, on the driver.

        Raises:
            PhaseFailed: There is none, or they cannot be listed.
        """

    def read_records(self, portion: Portion) -> Iterator[Records]:
        """Yield the records of a portion.

        Raises:
            PhaseFailed: They cannot be read.
        """


@runtime_checkable
class Filter(Protocol):
    """Bytes in, bytes out. One object may run many times, one after the other."""

    def run(self, reader: ByteReader) -> Iterator[bytes]:
        """Yield the filtered bytes of one stream. Leaving early ends the stream.

        Raises:
            PhaseFailed: The input cannot be filtered; it fails as a whole.
        """


@runtime_checkable
class RecordFilter(Protocol):
    """Records in, records or bytes out: what works with the side channel.

    A filter that yields bytes ends the side channel: it is a `Filter` for what comes after it.
    """

    ends_records: bool

    def run_records(self, records: Iterator[Records]) -> Iterator[Records] | Iterator[bytes]:
        """Yield filtered records, or bytes if `ends_records`."""


@runtime_checkable
class Parser(Protocol):
    """Bytes in, rows out."""

    splittable: bool
    """Whether it can begin in the middle of a file, by `Portion`'s rule."""

    def parse(
        self, reader: ByteReader, target: ParseTarget, portion: Portion
    ) -> Iterator[ParsedBatch]:
        """Yield what the bytes of one portion hold, in blocks of bounded size.

        `reader` goes on behind the portion's end; the parser stops by `Portion`'s rule. A portion
        of a filtered file is whole.

        Raises:
            PhaseFailed: The bytes are not of this format at all, from some place on.
        """


@runtime_checkable
class RecordParser(Protocol):
    """Records in, rows out, each record accepted or rejected by itself."""

    def parse_records(
        self, records: Iterator[Records], target: ParseTarget
    ) -> Iterator[ParsedBatch]:
        """Yield what the records hold; a rejected record is one of these."""
