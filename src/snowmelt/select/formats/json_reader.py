"""JSON reader: makes record batches from JSON lines or from a sequence of values.

Numbers keep every digit: integers of any size, decimals as written. A number with an exponent
becomes the nearest float, unless that is infinite.

A kernel locates the root values of a block without decoding them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from snowmelt.jit import jit_kernel
from snowmelt.json.exact import RECORD_DECODE_ERRORS, decode_record
from snowmelt.kernels.csv_tokenizer import find_invalid_utf8_byte
from snowmelt.kernels.slices import Bytes, Positions
from snowmelt.select.errors import SelectError
from snowmelt.select.formats.blocks import (
    BlockLimits,
    RecordBlock,
    RecordBlockReader,
    find_stream_offset,
    invalid_utf8_error,
    record_too_long_error,
    resolve_scan_range,
)
from snowmelt.select.formats.byte_streams import ObjectSource, open_decompressed_stream
from snowmelt.select.formats.json_lines import (
    JsonLineColumns,
    JsonLinesBatch,
    JsonRow,
)
from snowmelt.select.request import JsonInput, SelectRequest
from snowmelt.select.resource_limits import EngineSettings
from snowmelt.select.scalar.paths import follow_path, iterate_ceph_from_records
from snowmelt.select.sql.ast import ColumnRef, PathStep, WildcardStep
from snowmelt.select.sql.bound_query import BoundQuery, JsonFields, ObjectFields
from snowmelt.select.values import MISSING
from snowmelt.select.vectors import ValueVector

# The kernel is one long function, because Numba compiles it as a whole.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"


_QUOTE, _BACKSLASH = 34, 92
# Classes of the bytes outside strings.
_CLASS_OTHER, _CLASS_BLANK, _CLASS_OPEN, _CLASS_CLOSE, _CLASS_STRING, _CLASS_COMMA = (
    0,
    1,
    2,
    3,
    4,
    5,
)

_BYTE_CLASSES = np.zeros(256, np.uint8)
_BYTE_CLASSES[list(b" \t\r\n")] = _CLASS_BLANK
_BYTE_CLASSES[list(b"[{")] = _CLASS_OPEN
_BYTE_CLASSES[list(b"]}")] = _CLASS_CLOSE
_BYTE_CLASSES[_QUOTE] = _CLASS_STRING
_BYTE_CLASSES[ord(",")] = _CLASS_COMMA


@jit_kernel
def _scan_root_values(
    data: Bytes, start: int, end: int, bounds: Positions, byte_classes: Bytes
) -> tuple[int, int]:
    """Find the root values in [start, end).

    Writes the start and end of each to `bounds`, for as many values as fit.

    Returns:
        The number of complete values and the end of the last one. A value that reaches `end` counts
        only if a bracket or a quote closes it.
    """
    count = 0
    last = start
    depth = 0
    begin = -1
    at = start
    while at < end:
        kind = byte_classes[data[at]]
        if begin >= 0 and depth == 0 and kind != 0:
            # A number or a word ends before the next byte of another class.
            if 2 * count + 1 < len(bounds):
                bounds[2 * count] = begin
                bounds[2 * count + 1] = at
            count += 1
            last = at
            begin = -1
        if kind == 1 or (kind == 5 and depth):
            at += 1
            continue
        if begin < 0:
            begin = at
        closed = False
        if kind == 4:
            at += 1
            while at < end and data[at] != _QUOTE:
                at += 2 if data[at] == _BACKSLASH else 1
            if at >= end:
                break
            closed = depth == 0
        elif kind == 2:
            depth += 1
        elif kind == 3:
            depth = max(0, depth - 1)
            closed = depth == 0
        elif kind == 5:
            closed = True
        at += 1
        if closed:
            if 2 * count + 1 < len(bounds):
                bounds[2 * count] = begin
                bounds[2 * count + 1] = at
            count += 1
            last = at
            begin = -1
    return count, last


def find_root_value_bounds(data: Bytes, start: int, end: int) -> Positions:
    """Return alternating starts and ends of the root values in [start, end).

    The last value may be incomplete.
    """
    bounds = np.empty(64, np.int32)
    count, last = _scan_root_values(data, start, end, bounds, _BYTE_CLASSES)
    if 2 * count > len(bounds):
        bounds = np.empty(2 * count, np.int32)
        _scan_root_values(data, start, end, bounds, _BYTE_CLASSES)
    rest = data[last:end].tobytes()
    bounds = bounds[: 2 * count]
    if rest.strip(b" \t\r\n"):
        begin = end - len(rest.lstrip(b" \t\r\n"))
        return np.append(bounds, np.array([begin, end], np.int32))
    return bounds


def find_last_value_end(memory: bytearray, start: int, end: int) -> int:
    """Return the end of the last complete root value in [start, end), or `start` if there is none."""
    _, last = _scan_root_values(
        np.frombuffer(memory, np.uint8), start, end, np.empty(0, np.int32), _BYTE_CLASSES
    )
    return last


_LINE_DELIMITER = b"\n"


class JsonObjectReader:
    """Single-use reader of one JSON object."""

    def __init__(
        self,
        request: SelectRequest,
        options: JsonInput,
        source: ObjectSource,
        settings: EngineSettings,
    ) -> None:
        """Open the object.

        Raises:
            SelectError: If the request has a ScanRange that does not fit the object, or one for
                JSON that is not of type LINES.
        """
        if request.scan_range is not None and not options.lines:
            raise SelectError(
                "UnsupportedScanRangeInput", "A ScanRange needs JSON of type LINES or CSV."
            )
        span = resolve_scan_range(request.scan_range, source.size, compression=request.compression)
        begin = find_stream_offset(_LINE_DELIMITER, span)
        longest = settings.record_bytes if options.lines else settings.document_bytes
        self._is_lines = options.lines
        self._max_value_bytes = longest
        self._blocks = RecordBlockReader(
            open_decompressed_stream(source, request.compression, offset=begin),
            _LINE_DELIMITER,
            cutter=None if options.lines else find_last_value_end,
            span=span,
            stream_offset=begin,
            limits=BlockLimits(settings.block_bytes, longest),
        )
        self.fields: ObjectFields = JsonFields()

    @property
    def scanned_bytes(self) -> int:
        """Bytes read from the object, compressed if it is compressed."""
        return self._blocks.scanned_bytes

    @property
    def processed_bytes(self) -> int:
        """Bytes of decompressed text read."""
        return self._blocks.processed_bytes

    def read_units(self, query: BoundQuery, *, all_fields: bool) -> Iterator[JsonReadUnit]:  # noqa: ARG002  all fields are decoded
        """Yield the blocks.

        Raises:
            SelectError: If the object cannot be read further, or a value of a document is too large.
        """
        steps = query.source.steps
        path = steps[1:] if steps[:1] == (WildcardStep.ITEM,) else steps
        ceph = query.dialect.is_ceph
        columns = None if path or not self._is_lines else JsonLineColumns(query)
        try:
            for block in self._blocks:
                block.skip_byte_order_mark()
                yield JsonReadUnit(
                    block,
                    path,
                    columns,
                    is_lines=self._is_lines,
                    is_ceph=ceph,
                    max_value_bytes=self._max_value_bytes,
                )
        except SelectError as error:
            if self._is_lines or error.s3_code != "OverMaxRecordSize":
                raise
            raise _document_too_large_error(self._max_value_bytes) from error

    def close(self) -> None:
        """Stop reading."""
        self._blocks.close()


class JsonReadUnit:
    """Block of whole lines or values."""

    def __init__(
        self,
        block: RecordBlock,
        path: Sequence[PathStep],
        columns: JsonLineColumns | None,
        *,
        is_lines: bool,
        is_ceph: bool,
        max_value_bytes: int,
    ) -> None:
        self._is_ceph = is_ceph
        self._max_value_bytes = max_value_bytes
        self._columns = columns
        self._block = block
        self._path = tuple(path)
        self._is_lines = is_lines

    def count_records(self) -> int | None:
        """Return None: the values must be decoded to verify that they are JSON."""
        return None

    def decode(self) -> JsonBatch | JsonLinesBatch:
        """Decode the values, up to the first that is not JSON."""
        block = self._block
        if (
            self._columns is not None
            and _compute_line_bytes_bound(block, self._max_value_bytes) <= self._max_value_bytes
        ):
            batch = self._columns.scan_block(block)
            if batch is not None:
                return batch
        offsets: list[int] = []
        values, failure = self._decode_values(offsets)
        if self._path or (self._is_ceph and any(isinstance(value, list) for value in values)):
            values = [found for value in values for found in self._expand_from_path(value)]
            offsets = []
        return JsonBatch(values, offsets, self._is_ceph, failure)

    def release(self) -> None:
        """Return the block's buffer to the pool."""
        self._block.release()

    def _expand_from_path(self, value: object) -> Iterator[object]:
        if self._is_ceph:
            return iterate_ceph_from_records(value, self._path)
        return self._follow_from_path(value, self._path)

    def _follow_from_path(self, value: object, steps: Sequence[PathStep]) -> Iterator[object]:
        """Yield every value at FROM's path, or MISSING if there is none."""
        if not steps:
            yield value
            return
        step, rest = steps[0], steps[1:]
        if not isinstance(step, WildcardStep):
            yield from self._follow_from_path(follow_path(value, (step,)), rest)
            return
        fitting = list if step is WildcardStep.ITEM else dict
        if not isinstance(value, fitting):
            yield MISSING
            return
        for item in value.values() if isinstance(value, dict) else value:
            yield from self._follow_from_path(item, rest)

    def _decode_values(self, offsets: list[int]) -> tuple[list[object], SelectError | None]:
        """Return the values and the error after them, and append the offset of each to `offsets`."""
        block = self._block
        values: list[object] = []
        with memoryview(block.memory) as memory:
            for begin, end in self._iterate_value_bounds():
                if end - begin > self._max_value_bytes:
                    return values, self._value_too_large_error(begin)
                try:
                    values.append(decode_record(memory[begin:end]))
                except RECORD_DECODE_ERRORS as error:
                    return values, self._invalid_json_error(begin, end, error)
                offsets.append(block.offset + begin - block.start)
        return values, None

    def _invalid_json_error(self, begin: int, end: int, error: Exception) -> SelectError:
        block = self._block
        bad = find_invalid_utf8_byte(block.data, begin, end)
        if bad >= 0:
            return invalid_utf8_error(block.offset + bad - block.start)
        offset = block.offset + begin - block.start
        return SelectError(
            "JSONParsingError", f"The value that begins at byte {offset} is not JSON: {error}"
        )

    def _value_too_large_error(self, begin: int) -> SelectError:
        block = self._block
        if self._is_lines:
            return record_too_long_error(block.offset + begin - block.start, self._max_value_bytes)
        return _document_too_large_error(self._max_value_bytes)

    def _iterate_value_bounds(self) -> Iterator[tuple[int, int]]:
        """Yield start and end of each value. With JSON lines, no value extends into the next line."""
        block = self._block
        if not self._is_lines:
            yield from _pair_bounds(find_root_value_bounds(block.data, block.start, block.end))
            return
        start = block.start
        while start < block.end:
            found = block.memory.find(_LINE_DELIMITER, start, block.end)
            end = block.end if found < 0 else found + 1
            yield from _pair_bounds(find_root_value_bounds(block.data, start, end))
            start = end


