"""Text and bytes: what TEXT and BINARY take (specification of v1, §5.4)."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np

from snowmelt.schema.numbers import BLANKS, exact_decimal, is_narrow, is_number
from snowmelt.schema.refusals import wrong_type, wrong_value
from snowmelt.schema.types import MAX_BINARY_BYTES, MAX_TEXT_BYTES

if TYPE_CHECKING:
    from snowmelt.schema.types import Column

_TEXTS = "str, int, float, decimal.Decimal, bool, uuid.UUID"
_BINARIES = "bytes, bytearray, memoryview, str, uuid.UUID"
_BYTE_FORMATS = frozenset({"B", "b", "c"})
_VIEW_REASON = "A memoryview must have one dimension and items of one byte (formats B, b, c)"
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})*")
_WIDE_LETTERS = {
    ord(wide): plain for wide, plain in zip("ＡＢＣＤＥＦａｂｃｄｅｆ", "ABCDEFabcdef", strict=True)
}


def text(value: object, column: Column, row_index: int) -> str:
    """Return the text of a string, number or boolean; nothing is trimmed."""
    if isinstance(value, str):
        # An enumeration's own str() would be its name.
        written = str.__str__(value)
    elif isinstance(value, (bool, np.bool_)):
        written = "true" if value else "false"
    elif is_number(value):
        written = _plain(value, column, row_index)
    elif isinstance(value, UUID):
        written = str(value)
    else:
        raise wrong_type(value, column, row_index, _TEXTS)
    try:
        size = len(written) if written.isascii() else len(written.encode())
    except UnicodeEncodeError:
        raise wrong_value(column, row_index, "Invalid Unicode string") from None
    if size > MAX_TEXT_BYTES:
        raise _too_long(column, row_index, size, MAX_TEXT_BYTES, "bytes")
    if column.length is not None and len(written) > column.length:
        raise _too_long(column, row_index, len(written), column.length, "characters")
    return written


def binary(value: object, column: Column, row_index: int) -> bytes:
    """Return a copy of bytes, or the bytes that hexadecimal text stands for."""
    if isinstance(value, memoryview):
        if value.format not in _BYTE_FORMATS or value.ndim != 1:
            # Its bytes would be the machine's words, or another order than the reader's.
            raise wrong_value(column, row_index, _VIEW_REASON)
        content = value.tobytes()
    elif isinstance(value, (bytes, bytearray)):
        content = bytes(value)
    elif isinstance(value, UUID):
        content = value.bytes
    elif isinstance(value, str):
        content = _of_hexadecimal(value.strip(BLANKS), column, row_index)
    else:
        raise wrong_type(value, column, row_index, _BINARIES)
    limit = MAX_BINARY_BYTES if column.byte_length is None else column.byte_length
    if len(content) > limit:
        reason = f"Binary too long: length={len(content)} maxLength={limit}"
        raise wrong_value(column, row_index, reason)
    return content


def _of_hexadecimal(digits: str, column: Column, row_index: int) -> bytes:
    """Read pairs of digits; as for the wire's parser, any alphabet's decimal digits are some."""
    if not digits.isascii() and is_narrow(digits):
        digits = "".join(
            digit if digit.isascii() else str(unicodedata.decimal(digit, digit))
            for digit in digits.translate(_WIDE_LETTERS)
        )
    if not _HEX.fullmatch(digits):
        raise wrong_value(column, row_index, "Not a valid hex string")
    return bytes.fromhex(digits)


def _plain(value: object, column: Column, row_index: int) -> str:
    """Write a number without exponent and without trailing zeros."""
    number = exact_decimal(value)
    if number is None:
        raise wrong_value(column, row_index, "Not a valid number")
    if not number:
        return "0"
    # A few characters can stand for gigabytes of digits.
    size = max(number.adjusted() + 1, -_exponent(number))
    if size > MAX_TEXT_BYTES:
        raise _too_long(column, row_index, size, MAX_TEXT_BYTES, "bytes")
    # Not format(): a subclass, as a member of an enumeration may be, can have its own.
    plain = Decimal.__format__(number, "f")
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def _exponent(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0


def _too_long(column: Column, row_index: int, size: int, limit: int, unit: str) -> Exception:
    reason = f"String too long: length={size} {unit} maxLength={limit} {unit}"
    return wrong_value(column, row_index, reason)
