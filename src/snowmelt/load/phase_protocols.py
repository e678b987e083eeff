"""Protocols of load phases (source, filter, parser) and the data that they exchange.

`snowmelt.load.udx` adapts classes for Vertica's SDK to these protocols. Phases with record
boundaries exchange `Records`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import pyarrow as pa

from snowmelt.load.portion import InputFile, Portion
from snowmelt.schema.types import TableSchema


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """Options of one column. None means the statement's or parser's default.

    Attributes:
        trim: The character to remove from both ends.
        format: A date format, or HEX, OCTAL or BITSTRING for binary columns.
        enforce_length: Reject rows with values that are too long. False: truncate the values.
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
    """The columns that a parser fills, in order, and their options by internal name.

    `schema` includes filler columns. Formats with field names match columns by name, others by
    position.
    `started_at` is the default CURRENT_TIMESTAMP. None: not available.
    """

    schema: TableSchema
    options: Mapping[str, ColumnOptions] = field(default_factory=dict)
    enforce_length: bool = False
    started_at: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class ParseReject:
    """One rejected record.

    Attributes:
        record: Record number in the portion, from 1.
        offset: Byte offset of the record in the parser's input.
        column: The column that caused the reject, if there is one.
    """

    record: int
    offset: int
    data: bytes
    reason: str
    column: str | None = None


@dataclass(frozen=True, slots=True)
class HeaderMismatch:
    """Names in a file's header without a column, and columns without a name in the header."""

    unknown_names: tuple[str, ...] = ()
    missing_columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = []
        if self.unknown_names:
            parts.append(f"no column is named {', '.join(self.unknown_names)}")
        if self.missing_columns:
            verb = "gets" if len(self.missing_columns) == 1 else "get"
            parts.append(f"{', '.join(self.missing_columns)} {verb} NULL")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class ParsedBatch:
    """Rows and rejects of consecutive records.

    Attributes:
        rows: Accepted rows in order, in native form (`snowmelt.schema.iceberg_table_form`).
        rejects: Rejected records in order.
        records: Number of rows plus rejects.
        truncated_values: Number of values that were cut to the length of their column, in rejected
            records too.
        header_mismatch: Differences between the header of the file and the columns. Set in the first
            batch of a file only.
    """

    rows: pa.Table
    rejects: tuple[ParseReject, ...]
    records: int
    truncated_values: int = 0
    header_mismatch: HeaderMismatch | None = None


# A batch of whole records, none of them null. A record may be empty.
Records: TypeAlias = pa.BinaryArray


def join_records(records: Records) -> bytes:
    """Return the bytes of records without their boundaries."""
    size = records.total_values_length
    if not size:
        return b""
    offsets = np.frombuffer(records.buffers()[1], dtype=np.int32)
    data: bytes = records.buffers()[2].slice(int(offsets[records.offset]), size).to_pybytes()
    return data


class ByteReader:
    """Buffered reader of the slices that the previous phase yields. Not thread-safe.

    `offset` counts the bytes read so far.
    """

    def __init__(self, slices: Iterable[bytes]) -> None:
        self._slices = iter(slices)
        self._buffer = bytearray()
        self._ended = False
        self.offset = 0

    def read(self, size: int | None = None) -> bytes:
        """Return the next slice, or exactly `size` bytes (fewer only at the end).

        The result is empty at the end.
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
        """True at the end of the input. Blocks until the previous phase yields or ends."""
        self._fill(1)
        return not self._buffer

    def __iter__(self) -> Iterator[bytes]:
        """Yield the remaining slices, none of them empty."""
        while data := self.read():
            yield data

    def close(self) -> None:
        """Drop the buffer and close the previous phase."""
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


class _InputLister(Protocol):
    def files(self) -> Sequence[InputFile]:
        """List the inputs, on the driver.

        Raises:
            PhaseFailed: If there is none, or listing fails.
        """


class Source(_InputLister, Protocol):
    """A source of bytes. The driver and each task build their own object."""

    def read(self, portion: Portion) -> Iterator[bytes]:
        """Yield the bytes from the portion's start to the end of the file.

        Raises:
            PhaseFailed: If the file cannot be read, or has changed since it was listed.
        """


@runtime_checkable
class RecordSource(_InputLister, Protocol):
    """A source that provides record boundaries."""

    def read_records(self, portion: Portion) -> Iterator[Records]:
        """Yield the records of a portion. Raise PhaseFailed if they cannot be read."""


@runtime_checkable
class Filter(Protocol):
    """A filter from bytes to bytes. One object filters successive streams."""

    def run(self, reader: ByteReader) -> Iterator[bytes]:
        """Yield the filtered bytes of one stream.

        Raises:
            PhaseFailed: If the input cannot be filtered.
        """


@runtime_checkable
class RecordFilter(Protocol):
    """A filter from records to records, or to bytes if `ends_records`."""

    ends_records: bool

    def run_records(self, records: Iterator[Records]) -> Iterator[Records] | Iterator[bytes]:
        """Yield filtered records, or bytes if `ends_records`."""


@runtime_checkable
class Parser(Protocol):
    """A parser of bytes. `splittable` means that it can start within a file, by `Portion`'s rule."""

    splittable: bool

    def parse(
        self, reader: ByteReader, target: ParseTarget, portion: Portion
    ) -> Iterator[ParsedBatch]:
        """Yield the rows and rejects of one portion, in blocks of bounded size.

        `reader` does not end with the portion: the parser stops by `Portion`'s rule. A filtered
        file is always one portion.

        Raises:
            PhaseFailed: If the bytes are not in this format.
        """


@runtime_checkable
class RecordParser(Protocol):
    """A parser of records. It accepts or rejects each record independently."""

    def parse_records(
        self, records: Iterator[Records], target: ParseTarget
    ) -> Iterator[ParsedBatch]:
        """Yield the rows and rejects of the records."""
