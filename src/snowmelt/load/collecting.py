"""Arrays as delimited files write them: `[a,b,"c,d",null]`, with marks that a load may choose."""

from __future__ import annotations

import re
from dataclasses import dataclass

from snowmelt.errors import InvalidValue
from snowmelt.schema.json import InvalidJson, normalise, quoted
from snowmelt.schema.numbers import BLANKS

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS = {"true", "false"}


@dataclass(frozen=True, slots=True)
class Collection:
    """The marks of an array: between elements, around it, around a text, and instead of NULL."""

    delimiter: str = ","
    opening: str = "["
    closing: str = "]"
    enclose: str = '"'
    null: str = "null"

    def json(self, text: str) -> str:
        """Return the array as JSON. Elements without marks are numbers, booleans or texts.

        Raises:
            InvalidValue: An array does not end, or something follows it.
        """
        text = text.strip(BLANKS)
        if self == Collection():
            try:
                return normalise(text)
            except InvalidJson:
                pass
        written, end = self._array(text, 0)
        if text[end:].strip(BLANKS):
            raise InvalidValue(reason=f"Not a valid array: something follows its {self.closing}")
        return written

    def _array(self, text: str, at: int) -> tuple[str, int]:
        if not text.startswith(self.opening, at):
            raise InvalidValue(reason=f"Not a valid array: it does not begin with {self.opening}")
        at += len(self.opening)
        elements: list[str] = []
        while True:
            element, at = self._element(text, at)
            is_last = text.startswith(self.closing, at)
            if element or elements or not is_last:
                elements.append(element or '""')
            if is_last:
                return f"[{','.join(elements)}]", at + len(self.closing)
            if not text.startswith(self.delimiter, at):
                raise InvalidValue(reason=f"Not a valid array: {self.closing} is missing")
            at += len(self.delimiter)

    def _element(self, text: str, at: int) -> tuple[str, int]:
        while text[at : at + 1] == " ":
            at += 1
        if text.startswith(self.opening, at):
            element, at = self._array(text, at)
        elif self.enclose and text.startswith(self.enclose, at):
            element, at = self._enclosed(text, at + len(self.enclose))
        else:
            ends = [text.find(mark, at) for mark in (self.delimiter, self.closing)]
            end = min((found for found in ends if found >= 0), default=len(text))
            return self._plain(text[at:end].rstrip(" ")), end
        while text[at : at + 1] == " ":
            at += 1
        return element, at

    def _enclosed(self, text: str, at: int) -> tuple[str, int]:
        pieces: list[str] = []
        while True:
            end = text.find(self.enclose, at)
            if end < 0:
                raise InvalidValue(reason=f"Not a valid array: a text lacks its {self.enclose}")
            pieces.append(text[at:end])
            at = end + len(self.enclose)
            if not text.startswith(self.enclose, at):
                return quoted("".join(pieces)), at
            pieces.append(self.enclose)
            at += len(self.enclose)

    def _plain(self, text: str) -> str:
        if text == self.null:
            return "null"
        if not text or text in _WORDS or _NUMBER.fullmatch(text):
            return text
        return quoted(text)
