"""One value of a row becomes what a chunk stores: the rules of streaming v1, §5.4.

This is the exact path; `rows` converts whole columns at once where the outcome is the same.
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np

from snowmelt.errors import InvalidRow, InvalidValue, TooComplex
from snowmelt.schema.conversion.foreign_types import likeness
from snowmelt.schema.conversion.json_text import (
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_NAME,
    BeyondLimits,
    Duplicate,
    InvalidJson,
    LoneSurrogate,
    Unwritable,
    normalise,
    write,
)
from snowmelt.schema.conversion.numbers import (
    BLANKS,
    boolean,
    exact_decimal,
    fixed,
    is_narrow,
    is_number,
    real,
)
from snowmelt.schema.conversion.sdk_bytes import no_base64, no_bytes
from snowmelt.schema.conversion.timestamp_limits import (
    LIMITED,
    find_range_error,
    foreign_instant,
    instant_out_of_range,
)
from snowmelt.schema.conversion.timestamps import days, time_of_day, timestamp
from snowmelt.schema.types import (
    MAX_BINARY_BYTES,
    MAX_TEXT_BYTES,
    SEMI_STRUCTURED,
    TIMESTAMPS,
    Column,
    Compatibility,
    Kind,
)
from snowmelt.schema.value_errors import Stored, null_refused, wrong_type, wrong_value

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import tzinfo

if TYPE_CHECKING:
    Rule = Callable[[object, int], Stored]
    Convert = Callable[[object, Column, int], Stored]

_DATED = TIMESTAMPS | {Kind.DATE}


def rule_of(
    column: Column, zone: tzinfo, compatibility: Compatibility = Compatibility.STRICT
) -> Rule:
    """Return what converts a value of a column: `convert_value` with the choices made."""
    convert = _chosen(column, zone, compatibility)
    is_limited = column.kind in LIMITED

    def rule(value: object, row_index: int) -> Stored:
        stored: Stored = None
        if value is not None:
            try:
                stored = convert(value, column, row_index)
            except InvalidRow as refusal:
                if is_limited and (foreign := foreign_instant(value)) is not None:
                    raise instant_out_of_range(column, row_index, foreign) from None
                stored = _of_likeness(value, convert, column, refusal)
            except Exception as error:
                reason = f"Reading the value raised {type(error).__name__}"
                raise wrong_value(column, row_index, reason) from error
        if is_limited and isinstance(stored, int):
            range_error = find_range_error(stored, column, row_index, value)
            if range_error is not None:
                raise range_error
        if stored is None and not column.nullable:
            raise null_refused(column, row_index)
        return stored

    return rule


def convert_value(
    value: object,
    column: Column,
    *,
    zone: tzinfo,
    row_index: int,
    compatibility: Compatibility = Compatibility.STRICT,
) -> Stored:
    """Return the stored value; timestamps without a zone are clock times of `zone`.

    Raises:
        InvalidRow: if the Python type does not fit, a number is out of range, or null is refused.
        InvalidValue: if the value does not fit.
    """
    return rule_of(column, zone, compatibility)(value, row_index)


def _chosen(column: Column, zone: tzinfo, compatibility: Compatibility) -> Convert:
    kind, java, forms = column.kind, compatibility.is_java, compatibility.text_forms
    if kind in SEMI_STRUCTURED:
        return partial(document, java=java)
    if kind in TIMESTAMPS:
        # A timestamp without a zone never meets one, but in the Java client.
        meets_zone = java or kind is not Kind.TIMESTAMP_NTZ
        return partial(timestamp, zone=zone if meets_zone else None, forms=forms)
    sdk = compatibility is Compatibility.SDK_ROWS
    converts: dict[Kind, Convert] = {
        Kind.FIXED: no_bytes(fixed) if sdk else fixed,
        Kind.REAL: no_bytes(partial(real, java=False)) if sdk else partial(real, java=java),
        Kind.BOOLEAN: partial(boolean, java=java),
        Kind.TEXT: text,
        Kind.BINARY: no_base64(binary) if sdk else binary,
        Kind.DATE: partial(days, forms=forms),
        Kind.TIME: partial(time_of_day, forms=forms),
    }
    return converts[kind]


def _of_likeness(value: object, convert: Convert, column: Column, refusal: InvalidRow) -> Stored:
    """Try what an unusual value stands for; a refusal of its type names its own type."""
    plain = likeness(value)
    if plain is None:
        return None
    # Text that only stands for a moment is no text elsewhere; a moment is no time of day.
    moment = isinstance(value, np.datetime64)
    if plain is value or (moment and column.kind not in _DATED):
        raise refusal
    try:
        return convert(plain, column, int(str(refusal.fields.get("row_index", 0))))
    except InvalidValue:
        raise
    except InvalidRow:
        raise refusal from None


# --- Text and bytes: what TEXT and BINARY take (specification of v1, §5.4).

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


# --- Semi-structured values: what VARIANT, ARRAY and OBJECT take, as JSON text (§5.4).

_BLANKS = " \t\n\r"
_LIMIT = MAX_TEXT_BYTES - 64
_ALLOWED = (
    "str (JSON), bool, int, float, decimal.Decimal, datetime.date, datetime.time, datetime.datetime, uuid.UUID, bytes, list, tuple, set, "
    "numpy.ndarray, dict with str keys, a dataclass's instance"
)
_BYTES = "JSON has no bytes; send text, such as base64, or a list of numbers"
_TOO_LONG = {
    Kind.VARIANT: "Variant too long: length={} maxLength={}",
    Kind.ARRAY: "Array too large. length={} maxLength={}",
    Kind.OBJECT: "Object too large. length={} maxLength={}",
}


def document(value: object, column: Column, row_index: int, *, java: bool = True) -> str | None:
    """Return compact JSON; a string is read as JSON, and a blank VARIANT is null.

    With `java`, a text with several JSON values stays one text, and bytes are a list of signed
    numbers, as with the Java client. Otherwise both are rejected.
    """
    text = (
        _of_text(value, column, row_index, several_roots=java)
        if isinstance(value, str)
        else _of_value(value, column, row_index, signed_bytes=java)
    )
    if text == "null" and likeness(value) is None:
        return None
    if text is None:
        if column.kind is Kind.VARIANT:
            return None
        text = "null"
    if column.kind is Kind.OBJECT and not text.startswith("{"):
        raise wrong_value(column, row_index, "Not an object")
    if column.kind is Kind.ARRAY and not text.startswith("["):
        text = f"[{text}]"
    size = len(text) if text.isascii() else len(text.encode())
    if size > _LIMIT:
        raise wrong_value(column, row_index, _TOO_LONG[column.kind].format(size, _LIMIT))
    return text


def _of_text(value: str, column: Column, row_index: int, *, several_roots: bool) -> str | None:
    if not value.strip(_BLANKS):
        return None
    try:
        return normalise(value, several_roots=several_roots)
    except Duplicate as error:
        reason = f"Not a valid JSON: duplicate field {error}"
    except LoneSurrogate:
        reason = "Invalid Unicode string"
    except BeyondLimits:
        raise _too_complex(column, row_index) from None
    except InvalidJson:
        reason = "Not a valid JSON"
    raise wrong_value(column, row_index, reason)


def _of_value(value: object, column: Column, row_index: int, *, signed_bytes: bool) -> str:
    try:
        return write(value, signed_bytes=signed_bytes)
    except LoneSurrogate:
        raise _unicode(column, row_index) from None
    except Duplicate as error:
        reason = f"Not a valid JSON: duplicate field {error}"
        raise wrong_value(column, row_index, reason) from None
    except BeyondLimits:
        raise _too_complex(column, row_index) from None
    except InvalidJson:
        raise wrong_value(column, row_index, "Not a valid JSON") from None
    except Unwritable as error:
        if isinstance(error.value, (bytes, bytearray, memoryview)) and not signed_bytes:
            raise wrong_value(column, row_index, _BYTES) from None
        raise wrong_type(error.value, column, row_index, _ALLOWED) from None


def _too_complex(column: Column, row_index: int) -> TooComplex:
    reason = (
        f"nests deeper than {MAX_DEPTH} levels, has a number of more than {MAX_DIGITS} digits or "
        f"beyond the range of a double, or has a name of more than {MAX_NAME} characters"
    )
    return TooComplex(
        f"The JSON for column {column.display_name} of type {column.sql_type}, "
        f"rowIndex:{row_index}, {reason}",
        column=column.display_name,
        row_index=row_index,
        reason=f"The JSON {reason}",
    )


def _unicode(column: Column, row_index: int) -> InvalidValue:
    return wrong_value(column, row_index, "Invalid Unicode string")
