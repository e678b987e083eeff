"""Edge values of every type, with the expected value or rejection."""

from __future__ import annotations

import datetime as dt
import json
import math
import struct
import sys
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable


UTC = dt.UTC
EPOCH = dt.datetime(1970, 1, 1)
TABLE = "trips.public.t"
FIRST_NS = {"NTZ": -62_135_596_800 * 10**9, "LTZ": -62_135_510_400 * 10**9}
FIRST_NS["TZ"] = FIRST_NS["LTZ"]
END_NS = 253_402_300_800 * 10**9
LONG = Context(prec=2000)
EXACT = Context(prec=200, rounding=ROUND_HALF_UP)
REJECTED = object()


@dataclass(frozen=True)
class Moment:
    """Timestamp in nanoseconds since 1970 in local time, with an optional offset."""

    local_ns: int
    offset_min: int | None

    def text(self) -> str:
        """Format in ISO 8601 with years of four digits."""
        seconds, nanos = divmod(self.local_ns, 10**9)
        written = (EPOCH + dt.timedelta(seconds=seconds)).isoformat() + f".{nanos:09}"
        if self.offset_min is None:
            return written
        sign, minutes = "-" if self.offset_min < 0 else "+", abs(self.offset_min)
        return f"{written}{sign}{minutes // 60:02}:{minutes % 60:02}"

    def python(self) -> object:
        """Return a datetime, or text if there are nanoseconds."""
        if self.local_ns % 1000:
            return self.text()
        offset = self.offset_min
        zone = None if offset is None else dt.timezone(dt.timedelta(minutes=offset))
        return (EPOCH + dt.timedelta(microseconds=self.local_ns // 1000)).replace(tzinfo=zone)


# --- Values in the form in which readers must return them


def floored(ns: int, scale: int) -> int:
    unit: int = 10 ** (9 - scale)
    return ns // unit * unit


def of_number(precision: int, scale: int) -> Callable[[Any], object]:
    def wanted(value: Any) -> object:
        number = Decimal(value) if isinstance(value, int) else value
        rounded = number.quantize(Decimal(1).scaleb(-scale), context=EXACT)
        if EXACT.abs(rounded) >= Decimal(10) ** (precision - scale):
            return REJECTED
        return canonical(rounded)

    return wanted


def canonical(number: Decimal) -> str:
    """Format a number without trailing zeros, and zero without a sign."""
    return str(EXACT.normalize(number)) if number else "0"


def bits(value: float) -> str:
    return "nan" if math.isnan(value) else struct.pack(">d", value).hex()


def of_text(limit: int) -> Callable[[Any], object]:
    def wanted(value: str) -> object:
        broken = any("\ud800" <= char <= "\udfff" for char in value)
        return REJECTED if broken or len(value) > limit else value

    return wanted


def of_bytes(limit: int) -> Callable[[Any], object]:
    return lambda value: REJECTED if len(value) > limit else value.hex()


def of_date(value: Any) -> object:
    return REJECTED if isinstance(value, str) else value.isoformat()


def of_moment(kind: str, scale: int) -> Callable[[Any], object]:
    def wanted(value: Moment) -> object:
        if kind == "NTZ":
            return floored(value.local_ns, scale)
        offset = value.offset_min or 0
        instant = floored(value.local_ns - offset * 60 * 10**9, scale)
        if not FIRST_NS[kind] <= instant < END_NS:
            return REJECTED
        return (instant, offset) if kind == "TZ" else instant

    return wanted


def plain(number: str) -> object:
    """Return a JSON number as every engine stores it: exact up to 38 digits, else a double."""
    found = LONG.normalize(Decimal(number))
    digits = len(found.as_tuple().digits)
    if not found or LONG.abs(found) < Decimal("1e-320"):
        return 0
    # Compare a number with more digits as a double, because an engine may store it as one.
    return ("number", str(found) if digits <= 15 else f"{float(found):.12e}")


def document(text: str) -> object:
    """Return JSON in a canonical form, independent of key order and number notation."""

    def freeze(value: object) -> object:
        if isinstance(value, dict):
            return ("object", tuple(sorted((key, freeze(item)) for key, item in value.items())))
        return (
            ("array", *map(freeze, value))
            if isinstance(value, list)
            else (type(value).__name__, value)
        )

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        return freeze(json.loads(text, parse_int=plain, parse_float=plain))
    finally:
        sys.setrecursionlimit(limit)


def depth_of(value: object) -> int:
    depth, level = 0, [value]
    while level:
        items = [item for each in level if isinstance(each, (list, dict)) for item in [each]]
        if not items:
            return depth
        depth += 1
        level = [x for each in items for x in (each.values() if isinstance(each, dict) else each)]
    return depth


def of_document(kind: str) -> Callable[[Any], object]:
    def wanted(value: object) -> object:
        if kind == "OBJECT" and not isinstance(value, dict):
            return REJECTED
        if kind == "ARRAY" and not isinstance(value, list):
            value = [value]
        if depth_of(value) > 200 or any(map(is_infinite, leaves(value))):
            return REJECTED
        return document(json.dumps(value))

    return wanted


def leaves(value: object) -> Iterable[object]:
    level = [value]
    while level:
        each = level.pop()
        if isinstance(each, (list, dict)):
            level += each.values() if isinstance(each, dict) else each
        else:
            yield each


def is_infinite(leaf: object) -> bool:
    return isinstance(leaf, int) and abs(leaf) >= 2**1024


# --- Generators that prefer edge values


def numbers(precision: int, scale: int) -> Callable[[random.Random], object]:
    most = 10**precision
    edges = [0, 1, -1, most - 1, 1 - most, most, -most, 5, -5, 10**scale, most // 2]

    def make(rng: random.Random) -> object:
        unscaled = rng.choice(edges) if rng.random() < 0.6 else rng.randrange(-most, most)
        extra = rng.choice([0, 0, 0, 1, 2])
        value = Decimal(unscaled * 10**extra + rng.choice([0, 0, 4, 5, -5]) * (extra > 0))
        value = value.scaleb(-scale - extra, context=EXACT)
        whole = not scale and rng.random() < 0.5
        return int(value.to_integral_value(context=EXACT)) if whole else value

    return make


def floats(rng: random.Random) -> float:
    edges = [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, -5e-324, 1.7976931348623157e308, 0.1,
             2.0**53, 1e23, -1.5]  # fmt: skip
    return rng.choice(edges) if rng.random() < 0.7 else struct.unpack(">d", rng.randbytes(8))[0]


TEXTS = ["", " ", "\x00", "a\x00b", "null", "NULL", "\\N", "nan", '"', "'", "\\", "\n", "\r\n", "\t", ",",
         "\ufeff", "\ufffe", "\U0010ffff", "é", "e\u0301", "\u202e", "🦆", "0", "-0", "ẞ", "a" * 1000,
         "\ud800", "x\udfffy", "\u2028"]  # fmt: skip


def texts(limit: int) -> Callable[[random.Random], str]:
    def make(rng: random.Random) -> str:
        made = "".join(rng.choice(TEXTS) for _ in range(rng.choice([1, 1, 1, 2, 3])))
        if limit < 1000 and rng.random() < 0.7:
            made = made.replace("a" * 1000, "b")[: limit + rng.choice([0, 1])]
        return made

    return make


def binaries(limit: int) -> Callable[[random.Random], bytes]:
    def make(rng: random.Random) -> bytes:
        edges = [b"", b"\x00", b"\xff" * limit, b"\x00" * limit, b"\x00" * (limit + 1), b"\x80"]
        return rng.choice(edges) if rng.random() < 0.6 else rng.randbytes(rng.randrange(limit + 2))

    return make


def dates(rng: random.Random) -> object:
    edges = [dt.date.min, dt.date.max, dt.date(1, 1, 2), dt.date(9999, 12, 30), dt.date(1970, 1, 1),
             dt.date(1969, 12, 31), dt.date(1582, 10, 10), dt.date(1900, 2, 28), dt.date(2024, 2, 29),
             "0000-12-31", "-0001-01-01", "-9999-01-01", "+10000-01-01"]  # fmt: skip
    return (
        rng.choice(edges)
        if rng.random() < 0.7
        else dt.date.fromordinal(rng.randrange(1, 3_652_060))
    )


def clocks(rng: random.Random) -> int:
    """Return a time of day in nanoseconds."""
    day = 86_400 * 10**9
    edges = [0, 1, 999, 1000, 999_999_999, day - 1, day - 1000, day - 10**9, day // 2]
    return rng.choice(edges) if rng.random() < 0.6 else rng.randrange(day)


def moments(zoned: bool) -> Callable[[random.Random], Moment]:
    hour = 3600 * 10**9
    first, end = FIRST_NS["NTZ"], END_NS

    def make(rng: random.Random) -> Moment:
        near = rng.choice(
            [first, first + 24 * hour, end, 0, -11_644_473_600 * 10**9, 951_782_400 * 10**9]
        )
        local = near + rng.choice([0, -1, 1, 999, -1000, 10**9, hour, -hour, 20 * hour, -20 * hour])
        if rng.random() < 0.3:
            local = rng.randrange(first, end)
        local = min(max(local, first), end - 1)
        # Offsets in text are limited to 18 hours.
        minutes = rng.choice([0, 0, 0, 60, -60, 330, -480, 840, -720, 1080, -1080, 1, -1])
        return Moment(local, minutes if zoned else None)

    return make


def documents(kind: str) -> Callable[[random.Random], object]:
    leaf = [None, True, False, 0, -1, 2**63, 2**64, 10**37, 10**38 - 1, 10**50, 10**308, 10**310, 0.1, -0.0,
            1e300, 5e-324, 1.5e-7, "", "\x00", "null", "🦆", "\u2028", "1e400", 12345678901234567]  # fmt: skip
    keys = ["", "a", "A", "a.b", "k\x00", "é", '"', "null", "$", "x y", "🦆"]

    def nested(depth: int, by: str) -> object:
        made: object = 1
        for _ in range(depth):
            made = [made] if by == "array" else {"k": made}
        return made

    def value(rng: random.Random, depth: int) -> object:
        pick = rng.random()
        if depth > 3 or pick < 0.5:
            return rng.choice(leaf)
        if pick < 0.75:
            return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
        return {key: value(rng, depth + 1) for key in rng.sample(keys, rng.randrange(4))}

    def make(rng: random.Random) -> object:
        if rng.random() < 0.1:
            by = "object" if kind == "OBJECT" else rng.choice(["array", "object"])
            return nested(rng.choice([150, 199, 200, 201, 400]), by)
        made = value(rng, 0)
        # Exclude top-level texts, which are parsed as JSON, and None, which is NULL.
        if made is None or isinstance(made, str):
            made = [made]
        if kind == "OBJECT" and not isinstance(made, dict) and rng.random() < 0.9:
            made = {"v": made}
        return made

    return make


@dataclass(frozen=True)
class Column:
    """Column of the table: SQL type, values, expected values and reader."""

    name: str
    sql: str
    family: str
    make: Callable[[random.Random], Any]
    wanted: Callable[[Any], object]

    @property
    def key(self) -> str:
        """Name as a key of a row."""
        return '"' + self.name.replace('"', '""') + '"'


def column_list() -> list[Column]:
    made = [
        Column("F", "FLOAT", "float", floats, bits),
        Column("D", "DATE", "date", dates, of_date),
    ]
    for precision, scale in [(38, 0), (38, 37), (10, 2), (1, 0), (18, 18), (19, 5)]:
        name = f"N{precision}_{scale}"
        made.append(
            Column(
                name,
                f"NUMBER({precision},{scale})",
                "number",
                numbers(precision, scale),
                of_number(precision, scale),
            )
        )
    for scale in (0, 3, 6, 9):
        made.append(
            Column(
                f"C{scale}",
                f"TIME({scale})",
                "time",
                clocks,
                partial(floored, scale=scale),
            )
        )
        for kind in ("NTZ", "LTZ", "TZ"):
            made.append(
                Column(
                    f"{kind}{scale}",
                    f"TIMESTAMP_{kind}({scale})",
                    kind,
                    moments(kind != "NTZ"),
                    of_moment(kind, scale),
                )
            )
    # Use unusual names, which readers must also support.
    for name, limit in [("T", 16_777_216), ("t", 3), ('dot.ted "q"', 5), ("Grüße 🦆", 1)]:
        made.append(Column(name, f"VARCHAR({limit})", "text", texts(limit), of_text(limit)))
    for name, limit in [("X", 8_388_608), ("X2", 2)]:
        made.append(
            Column(name, f"BINARY({limit})", "binary", binaries(min(limit, 40)), of_bytes(limit))
        )
    for kind in ("VARIANT", "ARRAY", "OBJECT"):
        made.append(Column(kind[0], kind, "document", documents(kind), of_document(kind)))
    return made


COLUMNS = column_list()
BY_NAME = {column.name: column for column in COLUMNS}


@dataclass
class Row:
    """Row with an ID and one value."""

    id: int
    column: Column
    value: Any
    way: str = ""

    @property
    def wanted(self) -> object:
        """Value that readers must return, or REJECTED."""
        # As in Vertica, COPY does not round values of an integer column.
        is_whole = self.way == "COPY" and self.column.sql.endswith(",0)")
        if is_whole and self.value != EXACT.to_integral_value(Decimal(self.value)):
            return REJECTED
        return self.column.wanted(self.value)

    def python(self) -> object:
        """Value for the SDK."""
        if isinstance(self.value, Moment):
            return self.value.python()
        return clock_value(self.value) if self.column.family == "time" else self.value

    def text(self) -> object:
        """Value for JSON lines: documents and texts unchanged, all others as text."""
        value = self.value
        match self.column.family:
            case "float":
                return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, repr(value))
            case "binary":
                return value.hex()
            case "time":
                return clock_text(value)
            case "document" | "text":
                return value
            case _:
                return (
                    value.text()
                    if isinstance(value, Moment)
                    else format(value, "f")
                    if isinstance(value, Decimal)
                    else str(value)
                )


def clock_text(ns: int) -> str:
    seconds, nanos = divmod(ns, 10**9)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{nanos:09}"


def clock_value(ns: int) -> object:
    if ns % 1000:
        return clock_text(ns)
    return (EPOCH + dt.timedelta(microseconds=ns // 1000)).time()


def make_rows(rng: random.Random, count: int, first_id: int) -> list[Row]:
    made = []
    for place in range(count):
        column = COLUMNS[place % len(COLUMNS)]
        made.append(Row(first_id + place, column, column.make(rng)))
    return made
