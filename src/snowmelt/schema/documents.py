"""Semi-structured values: what VARIANT, ARRAY and OBJECT take, as JSON text (§5.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.errors import TooComplex
from snowmelt.schema.json import (
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
from snowmelt.schema.likenesses import likeness
from snowmelt.schema.refusals import wrong_type, wrong_value
from snowmelt.schema.types import MAX_TEXT_BYTES, Column, Kind

if TYPE_CHECKING:
    from snowmelt.errors import InvalidValue

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
