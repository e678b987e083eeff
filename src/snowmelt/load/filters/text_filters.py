"""Filters for text: encodings, byte-order marks, search and replace, line endings."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import TYPE_CHECKING

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.phase_definition import PhaseDefinition, PhaseParameter

if TYPE_CHECKING:
    from snowmelt.load.phase_protocols import ByteReader

# Encodings whose names differ: iconv's name to Python's.
_ICONV_ALIASES = {"ucs-2": "utf-16", "ucs-2le": "utf-16-le", "ucs-2be": "utf-16-be"}
_ICONV_ALIASES |= {"ucs-4": "utf-32", "ucs-4le": "utf-32-le", "ucs-4be": "utf-32-be"}


class Iconverter:
    """A filter that converts text from one encoding to another.

    Removes a byte-order mark of UTF-16 and UTF-32. Without a mark, uses the machine's byte order.
    """

    def __init__(self, from_encoding: str = "UTF-16", to_encoding: str = "UTF-8") -> None:
        self._from = _find_encoding(from_encoding, "from_encoding")
        self._to = _find_encoding(to_encoding, "to_encoding")

    def run(self, reader: ByteReader) -> Iterator[bytes]:
        """Yield the text in the new encoding. Invalid or missing characters raise PhaseFailed."""
        decoder = codecs.getincrementaldecoder(self._from)()
        encoder = codecs.getincrementalencoder(self._to)()
        while True:
            start = reader.offset
            piece = reader.read()
            try:
                text = decoder.decode(piece, final=not piece)
            except UnicodeDecodeError as error:
                # `error.object` is the decoder's buffered bytes plus the last slice.
                offset = reader.offset - len(error.object) + error.start
                shown = error.object[error.start : error.end][:8].hex(" ")
                reason = f"invalid {self._from} at byte {offset} ({shown}): {error.reason}"
                raise PhaseFailed(reason=reason, offset=offset) from error
            try:
                data = encoder.encode(text, final=not piece)
            except UnicodeEncodeError as error:
                shown = error.object[error.start]
                reason = f"{shown!r} (U+{ord(shown):04X}), character {error.start} after byte {start}, does not exist in {self._to}"
                raise PhaseFailed(reason=reason, offset=start) from error
            if data:
                yield data
            if not piece:
                return


class StripBom:
    """A filter that removes a UTF-8 byte-order mark, if there is one."""

    def run(self, reader: ByteReader) -> Iterator[bytes]:
        """Yield the bytes after the mark."""
        if reader.peek(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8:
            reader.read(len(codecs.BOM_UTF8))
        yield from reader


def _find_encoding(name: str, parameter: str) -> str:
    try:
        found = codecs.lookup(_ICONV_ALIASES.get(name.lower(), name)).name
        # This fails for codecs that do not encode text.
        "".encode(found)
        codecs.getincrementaldecoder(found)
        codecs.getincrementalencoder(found)
    except (LookupError, ValueError) as error:
        reason = f"unknown encoding {name!r} of {parameter}"
        raise LoadRefused(what="Iconverter", reason=reason) from error
    return found


ICONVERTER = PhaseDefinition(
    "Iconverter",
    Iconverter,
    (PhaseParameter("from_encoding", str), PhaseParameter("to_encoding", str)),
)
STRIP_BOM = PhaseDefinition("StripBom", StripBom)


_MAX_PATTERN_BYTES = 1000
_LINE_ENDINGS_BY_NAME = {"LF": b"\n", "CRLF": b"\r\n", "CR": b"\r"}


class SearchAndReplace:
    """A filter that replaces a string, from left to right. It does not search inserted text again."""

    def __init__(self, pattern: str, replace_with: str) -> None:
        self._pattern = pattern.encode()
        self._new = replace_with.encode()
        if not 1 <= len(self._pattern) <= _MAX_PATTERN_BYTES:
            reason = (
                f"the pattern must have 1 to {_MAX_PATTERN_BYTES} bytes, got {len(self._pattern)}"
            )
            raise LoadRefused(what="SearchAndReplace", reason=reason)
        # Matches may overlap if the end of the pattern equals its start. The last match found from
        # the right is then not always a match of the search from the left.
        self._overlaps = any(
            self._pattern.startswith(self._pattern[start:])
            for start in range(1, len(self._pattern))
        )

    def run(self, reader: ByteReader) -> Iterator[bytes]:
        """Yield the bytes with replacements. Matches may span slices."""
        kept = b""
        for piece in reader:
            data = kept + piece if kept else piece
            end = self._find_end_of_last_match(data)
            cut = len(data) - self._count_partial_match(data, end)
            kept = data[cut:]
            if cut:
                yield (data[:cut] if kept else data).replace(self._pattern, self._new)
        if kept:
            yield kept

    def _find_end_of_last_match(self, data: bytes) -> int:
        if self._overlaps:
            return len(data) - len(data.split(self._pattern)[-1])
        found = data.rfind(self._pattern)
        return 0 if found < 0 else found + len(self._pattern)

    def _count_partial_match(self, data: bytes, start: int) -> int:
        """Return the number of bytes at the end, after `start`, that may begin a match."""
        longest = min(len(self._pattern) - 1, len(data) - start)
        fits = (size for size in range(longest, 0, -1) if data.endswith(self._pattern[:size]))
        return next(fits, 0)


class LineEndings:
    """A filter that converts all line ends (LF, CRLF and single CR) to `to`."""

    def __init__(self, to: str = "LF") -> None:
        if to.upper() not in _LINE_ENDINGS_BY_NAME:
            raise LoadRefused(
                what="LineEndings", reason=f"invalid to: expected LF, CRLF or CR, got {to}"
            )
        self._end = _LINE_ENDINGS_BY_NAME[to.upper()]

    def run(self, reader: ByteReader) -> Iterator[bytes]:
        """Yield the bytes with the new line ends."""
        kept = b""
        for piece in reader:
            data = kept + piece if kept else piece
            # A CR at the end may be followed by LF in the next slice.
            kept = b"\r" if data.endswith(b"\r") else b""
            if ready := self._normalize_line_ends(data[:-1] if kept else data):
                yield ready
        if kept:
            yield self._end

    def _normalize_line_ends(self, data: bytes) -> bytes:
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data if self._end == b"\n" else data.replace(b"\n", self._end)


SEARCH_AND_REPLACE = PhaseDefinition(
    "SearchAndReplace",
    SearchAndReplace,
    (
        PhaseParameter("pattern", str, required=True),
        PhaseParameter("replace_with", str, required=True),
    ),
)
LINE_ENDINGS = PhaseDefinition("LineEndings", LineEndings, (PhaseParameter("to", str),))
