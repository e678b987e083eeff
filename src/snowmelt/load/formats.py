"""How a column's texts are rewritten before they are read: date formats, and bytes in digits.

Templates are those of `TO_DATE` and `TO_TIMESTAMP` (`snowmelt.load.templates`). `docs/copy-functions.md`
lists what FORMAT takes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from snowmelt.errors import InvalidValue, LoadRefused
from snowmelt.load.templates import TemplateInvalid, TemplateReader
from snowmelt.schema.numbers import BLANKS
from snowmelt.schema.types import TIMESTAMPS, Column, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOSE = re.compile(
    r"([+-]?[0-9]{4,10}-[0-9]{2}-[0-9]{2})[ Tt]([0-9]{2})(:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]*)?)?)?"
    r" ?([Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)
_WITHOUT_COLON = 5
_OCTAL = re.compile(r"(?:[0-3][0-7]{2})*")
_HEX = re.compile(r"(?:0[xX])?((?:[0-9a-fA-F]{2})*)")
_BITS = re.compile(r"(?:[01]{8})*")


class Rewriting:
    """Rewrites the texts of a column; `is_usual` where the usual forms are only made regular.

    `plain` is a regular expression with its replacement: a column whose texts match it is
    rewritten as a whole.
    """

    def __init__(
        self,
        rewrite: Callable[[str], str],
        *,
        is_usual: bool,
        plain: tuple[str, str] | None = None,
    ) -> None:
        self._rewrite = rewrite
        self.is_usual = is_usual
        self.plain = plain

    def __call__(self, text: str) -> str:
        """Return the text as `snowmelt.schema.values` reads it.

        Raises:
            InvalidValue: It does not have the format.
        """
        return self._rewrite(text)


def reader_of(column: Column, template: str | None) -> Rewriting:
    """Return what rewrites the texts of a column with a format, or None for the usual forms.

    Raises:
        LoadRefused: The column has no such format.
    """
    timed = column.kind in {Kind.DATE, Kind.TIME} or column.kind in TIMESTAMPS
    if template is None:
        return Rewriting(_regular if timed else str, is_usual=True)
    if timed:
        return _templated(column, template)
    if column.kind is Kind.BINARY:
        known = {"HEX": _hexadecimal, "OCTAL": _octal, "BITSTRING": _bits}
        rewrite = known.get(template.upper())
        if rewrite is not None:
            return Rewriting(rewrite, is_usual=False)
        _refuse(column, "FORMAT of a binary column is HEX, OCTAL or BITSTRING")
    _refuse(column, "FORMAT is for dates, times and binary columns")
    raise AssertionError


def _refuse(column: Column, reason: str) -> None:
    raise LoadRefused(what=f"column {column.display_name}", reason=reason)


def _regular(text: str) -> str:
    """Write a moment with T, minutes and a colon in its offset."""
    match = _LOOSE.fullmatch(text.strip(BLANKS))
    if match is None:
        return text
    date, hour, rest, offset = match.groups("")
    if len(offset) == _WITHOUT_COLON:
        offset = f"{offset[:3]}:{offset[3:]}"
    return f"{date}T{hour}{rest or ':00'}{offset}"


def _hexadecimal(text: str) -> str:
    match = _HEX.fullmatch(text.strip(BLANKS))
    if match is None:
        raise InvalidValue(reason="Not pairs of hexadecimal digits, as FORMAT 'hex' expects")
    return match[1]


def _octal(text: str) -> str:
    text = text.strip(BLANKS)
    if not _OCTAL.fullmatch(text):
        raise InvalidValue(reason="Not bytes of three octal digits, as FORMAT 'octal' expects")
    return bytes(int(text[at : at + 3], 8) for at in range(0, len(text), 3)).hex()


def _bits(text: str) -> str:
    text = text.strip(BLANKS)
    if not _BITS.fullmatch(text):
        raise InvalidValue(reason="Not bits of whole bytes, as FORMAT 'bitstring' expects")
    return f"{int(text, 2):0{len(text) // 4}x}" if text else ""


def _templated(column: Column, template: str) -> Rewriting:
    is_time = column.kind is Kind.TIME
    try:
        reader = TemplateReader(template, dated=not is_time, timed=column.kind is not Kind.DATE)
    except TemplateInvalid as error:
        raise LoadRefused(
            what=f"FORMAT {template!r} of column {column.display_name}", reason=str(error)
        ) from None

    def rewrite(text: str) -> str:
        found = reader.read(text)
        return found.time if is_time else found.timestamp

    return Rewriting(rewrite, is_usual=False, plain=reader.plain)
