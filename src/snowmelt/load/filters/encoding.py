"""Text in other encodings, and the mark before it."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.definition import Definition, Parameter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from snowmelt.load.reader import Reader

# Names of iconv that Python has under another one.
_OTHER_NAMES = {"ucs-2": "utf-16", "ucs-2le": "utf-16-le", "ucs-2be": "utf-16-be"}
_OTHER_NAMES |= {"ucs-4": "utf-32", "ucs-4le": "utf-32-le", "ucs-4be": "utf-32-be"}


class Iconverter:
    """Turns text of one encoding into another; UTF-16 into UTF-8 when nothing is said.

    A mark at the beginning tells the order of UTF-16's and UTF-32's bytes and is taken away;
    without one it is that of this machine.
    """

    def __init__(self, from_encoding: str = "UTF-16", to_encoding: str = "UTF-8") -> None:
        self._from = _known(from_encoding, "from_encoding")
        self._to = _known(to_encoding, "to_encoding")

    def run(self, reader: Reader) -> Iterator[bytes]:
        """Yield the text in the new encoding.

        Raises:
            PhaseFailed: Bytes that are no character, one that is incomplete at the end, or one
                that the new encoding does not have; with their offset.
        """
        decoder = codecs.getincrementaldecoder(self._from)()
        encoder = codecs.getincrementalencoder(self._to)()
        while True:
            start = reader.offset
            piece = reader.read()
            try:
                text = decoder.decode(piece, final=not piece)
            except UnicodeDecodeError as error:
                raise self._illegal(error, reader.offset) from error
            try:
                data = encoder.encode(text, final=not piece)
            except UnicodeEncodeError as error:
                raise self._unknown(error, start) from error
            if data:
                yield data
            if not piece:
                return

    def _illegal(self, error: UnicodeDecodeError, read: int) -> PhaseFailed:
        # The decoder looks at what it kept of earlier pieces, and then at the last one.
        offset = read - len(error.object) + error.start
        shown = error.object[error.start : error.end][:8].hex(" ")
        reason = f"byte {offset} ({shown}) begins no character of {self._from}: {error.reason}"
        return PhaseFailed(reason=reason, offset=offset)

    def _unknown(self, error: UnicodeEncodeError, start: int) -> PhaseFailed:
        shown = error.object[error.start]
        reason = f"{shown!r} (U+{ord(shown):04X}), character {error.start} of those behind byte {start}, does not exist in {self._to}"
        return PhaseFailed(reason=reason, offset=start)


class StripBom:
    """Takes the mark that some programs write before UTF-8 away, if it is there."""

    def run(self, reader: Reader) -> Iterator[bytes]:
        """Yield the bytes behind the mark."""
        if reader.peek(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8:
            reader.read(len(codecs.BOM_UTF8))
        yield from reader


def _known(name: str, parameter: str) -> str:
    try:
        found = codecs.lookup(_OTHER_NAMES.get(name.lower(), name)).name
        # Some codecs are no encodings of text, and say so only here.
        "".encode(found)
        codecs.getincrementaldecoder(found)
        codecs.getincrementalencoder(found)
    except (LookupError, ValueError) as error:
        reason = f"{parameter} {name!r} is no known encoding"
        raise LoadRefused(what="Iconverter", reason=reason) from error
    return found


ICONVERTER = Definition(
    "Iconverter",
    Iconverter,
    (Parameter("from_encoding", str), Parameter("to_encoding", str)),
)
STRIP_BOM = Definition("StripBom", StripBom)
