"""Delimited text and CSV: what COPY's options say, what a header says, and where portions begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.errors import PhaseFailed
from snowmelt.load.conversion import Conversion
from snowmelt.load.parsers.blocks import BlockParser, Shape
from snowmelt.load.parsers.borders import Border
from snowmelt.load.parsers.fields import FieldReader
from snowmelt.load.parsers.stream import Stream
from snowmelt.schema.types import display_name, internal_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from snowmelt.load.collecting import Collection
    from snowmelt.load.parsed import Parsed, Target
    from snowmelt.load.parsers.dialect import Dialect
    from snowmelt.load.portion import Portion
    from snowmelt.load.reader import Reader

# No table has so many columns; reading a million of names takes a processor 5 s.
_MOST_NAMES = 65_536


class Delimited:
    """Parses delimited text.

    With `header` the first record names the fields, and columns are found by name, in any case.
    `skip` records are left out at the start of a file, before a header. With `pads` a record may
    have fewer fields than there are columns.
    """

    column_marks = frozenset({"delimiter", "enclosed_by", "escape", "null"})
    """The marks that a column may have for itself."""

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
    if len(header) > _MOST_NAMES:
        raise PhaseFailed(
            reason=f"the header has {len(header):,} names; there may be {_MOST_NAMES:,}. "
            "Check delimiter and record terminator",
            record=0,
        )
    texts = [(name or b"").decode(errors="replace").strip() for name in header]
    names = [internal_name(text) for text in texts]
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(name, []).append(place)
    folded: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        folded.setdefault(name.upper(), []).append(place)
    wanted = [column.name for column in target.schema.columns]
    exact = {name for name in wanted if name in places}
    found: list[int | None] = []
    for name in wanted:
        # As in Vertica names of columns have no case; but of two that differ in it alone, each
        # is found by its very name only.
        there = places.get(name) or _unclaimed(folded.get(name.upper(), []), names, exact)
        if len(there) > 1:
            shown = display_name(name)
            raise PhaseFailed(reason=f"the header names column {shown} twice", record=0)
        found.append(there[0] if there else None)
    if not any(place is not None for place in found):
        listed = ", ".join(names[:20])
        raise PhaseFailed(reason=f"the header names none of the columns; it has {listed}", record=0)
    return Shape(len(names), found, pads)


def _unclaimed(places: list[int], names: list[str], exact: set[str]) -> list[int]:
    """Return the places whose names are not the very name of another column."""
    return [place for place in places if names[place] not in exact]
