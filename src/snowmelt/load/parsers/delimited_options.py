"""What COPY, FDELIMITEDPARSER and FCSVPARSER let one choose of delimited text."""

from __future__ import annotations

from dataclasses import dataclass

from snowmelt.errors import LoadRefused
from snowmelt.load.collecting import Collection
from snowmelt.load.parsers.delimited import Delimited
from snowmelt.load.parsers.dialect import DEFAULT_MAX_RECORD, Dialect, FieldDialect, check, mark

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
