"""Delimited text and CSV: what COPY's options say, what a header says, and where portions begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.column_converter import Conversion
from snowmelt.load.parsers.delimited_blocks import BlockParser, Shape
from snowmelt.load.parsers.delimited_text import (
    DEFAULT_MAX_RECORD,
    Dialect,
    FieldDialect,
    FieldReader,
    check,
    mark,
)
from snowmelt.load.parsers.portion_stream import Border, Stream
from snowmelt.load.text_casts import Collection
from snowmelt.schema.types import display_name, internal_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from snowmelt.load.phases import Parsed, Reader, Target
    from snowmelt.load.portion import Portion

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


# --- What COPY, FDELIMITEDPARSER and FCSVPARSER let one choose of delimited text.

_BLANKS = " \t"


@dataclass(frozen=True, slots=True)
class DelimitedOptions:
    r"""COPY's own options. Without `record_terminator` a record ends with `\n` or `\r\n`.

    Raises nothing before `parser`.
    """

    delimiter: str = "|"
    enclosed_by: str = ""
    escape: str | None = None
    no_escape: bool = False
    null: str = ""
    record_terminator: str = ""
    skip: int = 0
    trailing_nullcols: bool = False
    trim: str | None = None
    collection_delimiter: str = ","
    collection_open: str = "["
    collection_close: str = "]"
    collection_enclose: str = '"'
    collection_null_element: str = "null"
    max_record: int = 0

    def parser(self) -> Delimited:
        """Make the parser.

        Raises:
            LoadRefused: Marks are longer than a character, or cannot be told apart.
        """
        what = "DELIMITED"
        if self.no_escape and self.escape:
            raise LoadRefused(what=what, reason="ESCAPE AS and NO ESCAPE exclude each other")
        escape = "\\" if self.escape is None else self.escape
        usual = check(
            FieldDialect(
                mark("DELIMITER", self.delimiter, what=what),
                mark("ENCLOSED BY", self.enclosed_by, what=what, may_be_empty=True),
                b"" if self.no_escape else mark("ESCAPE", escape, what=what, may_be_empty=True),
                self.null.encode(),
            ),
            what=what,
        )
        return Delimited(
            _dialect(usual, self.record_terminator, self.max_record, blank_lines=True),
            skip=_count("skip", self.skip, what=what),
            pads=self.trailing_nullcols,
            trim=self.trim,
            collection=Collection(
                self.collection_delimiter,
                self.collection_open,
                self.collection_close,
                self.collection_enclose,
                self.collection_null_element,
            ),
        )


@dataclass(frozen=True, slots=True)
class FlexDelimitedOptions:
    """FDELIMITEDPARSER: columns by the names of a header; blanks around values are left out.

    An empty value is NULL where `treat_empty_val_as_null`.
    """

    delimiter: str = "|"
    record_terminator: str = ""
    trim: bool = True
    header: bool = True
    skip: int = 0
    treat_empty_val_as_null: bool = True
    null: str = ""
    enclosed_by: str = ""
    escape: str = ""
    trailing_nullcols: bool = False
    max_record: int = 0

    def parser(self) -> Delimited:
        """Make the parser.

        Raises:
            LoadRefused: Marks are longer than a character, or cannot be told apart.
        """
        what = "FDELIMITEDPARSER"
        usual = check(
            FieldDialect(
                mark("delimiter", self.delimiter, what=what),
                mark("enclosed_by", self.enclosed_by, what=what, may_be_empty=True),
                mark("escape", self.escape, what=what, may_be_empty=True),
                self.null.encode() if self.treat_empty_val_as_null else _NEVER,
            ),
            what=what,
        )
        return Delimited(
            _dialect(usual, self.record_terminator, self.max_record, blank_lines=False),
            header=self.header,
            skip=_count("skip", self.skip, what=what),
            pads=self.trailing_nullcols,
            trim=_BLANKS if self.trim else None,
            collection=Collection(),
        )


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """FCSVPARSER: RFC 4180, or `traditional` with an escape and any end of records.

    Quotes are doubled inside quotes; with a traditional escape they may be escaped, too.
    """

    type: str = "rfc4180"
    delimiter: str = ","
    enclosed_by: str = '"'
    escape: str | None = None
    header: bool = True
    record_terminator: str = ""
    null: str = ""
    skip: int = 0
    trim: bool = False
    trailing_nullcols: bool = False
    max_record: int = 0

    def parser(self) -> Delimited:
        """Make the parser.

        Raises:
            LoadRefused: The type is another, or marks do not fit it.
        """
        what = "FCSVPARSER"
        kind = self.type.lower()
        if kind not in {"rfc4180", "traditional"}:
            raise LoadRefused(
                what=what, reason=f"type is rfc4180 or traditional, not {self.type!r}"
            )
        escape = ("\\" if kind == "traditional" else "") if self.escape is None else self.escape
        usual = check(
            FieldDialect(
                mark("delimiter", self.delimiter, what=what),
                mark("enclosed_by", self.enclosed_by, what=what, may_be_empty=True),
                b""
                if escape == self.enclosed_by
                else mark("escape", escape, what=what, may_be_empty=True),
                self.null.encode(),
            ),
            what=what,
        )
        return Delimited(
            _dialect(usual, self.record_terminator, self.max_record, blank_lines=False),
            header=self.header,
            skip=_count("skip", self.skip, what=what),
            pads=self.trailing_nullcols,
            trim=_BLANKS if self.trim else None,
            collection=Collection(),
        )


# A text that no field can say, as it is no UTF-8.
_NEVER = b"\xff\xfe\xff"


def _dialect(
    usual: FieldDialect, terminator: str, max_record: int, *, blank_lines: bool
) -> Dialect:
    limit = max_record if max_record > 0 else DEFAULT_MAX_RECORD
    return Dialect(usual, terminator.encode(), blank_lines, limit)


def _count(name: str, value: int, *, what: str) -> int:
    if value < 0:
        raise LoadRefused(what=what, reason=f"{name} is 0 or more, not {value}")
    return value
