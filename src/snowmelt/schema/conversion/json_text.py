"""JSON text, exactly: normalise what a user wrote, write what a user built.

Number text and the order of keys are kept, duplicate keys are refused at any depth, and no input
nests deeper than the interpreter can follow: the reader is a loop over tokens.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np

from snowmelt.schema.conversion.foreign_types import (
    datetime_and_nanos,
    expanded,
    has_clock,
    is_missing,
)
from snowmelt.schema.conversion.numbers import float_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Readers in Python follow a document by recursion; PySpark's takes four of a thousand calls a level.
MAX_DEPTH = 200
MAX_DIGITS = 1000
MAX_NAME = 50_000

_TOKEN = re.compile(
    r"[ \t\n\r]*(?:"
    r'(?P<string>"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")'
    r"|(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(?![0-9.eE+\-\w])"
    r"|(?P<word>true|false|null)(?!\w)"
    r"|(?P<mark>[\[\]{},:])"
    r"|(?P<end>\Z))"
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_UNSAFE = re.compile(r'[\x00-\x1f"\\]')
_SURROGATE = re.compile("[\ud800-\udfff]")
# Up to so many characters no number without an exponent is beyond a double.
_SURELY_DOUBLE = 300
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WRITTEN = {
    **{chr(code): f"\\u{code:04X}" for code in range(32)},
    **{char: f"\\{letter}" for letter, char in _SHORT.items()},
    '"': '\\"',
    "\\": "\\\\",
}
_PLAIN_LOW, _PLAIN_HIGH = Decimal("1e-3"), Decimal("1e7")

_VALUE, _FIRST_VALUE, _FIRST_KEY, _KEY, _COLON, _AFTER, _DONE = range(7)


class InvalidJson(ValueError):
    """The text is not JSON."""


class Duplicate(InvalidJson):
    """An object has a key twice; the text is the key."""


class BeyondLimits(InvalidJson):
    """The document nests too deep, or has a number or a name that is too long or too large."""


class LoneSurrogate(InvalidJson):
    """A string holds half a surrogate pair."""


class Unwritable(TypeError):
    """A value has no JSON form."""

    def __init__(self, value: object) -> None:
        super().__init__(type(value).__name__)
        self.value = value


def normalise(text: str, *, several_roots: bool = False) -> str:
    """Return the JSON value in a text without white space and with canonical escapes.

    With `several_roots` there may be more than one; a blank parts them.

    Raises:
        InvalidJson: if it is not a value of strict JSON, or more than are wanted.
    """
    if not text.isascii() and _SURROGATE.search(text):
        raise LoneSurrogate
    return "".join(_Normaliser(several_roots=several_roots).pieces(text))


class _Normaliser:
    """The state of one reading: open containers (a set of keys, or None for an array)."""

    def __init__(self, *, several_roots: bool) -> None:
        self._several_roots = several_roots
        self.open: list[set[str] | None] = []
        self.state = _VALUE

    def pieces(self, text: str) -> Iterator[str]:
        position = 0
        while True:
            token = _TOKEN.match(text, position)
            if token is None:
                raise InvalidJson
            kind = token.lastgroup
            if kind == "end":
                if self.state != _DONE:
                    raise InvalidJson
                return
            if self.state == _DONE and self._several_roots:
                # A bare number must end before the next value begins.
                if text[position - 1] in "0123456789" and token.start(kind or 0) == position:
                    raise InvalidJson
                self.state = _VALUE
                yield " "
            position = token.end()
            written = token[kind or 0]
            if kind == "mark":
                self._mark(written)
            elif kind == "string":
                written = self._string(written)
            else:
                self._scalar(written)
            yield written

    def _scalar(self, written: str) -> None:
        if self.state not in {_VALUE, _FIRST_VALUE}:
            raise InvalidJson
        if len(written) > MAX_DIGITS and sum(map(str.isdecimal, written)) > MAX_DIGITS:
            raise BeyondLimits
        _check_magnitude(written)
        self.state = _AFTER if self.open else _DONE

    def _string(self, written: str) -> str:
        content = _unescaped(written[1:-1])
        if self.state in {_VALUE, _FIRST_VALUE}:
            self.state = _AFTER if self.open else _DONE
            return quoted(_sound(content))
        keys = self.open[-1] if self.open else None
        if self.state not in {_FIRST_KEY, _KEY} or keys is None:
            raise InvalidJson
        if len(content) > MAX_NAME:
            raise BeyondLimits
        # Halves of pairs are still told apart here, though each becomes a `?`.
        _add_key(keys, content)
        self.state = _COLON
        return quoted(_sound(content))

    def _mark(self, mark: str) -> None:
        if mark in "[{":
            if self.state not in {_VALUE, _FIRST_VALUE}:
                raise InvalidJson
            if len(self.open) >= MAX_DEPTH:
                raise BeyondLimits
            self.open.append(set() if mark == "{" else None)
            self.state = _FIRST_KEY if mark == "{" else _FIRST_VALUE
        elif mark in "]}":
            if self.state not in {_AFTER, _FIRST_VALUE if mark == "]" else _FIRST_KEY}:
                raise InvalidJson
            if (self.open.pop() is None) != (mark == "]"):
                raise InvalidJson
            self.state = _AFTER if self.open else _DONE
        elif mark == ",":
            if self.state != _AFTER:
                raise InvalidJson
            self.state = _VALUE if self.open[-1] is None else _KEY
        elif self.state == _COLON:
            self.state = _VALUE
        else:
            raise InvalidJson


def write(value: object, *, signed_bytes: bool = True) -> str:
    """Return the JSON text of Python values.

    Args:
        value: What to write.
        signed_bytes: Write bytes as a list of numbers from -128 to 127, as Java does.

    Raises:
        Unwritable: if a value or key has no JSON form.
        InvalidJson: if it nests too deep, has a key twice, a number beyond a double, or half a
            surrogate pair.
    """
    pieces: list[str] = []
    _write(value, pieces, 0, signed_bytes)
    return "".join(pieces)


def quoted(text: str) -> str:
    """Return a JSON string."""
    if _UNSAFE.search(text) is None:
        return f'"{text}"'
    return '"' + _UNSAFE.sub(lambda found: _WRITTEN[found[0]], text) + '"'


def _write(value: object, pieces: list[str], depth: int, signed_bytes: bool) -> None:
    if isinstance(value, dict):
        _write_object(value, pieces, depth + 1, signed_bytes)
    elif isinstance(value, (list, tuple)):
        _write_array(value, pieces, depth + 1, signed_bytes)
    elif (text := _scalar_text(value)) is not None:
        pieces.append(text)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        # The items of a wider view are machine words, and their bytes the machine's own.
        if not signed_bytes or (isinstance(value, memoryview) and value.itemsize != 1):
            raise Unwritable(value)
        signed = (byte - 256 if byte > 127 else byte for byte in bytes(value))
        pieces.append("[" + ",".join(map(str, signed)) + "]")
    elif (fields := _fields(value)) is not None:
        _write_object(fields, pieces, depth + 1, signed_bytes)
    elif (items := _items(value)) is not None:
        _write_array(items, pieces, depth + 1, signed_bytes)
    elif isinstance(value, Enum):
        _write(value.value, pieces, depth, signed_bytes)
    else:
        raise Unwritable(value)


def _write_object(
    value: Mapping[object, object], pieces: list[str], depth: int, signed_bytes: bool
) -> None:
    if depth > MAX_DEPTH:
        raise BeyondLimits
    keys: set[str] = set()
    before = "{"
    for key, item in value.items():
        if not isinstance(key, str):
            raise Unwritable(key)
        _add_key(keys, key)
        pieces.append(before + _text(key) + ":")
        _write(item, pieces, depth, signed_bytes)
        before = ","
    pieces.append("{}" if before == "{" else "}")


def _write_array(
    value: Sequence[object], pieces: list[str], depth: int, signed_bytes: bool
) -> None:
    if depth > MAX_DEPTH:
        raise BeyondLimits
    before = "["
    for item in value:
        pieces.append(before)
        _write(item, pieces, depth, signed_bytes)
        before = ","
    pieces.append("[]" if before == "[" else "]")


def _fields(value: object) -> Mapping[object, object] | None:
    if isinstance(value, Mapping):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclass_fields(value)}
    return None


def _items(value: object) -> list[object] | None:
    if isinstance(value, np.ndarray):
        # Not tolist(): a float32 keeps its own shortest text.
        return [value[()]] if value.ndim == 0 else list(value)
    return list(value) if isinstance(value, (set, frozenset, deque)) else None


def _scalar_text(value: object) -> str | None:
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, (bool, np.bool_)):
        return "null" if value is None else "true" if value else "false"
    if isinstance(value, np.timedelta64):
        raise Unwritable(value)  # NumPy counts it among the integers
    if isinstance(value, (int, np.integer)):
        return _limited(format(Decimal(int(value)), "f"))
    if isinstance(value, (float, np.floating)):
        return _float(value)
    return _decimal(value) if isinstance(value, Decimal) else _other_text(value)


def _other_text(value: object) -> str | None:
    if isinstance(value, UUID):
        return quoted(str(value))
    if is_missing(value):
        return "null"
    if isinstance(value, np.datetime64):
        return _numpy_moment(value)
    return _date_or_time(value)


def _date_or_time(value: object) -> str | None:
    if isinstance(value, datetime):
        nanos = value.microsecond * 1000 + getattr(value, "nanosecond", 0)
        return quoted(f"{value.date().isoformat()}T{_clock(value, nanos)}{_zone(value)}")
    if isinstance(value, time):
        nanos = value.microsecond * 1000 + getattr(value, "nanosecond", 0)
        return quoted(_clock(value, nanos) + _zone(value))
    if isinstance(value, date):
        return quoted(value.isoformat())
    return None


def _numpy_moment(value: np.datetime64) -> str:
    found = datetime_and_nanos(value)
    if found is None:
        # A clock time of a year that a datetime does not have.
        day, _, rest = expanded(value).partition("T")
        return quoted(f"{day}T{_clock(time.fromisoformat(rest[:8]), 0)}" if rest else day)
    clock, nanos = found
    day = clock.date().isoformat()
    return quoted(f"{day}T{_clock(clock, nanos)}" if has_clock(value) else day)


def _text(value: str) -> str:
    if not value.isascii() and _SURROGATE.search(value):
        raise LoneSurrogate
    return quoted(value)


def _float(value: float | np.floating) -> str:
    """Write a float as the official client does: 1.0, 1.0E10, 1.0E-7."""
    if not np.isfinite(value):
        return quoted(_special(float(value)))
    text = float_text(value)
    number = Decimal(text)
    if not number:
        return "-0.0" if text.startswith("-") else "0.0"
    if _PLAIN_LOW <= abs(number) < _PLAIN_HIGH:
        plain = format(number, "f")
        return plain if "." in plain else plain + ".0"
    digits = "".join(map(str, number.as_tuple().digits)).rstrip("0")
    sign = "-" if number < 0 else ""
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{number.adjusted()}"


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        # A signalling NaN is one; no float is made of it.
        return quoted("NaN" if value.is_nan() else _special(float(value)))
    # A decimal zero has no sign.
    return _limited(str(value or value.copy_abs()))


def _limited(number: str) -> str:
    if len(number) > MAX_DIGITS and sum(map(str.isdecimal, number)) > MAX_DIGITS:
        raise BeyondLimits
    _check_magnitude(number)
    return number


def _check_magnitude(number: str) -> None:
    """Check a number that engines read as a double, where it would be infinite."""
    exact = len(number) <= _SURELY_DOUBLE and "E" not in number and "e" not in number
    if not exact and number[:1] not in "tfn" and math.isinf(float(number)):
        raise BeyondLimits


def _special(value: float) -> str:
    if value != value:
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _clock(value: time | datetime, nanos: int) -> str:
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


def _zone(value: time | datetime) -> str:
    offset = value.utcoffset()
    if offset is None:
        return ""
    seconds = offset // timedelta(seconds=1)
    if not seconds:
        return "Z"
    hours, rest = divmod(abs(seconds), 3600)
    text = f"{'-' if seconds < 0 else '+'}{hours:02}:{rest // 60:02}"
    return f"{text}:{rest % 60:02}" if rest % 60 else text


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    text = _ESCAPE.sub(_character, text)
    if _SURROGATE.search(text) is None:
        return text
    # Escaped pairs are joined.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _sound(text: str) -> str:
    # What stays half a pair becomes `?`, as on the wire.
    return text if text.isascii() else _SURROGATE.sub("?", text)


def _character(found: re.Match[str]) -> str:
    if found[1]:
        return chr(int(found[1], 16))
    return _SHORT.get(found[2], found[2])


def _add_key(keys: set[str], key: str) -> None:
    # The reference parser compares keys without trailing NULs.
    known = key.rstrip("\x00")
    if known in keys:
        raise Duplicate(known)
    keys.add(known)
