"""JSON parser and encoder without loss of digits: 38 digits survive, decimals are not rounded.

A number without fraction and exponent is an int of any size. Any other number is a float if the
float equals the text exactly, otherwise a Decimal. Both are written as JSON numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

import msgspec

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# A sign, a point, and the 15 digits that every float keeps.
_MAX_EXACT_FLOAT_CHARS = 16
_MAX_EXPONENT = 4096


class JsonSyntaxError(ValueError):
    """The text is not JSON; the message says why and holds nothing of the text."""


def parse_json_number(text: str) -> float | Decimal:
    """Return a JSON number with fraction or exponent as the simplest type that holds it exactly.

    Raises:
        NotJson: If it is out of every reasonable range.
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
    """Return what JSON text says.

    Args:
        data: UTF-8.
        lenient: Take a byte order mark and the tokens NaN, Infinity and -Infinity, which Python's
            own `json.dumps` writes.

    Raises:
        NotJson: If it is no JSON.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return _parse_with_stdlib(data, lenient=lenient)


def _parse_with_stdlib(data: bytes, *, lenient: bool) -> object:
    """Parse what the fast decoder refuses: half surrogate pairs, and what is tolerated."""
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
    """Return compact JSON in UTF-8; a float that is not finite becomes null.

    Raises:
        TypeError: A value has no JSON form.
        ValueError: A Decimal is not finite.
    """
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_escape_surrogates(value))


def _escape_surrogates(value: object) -> object:
    """Return the value with texts that UTF-8 cannot hold as escaped JSON."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return msgspec.Raw(json.dumps(value).encode())
        return value
    if isinstance(value, Mapping):
        return {key: _escape_surrogates(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escape_surrogates(each) for each in value]
    return value
