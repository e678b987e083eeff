"""Delimited text and CSV: what COPY's options say, what a header says, and where portions begin."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from snowmelt.errors import PhaseFailed
from snowmelt.load.conversion import Conversion
from snowmelt.load.parsers.blocks import BlockParser, Shape
from snowmelt.load.parsers.borders import Border
from snowmelt.load.parsers.fields import FieldReader
from snowmelt.load.parsers.stream import Stream
from snowmelt.schema.types import internal_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from snowmelt.load.collecting import Collection
    from snowmelt.load.parsed import Parsed, Target
    from snowmelt.load.parsers.dialect import Dialect
    from snowmelt.load.portion import Portion
    from snowmelt.load.reader import Reader


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
            PhaseFailed: The header lacks a column or names one twice, more records are to be
                skipped than a portion holds, or the text is not UTF-8.
        """
        stream = Stream(reader, self._border, portion)
        blocks = self._begun(stream, target, portion)
        if blocks is not None:
            yield from stream.parse(blocks, self._dialect.max_record)

    def _begun(self, stream: Stream, target: Target, portion: Portion) -> BlockParser | None:
        """Read what stands before the records; None if there is nothing at all."""
        dialect = self._dialect.for_columns(target)
        conversion = Conversion(target, self._collection, trim=self._trim)
        count = len(conversion.columns)
        shape = Shape(count, list(range(count)), self._pads)
        if not portion.is_first:
            stream.drop_first()
            return BlockParser(dialect, conversion, shape)
        fields = FieldReader(dialect)
        marks = [dialect.terminator, dialect.usual.delimiter, dialect.usual.quote]
        stream.drop_mark(has_zeros=any(b"\0" in mark for mark in marks))
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
