"""Where the records of a block lie, found at once: only where it is surely as `fields` reads them.

A quote toggles between outside and inside. That is right for a whole block if each quote that
opens stands where a field begins (or after one that it doubles), and each that closes where one
ends; then line ends outside quotes are the ends of records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from snowmelt.load.parsers.dialect import Dialect

    Places = NDArray[np.int64]

_LINE_END = 10
_RETURN = 13
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Layout:
    """Whole records at the front of a block: lines, but for line ends inside quotes.

    `data` is what Arrow may read as CSV: the records, their ends made line ends. `size` is what
    they take in the block. `has_escapes` and `has_blank_lines` say what is in them.
    """

    data: bytes
    size: int
    has_quotes: bool
    has_escapes: bool
    has_blank_lines: bool
    quotes: Places | None
    end_width: int

    def ends(self) -> Places:
        """Return where each record ends in `data`, behind its line end."""
        values = np.frombuffer(self.data, np.uint8)
        ends = np.flatnonzero(values == _LINE_END) + 1
        if self.quotes is not None:
            ends = ends[np.searchsorted(self.quotes, ends) % 2 == 0]
        return ends


def layout_of(data: bytes, dialect: Dialect, *, is_last: bool) -> Layout | None:
    """Return the layout of a block's whole records; None if they must be read exactly."""
    usual = dialect.usual
    terminator = dialect.terminator or b"\n"
    if dialect.own or data.startswith(BOM):
        return None
    if dialect.repeats:
        return None
    if is_last and not data.endswith(terminator):
        # So that the last record ends like the others, unless that would end it earlier.
        if data.endswith((b"\r", terminator[:-1] or terminator)):
            return None
        data += terminator
    quoted = bool(usual.quote) and usual.quote in data
    escaped = bool(usual.escape) and usual.escape != usual.quote and usual.escape in data
    if (quoted and escaped) or (escaped and (usual.null or not _plain_ends(dialect))):
        return None
    quotes = None
    if quoted:
        found = _outside(data, usual.quote[0], usual.delimiter[0])
        if found is None or not _plain_ends(dialect):
            return None
        quotes, size = found
    elif escaped:
        size = _unescaped_end(data, usual.escape[0])
    else:
        size = data.rfind(terminator) + len(terminator)
        size = 0 if size < len(terminator) else size
    data = data[:size]
    lines = _as_lines(data, dialect)
    if lines is None or (escaped and b"\r" in lines):
        return None
    return Layout(
        lines,
        size,
        has_quotes=quoted,
        has_escapes=escaped,
        has_blank_lines=_has_blank_lines(lines),
        quotes=quotes,
        end_width=len(terminator),
    )


def _plain_ends(dialect: Dialect) -> bool:
    return dialect.terminator in {b"", b"\n", b"\r\n"}


def _as_lines(data: bytes, dialect: Dialect) -> bytes | None:
    """Return the records as lines; None where a line end would be made of what is none."""
    returns = data.count(b"\r") if b"\r" in data else 0
    if dialect.terminator in {b"", b"\r\n"} and returns:
        pairs = data.count(b"\r\n")
        lines = data.count(b"\n") if dialect.terminator else pairs
        # A line end alone is data where records end with both.
        return data if returns == pairs == lines else None
    if returns:
        return None
    if dialect.terminator in {b"", b"\n"}:
        return data
    if b"\n" in data:
        return None
    return data.replace(dialect.terminator, b"\n")


def _has_blank_lines(data: bytes) -> bool:
    if data.startswith((b"\n", b"\r\n")) or b"\n\n" in data:
        return True
    return b"\r" in data and b"\n\r\n" in data


def _unescaped_end(data: bytes, escape: int) -> int:
    end = data.rfind(b"\n")
    while end >= 0:
        before = end
        while before > 0 and data[before - 1] == escape:
            before -= 1
        if (end - before) % 2 == 0:
            return end + 1
        end = data.rfind(b"\n", 0, end)
    return 0


def _outside(data: bytes, quote: int, delimiter: int) -> tuple[Places, int] | None:
    """Return the quotes and the last record end outside them; None if a quote is out of place."""
    values = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(values == quote)
    before, end = 0, data.rfind(b"\n")
    while end >= 0:
        before = int(np.searchsorted(quotes, end))
        if before % 2 == 0:
            break
        end = data.rfind(b"\n", 0, int(quotes[before - 1]))
    if end < 0:
        return None
    quotes = quotes[:before]
    opening, closing = quotes[0::2], quotes[1::2]
    left = values[opening - 1]
    begins = (left == delimiter) | (left == _LINE_END) | (left == quote) | (opening == 0)
    right = values[closing + 1]
    ends = (right == delimiter) | (right == _LINE_END) | (right == quote) | (right == _RETURN)
    if not begins.all() or not ends.all():
        return None
    return quotes, end + 1
