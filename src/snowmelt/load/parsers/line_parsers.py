"""Parsers for text whose records end with a terminator that cannot occur inside a record.

Records are split by fixed widths, by a regular expression, or into key-value pairs. A message may
also be one whole value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.column_converter import TableConverter
from snowmelt.load.parsers.delimited_text import (
    DEFAULT_MAX_RECORD_BYTES,
    DelimitedDialect,
    FieldDialect,
    parse_format_character,
)
from snowmelt.load.parsers.portion_stream import (
    ParsedBatchBuilder,
    PortionStream,
    RecordBoundaryFinder,
)
from snowmelt.load.phase_protocols import ColumnOptions, ParsedBatch
from snowmelt.schema.types import LogicalType, to_internal_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from snowmelt.load.phase_protocols import ByteReader, ParseTarget, Records
    from snowmelt.load.portion import Portion

if TYPE_CHECKING:
    Columns = tuple[list[pa.Array | None], dict[int, str]]


class RecordSplitter(Protocol):
    """Splitter of records into columns."""

    trim: str | None

    def split(self, records: pa.BinaryArray, converter: TableConverter) -> Columns:
        """Return the text of each column, and the problems of unsplittable records by index.

        A column is None if all its values are NULL. Column values of a record with a problem are
        undefined.

        Raises:
            PhaseFailed: If the splitter cannot fill the target's columns.
        """


class LineParser:
    """Parser of terminated records. Skips empty records.

    Args:
        splitter: Splits a record into columns.
        terminator: Ends each record. Empty: a line end.
        skip: Number of records to skip at the start of a file.
        skip_bytes: Number of bytes to skip before these records.
        max_record: Maximum size of a record in bytes. 0: 32 MiB.
    """

    def __init__(
        self,
        splitter: RecordSplitter,
        terminator: str = "",
        *,
        skip: int = 0,
        skip_bytes: int = 0,
        max_record: int = 0,
    ) -> None:
        self._splitter = splitter
        self._terminator = terminator.encode()
        self._skip = skip
        self._skip_bytes = skip_bytes
        self._max_record = max_record if max_record > 0 else DEFAULT_MAX_RECORD_BYTES
        self._boundary = RecordBoundaryFinder(
            DelimitedDialect(FieldDialect(escape=b""), self._terminator)
        )
        self.splittable = self._boundary.can_split
        self.column_marks: frozenset[str] = getattr(splitter, "column_marks", frozenset())

    def parse(
        self, reader: ByteReader, target: ParseTarget, portion: Portion
    ) -> Iterator[ParsedBatch]:
        """Yield parsed batches, one per block."""
        stream = PortionStream(reader, self._boundary, portion)
        rows = _LineRowBuilder(self._splitter, target)
        if portion.is_first:
            stream.skip_bytes(self._skip_bytes)
            if not self._skip_bytes:
                stream.skip_byte_order_mark()
            for _ in range(self._skip):
                stream.skip_to_next_record()
        else:
            stream.skip_to_next_record()
        yield from stream.parse_blocks(_LineBlockParser(rows, self._terminator), self._max_record)

    def parse_records(
        self, records: Iterator[Records], target: ParseTarget
    ) -> Iterator[ParsedBatch]:
        """Yield parsed batches of messages, each of which is one record."""
        rows = _LineRowBuilder(self._splitter, target)
        offset = 0
        for batch in records:
            data = batch.to_pylist()
            starts = list(accumulate(map(len, data), initial=offset))
            offset = starts.pop()
            if data:
                yield rows.build_rows(data, starts)


class _LineBlockParser:
    def __init__(self, row_builder: _LineRowBuilder, terminator: bytes) -> None:
        self._row_builder = row_builder
        self._terminator = terminator or b"\n"
        self._strips = not terminator

    def parse(self, data: bytes, offset: int, *, is_last: bool) -> tuple[ParsedBatch | None, int]:
        """Return the parsed complete records, and the number of bytes consumed."""
        width = len(self._terminator)
        end = data.rfind(self._terminator)
        size = len(data) if is_last else end + width if end >= 0 else 0
        if not size:
            return None, 0
        found = data[:size].split(self._terminator)
        starts = list(accumulate((len(record) + width for record in found), initial=offset))
        if self._strips:
            found = [record.removesuffix(b"\r") for record in found]
        records = [record for record in found if record]
        kept = [start for record, start in zip(found, starts, strict=False) if record]
        return (self._row_builder.build_rows(records, kept) if records else None), size

    def make_reject_batch(self, data: bytes, offset: int, reason: str) -> ParsedBatch:
        """Return a batch that consists of one rejected record."""
        return self._row_builder.batches.build_reject(data, offset, reason)


class _LineRowBuilder:
    """Builder of rows from records."""

    def __init__(self, splitter: RecordSplitter, target: ParseTarget) -> None:
        self._splitter = splitter
        self._converter = TableConverter(target, trim=splitter.trim)
        self.batches = ParsedBatchBuilder(self._converter)

    def build_rows(self, records: list[bytes], starts: list[int]) -> ParsedBatch:
        array = pa.array(records, pa.binary())
        columns, problems = self._splitter.split(array, self._converter)
        if problems:
            good = [place for place in range(len(records)) if place not in problems]
            taken = pa.array(good, pa.int64())
            columns = [None if column is None else column.take(taken) for column in columns]
        else:
            good = list(range(len(records)))
        table, refused = self._converter.convert_columns(columns, len(good))
        reasons: dict[int, tuple[str | None, str]] = {
            place: (None, problem) for place, problem in problems.items()
        }
        reasons |= {good[row]: reason for row, reason in refused.items()}
        table = self._converter.drop_rejected_rows(table, refused)
        return self.batches.build(
            table, reasons, len(records), lambda place: (starts[place], records[place])
        )


class SingleColumnSplitter:
    """Splitter that returns the whole record as the value of the only column."""

    trim: str | None = None

    def split(self, records: pa.BinaryArray, converter: TableConverter) -> Columns:
        """Return the records. For a BINARY column, encode them as hexadecimal digits."""
        if len(converter.columns) != 1:
            reason = (
                f"a message fills one column, not {len(converter.columns)}. "
                "List one column in the statement"
            )
            raise PhaseFailed(reason=reason)
        if converter.columns[0].column.kind is LogicalType.BINARY:
            return [pa.array([record.hex() for record in records.to_pylist()], pa.string())], {}
        return [records], {}


class FixedWidthSplitter:
    """Splitter by field widths in bytes. Strips padding around values."""

    trim: str | None = None
    column_marks = frozenset({"null"})

    def __init__(self, sizes: list[int], trim: str, null: str) -> None:
        """Initialize.

        Args:
            sizes: Field widths in bytes.
            trim: Padding characters around values.
            null: Character that fills a NULL field. Default (empty): a space.
        """
        self._sizes = sizes
        self._ends = list(accumulate(sizes))
        self._pad = trim.encode()
        self._null = null.encode() or b" "

    def split(self, records: pa.BinaryArray, converter: TableConverter) -> Columns:
        """Split records at the field boundaries."""
        count = len(converter.columns)
        if count != len(self._ends):
            reason = f"COLSIZES has {len(self._ends)} sizes for {count} columns"
            raise PhaseFailed(reason=reason)
        total = self._ends[-1]
        lengths = pc.binary_length(records).to_numpy(zero_copy_only=False)
        problems = {
            int(place): f"expected {total} bytes, got {lengths[place]}"
            for place in (lengths != total).nonzero()[0]
        }
        columns: list[pa.Array | None] = []
        start = 0
        nulls = self._list_null_markers(converter)
        for end, null in zip(self._ends, nulls, strict=True):
            values = [
                None if piece == null else piece.strip(self._pad)
                for piece in pc.binary_slice(records, start, end).to_pylist()
            ]
            columns.append(pa.array(values, pa.binary()))
            start = end
        return columns, problems

    def _list_null_markers(self, converter: TableConverter) -> list[bytes]:
        """Return, for each column, the content of a NULL field."""
        nulls: list[bytes] = []
        for column, size in zip(converter.columns, self._sizes, strict=True):
            own = converter.options.get(column.column.name, ColumnOptions()).null
            null = self._null * size if own is None else own.encode()
            if len(null) != size:
                reason = (
                    f"the NULL text of column {column.column.display_name} has {len(null)} bytes, "
                    f"expected {size}, the width of its field"
                )
                raise PhaseFailed(reason=reason)
            nulls.append(null)
        return nulls


# --- Splitters by a regular expression and into key-value pairs.

_NAMED_GROUP = re.compile(r"\(\?<(?![=!])")
_MAX_SHOWN_CHARS = 20


class RegexSplitter:
    """Splitter by the named groups of a pattern that matches at the start of a record.

    A group that does not participate in the match is NULL. `line_column` is the column for the
    whole record.
    """

    trim: str | None = None

    def __init__(self, pattern: str, line_column: str) -> None:
        """Compile a pattern. Groups may be written `(?<name>…)` or `(?P<name>…)`.

        Raises:
            LoadRefused: If the pattern is not a regular expression, or has no named group.
        """
        try:
            self._pattern = re.compile(_NAMED_GROUP.sub("(?P<", pattern))
        except re.error as error:
            reason = f"the pattern is not a regular expression: {error}"
            raise LoadRefused(what="FREGEXPARSER", reason=reason) from None
        if not self._pattern.groupindex:
            raise LoadRefused(
                what="FREGEXPARSER", reason="the pattern has no named group (?<column>…)"
            )
        self._groups = {
            to_internal_name(name): place for name, place in self._pattern.groupindex.items()
        }
        self._line = to_internal_name(line_column) if line_column else None

    def split(self, records: pa.BinaryArray, converter: TableConverter) -> Columns:
        """Match each record."""
        names = [column.column.name for column in converter.columns]
        # Quoted names match in any case, unless another column has the upper-case name.
        groups = [
            0
            if name == self._line
            else self._groups.get(
                name if name in self._groups or name.upper() in names else name.upper()
            )
            for name in names
        ]
        if all(group is None for group in groups):
            known = ", ".join(self._groups)
            raise PhaseFailed(reason=f"no group of the pattern is a column; its groups are {known}")
        columns: list[list[str | None]] = [[] for _ in groups]
        problems: dict[int, str] = {}
        for place, record in enumerate(records.to_pylist()):
            match, line = None, ""
            try:
                line = record.decode()
                match = self._pattern.match(line)
                if match is None:
                    problems[place] = "the record does not match the pattern"
            except UnicodeDecodeError as error:
                problems[place] = f"illegal UTF-8 at byte {error.start} of the record"
            for values, group, name in zip(columns, groups, names, strict=True):
                if match is None or group is None:
                    values.append(None)
                else:
                    values.append(line if name == self._line else match[group])
        return [pa.array(values, pa.string()) for values in columns], problems


class PairSplitter:
    """Splitter into `key=value` pairs between delimiters. Quoted values may contain delimiters.

    A delimiter that is not followed by a pair is part of the preceding value.
    """

    def __init__(self, delimiter: str, assignment: str, *, trims: bool) -> None:
        self.trim: str | None = " \t" if trims else None
        quoted = r'"((?:[^"]|"")*)"'
        mark, equals = re.escape(delimiter), re.escape(assignment)
        key = rf"([^{mark}{equals}\"]+)"
        plain = rf"((?:(?!{mark}+[^{mark}{equals}\"]+{equals}).)*)"
        self._pair = re.compile(
            rf"{mark}*{key}{equals}(?:{quoted}(?={mark}|\Z)|{plain})", re.DOTALL
        )
        self._blank = re.compile(rf"(?:{mark}|\s)*\Z")

    def split(self, records: pa.BinaryArray, converter: TableConverter) -> Columns:
        """Assign the pairs of each record to columns by key."""
        names = [column.column.name for column in converter.columns]
        # An exact column name takes precedence over one in another case.
        places = {name.upper(): place for place, name in enumerate(names)}
        places |= {name: place for place, name in enumerate(names)}
        columns: list[list[str | None]] = [[] for _ in converter.columns]
        problems: dict[int, str] = {}
        for number, record in enumerate(records.to_pylist()):
            row: list[str | None] = [None] * len(columns)
            try:
                problem = self._fill_row(record.decode(), places, row)
            except UnicodeDecodeError as error:
                problem = f"illegal UTF-8 at byte {error.start} of the record"
            if problem:
                problems[number] = problem
            for values, value in zip(columns, row, strict=True):
                values.append(value)
        return [pa.array(values, pa.string()) for values in columns], problems

    def _fill_row(
        self, record: str, column_indexes: dict[str, int], row: list[str | None]
    ) -> str | None:
        at = 0
        while not self._blank.match(record, at):
            match = self._pair.match(record, at)
            if match is None:
                return f"not a pair of key and value: {record[at : at + _MAX_SHOWN_CHARS]!r}"
            at = match.end()
            place = column_indexes.get(to_internal_name(match[1].strip()))
            if place is not None:
                value = match[3] if match[2] is None else match[2].replace('""', '"')
                row[place] = value or (None if match[2] is None else "")
        return None


# --- Options of the parsers.


@dataclass(frozen=True, slots=True)
class FixedWidthOptions:
    """Options of COPY's FIXEDWIDTH. `colsizes` are the widths in bytes, separated by commas."""

    colsizes: str
    record_terminator: str = ""
    skip: int = 0
    skip_bytes: int = 0
    trim: str = " "
    null: str = ""
    max_record: int = 0

    def parser(self) -> LineParser:
        """Return the parser.

        Raises:
            LoadRefused: If a size is not a positive integer, or `trim` or `null` is invalid.
        """
        what = "FIXEDWIDTH"
        words = [word.strip() for word in self.colsizes.split(",")]
        if not all(word.isdecimal() and int(word) for word in words):
            reason = (
                f"invalid colsizes {self.colsizes!r}: expected the width of each column in bytes, "
                "such as 4,10,2"
            )
            raise LoadRefused(what=what, reason=reason)
        parse_format_character("TRIM", self.trim, label=what, may_be_empty=True)
        if len(self.null.encode()) > 1:
            reason = (
                f"invalid NULL {self.null!r}: expected one character, which fills the field. For a "
                "longer text, set NULL of each column to a text as wide as its field"
            )
            raise LoadRefused(what=what, reason=reason)
        return LineParser(
            FixedWidthSplitter([int(word) for word in words], self.trim, self.null),
            self.record_terminator,
            skip=self.skip,
            skip_bytes=self.skip_bytes,
            max_record=self.max_record,
        )


