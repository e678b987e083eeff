"""JSON parser and encoder that keep the digits of integers and decimals.

A number without fraction and exponent becomes an int of any size. In a message (`parse_json`), any
other number becomes a float if the float equals the text exactly, otherwise a Decimal; both are
written as JSON numbers. In a record (`decode_record`, `parse_row`), a decimal keeps all of its
digits.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Maximum length of a number that a float preserves: a sign, a point, and 15 digits.
_MAX_EXACT_FLOAT_CHARS = 16
_MAX_EXPONENT = 4096
_MAX_PLAIN_PLACES = 38
# Parts of Decimals that are not finite or have an exponent. Floats have a small e.
_DECIMAL_MARKS = (b"NaN", b"Infinity", b"E-", b"E+")


class JsonSyntaxError(ValueError):
    """The text is not JSON. The message gives the reason and does not contain the text."""


def parse_json_number(text: str) -> float | Decimal:
    """Parse a JSON number with fraction or exponent to a float if that is exact, else a Decimal.

    Raises:
        JsonSyntaxError: If the exponent is out of range.
    """
    value = float(text)
    if len(text) <= _MAX_EXACT_FLOAT_CHARS and "e" not in text and "E" not in text:
        return value
    try:
        exact = Decimal(text)
    except InvalidOperation:
        raise JsonSyntaxError("a number is out of range") from None
    if math.isfinite(value) and Decimal(repr(value)) == exact:
        return value
    if abs(exact.adjusted()) > _MAX_EXPONENT:
        raise JsonSyntaxError("a number is out of range")
    return exact


_decoder = msgspec.json.Decoder(float_hook=parse_json_number)
_encoder = msgspec.json.Encoder(decimal_format="number")


def parse_json(data: bytes, *, lenient: bool = False) -> object:
    """Parse JSON text.

    Args:
        data: UTF-8.
        lenient: Accept a byte-order mark, and the tokens NaN, Infinity and -Infinity, which
            Python's `json.dumps` writes.

    Raises:
        JsonSyntaxError: If the text is not JSON.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return _parse_with_stdlib(data, lenient=lenient)


def _parse_with_stdlib(data: bytes, *, lenient: bool) -> object:
    """Parse text that the fast decoder rejects: unpaired surrogates and lenient syntax."""
    if data.startswith(_BYTE_ORDER_MARK):
        if not lenient:
            raise JsonSyntaxError("it begins with a byte order mark")
        data = data[len(_BYTE_ORDER_MARK) :]
    try:
        return json.loads(
            data.decode(),
            parse_float=parse_json_number,
            parse_constant=float if lenient else _reject_constant,
        )
    except json.JSONDecodeError as error:
        raise JsonSyntaxError(f"{error.msg} at character {error.pos}") from None
    except UnicodeDecodeError as error:
        raise JsonSyntaxError(f"byte {error.start} is not UTF-8") from None
    except RecursionError:
        raise JsonSyntaxError("it nests too deeply") from None
    except JsonSyntaxError:
        raise
    except ValueError:
        raise JsonSyntaxError("a number is out of range") from None


def _reject_constant(token: str) -> float:
    raise JsonSyntaxError(f"{token} is not a JSON value")


def serialize_json(value: object) -> bytes:
    """Return compact JSON in UTF-8. A float or Decimal that is not finite becomes null.

    A Decimal of up to 38 places before and after its point is written without an exponent: readers
    such as Spark's VARIANT convert numbers with exponents to the nearest double.

    Raises:
        TypeError: If a value has no JSON form.
    """
    try:
        written = _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_make_writable(value))
    # msgspec writes these Decimals as Python does.
    if any(mark in written for mark in _DECIMAL_MARKS):
        return _encoder.encode(_make_writable(value))
    return written


def _make_writable(value: object) -> object:
    """Return a value with JSON for unpaired surrogates and Decimals, and None for those like NaN."""
    if isinstance(value, Decimal):
        return _make_writable_decimal(value)
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return msgspec.Raw(json.dumps(value).encode())
        return value
    if isinstance(value, Mapping):
        return {key: _make_writable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_make_writable(each) for each in value]
    return value


def _make_writable_decimal(value: Decimal) -> object:
    if not value.is_finite():
        return None
    exponent = int(value.as_tuple().exponent)
    if exponent < -_MAX_PLAIN_PLACES or max(value.adjusted(), exponent) >= _MAX_PLAIN_PLACES:
        return value
    return msgspec.Raw(format(value, "f").encode())


def _parse_written_number(text: str) -> object:
    """Convert a number with a point to a Decimal, and one with an exponent to the nearest float.

    If that float is infinite, convert the number to a Decimal.
    """
    if "e" in text or "E" in text:
        nearest = float(text)
        if math.isfinite(nearest):
            return nearest
    return _parse_decimal(text)


def _parse_decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except ArithmeticError as error:
        raise ValueError(f"the exponent of {text[:40]} is out of range") from error


_record_decoder = msgspec.json.Decoder(float_hook=_parse_written_number)
_SURROGATE_PAIR_PATTERN = rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE_PATTERN = re.compile(
    _SURROGATE_PAIR_PATTERN + rb"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL
)
_REPLACEMENT_CHARACTER = rb"\ufffd"
# Treat text whose nesting exceeds Python's recursion limit as invalid JSON.
RECORD_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError)


def decode_record(text: memoryview) -> object:
    """Return the JSON value of a text.

    An unpaired surrogate, which a client may produce by truncating a text, becomes U+FFFD.

    Raises:
        msgspec.DecodeError: If the text is not JSON. May also raise the other types in
        `RECORD_DECODE_ERRORS`.
    """
    try:
        return _record_decoder.decode(text)
    except msgspec.DecodeError:
        written = bytes(text)
        mended = _ESCAPE_PATTERN.sub(_replace_lone_surrogate, written)
        if mended == written:
            raise
    return _record_decoder.decode(mended)


def _replace_lone_surrogate(escape: re.Match[bytes]) -> bytes:
    return _REPLACEMENT_CHARACTER if escape["half"] else escape[0]


def parse_row_number(text: str) -> Decimal | float:
    """Convert a number to a Decimal, and negative zero, which SQL decimals lack, to a float.

    Raises:
        ValueError: If the exponent is out of range.
    """
    number = _parse_decimal(text)
    return number if number or text[0] != "-" else -0.0


_row_decoder = msgspec.json.Decoder(float_hook=parse_row_number)


def parse_row(text: bytes | str) -> dict[str, Any] | str:
    """Parse a JSON object, with numbers as Decimal. Return the reason if the text has no object."""
    try:
        row = _row_decoder.decode(
            text.removeprefix(_BYTE_ORDER_MARK) if isinstance(text, bytes) else text
        )
    except RECORD_DECODE_ERRORS as error:
        return f"it is not JSON: {error}"
    return row if isinstance(row, dict) else "it is JSON, but no object"
