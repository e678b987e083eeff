"""Parser for JSON files and messages, and the framing of JSON objects in a byte stream.

Objects follow each other, one per line or over several lines, or are the elements of an array. With
a record terminator, each record ends at one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.errors import LoadRefused
from snowmelt.load.column_converter import TableConverter
from snowmelt.load.parsers.delimited_text import (
    DEFAULT_MAX_RECORD_BYTES,
    DelimitedDialect,
    FieldDialect,
)
from snowmelt.load.parsers.json_arrow import JsonBlockReader, JsonStructReader
from snowmelt.load.parsers.json_document_mapping import (
    InvalidJsonDocument,
    JsonColumnFinder,
    JsonDocumentReader,
)
from snowmelt.load.parsers.portion_stream import PortionStream, RecordBoundaryFinder
from snowmelt.load.phase_protocols import ParsedBatch, ParseReject

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from snowmelt.load.parsers.json_arrow import StructParseResult
    from snowmelt.load.parsers.json_document_mapping import FlexJsonOptions
    from snowmelt.load.phase_protocols import ByteReader, ParseTarget, Records
    from snowmelt.load.portion import Portion

if TYPE_CHECKING:
    Reasons = dict[int, tuple[str, str]]
    Read = tuple[list[pa.Array], Reasons]
    Places = np.ndarray[tuple[int], np.dtype[np.int64]]

# Messages are read together up to about so many bytes.
_BATCH_BYTES = 1 << 20
_OPENING_BRACE, _CLOSING_BRACE = ord("{"), ord("}")
_OFFSET_BYTES = 4


class JsonParser:
    """Parses JSON objects; splittable where a terminator ends each record."""

    def __init__(self, options: FlexJsonOptions) -> None:
        """Take options.

        Raises:
            LoadRefused: A number is out of range.
        """
        if options.start_point_occurrence < 1 or options.skip < 0:
            reason = "start_point_occurrence is 1 or more and skip 0 or more"
            raise LoadRefused(what="FJSONPARSER", reason=reason)
        self._options = options
        self._terminator = options.record_terminator.encode()
        usual = FieldDialect(escape=b"")
        self._boundary = RecordBoundaryFinder(DelimitedDialect(usual, self._terminator or b"\n"))
        self.splittable = bool(self._terminator) and self._boundary.can_split

    def parse(
        self, reader: ByteReader, target: ParseTarget, portion: Portion
    ) -> Iterator[ParsedBatch]:
        """Yield what became of the records, block by block."""
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
        """Yield what became of messages, each of which is one object."""
        work = _JsonRecordDecoder(target, self._options)
        offset = 0
        for batch in records:
            ends = np.cumsum(np.asarray(pc.binary_length(batch), np.int64))
            at = 0
            while at < len(batch):
                before = int(ends[at - 1]) if at else 0
                stop = max(at + 1, int(np.searchsorted(ends, before + _BATCH_BYTES)))
                yield work.parse_messages(batch.slice(at, stop - at), offset + before)
                at = stop
            offset += int(ends[-1]) if len(ends) else 0


class _JsonBlockParser:
    """Parses the objects at the front of blocks."""

    def __init__(self, decoder: _JsonRecordDecoder, terminator: bytes, max_record: int) -> None:
        self._decoder = decoder
        self._ends_with_lines = terminator in {b"", b"\n"}
        self._has_terminator = bool(terminator)
        self._framer = JsonFramer(terminator, decoder.documents, max_record)

    def parse(self, data: bytes, offset: int, *, is_last: bool) -> tuple[ParsedBatch | None, int]:
        """Return what became of whole records, and how many bytes they take."""
        size = len(data) if is_last else data.rfind(b"\n") + 1
        if self._ends_with_lines and size and data.startswith(b"{"):
            lines = data[:size]
            count = None
            if self._has_terminator:
                count = lines.count(b"\n") + (not lines.endswith(b"\n"))
            are_objects = _lines_are_objects(lines)
            if are_objects or not self._has_terminator:
                parsed = self._decoder.parse_block(lines, count, offset if are_objects else None)
                if parsed is not None:
                    return parsed, size
        return self._parse_one_by_one(data, offset, is_last=is_last)

    def make_reject_batch(self, data: bytes, offset: int, reason: str) -> ParsedBatch:
        """Return a rejected record as all that was parsed."""
        return self._decoder.parse_checked_records([data], [offset], {0: reason})

    def _parse_one_by_one(
        self, data: bytes, offset: int, *, is_last: bool
    ) -> tuple[ParsedBatch | None, int]:
        at = 0
        records: list[bytes] = []
        starts: list[int] = []
        problems: dict[int, str] = {}
        while at < len(data):
            if self._ends_with_lines:
                at = _collect_object_lines(data, at, offset, records, starts)
            framed = self._framer.find_record(data, at, is_last=is_last)
            if framed is None:
                break
            at = framed.next_start
            if framed.start < framed.end:
                if framed.problem is not None:
                    problems[len(records)] = framed.problem
                records.append(data[framed.start : framed.end])
                starts.append(offset + framed.start)
        if not records:
            return None, at
        return self._decoder.parse_checked_records(records, starts, problems), at


class _JsonRecordDecoder:
    """What is remembered from block to block: the number of records and how keys are written."""

    def __init__(self, target: ParseTarget, options: FlexJsonOptions) -> None:
        self._converter = TableConverter(target)
        self._strict = options.reject_on_materialized_type_error
        columns = target.schema.columns
        self.documents = JsonDocumentReader(options)
        self._column_paths = JsonColumnFinder([column.name for column in columns], options)
        self._block_reader = JsonBlockReader(self._converter, self._column_paths, options)
        self._struct_reader = JsonStructReader(self._converter, self._column_paths, options)
        self._record_count = 0

    def parse_block(self, data: bytes, count: int | None, offset: int | None) -> ParsedBatch | None:
        """Parse a block of objects; None if one may be none.

        Args:
            data: The block.
            count: How many objects there must be, if that is known.
            offset: Where the block begins, if each line looks like one object.
        """
        if offset is not None:
            records = data.removesuffix(b"\n").split(b"\n")
            shaped = self._struct_reader.read_records(records)
            if shaped is not None:
                problems: dict[int, str] = {}
                arrays = self._complete_batch(records, shaped, problems)
                if problems:
                    return None
                sizes = np.fromiter(map(len, records), np.int64, len(records)) + 1
                starts = np.cumsum(sizes) - sizes + offset
                return self._make_batch(records, starts, problems, arrays, range(len(records)))
        read = self._block_reader.read_block(data, count)
        if read is None or read[1]:
            return None
        table = self._converter.drop_rejected_rows(self._converter.make_table(read[0]), {})
        self._record_count += table.num_rows
        return ParsedBatch(table, (), table.num_rows)

    def parse_messages(self, messages: Records, offset: int) -> ParsedBatch:
        """Parse messages, each of which is one object or rejected."""
        records = messages.to_pylist()
        starts = _compute_message_starts(messages, offset)
        problems: dict[int, str] = {}
        shaped = self._struct_reader.read_records(records)
        if shaped is not None:
            read = self._complete_batch(records, shaped, problems)
            return self._make_batch(
                records, starts, problems, read, _list_valid_indexes(records, problems)
            )
        for index in range(len(records)):
            self._check_record(records, index, problems)
        return self.parse_checked_records(records, starts, problems)

    def _check_record(self, records: Sequence[bytes], index: int, problems: dict[int, str]) -> None:
        try:
            self.documents.check_document(records[index])
        except InvalidJsonDocument as error:
            problems[index] = str(error)

    def _complete_batch(
        self, records: Sequence[bytes], struct_batch: StructParseResult, problems: dict[int, str]
    ) -> Read:
        """Read the records that were left alone exactly, and put them among the others.

        Those that are no JSON go to `problems`.
        """
        for index in struct_batch.skipped_indexes:
            self._check_record(records, index, problems)
        left = [index for index in struct_batch.skipped_indexes if index not in problems]
        if not left:
            return struct_batch.arrays, struct_batch.rejected
        values, left = self._extract_rows([records[index] for index in left], left, problems)
        arrays, refused = self._convert_exactly(values)
        taken = np.delete(np.arange(len(records)), struct_batch.skipped_indexes)
        order = np.argsort(np.concatenate([taken, np.asarray(left, np.int64)]), kind="stable")
        place = np.argsort(order)
        merged = [
            pa.concat_arrays([first, second]).take(pa.array(order))
            for first, second in zip(struct_batch.arrays, arrays, strict=True)
        ]
        reasons = {int(place[row]): reason for row, reason in struct_batch.rejected.items()}
        reasons |= {int(place[len(taken) + row]): reason for row, reason in refused.items()}
        return merged, reasons

    def parse_checked_records(
        self, records: list[bytes], starts: Sequence[int] | Places, problems: dict[int, str]
    ) -> ParsedBatch:
        """Parse records that are JSON, and reject the others.

        Args:
            records: Their bytes.
            starts: Where each begins in the stream.
            problems: Why some are no JSON, by their places.
        """
        owners = _list_valid_indexes(records, problems)
        pieces = [records[index] for index in owners] if problems else records
        shaped = self._struct_reader.read_records(pieces)
        if shaped is not None:
            found: dict[int, str] = {}
            read = self._complete_batch(pieces, shaped, found)
            problems |= {owners[index]: reason for index, reason in found.items()}
            owners = _list_valid_indexes(records, problems)
            return self._make_batch(records, starts, problems, read, owners)
        array = pa.array(pieces, pa.binary())
        blocks = None
        if _look_like_objects(array):
            blocks = self._block_reader.read_block(_join_lines(array), len(array), is_json=True)
        if blocks is None:
            values, owners = self._extract_rows(pieces, owners, problems)
            blocks = self._convert_exactly(values)
        return self._make_batch(records, starts, problems, blocks, owners)

    def _make_batch(
        self,
        records: Sequence[bytes],
        starts: Sequence[int] | Places,
        problems: dict[int, str],
        converted: Read,
        record_indexes: Sequence[int],
    ) -> ParsedBatch:
        """Return rows and rejects; `record_indexes` says which record each row is of."""
        blamed = converted[1]
        table = self._converter.drop_rejected_rows(self._converter.make_table(converted[0]), blamed)
        broken = sorted(problems)
        entries: list[tuple[int, int, str | None, str]] = [
            (bisect_left(record_indexes, index) + rank, index, None, problems[index])
            for rank, index in enumerate(broken)
        ]
        entries += [
            (row + bisect_left(broken, record_indexes[row]), record_indexes[row], column, reason)
            for row, (column, reason) in blamed.items()
        ]
        rejects = []
        for place, index, column, reason in sorted(entries):
            number = self._record_count + place + 1
            rejects.append(ParseReject(number, int(starts[index]), records[index], reason, column))
        count = table.num_rows + len(rejects)
        self._record_count += count
        return ParsedBatch(table, tuple(rejects), count)

    def _extract_rows(
        self, documents: Sequence[bytes], record_indexes: Sequence[int], problems: dict[int, str]
    ) -> tuple[list[list[object]], list[int]]:
        """Return the values of each row by column, and which record it is of."""
        columns: list[list[object]] = [[] for _ in self._converter.columns]
        owners: list[int] = []
        for index, piece in zip(record_indexes, documents, strict=True):
            try:
                records = self.documents.extract_records(piece)
            except InvalidJsonDocument as error:
                problems[index] = str(error)
                continue
            for record in records:
                row: list[Any] = [None] * len(columns)
                self._column_paths.fill_row(record, row)
                for values, value in zip(columns, row, strict=True):
                    values.append(value)
                owners.append(index)
        return columns, owners

    def _convert_exactly(self, values: list[list[object]]) -> tuple[list[pa.Array], Reasons]:
        arrays: list[pa.Array] = []
        refused: Reasons = {}
        for column, given in zip(self._converter.columns, values, strict=True):
            parts, reasons = column.convert_values(given)
            arrays.extend(parts)
            if self._strict or not column.column.nullable:
                name = column.column.display_name
                refused |= {row: (name, reason) for row, reason in reasons.items()}
        return arrays, refused


def _look_like_objects(records: Records) -> bool:
    """Tell whether each begins and ends like an object, so that none goes on in the next."""
    return len(records) > 0 and not len(_mask_non_objects(records))


def _mask_non_objects(records: Records) -> Places:
    """Return which records do not begin and end like an object, or are empty."""
    if not len(records):
        return np.empty(0, np.int64)
    buffers = records.buffers()
    offsets = np.frombuffer(buffers[1], np.int32)[
        records.offset : records.offset + len(records) + 1
    ]
    starts, ends = offsets[:-1], offsets[1:]
    data = np.frombuffer(buffers[2], np.uint8)
    if not len(data):
        return np.arange(len(records))
    last = len(data) - 1
    whole = (data[np.minimum(starts, last)] == _OPENING_BRACE) & (data[ends - 1] == _CLOSING_BRACE)
    return np.flatnonzero(~whole | (starts == ends))


def _compute_message_starts(messages: Records, offset: int) -> Places:
    """Return where each message begins, the first of them at `offset`."""
    sizes = pc.binary_length(messages).to_numpy(zero_copy_only=False)
    starts: Places = np.cumsum(sizes, dtype=np.int64) - sizes + offset
    return starts


def _list_valid_indexes(records: Sequence[bytes], problems: dict[int, str]) -> Sequence[int]:
    """Return the places of records that have no problem."""
    if not problems:
        return range(len(records))
    places = list(range(len(records)))
    for index in sorted(problems, reverse=True):
        del places[index]
    return places


def _join_lines(records: Records) -> bytes:
    """Return the records with a line end behind each."""
    lines = pc.binary_join_element_wise(records, b"\n", b"")
    first = lines.offset * _OFFSET_BYTES
    ends = np.frombuffer(lines.buffers()[1], np.int32, len(lines) + 1, first)
    data: bytes = lines.buffers()[2].slice(int(ends[0]), int(ends[-1] - ends[0])).to_pybytes()
    return data


def _collect_object_lines(
    data: bytes, position: int, offset: int, records: list[bytes], starts: list[int]
) -> int:
    """Add lines that are objects, as long as there are such; return where the next one begins."""
    loads = orjson.loads
    if data.startswith(b"\n", position):
        position += 1
    while (end := data.find(b"\n", position)) >= 0:
        line = data[position:end]
        try:
            if type(loads(line)) is not dict:
                return position
        except orjson.JSONDecodeError:
            return position
        records.append(line)
        starts.append(offset + position)
        position = end + 1
    return position


def _lines_are_objects(lines: bytes) -> bool:
    inside = lines.removesuffix(b"\n")
    return inside.endswith(b"}") and inside.count(b"}\n{") == inside.count(b"\n")


# --- Where JSON objects begin and end in a stream: on lines of their own, over several, or in an array.

_SEPARATORS = re.compile(rb"[ \t\r\n,\[\]]*")
# All that may stand in an object; a text does not go over a line end.
_JSON_TOKEN = re.compile(rb'[^"{}\[\]]+|"(?:[^"\\\n]|\\.)*"|[{}\[\]]', re.DOTALL)
_BEFORE_OBJECT = (b":", b"[", b",")


@dataclass(frozen=True, slots=True)
class FramedJsonRecord:
    """One record's bytes, and where the next may begin; `problem` where they are no JSON."""

    start: int
    end: int
    next_start: int
    problem: str | None = None


class JsonFramer:
    """Finds records. With a terminator each ends there; without, objects follow each other."""

    def __init__(self, terminator: bytes, documents: JsonDocumentReader, max_record: int) -> None:
        self._terminator = terminator
        self._documents = documents
        self._max_record = max_record

    def find_record(self, data: bytes, at: int, *, is_last: bool) -> FramedJsonRecord | None:
        """Return the next record at or after `at`; None if it does not end here and more may come.

        An empty record (`start == end`) says that there is nothing but blanks up to its next.
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
    """Return where the object that begins at `start` ends; None if it does not end yet.

    `start` says that it cannot become an object.
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
    # An opened text at the end may be closed by what comes.
    return None if at == len(data) or b"\n" not in data[at:] else start