@dataclass(frozen=True, slots=True)
class RegexOptions:
    """Options of FREGEXPARSER. `use_jit` and `use_utf8` are ignored."""

    pattern: str
    record_terminator: str = ""
    logline_column: str = ""
    use_jit: bool = True
    use_utf8: bool = True
    skip: int = 0
    max_record: int = 0

    def parser(self) -> LineParser:
        """Return the parser.

        Raises:
            LoadRefused: If the pattern is not a regular expression, or has no named group.
        """
        pattern = RegexSplitter(self.pattern, self.logline_column)
        return LineParser(
            pattern, self.record_terminator, skip=self.skip, max_record=self.max_record
        )


@dataclass(frozen=True, slots=True)
class PairsOptions:
    """Options of FDELIMITEDPAIRPARSER. `assignment` is a Snowmelt extension."""

    delimiter: str = " "
    assignment: str = "="
    record_terminator: str = ""
    trim: bool = True
    skip: int = 0
    max_record: int = 0

    def parser(self) -> LineParser:
        """Return the parser.

        Raises:
            LoadRefused: If `delimiter` or `assignment` is not one character, or they are equal.
        """
        what = "FDELIMITEDPAIRPARSER"
        if parse_format_character(
            "delimiter", self.delimiter, label=what
        ) == parse_format_character("assignment", self.assignment, label=what):
            raise LoadRefused(what=what, reason="the delimiter must differ from the assignment")
        return LineParser(
            PairSplitter(self.delimiter, self.assignment, trims=self.trim),
            self.record_terminator,
            skip=self.skip,
            max_record=self.max_record,
        )


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """Options of KAFKAPARSER, which has no parameters."""

    def parser(self) -> LineParser:
        """Return the parser."""
        return LineParser(SingleColumnSplitter())
