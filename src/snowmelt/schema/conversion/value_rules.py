"""Conversion of one value into its stored value by the rules of streaming v1, §5.4.

This is the exact path. If the result is the same, `column_converter` converts whole columns. Two
sections convert text and bytes (TEXT, BINARY) and documents (VARIANT, ARRAY, OBJECT).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from datetime import tzinfo
from decimal import Decimal
from functools import partial
from uuid import UUID

import numpy as np

from snowmelt.errors import InvalidRow, InvalidValue, TooComplex
from snowmelt.schema.conversion.json_text import (
    JSON_LIMIT_REASON,
    DuplicateKey,
    InvalidJson,
    JsonLimitExceeded,
    LoneSurrogate,
    NotJsonSerializable,
    exceeds_json_limits,
    format_json,
    normalize_json,
)
from snowmelt.schema.conversion.numbers import (
    TRIMMED_CHARACTERS,
    convert_boolean,
    convert_fixed,
    convert_float,
    is_bmp_text,
    is_number,
    to_exact_decimal,
)
from snowmelt.schema.conversion.timestamps import (
    LIMITED_TYPES,
    convert_date,
    convert_time,
    convert_timestamp,
    describe_unrepresentable_timestamp,
    find_range_error,
    instant_range_error,
    to_plain_value,
)
from snowmelt.schema.types import (
    MAX_BINARY_BYTES,
    MAX_TEXT_BYTES,
    SEMI_STRUCTURED_TYPES,
    TIMESTAMP_TYPES,
    Column,
    Compatibility,
    LogicalType,
    StoredValue,
    null_value_error,
    wrong_type_error,
    wrong_value_error,
)

Rule = Callable[[object, int], StoredValue]
Convert = Callable[[object, Column, int], StoredValue]

_DATE_AND_TIMESTAMP_TYPES = TIMESTAMP_TYPES | {LogicalType.DATE}


def make_value_rule(
    column: Column, zone: tzinfo, compatibility: Compatibility = Compatibility.STRICT
) -> Rule:
    """Return the conversion function for values of a column. `zone` applies to timestamps without a zone.

    The function raises InvalidRow if the Python type is unsupported, a number is out of range or
    null is not allowed, and InvalidValue if the value does not fit.
    """
    convert = _select_converter(column, zone, compatibility)
    is_limited = column.kind in LIMITED_TYPES

    def rule(value: object, row_index: int) -> StoredValue:
        stored: StoredValue = None
        if value is not None:
            try:
                stored = convert(value, column, row_index)
            except InvalidRow as refusal:
                if (
                    is_limited
                    and (foreign := describe_unrepresentable_timestamp(value)) is not None
                ):
                    raise instant_range_error(column, row_index, foreign) from None
                stored = _convert_foreign_value(value, convert, column, refusal)
            except Exception as error:
                reason = f"Reading the value raised {type(error).__name__}"
                raise wrong_value_error(column, row_index, reason) from error
        if is_limited and isinstance(stored, int):
            range_error = find_range_error(stored, column, row_index, value)
            if range_error is not None:
                raise range_error
        if stored is None and not column.nullable:
            raise null_value_error(column, row_index)
        return stored

    return rule


def _select_converter(column: Column, zone: tzinfo, compatibility: Compatibility) -> Convert:
    kind, java, forms = column.kind, compatibility.is_java, compatibility.timestamp_format
    if kind in SEMI_STRUCTURED_TYPES:
        return partial(convert_json, java=java)
    if kind in TIMESTAMP_TYPES:
        # Only the rules of the Java client convert a TIMESTAMP_NTZ value through a zone.
        meets_zone = java or kind is not LogicalType.TIMESTAMP_NTZ
        return partial(convert_timestamp, zone=zone if meets_zone else None, forms=forms)
    sdk = compatibility is Compatibility.SDK_ROWS
    reject_hex = partial(_reject_ambiguous_text, *_HEX_TEXT) if sdk else _keep
    reject_base64 = partial(_reject_ambiguous_text, *_BASE64_TEXT) if sdk else _keep
    converts: dict[LogicalType, Convert] = {
        LogicalType.FIXED: reject_hex(convert_fixed),
        LogicalType.REAL: reject_hex(partial(convert_float, java=java)),
        LogicalType.BOOLEAN: partial(convert_boolean, java=java),
        LogicalType.TEXT: convert_string,
        LogicalType.BINARY: reject_base64(convert_binary),
        LogicalType.DATE: partial(convert_date, forms=forms),
        LogicalType.TIME: partial(convert_time, forms=forms),
    }
    return converts[kind]


def _convert_foreign_value(
    value: object, convert: Convert, column: Column, original_error: InvalidRow
) -> StoredValue:
    """Convert a NumPy, pandas or enumeration value as its plain value. Errors name its type."""
    plain = to_plain_value(value)
    if plain is None:
        return None
    # Reject text from a datetime64 in columns other than dates and timestamps.
    moment = isinstance(value, np.datetime64)
    if plain is value or (moment and column.kind not in _DATE_AND_TIMESTAMP_TYPES):
        raise original_error
    try:
        return convert(plain, column, int(str(original_error.fields.get("row_index", 0))))
    except InvalidValue:
        raise
    except InvalidRow:
        raise original_error from None


# Text and bytes for TEXT and BINARY (specification of v1, §5.4).

_ALLOWED_TEXT_TYPES = "str, int, float, decimal.Decimal, bool, uuid.UUID"
_ALLOWED_BINARY_TYPES = "bytes, bytearray, memoryview, str, uuid.UUID"
_BYTE_FORMATS = frozenset({"B", "b", "c"})
_MEMORYVIEW_REASON = "A memoryview must have one dimension and items of one byte (formats B, b, c)"
_HEX_PATTERN = re.compile(r"(?:[0-9a-fA-F]{2})*")
_FULLWIDTH_HEX_LETTERS = {
    ord(wide): plain for wide, plain in zip("ＡＢＣＤＥＦａｂｃｄｅｆ", "ABCDEFabcdef", strict=True)
}


def convert_string(value: object, column: Column, row_index: int) -> str:
    """Return a string, number or boolean as text, without trimming."""
    if isinstance(value, str):
        # Do not use str(): for an enumeration member it may be the name.
        written = str.__str__(value)
    elif isinstance(value, (bool, np.bool_)):
        written = "true" if value else "false"
    elif is_number(value):
        written = _format_plain_number(value, column, row_index)
    elif isinstance(value, UUID):
        written = str(value)
    else:
        raise wrong_type_error(value, column, row_index, _ALLOWED_TEXT_TYPES)
    try:
        size = len(written) if written.isascii() else len(written.encode())
    except UnicodeEncodeError:
        raise wrong_value_error(column, row_index, "Invalid Unicode string") from None
    if size > MAX_TEXT_BYTES:
        raise _too_long_error(column, row_index, size, MAX_TEXT_BYTES, "bytes")
    if column.length is not None and len(written) > column.length:
        raise _too_long_error(column, row_index, len(written), column.length, "characters")
    return written


def convert_binary(value: object, column: Column, row_index: int) -> bytes:
    """Return a copy of bytes, or the bytes of a hexadecimal text."""
    if isinstance(value, memoryview):
        if value.format not in _BYTE_FORMATS or value.ndim != 1:
            # Reject it: the bytes would depend on the machine's byte order or on the order of the
            # dimensions.
            raise wrong_value_error(column, row_index, _MEMORYVIEW_REASON)
        content = value.tobytes()
    elif isinstance(value, (bytes, bytearray)):
        content = bytes(value)
    elif isinstance(value, UUID):
        content = value.bytes
    elif isinstance(value, str):
        content = _parse_hex(value.strip(TRIMMED_CHARACTERS), column, row_index)
    else:
        raise wrong_type_error(value, column, row_index, _ALLOWED_BINARY_TYPES)
    limit = MAX_BINARY_BYTES if column.byte_length is None else column.byte_length
    if len(content) > limit:
        reason = f"Binary too long: length={len(content)} maxLength={limit}"
        raise wrong_value_error(column, row_index, reason)
    return content


def _parse_hex(digits: str, column: Column, row_index: int) -> bytes:
    """Parse pairs of hexadecimal digits. Accepts decimal digits of any alphabet, as on the wire."""
    if not digits.isascii() and is_bmp_text(digits):
        digits = "".join(
            digit if digit.isascii() else str(unicodedata.decimal(digit, digit))
            for digit in digits.translate(_FULLWIDTH_HEX_LETTERS)
        )
    if not _HEX_PATTERN.fullmatch(digits):
        raise wrong_value_error(column, row_index, "Not a valid hex string")
    return bytes.fromhex(digits)


def _format_plain_number(value: object, column: Column, row_index: int) -> str:
    """Write a number without exponent and without trailing zeros."""
    number = to_exact_decimal(value)
    if number is None:
        raise wrong_value_error(column, row_index, "Not a valid number")
    if not number:
        return "0"
    # Check the size first: a few characters can represent gigabytes of digits.
    exponent = number.as_tuple().exponent
    size = max(number.adjusted() + 1, -(exponent if isinstance(exponent, int) else 0))
    if size > MAX_TEXT_BYTES:
        raise _too_long_error(column, row_index, size, MAX_TEXT_BYTES, "bytes")
    # Do not use format(): a subclass, such as a member of an enumeration, can override it.
    plain = Decimal.__format__(number, "f")
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def _too_long_error(column: Column, row_index: int, size: int, limit: int, unit: str) -> Exception:
    reason = f"String too long: length={size} {unit} maxLength={limit} {unit}"
    return wrong_value_error(column, row_index, reason)


# Semi-structured values for VARIANT, ARRAY and OBJECT, as JSON text (§5.4).

_JSON_WHITESPACE = " \t\n\r"
_MAX_JSON_BYTES = MAX_TEXT_BYTES - 64
_ALLOWED_JSON_TYPES = (
    "str (JSON), bool, int, float, decimal.Decimal, datetime.date, datetime.time, datetime.datetime, uuid.UUID, bytes, list, tuple, set, "
    "numpy.ndarray, dict with str keys, a dataclass's instance"
)
_BYTES_REASON = "JSON has no bytes; send text, such as base64, or a list of numbers"
_TOO_LONG_REASONS = {
    LogicalType.VARIANT: "Variant too long: length={} maxLength={}",
    LogicalType.ARRAY: "Array too large. length={} maxLength={}",
    LogicalType.OBJECT: "Object too large. length={} maxLength={}",
}


def convert_json(value: object, column: Column, row_index: int, *, java: bool = True) -> str | None:
    """Return compact JSON. A string is parsed as JSON, and a blank VARIANT is null.

    With `java`, a text with several JSON values is kept as one text, and bytes become a list of
    signed numbers, as in the Java client. Otherwise, both are rejected.
    """
    text = (
        _normalize_json_text(value, column, row_index, several_roots=java)
        if isinstance(value, str)
        else _format_json_value(value, column, row_index, signed_bytes=java)
    )
    if text == "null" and to_plain_value(value) is None:
        return None
    if text is None:
        if column.kind is LogicalType.VARIANT:
            return None
        text = "null"
    if column.kind is LogicalType.OBJECT and not text.startswith("{"):
        raise wrong_value_error(column, row_index, "Not an object")
    if column.kind is LogicalType.ARRAY and not text.startswith("["):
        text = f"[{text}]"
        if exceeds_json_limits(text):
            raise _too_complex_error(column, row_index)
    size = len(text) if text.isascii() else len(text.encode())
    if size > _MAX_JSON_BYTES:
        raise wrong_value_error(
            column, row_index, _TOO_LONG_REASONS[column.kind].format(size, _MAX_JSON_BYTES)
        )
    return text


def _normalize_json_text(
    value: str, column: Column, row_index: int, *, several_roots: bool
) -> str | None:
    if not value.strip(_JSON_WHITESPACE):
        return None
    try:
        return normalize_json(value, several_roots=several_roots)
    except DuplicateKey as error:
        reason = f"Not a valid JSON: duplicate field {error}"
    except LoneSurrogate:
        reason = "Invalid Unicode string"
    except JsonLimitExceeded:
        raise _too_complex_error(column, row_index) from None
    except InvalidJson:
        reason = "Not a valid JSON"
    raise wrong_value_error(column, row_index, reason)


def _format_json_value(value: object, column: Column, row_index: int, *, signed_bytes: bool) -> str:
    try:
        return format_json(value, signed_bytes=signed_bytes)
    except LoneSurrogate:
        raise wrong_value_error(column, row_index, "Invalid Unicode string") from None
    except DuplicateKey as error:
        reason = f"Not a valid JSON: duplicate field {error}"
        raise wrong_value_error(column, row_index, reason) from None
    except JsonLimitExceeded:
        raise _too_complex_error(column, row_index) from None
    except InvalidJson:
        raise wrong_value_error(column, row_index, "Not a valid JSON") from None
    except NotJsonSerializable as error:
        if isinstance(error.value, (bytes, bytearray, memoryview)) and not signed_bytes:
            raise wrong_value_error(column, row_index, _BYTES_REASON) from None
        raise wrong_type_error(error.value, column, row_index, _ALLOWED_JSON_TYPES) from None


def _too_complex_error(column: Column, row_index: int) -> TooComplex:
    return TooComplex(
        f"The JSON for column {column.display_name} of type {column.sql_type}, "
        f"rowIndex:{row_index}, {JSON_LIMIT_REASON}",
        column=column.display_name,
        row_index=row_index,
        reason=f"The JSON {JSON_LIMIT_REASON}",
    )


# --- Rejection of text in rows of the official Python SDK that may represent bytes.
# JSON has no type for bytes. The SDK writes `bytes` and `bytearray` as hexadecimal digits and a
# `memoryview` as base64, and the request does not contain the original type.

_HEX_TEXT = (
    # Text in a number column that is not a number from the SDK, whose decimals have no leading
    # zero.
    re.compile(r"0[0-9](?:[0-9]{2})*", re.ASCII),
    "a number with a leading zero, or bytes, which the SDK writes as hexadecimal digits. Send a number",
)
_BASE64_TEXT = (
    # Text that may be bytes: hexadecimal digits in lower case, or base64 in groups of four
    # characters.
    re.compile(r"(?=.*[A-F])(?:[0-9A-Fa-f]{4})+", re.ASCII),
    (
        "hexadecimal digits, or a memoryview, which the SDK writes as base64. Send bytes, or "
        "digits in small letters"
    ),
)
_MAX_AMBIGUOUS_CHARACTERS = 80


def _keep(convert: Convert) -> Convert:
    return convert


def _reject_ambiguous_text(pattern: re.Pattern[str], meanings: str, convert: Convert) -> Convert:
    """Return a conversion that rejects text which may represent bytes."""

    def checked(value: object, column: Column, row_index: int) -> StoredValue:
        if isinstance(value, str) and pattern.fullmatch(value.strip(TRIMMED_CHARACTERS)):
            shown = repr(value[:_MAX_AMBIGUOUS_CHARACTERS])
            raise wrong_value_error(column, row_index, f"Ambiguous text {shown}: {meanings}")
        return convert(value, column, row_index)

    return checked
