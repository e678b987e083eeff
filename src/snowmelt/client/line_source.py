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
            self.inode = os.fstat(self._file_descriptor).st_ino
            self.first_line_digest = _digest_first_line(self._file_descriptor, header_lines)
            self.initial_size_bytes = os.fstat(self._file_descriptor).st_size
        except OSError:
            os.close(self._file_descriptor)
            raise
        self._line_number = 0
        self._sought_line_number = 0
        self._byte_offset = 0

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
    def unread_bytes(self) -> int:
        """Number of bytes after the last line that was read. Negative if the file was truncated."""
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
        self._line_number = self._byte_offset = 0
        self._sought_line_number = number

    @staticmethod
    def order(position: str) -> PositionSortKey:
        """Return the sort key of a position, which is its line number, because files may be renamed."""
        return make_position_sort_key(position.rpartition(":")[2])

    def positions(self) -> Iterator[tuple[str, Mapping[str, object]]]:
        """Yield the rows of complete lines after the position of `seek`.

        Raises:
            SourceWentBackwards: If the file has fewer lines, or was truncated.
        """
        while lines := self._read_complete_lines():
            for line in lines:
                self._line_number += 1
                if self._line_number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if self._line_number <= self._header_lines:
                    self._parse(line, self._line_number)
                elif self._line_number > self._sought_line_number:
                    where = f"{self.path.name}:{self._line_number}"
                    row = self._parse(line, self._line_number)
                    if isinstance(row, str):
                        self._on_refused(where, line, row)
                    elif row is not None:
                        yield where, row
        if self._line_number < self._sought_line_number or self.unread_bytes < 0:
            name = self.path.name
            raise SourceWentBackwards(
                position=f"{name}:{self._line_number if self.unread_bytes >= 0 else 0}",
                committed=f"{name}:{max(self._sought_line_number, self._line_number)}",
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
                return data[:end].split(b"\n")[:-1]
            size *= 4
        raise UserError(f"Line {self._line_number + 1} of {self.path} is longer than 64 MiB.")


def _digest_first_line(file_descriptor: int, header_lines: int) -> str | None:
    """Return a digest of the first line after the header, or None until that line is complete."""
    head = os.pread(file_descriptor, _FIRST_LINE_READ_BYTES, 0)
    lines = head.split(b"\n", header_lines + 1)
    if len(lines) <= header_lines + 1 and len(head) < _FIRST_LINE_READ_BYTES:
        return None
    return hashlib.sha256(lines[-2] if len(lines) > 1 else head).hexdigest()[:16]


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
    contains the column names.
    """

    def __init__(
        self, columns: Sequence[str] | None, *, delimiter: str = ",", header_lines: int = 0
    ) -> None:
        self._columns = columns
        self._delimiter = delimiter
        self._header_lines = header_lines

    def __call__(self, line: bytes, number: int) -> ParsedLine:
        """Parse a line as a row. Return None for a header or a blank line."""
        if number > self._header_lines and not line.strip():
            return None
        try:
            (values,) = csv.reader([line.decode()], delimiter=self._delimiter, strict=True)
        except (csv.Error, ValueError) as error:
            return f"it is not CSV: {error}"
        if self._columns is None:
            self._columns = [value.strip() for value in values]
        if number <= self._header_lines:
            return None
        if len(values) != len(self._columns):
            return f"it has {len(values)} fields, not {len(self._columns)}"
        return {name: value or None for name, value in zip(self._columns, values, strict=True)}
