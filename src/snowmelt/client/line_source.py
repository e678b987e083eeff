"""Line-oriented files as a source. Positions are file name and line: `messages_1.log:20`.

A file is identified by its inode and its first line. So a renamed file is the same file, and an
overwritten file is another one. A line is read after its line end is written. The module also has
parsers for JSON, text and CSV lines, and for other encodings.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from snowmelt.client.source_streaming import PositionSortKey, make_position_sort_key
from snowmelt.errors import SourceWentBackwards, UserError
from snowmelt.json.exact import parse_row

if TYPE_CHECKING:
    # A row, None for a skipped line, or the reason why the line is invalid.
    ParsedLine: TypeAlias = Mapping[str, object] | str | None

_READ_BLOCK_BYTES = 1024 * 1024
_MAX_LINE_BYTES = 64 * 1024 * 1024
_FIRST_LINE_READ_BYTES = 4096


class LineSource:
    """An open file as a source of rows. The owner must `close` it.

    `parse` returns the row of a line, None to skip the line, or a text with the reason why the line is
    invalid. `on_refused` receives position, bytes and reason of invalid lines. The first line after the
    header identifies the file.
    """

    def __init__(
        self,
        path: Path,
        parse: Callable[[bytes, int], ParsedLine],
        on_refused: Callable[[str, bytes, str], None],
        *,
        header_lines: int = 0,
    ) -> None:
        self.path = path
        self._header_lines = header_lines
        self._parse = parse
        self._on_refused = on_refused
        self._file_descriptor = os.open(path, os.O_RDONLY)
        try:
            status = os.fstat(self._file_descriptor)
            self.inode = status.st_ino
            # Inode numbers are unique within a device only.
            self.device_and_inode = status.st_dev, status.st_ino
            self.first_line_digest = _digest_first_line(self._file_descriptor, header_lines)
            self.initial_size_bytes = os.fstat(self._file_descriptor).st_size
        except OSError:
            os.close(self._file_descriptor)
            raise
        self._line_number = 0
        self._sought_line_number = 0
        # The end of the lines that were read, and the bytes of those that `positions` has not returned.
        self._byte_offset = 0
        self._buffered_bytes = 0

    @property
    def file_identity(self) -> str | None:
        """Identity of the file, which growth and renaming do not change. None without a first line."""
        return None if self.first_line_digest is None else f"{self.inode}-{self.first_line_digest}"

    @property
    def is_same_file(self) -> bool:
        """True if the file has the content that it had when it was opened."""
        return (
            self.first_line_digest is not None
            and _digest_first_line(self._file_descriptor, self._header_lines)
            == self.first_line_digest
        )

    @property
    def is_deleted(self) -> bool:
        """True if the file has no name. A later file may then get its inode number."""
        return os.fstat(self._file_descriptor).st_nlink == 0

    @property
    def unread_bytes(self) -> int:
        """Number of bytes after the last line that was returned. Negative if the file was truncated."""
        return self._bytes_after_buffer + self._buffered_bytes

    @property
    def has_unread_lines(self) -> bool:
        """True if lines were read and not returned, or bytes follow in the same file."""
        return self._buffered_bytes > 0 or (self.is_same_file and self._bytes_after_buffer > 0)

    @property
    def _bytes_after_buffer(self) -> int:
        return os.fstat(self._file_descriptor).st_size - self._byte_offset

    @property
    def modified_at(self) -> float:
        """Time of the last write in seconds since 1970."""
        return os.fstat(self._file_descriptor).st_mtime

    def seek(self, token: str | None) -> None:
        """Continue after the line at a position.

        Raises:
            UserError: If the token is not the position of a line.
        """
        number = 0
        if token is not None:
            _, colon, text = token.rpartition(":")
            if not colon or not text.isdecimal():
                raise UserError(f"Offset token {token!r} is not of the form messages_1.log:20.")
            number = int(text)
        self._restart(number)

    def _restart(self, sought_line_number: int) -> None:
        self._line_number = self._byte_offset = self._buffered_bytes = 0
        self._sought_line_number = sought_line_number

    @staticmethod
    def order(position: str) -> PositionSortKey:
        """Return the sort key of a position, which is its line number, because files may be renamed."""
        return make_position_sort_key(position.rpartition(":")[2])

    def positions(self) -> Iterator[tuple[str, Mapping[str, object]]]:
        """Yield the rows of complete lines after the position of `seek`.

        Raises:
            SourceWentBackwards: If the file has fewer lines, or was truncated.
        """
        while True:
            lines = self._read_complete_lines()
            for line in lines:
                self._line_number += 1
                self._buffered_bytes -= len(line) + 1
                if self._line_number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                is_header = self._line_number <= self._header_lines
                if is_header or self._line_number > self._sought_line_number:
                    where = f"{self.path.name}:{self._line_number}"
                    row = self._parse(line, self._line_number)
                    if isinstance(row, str):
                        self._on_refused(where, line, row)
                    elif row is not None and not is_header:
                        yield where, row
            if lines:
                continue
            if self.first_line_digest is not None and not self.is_same_file:
                # The file was overwritten, so its positions do not belong to this source.
                return
            if self._bytes_after_buffer >= 0:
                break
            # Lines at the end of the file are missing: count the remaining lines again.
            self._restart(max(self._sought_line_number, self._line_number))
        if self._line_number < self._sought_line_number:
            name = self.path.name
            raise SourceWentBackwards(
                position=f"{name}:{self._line_number}",
                committed=f"{name}:{self._sought_line_number}",
            )

    def close(self) -> None:
        """Close the file."""
        os.close(self._file_descriptor)

    def _read_complete_lines(self) -> list[bytes]:
        size = _READ_BLOCK_BYTES
        while size <= _MAX_LINE_BYTES:
            data = os.pread(self._file_descriptor, size, self._byte_offset)
            end = data.rfind(b"\n") + 1
            if end or len(data) < size:
                if not end or not self.is_same_file:
                    return []
                self._byte_offset += end
                self._buffered_bytes = end
                return data[:end].split(b"\n")[:-1]
            size *= 4
        raise UserError(
            f"Line {self._line_number + 1} of {self.path} is longer than 64 MiB. Split the line, or omit "
            "the file."
        )


def _digest_first_line(file_descriptor: int, header_lines: int) -> str | None:
    """Return a digest of the first line after the header, or None until that line is complete.

    Only the first 4 KiB of a longer line count.
    """
    start = _find_end_of_header(file_descriptor, header_lines)
    if start is None:
        return None
    head = os.pread(file_descriptor, _FIRST_LINE_READ_BYTES, start)
    line, end, _ = head.partition(b"\n")
    if not end and len(head) < _FIRST_LINE_READ_BYTES:
        return None
    return hashlib.sha256(line).hexdigest()[:16]


def _find_end_of_header(file_descriptor: int, header_lines: int) -> int | None:
    """Return the position after the header, or None until the header is complete."""
    start = 0
    for _ in range(header_lines):
        while (
            end := (block := os.pread(file_descriptor, _FIRST_LINE_READ_BYTES, start)).find(b"\n")
        ) < 0:
            if len(block) < _FIRST_LINE_READ_BYTES:
                return None
            start += len(block)
        start += end + 1
    return start


def make_decoding_parser(
    parse: Callable[[bytes, int], ParsedLine], encoding: str
) -> Callable[[bytes, int], ParsedLine]:
    """Return a parser of lines in an encoding other than UTF-8.

    Raises:
        UserError: If the encoding is unknown, or has line ends of more than one byte.
    """
    try:
        ends_alike = "\n".encode(encoding) == b"\n"
    except LookupError:
        raise UserError(
            f"{encoding!r} is not a known encoding such as latin-1 or cp1252."
        ) from None
    if not ends_alike:
        raise UserError(f"Lines in {encoding} cannot be split at single bytes. Convert the files.")

    def parse_text(line: bytes, number: int) -> ParsedLine:
        try:
            text = line.decode(encoding)
        except UnicodeDecodeError as error:
            return f"it is not {encoding}: {error}"
        return parse(text.encode(), number)

    return parse_text


def parse_json_row(line: bytes, _: int) -> ParsedLine:
    """Parse a line of JSON as a row. Return None for a blank line."""
    return parse_row(line) if line.strip() else None


def make_text_parser(column: str) -> Callable[[bytes, int], ParsedLine]:
    """Return a parser that stores a whole line in one column."""

    def parse(line: bytes, _: int) -> ParsedLine:
        try:
            return {column: line.removesuffix(b"\r").decode()}
        except UnicodeDecodeError as error:
            return f"it is not UTF-8: {error}"

    return parse


class CsvLineParser:
    """Parses the lines of one CSV file. Empty fields are NULL.

    A record is one line; quoted line ends are not supported. Without `columns`, the first line
    contains the column names. If it is invalid, every line is.
    """

    def __init__(
        self, columns: Sequence[str] | None, *, delimiter: str = ",", header_lines: int = 0
    ) -> None:
        self._columns = columns
        self._delimiter = delimiter
        self._header_lines = header_lines

    def __call__(self, line: bytes, number: int) -> ParsedLine:
        """Parse a line as a row. Return None for a header or a blank line."""
        if number <= self._header_lines:
            return self._find_header_error(line)
        if not line.strip():
            return None
        if self._columns is None:
            return "the header line is invalid"
        values = self._split(line)
        if isinstance(values, str):
            return values
        if len(values) != len(self._columns):
            return f"expected {len(self._columns)} fields, got {len(values)}"
        return {name: value or None for name, value in zip(self._columns, values, strict=True)}

    def _find_header_error(self, line: bytes) -> str | None:
        """Read the column names of a header. Return the reason why it is invalid, or None."""
        if self._columns is not None:
            return None
        names = self._split(line)
        if isinstance(names, str):
            return names
        columns = [name.strip() for name in names]
        for name in columns:
            if columns.count(name) > 1:
                return f"the header contains the column {name!r} twice"
        self._columns = columns
        return None

    def _split(self, line: bytes) -> list[str] | str:
        """Return the fields of a line, or the reason why it is invalid."""
        try:
            (values,) = csv.reader([line.decode()], delimiter=self._delimiter, strict=True)
        except (csv.Error, ValueError) as error:
            return f"it is not CSV: {error}"
        return values
