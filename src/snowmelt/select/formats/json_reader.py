"""JSON objects as batches of records: a value a line, or a sequence of values.

Numbers keep every digit: integers of any size, decimals as they are written; those with an
exponent are the nearest float, unless it is infinite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from snowmelt.jit import jit_kernel
from snowmelt.select.errors import SelectError
from snowmelt.select.formats.blocks import (
    BlockLimits,
    RecordBlocks,
    bad_encoding,
    first_offset,
    resolve,
    too_long,
)
from snowmelt.select.formats.csv_tokenizer import first_bad_byte
from snowmelt.select.formats.decompression import open_stream
from snowmelt.select.formats.json_lines import NOT_JSON, JsonRow, LineColumns, LinesBatch, decoded
from snowmelt.select.scalar.paths import follow, rows_of
from snowmelt.select.sql.ast import Any
from snowmelt.select.sql.bound_query import Fields, JsonFields
from snowmelt.select.values import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from snowmelt.select.formats.blocks import Block
    from snowmelt.select.formats.decompression import ObjectSource
    from snowmelt.select.limits import EngineSettings
    from snowmelt.select.request import JsonInput, SelectRequest
    from snowmelt.select.sql.ast import Column, Step
    from snowmelt.select.sql.bound_query import Query
    from snowmelt.select.vectors import Bytes, Places, Vector

# --- Where the values of a JSON text begin and end, without looking at what they say.

# One loop is one compiled function; types are what numba sees.
# ruff: noqa: C901, PLR0912, PLR0915
# mypy: disable-error-code="no-untyped-def, no-untyped-call"


_QUOTE, _BACKSLASH = 34, 92
# What a byte means outside of strings.
_OTHER, _BLANK, _OPEN, _CLOSE, _STRING, _COMMA = 0, 1, 2, 3, 4, 5

_CLASSES = np.zeros(256, np.uint8)
_CLASSES[list(b" \t\r\n")] = _BLANK
_CLASSES[list(b"[{")] = _OPEN
_CLASSES[list(b"]}")] = _CLOSE
_CLASSES[_QUOTE] = _STRING
_CLASSES[ord(",")] = _COMMA


@jit_kernel
def _walk(data: Bytes, start: int, end: int, bounds: Places, classes: Bytes) -> tuple[int, int]:
    """Find the root values in [start, end).

    Writes where each begins and ends to `bounds` (two for each, as many as fit).

    Returns:
        How many are whole, and the place behind the last of them; one that reaches `end` counts
        only if a bracket or a quote closes it.
    """
    count = 0
    last = start
    depth = 0
    begin = -1
    at = start
    while at < end:
        kind = classes[data[at]]
        if begin >= 0 and depth == 0 and kind != 0:
            # A number or a word ends where anything else begins.
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


def root_values(data: Bytes, start: int, end: int) -> Places:
    """Return begin and end, in turn, of the root values in [start, end), the broken last one too."""
    bounds = np.empty(64, np.int32)
    count, last = _walk(data, start, end, bounds, _CLASSES)
    if 2 * count > len(bounds):
        bounds = np.empty(2 * count, np.int32)
        _walk(data, start, end, bounds, _CLASSES)
    rest = data[last:end].tobytes()
    bounds = bounds[: 2 * count]
    if rest.strip(b" \t\r\n"):
        begin = end - len(rest.lstrip(b" \t\r\n"))
        return np.append(bounds, np.array([begin, end], np.int32))
    return bounds


def cut_values(memory: bytearray, start: int, end: int) -> int:
    """Return the place behind the last whole root value of [start, end), `start` if none."""
    _, last = _walk(np.frombuffer(memory, np.uint8), start, end, np.empty(0, np.int32), _CLASSES)
    return last


_LINE = b"\n"


class JsonRecords:
    """One JSON object; read once."""

    def __init__(
        self,
        request: SelectRequest,
        options: JsonInput,
        source: ObjectSource,
        settings: EngineSettings,
    ) -> None:
        """Open the object.

        Raises:
            SelectError: A ScanRange over a document, or one that does not fit.
        """
        if request.scan_range is not None and not options.lines:
            raise SelectError(
                "UnsupportedScanRangeInput", "A ScanRange needs JSON of type LINES or CSV."
            )
        span = resolve(request.scan_range, source.size, compression=request.compression)
        begin = first_offset(_LINE, span)
        longest = settings.record_bytes if options.lines else settings.document_bytes
        self._lines = options.lines
        self._limit = longest
        self._blocks = RecordBlocks(
            open_stream(source, request.compression, at=begin),
            _LINE,
            cutter=None if options.lines else cut_values,
            span=span,
            stream_offset=begin,
            limits=BlockLimits(settings.block_bytes, longest),
        )
        self.fields: Fields = JsonFields()

    @property
    def scanned(self) -> int:
        """Bytes taken from the object so far."""
        return self._blocks.scanned

    @property
    def processed(self) -> int:
        """The same, inflated."""
        return self._blocks.processed

    def units(self, query: Query, *, whole: bool) -> Iterator[JsonUnit]:  # noqa: ARG002  all is decoded
        """Yield the blocks.

        Raises:
            SelectError: The object cannot be read further, or a document is too large.
        """
        steps = query.source.steps
        path = steps[1:] if steps[:1] == (Any.ITEM,) else steps
        ceph = query.dialect.is_ceph
        columns = None if path or not self._lines else LineColumns(query)
        try:
            for block in self._blocks:
                block.skip_mark()
                yield JsonUnit(
                    block, path, columns, lines=self._lines, ceph=ceph, limit=self._limit
                )
        except SelectError as error:
            if self._lines or error.s3_code != "OverMaxRecordSize":
                raise
            raise _too_long(self._limit) from error

    def close(self) -> None:
        """Stop reading."""
        self._blocks.close()


class JsonUnit:
    """One block of whole lines or values."""

    def __init__(
        self,
        block: Block,
        path: Sequence[Step],
        columns: LineColumns | None,
        *,
        lines: bool,
        ceph: bool,
        limit: int,
    ) -> None:
        self._ceph = ceph
        self._limit = limit
        self._columns = columns
        self._block = block
        self._path = tuple(path)
        self._lines = lines

    def count(self) -> int | None:
        """Return None: only decoding tells whether the values are JSON."""
        return None

    def decode(self) -> JsonBatch | LinesBatch:
        """Decode the values, up to the first that is no JSON."""
        block = self._block
        if self._columns is not None and _longest_line(block, self._limit) <= self._limit:
            batch = self._columns.read(block)
            if batch is not None:
                return batch
        offsets: list[int] = []
        values, failure = self._values(offsets)
        if self._path or (self._ceph and any(isinstance(value, list) for value in values)):
            values = [found for value in values for found in self._records(value)]
            offsets = []
        return JsonBatch(values, offsets, self._ceph, failure)

    def release(self) -> None:
        """Give the block's buffer back."""
        self._block.release()

    def _records(self, value: object) -> Iterator[object]:
        if self._ceph:
            return rows_of(value, self._path)
        return self._follow(value, self._path)

    def _follow(self, value: object, steps: Sequence[Step]) -> Iterator[object]:
        """Yield every value that FROM's path leads to; one MISSING where it leads nowhere."""
        if not steps:
            yield value
            return
        step, rest = steps[0], steps[1:]
        if not isinstance(step, Any):
            yield from self._follow(follow(value, (step,)), rest)
            return
        fitting = list if step is Any.ITEM else dict
        if not isinstance(value, fitting):
            yield MISSING
            return
        for item in value.values() if isinstance(value, dict) else value:
            yield from self._follow(item, rest)

    def _values(self, offsets: list[int]) -> tuple[list[object], SelectError | None]:
        """Return the values and what is wrong behind them; tell where each begins."""
        block = self._block
        values: list[object] = []
        with memoryview(block.memory) as memory:
            for begin, end in self._bounds():
                if end - begin > self._limit:
                    return values, self._over_limit(begin)
                try:
                    values.append(decoded(memory[begin:end]))
                except NOT_JSON as error:
                    return values, self._not_json(begin, end, error)
                offsets.append(block.offset + begin - block.start)
        return values, None

    def _not_json(self, begin: int, end: int, error: Exception) -> SelectError:
        block = self._block
        bad = first_bad_byte(block.data, begin, end)
        if bad >= 0:
            return bad_encoding(block.offset + bad - block.start)
        offset = block.offset + begin - block.start
        return SelectError(
            "JSONParsingError", f"The value that begins at byte {offset} is not JSON: {error}"
        )

    def _over_limit(self, begin: int) -> SelectError:
        block = self._block
        if self._lines:
            return too_long(block.offset + begin - block.start, self._limit)
        return _too_long(self._limit)

    def _bounds(self) -> Iterator[tuple[int, int]]:
        """Yield where each value lies; no value of a line reaches into the next."""
        block = self._block
        if not self._lines:
            yield from _pairs(root_values(block.data, block.start, block.end))
            return
        start = block.start
        while start < block.end:
            found = block.memory.find(_LINE, start, block.end)
            end = block.end if found < 0 else found + 1
            yield from _pairs(root_values(block.data, start, end))
            start = end


