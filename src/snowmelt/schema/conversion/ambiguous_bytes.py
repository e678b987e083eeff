"""Rejection of text in rows of the official Python SDK that may stand for bytes.

JSON has no bytes. The SDK writes `bytes` and `bytearray` as hexadecimal digits, as every client is
instructed to, and a `memoryview` always as base64. The wire format does not tell which it was. Text
that its column would read as something else is rejected where that can be detected.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from snowmelt.schema.conversion.numbers import TRIMMED_CHARACTERS
from snowmelt.schema.value_errors import StoredValue, wrong_value_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.schema.types import Column

    Value = TypeVar("Value", bound=StoredValue)
    Convert = Callable[[object, Column, int], Value]

_MAX_SHOWN_CHARACTERS = 80
# No number that the SDK writes by itself begins so: decimals have no leading zero.
_HEX_BYTES_PATTERN = re.compile(r"0[0-9](?:[0-9]{2})*", re.ASCII)
# The digits that the SDK writes are small letters; base64 has groups of four.
_BASE64_PATTERN = re.compile(r"(?=.*[A-F])(?:[0-9A-Fa-f]{4})+", re.ASCII)


def wrap_to_reject_hex_text(convert: Convert[Value]) -> Convert[Value]:
    """Return a conversion of numbers that rejects text which may be the digits of bytes."""

    def checked(value: object, column: Column, row_index: int) -> Value:
        if isinstance(value, str) and _HEX_BYTES_PATTERN.fullmatch(value.strip(TRIMMED_CHARACTERS)):
            reason = (
                f"Ambiguous text {value[:_MAX_SHOWN_CHARACTERS]!r}: a number with a leading zero, or bytes, which the "
                "SDK writes as hexadecimal digits. Send a number"
            )
            raise wrong_value_error(column, row_index, reason)
        return convert(value, column, row_index)

    return checked


def wrap_to_reject_base64_text(convert: Convert[Value]) -> Convert[Value]:
    """Return a conversion of hexadecimal text that rejects what may be the base64 of a memoryview."""

    def checked(value: object, column: Column, row_index: int) -> Value:
        if isinstance(value, str) and _BASE64_PATTERN.fullmatch(value.strip(TRIMMED_CHARACTERS)):
            reason = (
                f"Ambiguous text {value[:_MAX_SHOWN_CHARACTERS]!r}: hexadecimal digits, or a memoryview, which the SDK "
                "writes as base64. Send bytes, or digits in small letters"
            )
            raise wrong_value_error(column, row_index, reason)
        return convert(value, column, row_index)

    return checked
