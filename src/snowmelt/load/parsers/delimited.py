"""Parsers for delimited text and CSV: options, header names and portion starts.

The options are those of COPY, FDELIMITEDPARSER and FCSVPARSER.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.arrow_text_casts import ArraySyntax
from snowmelt.load.column_converter import TableConverter
from snowmelt.load.parsers.delimited_block_parser import DelimitedBlockParser, RecordFieldMapping
from snowmelt.load.parsers.delimited_text import (
    DEFAULT_MAX_RECORD_BYTES,
    DelimitedDialect,
    DelimitedRecordReader,
    FieldDialect,
    check_field_dialect,
    parse_format_character,
)
from snowmelt.load.parsers.portion_stream import PortionStream, RecordBoundaryFinder
from snowmelt.load.phase_protocols import ByteReader, HeaderMismatch, ParsedBatch, ParseTarget
from snowmelt.load.portion import Portion
from snowmelt.schema.types import to_display_name, to_internal_name

# Maximum number of names in a header. No table has as many columns. Parsing a million names would
# take 5 s of CPU time.
_MAX_HEADER_NAMES = 65_536


class DelimitedParser:
    """Parser of delimited text.

    With `has_header`, the first record names the fields, and columns are matched by name,
    ignoring case. `skip_records` records are skipped at the start of a file, before the header.
    With `pads_missing_fields`, a record may have fewer fields than there are columns.
    """

    column_marks = frozenset({"delimiter", "enclosed_by", "escape", "null"})
    """Options that a column can override."""

    def __init__(
        self,
        dialect: DelimitedDialect,
        *,
        has_header: bool = False,
        skip_records: int = 0,
        pads_missing_fields: bool = False,
        trim: str | None = None,
        array_syntax: ArraySyntax | None = None,
    ) -> None:
        self._dialect = dialect
        self._has_header = has_header
        self._skip_records = skip_records
        self._pads_missing_fields = pads_missing_fields
        self._trim = trim
        self._array_syntax = array_syntax
        self._boundary = RecordBoundaryFinder(dialect)
        self.splittable = self._boundary.can_split and not has_header

    def parse(
        self, reader: ByteReader, target: ParseTarget, portion: Portion
    ) -> Iterator[ParsedBatch]:
        """Yield one batch of parsed records per block.

        Raises:
            PhaseFailed: If the header is invalid, `skip_records` exceeds a portion, or the text is
                not UTF-8. A header is invalid if it names a column twice or none of the columns.
        """
        stream = PortionStream(reader, self._boundary, portion)
        blocks = self._make_block_parser(stream, target, portion)
        if blocks is not None:
            yield from stream.parse_blocks(blocks, self._dialect.max_record_bytes)

    def _make_block_parser(
        self, stream: PortionStream, target: ParseTarget, portion: Portion
    ) -> DelimitedBlockParser | None:
        """Read the skipped records and the header. Return None if the header is missing."""
        dialect = self._dialect.with_column_options(target)
        conversion = TableConverter(target, self._array_syntax, trim=self._trim)
        count = len(conversion.columns)
        shape = RecordFieldMapping(count, list(range(count)), self._pads_missing_fields)
        if not portion.is_first:
            stream.skip_to_next_record()
            return DelimitedBlockParser(dialect, conversion, shape)
        fields = DelimitedRecordReader(dialect)
        marks = [dialect.terminator, dialect.default_field.delimiter, dialect.default_field.quote]
        stream.skip_byte_order_mark(expects_zeros=any(b"\0" in mark for mark in marks))
        for _ in range(self._skip_records):
            if stream.read_record(fields) is None and not portion.is_whole:
                raise PhaseFailed(
                    reason="SKIP exceeds the records of the first portion. Lower SKIP"
                )
        if self._has_header:
            names = stream.read_record(fields)
            if names is None:
                return None
            shape, mismatch = _match_header(
                names, target, pads_missing_fields=self._pads_missing_fields
            )
            dialect = dialect.with_overrides_at(shape.field_indexes)
            return DelimitedBlockParser(dialect, conversion, shape, mismatch)
        return DelimitedBlockParser(dialect, conversion, shape)


def _match_header(
    header: list[bytes | None], target: ParseTarget, *, pads_missing_fields: bool
) -> tuple[RecordFieldMapping, HeaderMismatch | None]:
    if len(header) > _MAX_HEADER_NAMES:
        raise PhaseFailed(
            reason=f"the header has {len(header):,} names, more than the limit of {_MAX_HEADER_NAMES:,}. "
            "Check delimiter and record terminator",
            record=0,
        )
    texts = [(name or b"").decode(errors="replace").strip() for name in header]
    names = [to_internal_name(text) for text in texts]
    places: dict[str, list[int]] = {}
    folded: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(name, []).append(place)
        folded.setdefault(name.upper(), []).append(place)
    wanted = [column.name for column in target.schema.columns]
    exact = {name for name in wanted if name in places}
    found: list[int | None] = []
    for name in wanted:
        # Names match in any case, as in Vertica. Columns whose names differ only in case must match
        # exactly.
        there = places.get(name) or [
            place for place in folded.get(name.upper(), []) if names[place] not in exact
        ]
        if len(there) > 1:
            shown = to_display_name(name)
            raise PhaseFailed(reason=f"the header names column {shown} twice", record=0)
        found.append(there[0] if there else None)
    if not any(place is not None for place in found):
        listed = ", ".join(names[:20])
        raise PhaseFailed(reason=f"the header names none of the columns; it has {listed}", record=0)
    mismatch = HeaderMismatch(
        tuple(text for place, text in enumerate(texts) if place not in found),
        tuple(
            column.display_name
            for column, place in zip(target.schema.columns, found, strict=True)
            if place is None
        ),
    )
    differs = mismatch.unknown_names or mismatch.missing_columns
    shape = RecordFieldMapping(len(names), found, pads_missing_fields)
    return shape, mismatch if differs else None


# --- Options of COPY, FDELIMITEDPARSER and FCSVPARSER.

_BLANKS = " \t"


@dataclass(frozen=True, slots=True)
class DelimitedOptions:
    r"""COPY's own options for delimited text.

    Without `record_terminator`, a record ends with `\n` or `\r\n`. `parser` validates the options.
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

    def parser(self) -> DelimitedParser:
        """Return the parser.

        Raises:
            LoadRefused: If an option is invalid, or two format characters conflict.
        """
        what = "DELIMITED"
        if self.no_escape and self.escape:
            raise LoadRefused(
                what=what, reason="ESCAPE AS and NO ESCAPE exclude each other. Remove one of them"
            )
        escape = "\\" if self.escape is None else self.escape
        return _make_parser(
            self,
            what,
            "" if self.no_escape else escape,
            self.null.encode(),
            trim=self.trim,
            array_syntax=ArraySyntax(
                self.collection_delimiter,
                self.collection_open,
                self.collection_close,
                self.collection_enclose,
                self.collection_null_element,
            ),
        )