@dataclass(frozen=True, slots=True)
class JsonBatch:
    """Decoded records; `failure` is the error of the value behind the last one."""

    values: Sequence[object]
    offsets: Sequence[int]
    # Whether paths are followed as in Ceph.
    ceph: bool
    failure: SelectError | None = None

    @property
    def rows(self) -> int:
        """How many records."""
        return len(self.values)

    def vector(self, column: Column, *, shown: bool = False) -> Vector | None:  # noqa: ARG002  the evaluator reads all
        """Return None: values of a path may be of any type."""
        return None

    def row(self, place: int) -> JsonRow:
        """Return one record."""
        return JsonRow(self.values[place], self.ceph)

    def offset(self, place: int) -> int | None:
        """Return the byte of the object's text where a record begins; None behind FROM's path."""
        return self.offsets[place] if self.offsets else None


def _longest_line(block: Block, limit: int) -> int:
    """Return the longest line's length where a line may be longer than `limit`, else the block's."""
    size = block.end - block.start
    if size <= limit:
        return size
    breaks = np.flatnonzero(block.data[block.start : block.end] == _LINE[0])
    return int(np.diff(breaks, prepend=-1, append=size).max()) - 1


def _pairs(bounds: Places) -> Iterator[tuple[int, int]]:
    flat = [int(place) for place in bounds]
    return zip(flat[::2], flat[1::2], strict=True)


def _too_long(limit: int) -> SelectError:
    return SelectError(
        "OverMaxRecordSize",
        f"A value of the JSON document is longer than {limit} bytes; the setting "
        "select_document_bytes allows no more.",
    )
