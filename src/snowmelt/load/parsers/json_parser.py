"""Parser of JSON files and messages. Finds the JSON objects in a byte stream.

Objects follow each other, on one line or over several lines, or are elements of an array. If a
record terminator is set, it ends every record.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.errors import LoadRefused
from snowmelt.json.scanner import frame_json_objects
from snowmelt.kernels.slices import pad_bytes
from snowmelt.load.column_converter import TableConverter
from snowmelt.load.parsers.delimited_text import (
    DEFAULT_MAX_RECORD_BYTES,
    DelimitedDialect,
    FieldDialect,
)
from snowmelt.load.parsers.json_columns import JsonColumnReader, JsonRecords
from snowmelt.load.parsers.json_document_mapping import (
    FlexJsonOptions,
    InvalidJsonDocument,
    JsonColumnFinder,
    JsonDocumentReader,
)
from snowmelt.load.parsers.portion_stream import PortionStream, RecordBoundaryFinder
from snowmelt.load.parsers.warmup import COMPILED_READERS
from snowmelt.load.phase_protocols import ByteReader, ParsedBatch, ParseReject, ParseTarget, Records
from snowmelt.load.portion import Portion

if TYPE_CHECKING:
    Reasons = dict[int, tuple[str, str]]
    Read = tuple[list[pa.Array], Reasons]
    Places = np.ndarray[tuple[int], np.dtype[np.int64]]

# Approximate size of a batch of messages.
_BATCH_BYTES = 1 << 20
_OFFSET_BYTES = 4
_OPENING, _CLOSING = ord("["), ord("]")
_DEPTH_CHANGES = {_OPENING: 1, _CLOSING: -1}
# Bytes between records that are searched by columns. Longer gaps are searched one by one.
_MAX_SCANNED_GAP = 32
_NESTED_RECORD = "it is in an array of an array; records may be in one array"


class JsonParser:
    """Parser of JSON objects. Splittable if a record terminator is set."""

    def __init__(self, options: FlexJsonOptions) -> None:
        """Validate the options.

        Raises:
            LoadRefused: If a number is out of range.
        """
        if options.start_point_occurrence < 1 or options.skip < 0:
            reason = "start_point_occurrence must be 1 or more, and skip 0 or more"
            raise LoadRefused(what="FJSONPARSER", reason=reason)
        self._options = options
        self._terminator = options.record_terminator.encode()
        usual = FieldDialect(escape=b"")
        self._boundary = RecordBoundaryFinder(DelimitedDialect(usual, self._terminator or b"\n"))
        self.splittable = bool(self._terminator) and self._boundary.can_split

    def parse(
        self, reader: ByteReader, target: ParseTarget, portion: Portion
    ) -> Iterator[ParsedBatch]:
        """Yield parsed batches, one per block."""
        stream = PortionStream(reader, self._boundary, portion)
        limit = self._options.max_record
        limit = limit if limit > 0 else DEFAULT_MAX_RECORD_BYTES
        blocks = _JsonBlockParser(
            _JsonRecordDecoder(target, self._options), self._terminator, limit
        )
        if portion.is_first:
            stream.skip_byte_order_mark()
        for _ in range(self._options.skip if portion.is_first else 1):
            stream.skip_to_next_record()
        yield from stream.parse_blocks(blocks, limit)

    def parse_records(
        self, records: Iterator[Records], target: ParseTarget
    ) -> Iterator[ParsedBatch]:
        """Yield parsed batches of messages, each of which is one object."""
        work = _JsonRecordDecoder(target, self._options)
        offset = 0
        for batch in records:
            ends = np.cumsum(np.asarray(pc.binary_length(batch), np.int64))
            at = 0
            while at < len(batch):
                before = int(ends[at - 1]) if at else 0
                stop = max(at + 1, int(np.searchsorted(ends, before + _BATCH_BYTES)))
                messages = _view_messages(batch.slice(at, stop - at))
                yield work.parse_records(messages, offset + before, {})
                at = stop
            offset += int(ends[-1]) if len(ends) else 0


class _JsonBlockParser:
    """Parser of the objects at the start of blocks."""

    def __init__(self, decoder: _JsonRecordDecoder, terminator: bytes, max_record: int) -> None:
        self._decoder = decoder
        self._ends_with_lines = terminator in {b"", b"\n"}
        self._has_terminator = bool(terminator)
        self._framer = JsonFramer(terminator, decoder.documents, max_record)
        # Number of arrays that are open before the next record.
        self._open_arrays = 0

    def parse(self, data: bytes, offset: int, *, is_last: bool) -> tuple[ParsedBatch | None, int]:
        """Return the parsed complete records, and the number of bytes consumed."""
        padded = pad_bytes(data)
        at = 0
        bounds: list[Places] = []
        count = 0
        problems: dict[int, str] = {}
        text_end = 0
        is_compiled = COMPILED_READERS["JSON"].can_be_used()
        after_object = True
        while at < len(data):
            if self._ends_with_lines and is_compiled:
                if at >= text_end:
                    text_end = _find_text_end(data, at)
                found, at = frame_json_objects(
                    padded,
                    at,
                    text_end,
                    is_last=is_last and text_end == len(data),
                    one_per_line=self._has_terminator,
                    after_object=after_object,
                )
                bounds.append(found)
                count += found.shape[1]
                line_end = data.find(b"\n", at)
                after_object = line_end < 0 or not self._decoder.documents.is_object(
                    data[at:line_end]
                )
                if not after_object:
                    bounds.append(np.array([[at], [line_end]]))
                    count += 1
                    at = line_end + 1
                    continue
            framed = self._framer.find_record(data, at, is_last=is_last)
            if framed is None:
                break
            at = framed.next_start
            if framed.start < framed.end:
                if framed.problem is not None:
                    problems[count] = framed.problem
                bounds.append(np.array([[framed.start], [framed.end]]))
                count += 1
        bounds.append(np.array([[at], [at]]))  # What separates the last record from the next.
        starts, ends = np.concatenate(bounds, axis=1)
        if not self._has_terminator:
            self._find_nested_records(padded, starts, ends, problems)
        if not count:
            return None, at
        starts, ends = starts[:-1], ends[:-1]
        records = JsonRecords(padded, starts, ends)
        return self._decoder.parse_records(records, offset, problems), at

    def _find_nested_records(
        self, data: np.ndarray, starts: Places, ends: Places, problems: dict[int, str]
    ) -> None:
        """Add a problem for each record in an array of an array. The last record is empty."""
        before = np.concatenate([[0], ends[:-1]])
        marked = sorted({*_find_brackets(data, before, starts), *problems, len(starts) - 1})
        for index, following in zip(marked, [*marked[1:], len(starts)], strict=True):
            for byte in data[before[index] : starts[index]].tobytes():
                self._open_arrays = max(self._open_arrays + _DEPTH_CHANGES.get(byte, 0), 0)
            if index in problems:
                # It may contain the brackets that close its arrays.
                self._open_arrays = 0
            elif self._open_arrays > 1:
                last = min(following, len(starts) - 1)
                problems |= dict.fromkeys(range(index, last), _NESTED_RECORD)

    def make_reject_batch(self, data: bytes, offset: int, reason: str) -> ParsedBatch:
        """Return a batch that consists of one rejected record."""
        whole = JsonRecords(pad_bytes(data), np.zeros(1, np.int64), np.array([len(data)]))
        return self._decoder.parse_records(whole, offset, {0: reason})


class _JsonRecordDecoder:
    """Record decoder of one stream. Keeps the record count and the known keys between blocks."""

    def __init__(self, target: ParseTarget, options: FlexJsonOptions) -> None:
        self._converter = TableConverter(target)
        self._strict = options.reject_on_materialized_type_error
        columns = target.schema.columns
        self.documents = JsonDocumentReader(options)
        self._column_paths = JsonColumnFinder([column.name for column in columns], options)
        self._column_reader = JsonColumnReader(self._converter, self._column_paths, options)
        self._record_count = 0

    def parse_records(
        self, records: JsonRecords, offset: int, problems: dict[int, str]
    ) -> ParsedBatch:
        """Parse the records of a buffer that starts at `offset` of the stream.

        `problems` maps indexes of invalid records to reasons. This method adds to it.
        """
        owners: Places = np.delete(np.arange(len(records)), sorted(problems))
        candidates = records.take(owners) if problems else records
        # The compiled reader does not distinguish a null field from a missing one.
        can_compile = COMPILED_READERS["JSON"].can_be_used() and not self._converter.has_defaults
        read = self._column_reader.read_records(candidates) if can_compile else None
        unread = (owners if read is None else owners[~read.is_read]).tolist()
        for index in unread:
            try:
                self.documents.check_document(records[index])
            except InvalidJsonDocument as error:
                problems[index] = str(error)
        unread = [index for index in unread if index not in problems]
        values, left = self._extract_rows(records, unread, problems)
        taken = owners[:0] if read is None else owners[read.is_read]
        if read is not None and not left:
            return self._make_batch(records, offset, problems, (read.arrays, read.rejected), taken)
        arrays, refused = self._converter.convert_record_columns(values, strict=self._strict)
        if read is None:
            return self._make_batch(records, offset, problems, (arrays, refused), np.asarray(left))
        record_indexes = np.concatenate([taken, np.asarray(left, np.int64)])
        order = np.argsort(record_indexes, kind="stable")
        place = np.argsort(order)
        merged = [
            pa.concat_arrays([first, second]).take(pa.array(order))
            for first, second in zip(read.arrays, arrays, strict=True)
        ]
        reasons = {int(place[row]): reason for row, reason in read.rejected.items()}
        reasons |= {int(place[len(taken) + row]): reason for row, reason in refused.items()}
        return self._make_batch(records, offset, problems, (merged, reasons), record_indexes[order])

    def _make_batch(
        self,
        records: JsonRecords,
        offset: int,
        problems: dict[int, str],
        converted: Read,
        record_indexes: Places,
    ) -> ParsedBatch:
        """Return rows and rejects. `record_indexes` has the record of each row."""
        blamed = converted[1]
        table = self._converter.drop_rejected_rows(self._converter.make_table(converted[0]), blamed)
        broken = sorted(problems)
        entries: list[tuple[int, int, str | None, str]] = [
            (row + rank, index, None, problems[index])
            for rank, (index, row) in enumerate(
                zip(broken, np.searchsorted(record_indexes, broken).tolist(), strict=True)
            )
        ]
        entries += [
            (
                row + bisect_left(broken, record_indexes[row]),
                int(record_indexes[row]),
                column,
                reason,
            )
            for row, (column, reason) in blamed.items()
        ]
        rejects = []
        for place, index, column, reason in sorted(entries):
            number = self._record_count + place + 1
            start = offset + int(records.starts[index])
            rejects.append(ParseReject(number, start, records[index], reason, column))
        count = table.num_rows + len(rejects)
        self._record_count += count
        return ParsedBatch(table, tuple(rejects), count, self._converter.pop_truncated_count())

    def _extract_rows(
        self, documents: JsonRecords, record_indexes: Sequence[int], problems: dict[int, str]
    ) -> tuple[list[list[object]], list[int]]:
        """Return the values of each column, and the record index of each row."""
        columns: list[list[object]] = [[] for _ in self._converter.columns]
        owners: list[int] = []
        for index in record_indexes:
            try:
                records = self.documents.extract_records(documents[index])
            except InvalidJsonDocument as error:
                problems[index] = str(error)
                continue
            for record in records:
                row = self._converter.make_empty_row()
                self._column_paths.fill_row(record, row)
                for values, value in zip(columns, row, strict=True):
                    values.append(value)
                owners.append(index)
        return columns, owners


def _find_brackets(data: np.ndarray, starts: Places, ends: Places) -> list[int]:
    """Return the indexes of the ranges that contain a square bracket."""
    lengths = ends - starts
    found = lengths > _MAX_SCANNED_GAP
    for at in range(min(int(lengths.max(initial=0)), _MAX_SCANNED_GAP)):
        wide = np.flatnonzero(lengths > at)
        bytes_there = data[starts[wide] + at]
        found[wide[(bytes_there == _OPENING) | (bytes_there == _CLOSING)]] = True
    indexes: list[int] = np.flatnonzero(found).tolist()
    return indexes


def _find_text_end(data: bytes, start: int) -> int:
    """Return the end of the lines from `start` before the first line with invalid UTF-8."""
    try:
        str(memoryview(data)[start:], "utf-8")
    except UnicodeDecodeError as error:
        return max(start, data.rfind(b"\n", start, start + error.start) + 1)
    return len(data)


def _view_messages(messages: Records) -> JsonRecords:
    """Copy messages into one padded buffer and return them as records."""
    _, offsets, data = messages.buffers()
    ends = np.frombuffer(offsets, np.int32, len(messages) + 1, messages.offset * _OFFSET_BYTES)
    first, last = int(ends[0]), int(ends[-1])
    view = memoryview(data)[first:last] if data is not None else memoryview(b"")
    places = ends.astype(np.int64) - first
    return JsonRecords(pad_bytes(view), places[:-1], places[1:])


# --- Framing of JSON objects in a stream.

_SEPARATORS = re.compile(rb"[ \t\r\n,\[\]]*")
# Tokens of an object. A string cannot span lines.
_JSON_TOKEN = re.compile(rb'[^"{}\[\]]+|"(?:[^"\\\n]|\\.)*"|[{}\[\]]', re.DOTALL)
_BEFORE_OBJECT = (b":", b"[", b",")


@dataclass(frozen=True, slots=True)
class FramedJsonRecord:
    """Byte range of one record, and the start of the next. `problem` is the reason if it is not JSON."""

    start: int
    end: int
    next_start: int
    problem: str | None = None


class JsonFramer:
    """Finder of record boundaries: terminators if one is set, otherwise the ends of objects."""

    def __init__(self, terminator: bytes, documents: JsonDocumentReader, max_record: int) -> None:
        self._terminator = terminator
        self._documents = documents
        self._max_record = max_record

    def find_record(self, data: bytes, at: int, *, is_last: bool) -> FramedJsonRecord | None:
        """Return the next record at or after `at`, or None if it is incomplete and more may follow.

        An empty record (`start == end`) means that only separators precede `next_start`.
        """
        if self._terminator:
            return self._find_terminated_record(data, at, is_last=is_last)
        between = _SEPARATORS.match(data, at)
        start = at if between is None else between.end()
        if start == len(data):
            return FramedJsonRecord(start, start, start) if start > at else None
        line_end = data.find(b"\n", start)
        has_line = line_end >= 0 or is_last
        line_end = len(data) if line_end < 0 else line_end
        problem = self._find_json_problem(data[start:line_end]) if has_line else None
        if has_line and problem is None:
            return FramedJsonRecord(start, line_end, line_end)
        end = _find_object_end(data, start)
        if end is not None and end > start and self._find_json_problem(data[start:end]) is None:
            return FramedJsonRecord(start, end, end)
        may_come = not is_last and len(data) - start < self._max_record
        if may_come and (end is None or not has_line):
            return None
        end = line_end if end is None else max(line_end, end)
        return FramedJsonRecord(
            start, end, end, problem or self._find_json_problem(data[start:end])
        )

    def _find_terminated_record(
        self, data: bytes, start: int, *, is_last: bool
    ) -> FramedJsonRecord | None:
        end = data.find(self._terminator, start)
        after = end + len(self._terminator)
        if end < 0:
            if not is_last:
                return None
            end = after = len(data)
        if not data[start:end].strip():
            return FramedJsonRecord(start, start, after)
        return FramedJsonRecord(start, end, after, self._find_json_problem(data[start:end]))

    def _find_json_problem(self, data: bytes) -> str | None:
        try:
            self._documents.check_document(data)
        except InvalidJsonDocument as error:
            return str(error)
        return None


def _find_object_end(data: bytes, start: int) -> int | None:
    """Return the end of the object that starts at `start`, or None if it is incomplete.

    Return `start` if the bytes cannot become an object.
    """
    if not data.startswith(b"{", start):
        return start
    depth = 0
    at = start
    before = b":"
    while token := _JSON_TOKEN.match(data, at):
        text = token[0]
        at = token.end()
        if text == b"{" or text == b"[":
            if not before.rstrip().endswith(_BEFORE_OBJECT):
                return start
            depth += 1
        elif text == b"}" or text == b"]":
            depth -= 1
            if not depth:
                return at
        if text.strip():
            before = text
    # Later bytes may close a string that is open at the end.
    return None if at == len(data) or b"\n" not in data[at:] else start
