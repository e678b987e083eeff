"""Delimited text and CSV: what COPY's options say, what a header says, and where portions begin."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from snowmelt.errors import PhaseFailed
from snowmelt.load.conversion import Conversion
from snowmelt.load.parsers.blocks import BlockParser, Shape
from snowmelt.load.parsers.borders import Border
from snowmelt.load.parsers.fields import FieldReader
from snowmelt.load.parsers.layout import BOM
from snowmelt.schema.types import internal_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from snowmelt.load.collecting import Collection
    from snowmelt.load.parsed import Parsed, Target
    from snowmelt.load.parsers.dialect import Dialect
    from snowmelt.load.portion import Portion
    from snowmelt.load.reader import Reader

# Measured: what Arrow parses best at once, as its own columns still fit the processor's cache.
_BLOCK = 1 << 20
# Of a record that is too long, what a reject keeps of it.
_KEPT = 1 << 16


class Delimited:
    """Parses delimited text.

    With `header` the first record names the fields, and columns are found by name, in any case.
    `skip` records are left out at the start of a file, before a header. With `pads` a record may
    have fewer fields than there are columns.
    """

    def __init__(
        self,
        dialect: Dialect,
        *,
        header: bool = False,
        skip: int = 0,
        pads: bool = False,
        trim: str | None = None,
        collection: Collection | None = None,
    ) -> None:
        self._dialect = dialect
        self._header = header
        self._skip = skip
        self._pads = pads
        self._trim = trim
        self._collection = collection
        self._border = Border(dialect)
        self.splittable = self._border.can_split and not header

    def parse(self, reader: Reader, target: Target, portion: Portion) -> Iterator[Parsed]:
        """Yield what became of the records, block by block.

        Raises:
            PhaseFailed: The header lacks a column or names one twice, or more records are to be
                skipped than a portion holds.
        """
        stream = _Stream(reader, self._border, portion)
        blocks = self._begun(stream, target, portion)
        while blocks is not None and stream.fill():
            parsed, size = blocks.parse(stream.data, stream.offset, is_last=stream.is_last)
            if size:
                stream.advance(size)
                if parsed is not None and parsed.records:
                    yield parsed
            elif stream.is_last:
                return
            elif len(stream.data) < self._dialect.max_record:
                stream.wanted = 2 * len(stream.data)
            else:
                yield self._too_long(stream, blocks)

    def _begun(self, stream: _Stream, target: Target, portion: Portion) -> BlockParser | None:
        """Read what stands before the records; None if there is nothing at all."""
        dialect = self._dialect.for_columns(target)
        conversion = Conversion(target, self._collection, trim=self._trim)
        count = len(conversion.columns)
        shape = Shape(count, list(range(count)), self._pads)
        if not portion.is_first:
            stream.drop_first()
            return BlockParser(dialect, conversion, shape)
        fields = FieldReader(dialect)
        stream.drop_mark()
        for _ in range(self._skip):
            if stream.record(fields) is None and not portion.is_whole:
                raise PhaseFailed(reason="more records are to be skipped than a portion holds")
        if self._header:
            names = stream.record(fields)
            if names is None:
                return None
            shape = _shape_of(names, target, pads=self._pads)
            dialect = dialect.at(shape.places)
        return BlockParser(dialect, conversion, shape)

    def _too_long(self, stream: _Stream, blocks: BlockParser) -> Parsed:
        kept, offset = stream.data[:_KEPT], stream.offset
        size = stream.skip_record()
        reason = (
            f"a record of {size} bytes, more than {self._dialect.max_record}; "
            f"its first {len(kept)} are kept"
        )
        return blocks.reject(kept, offset, reason)


class _Stream:
    """The bytes of one portion that are not parsed yet, and those behind it that end its last record."""

    def __init__(self, reader: Reader, border: Border, portion: Portion) -> None:
        self._reader = reader
        self._border = border
        self._size = portion.size
        self._end: int | None = None
        self.data = b""
        self.offset = 0
        self.is_last = False
        self.wanted = _BLOCK

    def fill(self) -> bool:
        """Have a block's bytes at least, or all that there are; tell whether there are any."""
        pieces = [self.data]
        held = len(self.data)
        while held < self.wanted and not self.is_last:
            piece = self._reader.read()
            if not piece:
                self.is_last = True
            pieces.append(piece)
            held += len(piece)
            if self._size is not None and self.offset + held > self._size:
                self.data = b"".join(pieces)
                self._find_end()
                pieces, held = [self.data], len(self.data)
        self.data = b"".join(pieces) if len(pieces) > 1 else self.data
        return bool(self.data)

    def advance(self, size: int) -> None:
        """Go on behind the first bytes."""
        self.data = self.data[size:]
        self.offset += size
        self.wanted = _BLOCK

    def drop_mark(self) -> None:
        """Leave out a byte order mark."""
        if self.fill() and self.data.startswith(BOM):
            self.advance(len(BOM))

    def record(self, fields: FieldReader) -> list[bytes | None] | None:
        """Take one record off the front; None at the end."""
        while self.fill():
            record = fields.read(self.data, 0, is_last=self.is_last)
            if record is not None:
                self.advance(record.next)
                return record.fields
            self.wanted = 2 * len(self.data)
        return None

    def drop_first(self) -> None:
        """Leave out what belongs to the portion before: all to the first end of a record."""
        while self.fill():
            end = self._border.find(self.data, 0)
            if end is not None:
                self.advance(end)
                return
            if self.is_last:
                self.advance(len(self.data))
                return
            self.wanted = 2 * len(self.data)

    def skip_record(self) -> int:
        """Leave out a record of any length; return its bytes."""
        size = 0
        while self.fill():
            end = self._border.end_of_record(self.data)
            if end is not None or self.is_last:
                end = len(self.data) if end is None else end
                self.advance(end)
                return size + end
            # What may be the first byte of an end stays.
            step = len(self.data) - self._border.width
            self.advance(step)
            size += step
        return size

    def _find_end(self) -> None:
        """Cut what the next portion holds, once the end of this one's last record is known."""
        if self._size is None:
            return
        start = max(0, self._size - self.offset)
        end = self._border.find(self.data, start)
        if end is not None:
            self.data = self.data[:end]
            self._size = None
            self.is_last = True


def _shape_of(header: list[bytes | None], target: Target, *, pads: bool) -> Shape:
    names = [internal_name((name or b"").decode(errors="replace").strip()) for name in header]
    twice = [name for name, count in Counter(names).items() if count > 1]
    wanted = [column.name for column in target.schema.columns]
    for name in twice:
        if name in wanted:
            raise PhaseFailed(reason=f"the header names column {name} twice", record=0)
    found = [names.index(name) if name in names else None for name in wanted]
    if not any(place is not None for place in found):
        listed = ", ".join(names[:20])
        raise PhaseFailed(reason=f"the header names none of the columns; it has {listed}", record=0)
    return Shape(len(names), found, pads)
