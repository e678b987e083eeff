"""Exact JSON text: normalization of JSON input, and JSON output for Python values.

Preserves the text of numbers and the order of keys, and rejects duplicate keys at any depth. The
reader is a loop over tokens, so no input can exceed the interpreter's recursion limit.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from uuid import UUID

import numpy as np

from snowmelt.schema.conversion.numbers import format_java_float
from snowmelt.schema.conversion.timestamps import (
    format_datetime64,
    has_time_of_day,
    is_missing,
    split_datetime64,
)

# Maximum nesting depth. Python JSON readers are recursive: PySpark's uses 4 of 1,000 allowed stack
# frames per level.
MAX_DEPTH = 200
MAX_DIGITS = 1000
MAX_NAME_CHARACTERS = 50_000
JSON_LIMIT_REASON = (
    f"nests deeper than {MAX_DEPTH} levels, has a number of more than {MAX_DIGITS} digits or "
    f"beyond the range of a double, or has a name of more than {MAX_NAME_CHARACTERS} characters"
)

_TOKEN_PATTERN = re.compile(
    r"[ \t\n\r]*(?:"
    r'(?P<string>"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")'
    r"|(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(?![0-9.eE+\-\w])"
    r"|(?P<word>true|false|null)(?!\w)"
    r"|(?P<mark>[\[\]{},:])"
    r"|(?P<end>\Z))"
)
_ESCAPE_PATTERN = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_ESCAPED_CHARACTER_PATTERN = re.compile(r'[\x00-\x1f"\\]')
_SURROGATE_PATTERN = re.compile("[\ud800-\udfff]")
# Numbers of up to this length without an exponent are within the range of a double.
_MAX_SURE_DOUBLE_CHARACTERS = 300
_SHORT_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_ESCAPE_SEQUENCES = {
    **{chr(code): f"\\u{code:04X}" for code in range(32)},
    **{char: f"\\{letter}" for letter, char in _SHORT_ESCAPES.items()},
    '"': '\\"',
    "\\": "\\\\",
}
_MIN_PLAIN_FLOAT, _PLAIN_FLOAT_END = Decimal("1e-3"), Decimal("1e7")

(
    _EXPECT_VALUE,
    _EXPECT_FIRST_VALUE,
    _EXPECT_FIRST_KEY,
    _EXPECT_KEY,
    _EXPECT_COLON,
    _EXPECT_COMMA_OR_END,
    _EXPECT_NOTHING,
) = range(7)


class InvalidJson(ValueError):
    """Raised if a text is not JSON."""


class DuplicateKey(InvalidJson):
    """Raised if an object has a duplicate key. The message is the key."""


class JsonLimitExceeded(InvalidJson):
    """Raised if a document is nested too deeply, or a number or name exceeds its limit."""


class LoneSurrogate(InvalidJson):
    """Raised if a string contains an unpaired surrogate."""


class NotJsonSerializable(TypeError):
    """Raised if a value has no JSON form."""

    def __init__(self, value: object) -> None:
        super().__init__(type(value).__name__)
        self.value = value


def normalize_json(text: str, *, several_roots: bool = False) -> str:
    """Return the JSON value in a text without whitespace and with canonical escapes.

    With `several_roots` the text may contain several values. The result separates them with a space.

    Raises:
        InvalidJson: If the text is not strict JSON, or has an invalid number of values.
    """
    if not text.isascii() and _SURROGATE_PATTERN.search(text):
        raise LoneSurrogate
    return "".join(_JsonTextNormalizer(several_roots=several_roots).normalize_tokens(text))


def exceeds_json_limits(text: str) -> bool:
    """Return True if a text that has more brackets than the maximum depth exceeds a limit.

    Accepts text that is not JSON.
    """
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    try:
        normalize_json(text)
    except JsonLimitExceeded:
        return True
    except InvalidJson:
        pass
    return False


class _JsonTextNormalizer:
    """Parser state: stack of open containers, each the set of keys of an object, or None (array)."""

    def __init__(self, *, several_roots: bool) -> None:
        self._several_roots = several_roots
        self.open_containers: list[set[str] | None] = []
        self.state = _EXPECT_VALUE

    def normalize_tokens(self, text: str) -> Iterator[str]:
        position = 0
        while True:
            token = _TOKEN_PATTERN.match(text, position)
            if token is None:
                raise InvalidJson
            kind = token.lastgroup
            if kind == "end":
                if self.state != _EXPECT_NOTHING:
                    raise InvalidJson
                return
            if self.state == _EXPECT_NOTHING and self._several_roots:
                # Reject a value directly after a number, such as `1{}`.
                if text[position - 1] in "0123456789" and token.start(kind or 0) == position:
                    raise InvalidJson
                self.state = _EXPECT_VALUE
                yield " "
            position = token.end()
            written = token[kind or 0]
            if kind == "mark":
                self._check_delimiter(written)
            elif kind == "string":
                written = self._normalize_string(written)
            else:
                if self.state not in {_EXPECT_VALUE, _EXPECT_FIRST_VALUE}:
                    raise InvalidJson
                if len(written) > MAX_DIGITS and sum(map(str.isdecimal, written)) > MAX_DIGITS:
                    raise JsonLimitExceeded
                _check_magnitude(written)
                self.state = _EXPECT_COMMA_OR_END if self.open_containers else _EXPECT_NOTHING
            yield written

    def _normalize_string(self, literal: str) -> str:
        content = _unescape(literal[1:-1])
        if self.state in {_EXPECT_VALUE, _EXPECT_FIRST_VALUE}:
            self.state = _EXPECT_COMMA_OR_END if self.open_containers else _EXPECT_NOTHING
            return quote_json_string(_replace_lone_surrogates(content))
        keys = self.open_containers[-1] if self.open_containers else None
        if self.state not in {_EXPECT_FIRST_KEY, _EXPECT_KEY} or keys is None:
            raise InvalidJson
        if len(content) > MAX_NAME_CHARACTERS:
            raise JsonLimitExceeded
        # Compare keys before unpaired surrogates are replaced by `?`, so that different keys stay
        # distinct.
        _add_unique_key(keys, content)
        self.state = _EXPECT_COLON
        return quote_json_string(_replace_lone_surrogates(content))

    def _check_delimiter(self, delimiter: str) -> None:
        if delimiter in "[{":
            if self.state not in {_EXPECT_VALUE, _EXPECT_FIRST_VALUE}:
                raise InvalidJson
            if len(self.open_containers) >= MAX_DEPTH:
                raise JsonLimitExceeded
            self.open_containers.append(set() if delimiter == "{" else None)
            self.state = _EXPECT_FIRST_KEY if delimiter == "{" else _EXPECT_FIRST_VALUE
        elif delimiter in "]}":
            if self.state not in {
                _EXPECT_COMMA_OR_END,
                _EXPECT_FIRST_VALUE if delimiter == "]" else _EXPECT_FIRST_KEY,
            }:
                raise InvalidJson
            if (self.open_containers.pop() is None) != (delimiter == "]"):
                raise InvalidJson
            self.state = _EXPECT_COMMA_OR_END if self.open_containers else _EXPECT_NOTHING
        elif delimiter == ",":
            if self.state != _EXPECT_COMMA_OR_END:
                raise InvalidJson
            self.state = _EXPECT_VALUE if self.open_containers[-1] is None else _EXPECT_KEY
        elif self.state == _EXPECT_COLON:
            self.state = _EXPECT_VALUE
        else:
            raise InvalidJson


def format_json(value: object, *, signed_bytes: bool = True) -> str:
    """Return the JSON text of Python values.

    Args:
        value: The value to write.
        signed_bytes: Write bytes as a list of numbers from -128 to 127, as Java does.

    Raises:
        NotJsonSerializable: If a value or key has no JSON form.
        InvalidJson: If it is nested too deeply, or has a duplicate key, a number out of range for a
            double, or an unpaired surrogate.
    """
    pieces: list[str] = []
    _append_value(value, pieces, 0, signed_bytes)
    return "".join(pieces)


def quote_json_string(text: str) -> str:
    """Return a JSON string literal."""
    if _ESCAPED_CHARACTER_PATTERN.search(text) is None:
        return f'"{text}"'
    return (
        '"' + _ESCAPED_CHARACTER_PATTERN.sub(lambda found: _ESCAPE_SEQUENCES[found[0]], text) + '"'
    )


def _append_value(value: object, output: list[str], depth: int, signed_bytes: bool) -> None:
    if isinstance(value, dict):
        _append_object(value, output, depth + 1, signed_bytes)
    elif isinstance(value, (list, tuple)):
        _append_array(value, output, depth + 1, signed_bytes)
    elif (text := _format_scalar(value)) is not None:
        output.append(text)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        # Accept only items of one byte: others depend on the machine's byte order.
        if not signed_bytes or (isinstance(value, memoryview) and value.itemsize != 1):
            raise NotJsonSerializable(value)
        if depth >= MAX_DEPTH:
            raise JsonLimitExceeded
        signed = (byte - 256 if byte > 127 else byte for byte in bytes(value))
        output.append("[" + ",".join(map(str, signed)) + "]")
    elif (fields := _object_fields(value)) is not None:
        _append_object(fields, output, depth + 1, signed_bytes)
    elif (items := _array_items(value)) is not None:
        _append_array(items, output, depth + 1, signed_bytes)
    elif isinstance(value, Enum):
        _append_value(value.value, output, depth, signed_bytes)
    else:
        raise NotJsonSerializable(value)


def _append_object(
    value: Mapping[object, object], output: list[str], depth: int, signed_bytes: bool
) -> None:
    if depth > MAX_DEPTH:
        raise JsonLimitExceeded
    keys: set[str] = set()
    before = "{"
    for key, item in value.items():
        if not isinstance(key, str):
            raise NotJsonSerializable(key)
        _add_unique_key(keys, key)
        output.append(before + _format_string(key) + ":")
        _append_value(item, output, depth, signed_bytes)
        before = ","
    output.append("{}" if before == "{" else "}")


def _append_array(
    value: Sequence[object], output: list[str], depth: int, signed_bytes: bool
) -> None:
    if depth > MAX_DEPTH:
        raise JsonLimitExceeded
    before = "["
    for item in value:
        output.append(before)
        _append_value(item, output, depth, signed_bytes)
        before = ","
    output.append("[]" if before == "[" else "]")


def _object_fields(value: object) -> Mapping[object, object] | None:
    if isinstance(value, Mapping):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclass_fields(value)}
    return None


def _array_items(value: object) -> list[object] | None:
    if isinstance(value, np.ndarray):
        # Do not use `tolist()`: a float32 must have the shortest text of its own width.
        return [value[()]] if value.ndim == 0 else list(value)
    return list(value) if isinstance(value, (set, frozenset, deque)) else None


def _format_scalar(value: object) -> str | None:
    if isinstance(value, str):
        return _format_string(value)
    if value is None or isinstance(value, (bool, np.bool_)):
        return "null" if value is None else "true" if value else "false"
    if isinstance(value, np.timedelta64):
        raise NotJsonSerializable(value)  # NumPy's timedelta is a subclass of integers.
    if isinstance(value, (int, np.integer)):
        return _check_number_limits(format(Decimal(int(value)), "f"))
    if isinstance(value, (float, np.floating)):
        return _format_float(value)
    return _format_decimal(value) if isinstance(value, Decimal) else _format_foreign_scalar(value)


def _format_foreign_scalar(value: object) -> str | None:
    if isinstance(value, UUID):
        return quote_json_string(str(value))
    if is_missing(value):
        return "null"
    if isinstance(value, np.datetime64):
        found = split_datetime64(value)
        if found is None:
            # The year is out of range for `datetime`.
            day, _, rest = format_datetime64(value).partition("T")
            return quote_json_string(
                f"{day}T{_format_time(time.fromisoformat(rest[:8]), 0)}" if rest else day
            )
        clock, nanos = found
        day = clock.date().isoformat()
        return quote_json_string(
            f"{day}T{_format_time(clock, nanos)}" if has_time_of_day(value) else day
        )
    if isinstance(value, datetime):
        nanos = value.microsecond * 1000 + getattr(value, "nanosecond", 0)
        return quote_json_string(
            f"{value.date().isoformat()}T{_format_time(value, nanos)}{_format_utc_offset(value)}"
        )
    if isinstance(value, time):
        nanos = value.microsecond * 1000 + getattr(value, "nanosecond", 0)
        return quote_json_string(_format_time(value, nanos) + _format_utc_offset(value))
    if isinstance(value, date):
        return quote_json_string(value.isoformat())
    return None


def _format_string(value: str) -> str:
    if not value.isascii() and _SURROGATE_PATTERN.search(value):
        raise LoneSurrogate
    return quote_json_string(value)


def _format_float(value: float | np.floating) -> str:
    """Format a float as the official client does: 1.0, 1.0E10, 1.0E-7."""
    if not np.isfinite(value):
        return quote_json_string(_format_special_float(float(value)))
    text = format_java_float(value)
    number = Decimal(text)
    if not number:
        return "-0.0" if text.startswith("-") else "0.0"
    if _MIN_PLAIN_FLOAT <= abs(number) < _PLAIN_FLOAT_END:
        plain = format(number, "f")
        return plain if "." in plain else plain + ".0"
    digits = "".join(map(str, number.as_tuple().digits)).rstrip("0")
    sign = "-" if number < 0 else ""
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{number.adjusted()}"


def _format_decimal(value: Decimal) -> str:
    if not value.is_finite():
        # Test for NaN first, because `float()` rejects a signaling NaN.
        return quote_json_string("NaN" if value.is_nan() else _format_special_float(float(value)))
    # Remove the sign of a decimal zero.
    return _check_number_limits(str(value or value.copy_abs()))


def _check_number_limits(number: str) -> str:
    if len(number) > MAX_DIGITS and sum(map(str.isdecimal, number)) > MAX_DIGITS:
        raise JsonLimitExceeded
    _check_magnitude(number)
    return number


def _check_magnitude(number: str) -> None:
    """Raise JsonLimitExceeded if a number is out of range for a double, as engines would read it."""
    exact = len(number) <= _MAX_SURE_DOUBLE_CHARACTERS and "E" not in number and "e" not in number
    if not exact and number[:1] not in "tfn" and math.isinf(float(number)):
        raise JsonLimitExceeded


def _format_special_float(value: float) -> str:
    if value != value:
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _format_time(value: time | datetime, nanos: int) -> str:
    text = f"{value.hour:02}:{value.minute:02}"
    if not value.second and not nanos:
        return text
    text += f":{value.second:02}"
    if not nanos:
        return text
    fraction = f"{nanos:09}"
    while fraction.endswith("000"):
        fraction = fraction[:-3]
    return f"{text}.{fraction}"


def _format_utc_offset(value: time | datetime) -> str:
    offset = value.utcoffset()
    if offset is None:
        return ""
    seconds = offset // timedelta(seconds=1)
    if not seconds:
        return "Z"
    hours, rest = divmod(abs(seconds), 3600)
    text = f"{'-' if seconds < 0 else '+'}{hours:02}:{rest // 60:02}"
    return f"{text}:{rest % 60:02}" if rest % 60 else text


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    text = _ESCAPE_PATTERN.sub(
        lambda found: (
            chr(int(found[1], 16)) if found[1] else _SHORT_ESCAPES.get(found[2], found[2])
        ),
        text,
    )
    if _SURROGATE_PATTERN.search(text) is None:
        return text
    # Join escaped surrogate pairs.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _replace_lone_surrogates(text: str) -> str:
    # Replace an unpaired surrogate by `?`, as in the wire format.
    return text if text.isascii() else _SURROGATE_PATTERN.sub("?", text)


def _add_unique_key(keys: set[str], key: str) -> None:
    # Compare keys without trailing NULs, as the reference parser does.
    known = key.rstrip("\x00")
    if known in keys:
        raise DuplicateKey(known)
    keys.add(known)