@dataclass(frozen=True, slots=True)
class JsonBatch:
    """Decoded records. `failure` is the error of the value after the last one."""

    values: Sequence[object]
    offsets: Sequence[int]
    # True if paths follow Ceph's rules for JSON.
    is_ceph: bool
    failure: SelectError | None = None

    @property
    def row_count(self) -> int:
        """Number of records."""
        return len(self.values)

    def read_column(self, column: ColumnRef, *, for_output: bool = False) -> ValueVector | None:  # noqa: ARG002  always None
        """Return None: the values at a path may be of any type."""
        return None

    def read_row(self, row_index: int) -> JsonRow:
        """Return one record."""
        return JsonRow(self.values[row_index], self.is_ceph)

    def record_offset(self, row_index: int) -> int | None:
        """Return the byte offset of a record in the text, or None if FROM's path expanded the values."""
        return self.offsets[row_index] if self.offsets else None


def _compute_line_bytes_bound(block: RecordBlock, limit_bytes: int) -> int:
    """Return the length of the longest line, or the block size if that is within `limit_bytes`."""
    size = block.end - block.start
    if size <= limit_bytes:
        return size
    breaks = np.flatnonzero(block.data[block.start : block.end] == _LINE_DELIMITER[0])
    return int(np.diff(breaks, prepend=-1, append=size).max()) - 1


def _pair_bounds(bounds: Positions) -> Iterator[tuple[int, int]]:
    flat = [int(place) for place in bounds]
    return zip(flat[::2], flat[1::2], strict=True)


def _document_too_large_error(limit_bytes: int) -> SelectError:
    return SelectError(
        "OverMaxRecordSize",
        f"A value of the JSON document is longer than {limit_bytes} bytes (setting "
        "select_document_bytes).",
    )
