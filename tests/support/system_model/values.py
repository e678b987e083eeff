"""Random values of column types, what each interface takes for them, and what readers return.

Nothing here uses the conversions of the product. A value has one form in the model: `Decimal` for
NUMBER, nanoseconds for times, nanoseconds since 1970 for timestamps, a pair of nanoseconds and
minutes for TIMESTAMP_TZ. `comparable` and `from_reader` return equal values if and only if a
reader has returned the value of the model.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

EXACT = Context(prec=300, rounding=ROUND_HALF_UP)
EPOCH = dt.datetime(1970, 1, 1)
MAX_TEXT, MAX_BINARY = 16_777_216, 8_388_608
DOCUMENTS = frozenset({"VARIANT", "ARRAY", "OBJECT"})
_KINDS = (
    *("NUMBER", "NUMBER", "NUMBER", "VARCHAR", "VARCHAR", "VARCHAR", "FLOAT", "BOOLEAN", "BINARY"),
    *("DATE", "TIME", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIMESTAMP_TZ"),
    *("VARIANT", "ARRAY", "OBJECT"),
)
_PLAIN = frozenset({"NUMBER", "FLOAT", "BOOLEAN", "VARCHAR", "BINARY", "DATE"})


@dataclass(frozen=True)
class ColumnType:
    """SQL type. `size` is a precision, a length or a number of fractional digits."""

    kind: str
    size: int = 0
    scale: int = 0

    @property
    def sql(self) -> str:
        if self.kind == "NUMBER":
            return f"NUMBER({self.size},{self.scale})"
        return f"{self.kind}({self.size})" if self._has_size else self.kind

    @property
    def has_companions(self) -> bool:
        """True if engines read nanoseconds or offsets from further columns."""
        return self.kind == "TIMESTAMP_TZ" or (self.is_time and self.size > 6)

    @property
    def is_time(self) -> bool:
        return self.kind == "TIME" or self.kind.startswith("TIMESTAMP")

    @property
    def is_document(self) -> bool:
        return self.kind in DOCUMENTS

    @property
    def is_plain(self) -> bool:
        """True if a plain query returns the exact value."""
        return self.kind in _PLAIN or (
            self.kind in {"TIMESTAMP_NTZ", "TIMESTAMP_LTZ"} and self.size <= 6
        )

    @property
    def _has_size(self) -> bool:
        return self.is_time or self.kind in {"VARCHAR", "BINARY"}


def random_type(source: random.Random) -> ColumnType:
    kind = source.choice(_KINDS)
    if kind == "NUMBER":
        size = source.choice([1, 5, 9, 10, 18, 19, 37, 38])
        return ColumnType(
            kind, size, source.choice([0, 0, 0, min(2, size), size if size < 38 else 37])
        )
    if kind == "VARCHAR":
        return ColumnType(kind, source.choice([1, 3, 20, MAX_TEXT]))
    if kind == "BINARY":
        return ColumnType(kind, source.choice([1, 8, MAX_BINARY]))
    if kind == "TIME" or kind.startswith("TIMESTAMP"):
        return ColumnType(kind, source.choice([0, 3, 6, 6, 7, 9, 9]))
    return ColumnType(kind)


def widen_type(column_type: ColumnType, source: random.Random) -> ColumnType | None:
    """Return a type that SET DATA TYPE accepts for this one, or None."""
    kind, size = column_type.kind, column_type.size
    if kind == "NUMBER" and size < 38:
        return ColumnType("NUMBER", source.randint(size + 1, 38), column_type.scale)
    if kind == "VARCHAR" and size < MAX_TEXT:
        return ColumnType("VARCHAR", min(size * source.choice([2, 10, 100]), MAX_TEXT))
    if kind == "BINARY" and size < MAX_BINARY:
        return ColumnType("BINARY", min(size * 2, MAX_BINARY))
    return None


# --- random values

_DAY = 86_400 * 10**9
_FIRST_LOCAL = -62_135_596_800 * 10**9
_FIRST_INSTANT = _FIRST_LOCAL + _DAY
_END = 253_402_300_800 * 10**9
_RECENT_END = 2 * 10**18
_TEXTS = (
    *("", "a", "B", "é", "e\u0301", "🦆", "\x00", "\n", '"', "'", "\\", ",", "\t", " ", "\u2028"),
    *("\ufeff", "ß", "null", "NULL", "\\N", "\U0010ffff", "\u202e", "0", "-0", "1e5", "NaN"),
    *("\r\n", "{", "[1]", "%41", "#", "$", "\x7f", "\x85", "\ufffe"),
)
_FLOATS = (
    *(0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308),
    *(-1.7976931348623157e308, 2.2250738585072014e-308, 0.1, 1e23, 2.0**53 + 2, -1.5),
)
_DATES = (
    *(dt.date.min, dt.date.max, dt.date(1969, 12, 31), dt.date(1970, 1, 1)),
    dt.date(2024, 2, 29),
)
_OFFSETS = (0, 0, 60, -60, 330, -480, 840, -720, 1, -1, 1080, -1080)
_LEAVES = (
    *(None, True, False, 0, -1, 2**63, -(2**63), 2**64, 10**37, 10**38 - 1, 10**38, 10**50),
    *(0.1, -0.0, 1e300, "", "\x00", "null", "🦆", "\u2028", 12345678901234567),
    *(Decimal("0.12345678901234567890123456789012345678"), Decimal("1E+30"), Decimal("-0.0")),
)
_FIELDS = (
    *("", "a", "A", "a.b", "k\x00", "é", "e\u0301", '"', "null", "$", "x y", "🦆", "__proto__"),
    *("'", "\\", "id", "K"),
)


def random_value(column_type: ColumnType, source: random.Random) -> Any:
    """Return a value that the type accepts, never None. Limits of the type are frequent."""
    kind, size = column_type.kind, column_type.size
    match kind:
        case "NUMBER":
            limit = 10**size - 1
            within = (source.randint(-limit, limit), source.randint(-limit, limit))
            digits = source.choice([0, 1, -1, limit, -limit, *within])
            return Decimal(digits).scaleb(-column_type.scale, context=EXACT)
        case "FLOAT":
            any_bits = struct.unpack(">d", source.randbytes(8))[0]
            return source.choice([*_FLOATS, source.random(), any_bits])
        case "BOOLEAN":
            return source.random() < 0.5
        case "VARCHAR":
            return _random_text(min(size, 12), source)
        case "BINARY":
            length = min(size, 20)
            any_bytes = source.randbytes(source.randint(0, length))
            return source.choice([b"", b"\0", b"\xff" * length, any_bytes])
        case "DATE":
            any_day = dt.date.fromordinal(source.randint(1, dt.date.max.toordinal()))
            return source.choice([*_DATES, any_day])
        case "TIME":
            edges = [0, 1, _DAY - 1, 999, _DAY - 1000]
            return _truncate(source.choice([*edges, source.randrange(_DAY)]), size)
        case "TIMESTAMP_NTZ":
            return _random_timestamp(_FIRST_LOCAL, size, source)
        case "TIMESTAMP_LTZ":
            return _random_timestamp(_FIRST_INSTANT, size, source)
        case "TIMESTAMP_TZ":
            while True:
                offset = source.choice(_OFFSETS)
                instant = _random_timestamp(_FIRST_INSTANT, size, source)
                if _FIRST_LOCAL <= instant + offset * 60 * 10**9 < _END:
                    return instant, offset
    return _random_document(kind, source)


def _random_text(limit: int, source: random.Random) -> str:
    text = ""
    while True:
        longer = text + source.choice(_TEXTS)
        if len(longer) > limit or source.random() < 0.35:
            return text
        text = longer


def _random_timestamp(first: int, digits: int, source: random.Random) -> int:
    edges = [first, _END - 1, 0, -1, 1, 999]
    within = (source.randrange(first, _END), source.randrange(0, _RECENT_END))
    return _truncate(source.choice([*edges, *within]), digits)


def _truncate(nanoseconds: int, digits: int) -> int:
    unit: int = 10 ** (9 - digits)
    return nanoseconds // unit * unit


def _random_document(kind: str, source: random.Random, depth: int = 0) -> Any:
    if depth == 0 and kind == "OBJECT":
        return _random_object(4, source, depth)
    if depth == 0 and kind == "ARRAY":
        return _random_array(4, source, depth)
    share = source.random()
    if depth > 3 or share < 0.5:
        leaf = source.choice(_LEAVES)
        # A bare null or text is stored as SQL text, not as JSON.
        return [leaf] if depth == 0 and (leaf is None or isinstance(leaf, str)) else leaf
    if share < 0.75:
        return _random_array(3, source, depth)
    return _random_object(3, source, depth)


def _random_object(limit: int, source: random.Random, depth: int) -> dict[str, Any]:
    names = source.sample(_FIELDS, source.randint(0, limit))
    return {name: _random_document("VARIANT", source, depth + 1) for name in names}


def _random_array(limit: int, source: random.Random, depth: int) -> list[Any]:
    return [_random_document("VARIANT", source, depth + 1) for _ in range(source.randint(0, limit))]


# --- what interfaces take


def write_document(value: Any) -> str:
    """Return JSON with every digit of decimal numbers."""
    if isinstance(value, dict):
        fields = (f"{json.dumps(name)}:{write_document(each)}" for name, each in value.items())
        return "{" + ",".join(fields) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(write_document, value)) + "]"
    return str(value).replace("E", "e") if isinstance(value, Decimal) else json.dumps(value)


def to_text(column_type: ColumnType, value: Any) -> str:
    """Return the text that every interface accepts for a value."""
    match column_type.kind:
        case "NUMBER":
            return format(value, "f")
        case "FLOAT":
            named = {math.inf: "Infinity", -math.inf: "-Infinity"}
            return named.get(value, "NaN" if math.isnan(value) else repr(value))
        case "BOOLEAN":
            return "true" if value else "false"
        case "VARCHAR":
            return str(value)
        case "BINARY":
            return str(value.hex())
        case "DATE":
            return str(value.isoformat())
        case "TIME":
            seconds, fraction = divmod(value, 10**9)
            return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:09}"
        case "TIMESTAMP_NTZ":
            return _iso(value)
        case "TIMESTAMP_LTZ":
            return _iso(value) + "+00:00"
        case "TIMESTAMP_TZ":
            instant, offset = value
            hours, minutes = divmod(abs(offset), 60)
            sign = "-" if offset < 0 else "+"
            return f"{_iso(instant + offset * 60 * 10**9)}{sign}{hours:02}:{minutes:02}"
    return write_document(value)


def _iso(nanoseconds: int) -> str:
    seconds, fraction = divmod(nanoseconds, 10**9)
    return f"{(EPOCH + dt.timedelta(seconds=seconds)).isoformat()}.{fraction:09}"


def to_python(column_type: ColumnType, value: Any, source: random.Random) -> Any:
    """Return the value as one of the Python types that the SDK accepts."""
    kind = column_type.kind
    if kind == "NUMBER":
        if column_type.scale == 0 and source.random() < 0.6:
            return int(value)
        return value if source.random() < 0.7 else to_text(column_type, value)
    if column_type.is_time:
        native = _native_time(kind, value) if source.random() < 0.6 else None
        return to_text(column_type, value) if native is None else native
    if column_type.is_document and source.random() < 0.4:
        return write_document(value)
    return value


def _native_time(kind: str, value: Any) -> dt.datetime | dt.time | None:
    """Return a time of Python, or None if it has nanoseconds."""
    local = value[0] + value[1] * 60 * 10**9 if kind == "TIMESTAMP_TZ" else value
    if local % 1000:
        return None
    naive = EPOCH + dt.timedelta(microseconds=local // 1000)
    match kind:
        case "TIME":
            return naive.time()
        case "TIMESTAMP_LTZ":
            return naive.replace(tzinfo=dt.UTC)
        case "TIMESTAMP_TZ":
            return naive.replace(tzinfo=dt.timezone(dt.timedelta(minutes=value[1])))
    return naive


def to_json(column_type: ColumnType, value: Any) -> str:
    """Return the JSON that the row API and the JSON parser of COPY accept."""
    if column_type.is_document:
        return write_document(value)
    if column_type.kind == "BOOLEAN":
        return "true" if value else "false"
    return json.dumps(to_text(column_type, value))


def to_sql_literal(column_type: ColumnType, value: Any) -> str:
    """Return a constant for DDL."""
    if column_type.kind == "NUMBER":
        return format(value, "f")
    if column_type.kind == "BOOLEAN":
        return "TRUE" if value else "FALSE"
    text = to_text(column_type, value).replace("\\", "\\\\").replace("'", "''")
    return f"'{text}'"


def to_spark_literal(column_type: ColumnType, value: Any) -> str:
    """Return an expression of Spark SQL for a plain value without a time zone."""
    match column_type.kind:
        case "NUMBER":
            precision = f"DECIMAL({column_type.size},{column_type.scale})"
            return f"CAST('{format(Decimal(value), 'f')}' AS {precision})"
        case "FLOAT":
            return f"CAST('{to_text(column_type, value)}' AS DOUBLE)"
        case "BOOLEAN":
            return "true" if value else "false"
        case "VARCHAR":
            return f"CAST(X'{value.encode().hex()}' AS STRING)"
        case "BINARY":
            return f"X'{value.hex()}'"
    return f"DATE'{value.isoformat()}'"


# --- what readers return


def comparable(column_type: ColumnType, value: Any) -> Any:
    """Return the value of the model in the form of `from_reader`."""
    if value is None:
        return None
    match column_type.kind:
        case "NUMBER":
            return _plain_number(value)
        case "FLOAT":
            return "nan" if math.isnan(value) else struct.pack(">d", value).hex()
        case "BINARY":
            return bytes(value).hex()
        case "DATE":
            return value.isoformat()
    return _freeze(value) if column_type.is_document else value


def from_reader(column_type: ColumnType, name: str, row: Mapping[str, Any]) -> Any:
    """Return the value of a column and its companion columns in comparable form."""
    value = row[name]
    if value is None:
        return None
    kind = column_type.kind
    if kind == "BOOLEAN" or kind == "VARCHAR":
        return value
    if column_type.is_document:
        return _freeze(json.loads(value, parse_float=Decimal))
    if not column_type.is_time:
        return comparable(column_type, value)
    nanoseconds = _microseconds(value) * 1000
    if column_type.size > 6:
        nanoseconds += row[f"{name}$ns"] or 0
    return (nanoseconds, row[f"{name}$tz"]) if kind == "TIMESTAMP_TZ" else nanoseconds


def _microseconds(value: int | dt.datetime | dt.time) -> int:
    if isinstance(value, int):
        return value
    if isinstance(value, dt.time):
        value = dt.datetime.combine(EPOCH, value)
    if value.tzinfo is not None:
        value = value.astimezone(dt.UTC).replace(tzinfo=None)
    return (value - EPOCH) // dt.timedelta(microseconds=1)


def _plain_number(value: Any) -> str:
    normal = EXACT.normalize(Decimal(value))
    return str(normal) if normal else "0"


def _freeze(value: Any) -> Any:
    """Return a document that can be compared. Numbers of over 15 digits may be doubles."""
    if isinstance(value, bool) or value is None:
        return ("constant", value)
    if isinstance(value, str):
        return ("text", value)
    if isinstance(value, dict):
        return ("object", tuple(sorted((name, _freeze(each)) for name, each in value.items())))
    if isinstance(value, list | tuple):
        return ("array", tuple(map(_freeze, value)))
    number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if not number:
        return ("number", "0")
    number = number.normalize(EXACT)
    if len(number.as_tuple().digits) > 15:
        return ("number", f"{float(number):.13e}")
    return ("number", str(number))
