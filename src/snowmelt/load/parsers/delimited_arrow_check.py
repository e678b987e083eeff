"""Blocks of delimited records prepared for Arrow, only if Arrow reads them exactly as required.

The reference is `delimited_text.DelimitedRecordReader`. A quote toggles between outside and inside.
That is correct for a whole block if each opening quote stands at the start of a field (or after a
quote that it doubles) and each closing quote at the end of one. Line ends outside quotes are then
the ends of records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from snowmelt.load.parsers.delimited_text import DelimitedDialect

    Places = NDArray[np.int64]

_LINE_FEED = 10
_CARRIAGE_RETURN = 13
UTF8_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ArrowBlock:
    """Whole records at the front of a block: lines, but for line ends inside quotes.

    The first `data_length` bytes of `data` are what Arrow may read as CSV: the records, their ends made
    line ends. `source_length` is what they take in the block. `quotes` are where the quotes are.
    """

    data: bytes
    data_length: int
    source_length: int
    has_quotes: bool
    has_escapes: bool
    quotes: Places | None
    terminator_length: int

    def has_blank_lines(self) -> bool:
        """Tell whether two line ends follow each other, be it inside quotes."""
        data = self.data[: self.data_length]
        begins = data.startswith((b"\n", b"\r\n"))
        return begins or b"\n\n" in data or (b"\r" in data and b"\n\r\n" in data)

    def find_record_ends(self) -> Places:
        """Return where each record ends in `data`, behind its line end."""
        values = np.frombuffer(self.data, np.uint8, self.data_length)
        ends = np.flatnonzero(values == _LINE_FEED) + 1
        if self.quotes is not None:
            ends = ends[np.searchsorted(self.quotes, ends) % 2 == 0]
        return ends


def prepare_arrow_block(
    data: bytes, dialect: DelimitedDialect, *, is_last: bool
) -> ArrowBlock | None:
    """Return the layout of a block's whole records; None if they must be read exactly."""
    usual = dialect.default_field
    terminator = dialect.terminator or b"\n"
    if _is_unsupported_by_arrow(dialect) or data.startswith(UTF8_BOM):
        return None
    if is_last and not data.endswith(terminator):
        # So that the last record ends like the others, unless that would end it earlier.
        if data.endswith((b"\r", terminator[:-1] or terminator)):
            return None
        data += terminator
    quoted = bool(usual.quote) and usual.quote in data
    escaped = bool(usual.escape) and usual.escape != usual.quote and usual.escape in data
    if ((quoted or escaped) and not _has_standard_terminator(dialect)) or (
        escaped and (quoted or usual.null)
    ):
        return None
    if dialect.field_overrides and (escaped or (quoted and _may_have_quoted_null(data, dialect))):
        return None
    quotes, size = None, data.rfind(terminator) + len(terminator)
    if quoted:
        quotes, size = _find_quotes_and_last_end(data, usual.quote[0], usual.delimiter[0])
    elif escaped:
        size = _find_last_unescaped_end(data, usual.escape[0])
    elif size < len(terminator):
        size = 0
    lines = None if quoted and quotes is None else _normalize_record_ends(data, size, dialect)
    if lines is None or (escaped and b"\r" in lines):
        return None
    length = size if lines is data else len(lines)
    return ArrowBlock(
        lines,
        length,
        size,
        has_quotes=quoted,
        has_escapes=escaped,
        quotes=quotes,
        terminator_length=len(terminator),
    )


def _is_unsupported_by_arrow(dialect: DelimitedDialect) -> bool:
    """Tell whether Arrow knows no such marks: none for one column, and no byte of 0."""
    usual = dialect.default_field
    return (
        dialect.is_terminator_self_overlapping
        or dialect.null_overrides is None
        or b"\0" in usual.delimiter + usual.quote
    )


def _may_have_quoted_null(data: bytes, dialect: DelimitedDialect) -> bool:
    """Tell whether there may be a quoted field that would be NULL without its quotes."""
    usual, own = dialect.default_field, dialect.null_overrides or {}
    return any(usual.quote + null + usual.quote in data for null in {usual.null, *own.values()})


def _has_standard_terminator(dialect: DelimitedDialect) -> bool:
    return dialect.terminator in {b"", b"\n", b"\r\n"}


def _normalize_record_ends(data: bytes, size: int, dialect: DelimitedDialect) -> bytes | None:
    """Return the records as lines; None where a line end would be made of what is none."""
    returns = data.count(b"\r", 0, size) if b"\r" in data else 0
    if dialect.terminator in {b"", b"\r\n"} and returns:
        pairs = data.count(b"\r\n", 0, size)
        lines = data.count(b"\n", 0, size) if dialect.terminator else pairs
        # A line end alone is data where records end with both.
        return data if returns == pairs == lines else None
    if returns:
        return None
    if dialect.terminator in {b"", b"\n"}:
        return data
    if b"\n" in data:
        return None
    return data[:size].replace(dialect.terminator, b"\n")


def _find_last_unescaped_end(data: bytes, escape: int) -> int:
    end = data.rfind(b"\n")
    while end >= 0:
        before = end
        while before > 0 and data[before - 1] == escape:
            before -= 1
        if (end - before) % 2 == 0:
            return end + 1
        end = data.rfind(b"\n", 0, end)
    return 0


def _find_quotes_and_last_end(data: bytes, quote: int, delimiter: int) -> tuple[Places | None, int]:
    """Return the quotes and the last record end outside them; no quotes if one is out of place."""
    values = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(values == quote)
    before, end = 0, data.rfind(b"\n")
    while end >= 0:
        before = int(np.searchsorted(quotes, end))
        if before % 2 == 0:
            break
        end = data.rfind(b"\n", 0, int(quotes[before - 1]))
    if end < 0:
        return None, 0
    quotes = quotes[:before]
    opening, closing = quotes[0::2], quotes[1::2]
    left = values[opening - 1]
    begins = (left == delimiter) | (left == _LINE_FEED) | (left == quote) | (opening == 0)
    right = values[closing + 1]
    ends = (
        (right == delimiter)
        | (right == _LINE_FEED)
        | (right == quote)
        | (right == _CARRIAGE_RETURN)
    )
    fits = begins.all() and ends.all()
    return (quotes if fits else None), end + 1