@dataclass(frozen=True, slots=True)
class FlexDelimitedOptions:
    """Options of FDELIMITEDPARSER: columns are matched by header name, and values are trimmed.

    With `treat_empty_val_as_null`, the NULL text (empty by default) is read as NULL.
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

    def parser(self) -> DelimitedParser:
        """Return the parser.

        Raises:
            LoadRefused: If an option is invalid, or two format characters conflict.
        """
        null = self.null.encode() if self.treat_empty_val_as_null else _UNMATCHABLE_NULL
        return _make_parser(self, "FDELIMITEDPARSER", self.escape, null)


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """Options of FCSVPARSER.

    The type is `rfc4180` or `traditional`. By default, `rfc4180` has no escape character, and
    `traditional` has a backslash. A quote inside quotes is doubled, or escaped if there is an
    escape character.
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

    def parser(self) -> DelimitedParser:
        """Return the parser.

        Raises:
            LoadRefused: If the type or another option is invalid, or two format characters conflict.
        """
        what = "FCSVPARSER"
        kind = self.type.lower()
        if kind not in {"rfc4180", "traditional"}:
            raise LoadRefused(
                what=what, reason=f"invalid type {self.type!r}: expected rfc4180 or traditional"
            )
        escape = ("\\" if kind == "traditional" else "") if self.escape is None else self.escape
        escape = "" if escape == self.enclosed_by else escape
        return _make_parser(self, what, escape, self.null.encode())


@dataclass(frozen=True, slots=True)
class CopyIntoCsvOptions:
    """Options of COPYINTOCSV, the parser of COPY INTO for delimited text.

    `null_if` is a JSON array of texts. An unquoted field that equals one of them is NULL. With
    `empty_is_null`, an empty unquoted field is NULL too. Without `header`, columns match by
    position.
    """

    delimiter: str = ","
    enclosed_by: str = ""
    escape: str = "\\"
    null_if: str = '["\\\\N"]'
    empty_is_null: bool = True
    header: bool = False
    record_terminator: str = ""
    skip: int = 0
    max_record: int = 0
    trailing_nullcols: bool = False

    def parser(self) -> DelimitedParser:
        """Return the parser.

        Raises:
            LoadRefused: If an option is invalid, or two format characters conflict.
        """
        texts = [text.encode() for text in msgspec.json.decode(self.null_if, type=list[str])]
        nulls = list(dict.fromkeys([*texts, *([b""] if self.empty_is_null else [])]))
        first, *others = nulls or [_UNMATCHABLE_NULL]
        return _make_parser(self, "COPY INTO", self.escape, first, more_nulls=tuple(others))


# No field can equal this NULL text, because it is not valid UTF-8.
_UNMATCHABLE_NULL = b"\xff\xfe\xff"


def _make_parser(
    options: DelimitedOptions | FlexDelimitedOptions | CsvOptions | CopyIntoCsvOptions,
    what: str,
    escape: str,
    null: bytes,
    *,
    more_nulls: tuple[bytes, ...] = (),
    trim: str | None = None,
    array_syntax: ArraySyntax | None = None,
) -> DelimitedParser:
    is_plain = isinstance(options, DelimitedOptions)
    keeps_blank_lines = isinstance(options, DelimitedOptions | CopyIntoCsvOptions)
    trims = isinstance(options, FlexDelimitedOptions | CsvOptions) and options.trim
    delimiter, quote, escape_name = (
        ("DELIMITER", "ENCLOSED BY", "ESCAPE")
        if is_plain
        else ("delimiter", "enclosed_by", "escape")
    )
    usual = check_field_dialect(
        FieldDialect(
            parse_format_character(delimiter, options.delimiter, label=what),
            parse_format_character(quote, options.enclosed_by, label=what, may_be_empty=True),
            parse_format_character(escape_name, escape, label=what, may_be_empty=True),
            null,
            more_nulls,
        ),
        label=what,
    )
    if options.skip < 0:
        raise LoadRefused(what=what, reason=f"skip must be 0 or more, got {options.skip}")
    limit = options.max_record if options.max_record > 0 else DEFAULT_MAX_RECORD_BYTES
    return DelimitedParser(
        DelimitedDialect(usual, options.record_terminator.encode(), keeps_blank_lines, limit),
        has_header=not isinstance(options, DelimitedOptions) and options.header,
        skip_records=options.skip,
        pads_missing_fields=options.trailing_nullcols,
        trim=_BLANKS if trims else trim,
        array_syntax=array_syntax or ArraySyntax(),
    )
