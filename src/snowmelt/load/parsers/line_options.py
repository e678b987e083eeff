"""What one may choose of fixed widths, regular expressions, pairs and whole messages."""

from __future__ import annotations

from dataclasses import dataclass

from snowmelt.errors import LoadRefused
from snowmelt.load.parsers.dialect import mark
from snowmelt.load.parsers.lines import FixedWidths, LineParser, WholeMessages
from snowmelt.load.parsers.patterns import Pairs, Pattern


@dataclass(frozen=True, slots=True)
class FixedWidthOptions:
    """COPY's FIXEDWIDTH: `colsizes` are bytes, with commas between them."""

    colsizes: str
    record_terminator: str = ""
    skip: int = 0
    skip_bytes: int = 0
    trim: str = " "
    null: str = ""
    max_record: int = 0

    def parser(self) -> LineParser:
        """Make the parser.

        Raises:
            LoadRefused: The sizes are no positive whole numbers.
        """
        what = "FIXEDWIDTH"
        words = [word.strip() for word in self.colsizes.split(",")]
        if not all(word.isdecimal() and int(word) for word in words):
            reason = f"colsizes are bytes of each column, such as 4,10,2, not {self.colsizes!r}"
            raise LoadRefused(what=what, reason=reason)
        mark("TRIM", self.trim, what=what, may_be_empty=True)
        if len(self.null.encode()) > 1:
            reason = (
                f"NULL is one character, which fills the field, not {self.null!r}; give a column "
                "a NULL of its own, as wide as its field"
            )
            raise LoadRefused(what=what, reason=reason)
        return LineParser(
            FixedWidths([int(word) for word in words], self.trim, self.null),
            self.record_terminator,
            skip=self.skip,
            skip_bytes=self.skip_bytes,
            max_record=self.max_record,
        )


@dataclass(frozen=True, slots=True)
class RegexOptions:
    """FREGEXPARSER; `use_jit` and `use_utf8` have no meaning here."""

    pattern: str
    record_terminator: str = ""
    logline_column: str = ""
    use_jit: bool = True
    use_utf8: bool = True
    skip: int = 0
    max_record: int = 0

    def parser(self) -> LineParser:
        """Make the parser.

        Raises:
            LoadRefused: The pattern is none, or names no group.
        """
        pattern = Pattern(self.pattern, self.logline_column)
        return LineParser(
            pattern, self.record_terminator, skip=self.skip, max_record=self.max_record
        )


@dataclass(frozen=True, slots=True)
class PairsOptions:
    """FDELIMITEDPAIRPARSER; `assignment` is ours."""

    delimiter: str = " "
    assignment: str = "="
    record_terminator: str = ""
    trim: bool = True
    skip: int = 0
    max_record: int = 0

    def parser(self) -> LineParser:
        """Make the parser.

        Raises:
            LoadRefused: A mark is longer than a character, or both are the same.
        """
        what = "FDELIMITEDPAIRPARSER"
        if mark("delimiter", self.delimiter, what=what) == mark(
            "assignment", self.assignment, what=what
        ):
            raise LoadRefused(what=what, reason="the delimiter must differ from the assignment")
        return LineParser(
            Pairs(self.delimiter, self.assignment, trims=self.trim),
            self.record_terminator,
            skip=self.skip,
            max_record=self.max_record,
        )


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """KAFKAPARSER, which has no parameters."""

    def parser(self) -> LineParser:
        """Make the parser."""
        return LineParser(WholeMessages())
