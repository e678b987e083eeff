"""Every value rule against what the official Java client did with the same input."""

from __future__ import annotations

import json
import math
import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache, partial
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pandas as pd
import pytest

from snowmelt.errors import InvalidRow, Unsupported
from snowmelt.schema.chunk_types import estimate_fixed_value_bytes, estimate_value_bytes
from snowmelt.schema.conversion import column_converter
from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.conversion.value_rules import make_value_rule
from snowmelt.schema.statistics import collect_statistics
from snowmelt.schema.types import (
    Column,
    Compatibility,
    LogicalType,
    TableSchema,
    column_from_fields,
)
from snowmelt.wire.column_statistics import statistics_to_message

DATA = Path(__file__).parents[3] / "data"
# The second file holds what random cases found: digits of floats, odd digits, zones and limits.
VECTORS = {DATA / "values.jsonl": 1604, DATA / "more_values.jsonl": 430}
LOS_ANGELES = ZoneInfo("America/Los_Angeles")
# What this file compares with Java is the mode that follows it; other modes are named.
ColumnConverter = partial(column_converter.ColumnConverter, compatibility=Compatibility.SNOWFLAKE)


def convert_value(
    value: Any,
    column: Column,
    *,
    zone: ZoneInfo,
    row_index: int,
    compatibility: Compatibility = Compatibility.SNOWFLAKE,
) -> bytes | float | str | None:
    return make_value_rule(column, zone, compatibility)(value, row_index)


class NoTwin(Exception):
    """The Java input has no Python value that means the same."""


# Java inputs without a Python twin, by reason; the counts keep the list honest.
WITHOUT_TWIN = {
    "a Java char is no number; a Python str of one character may be one": 15,
    "datetime and time have microseconds": 7,
    "an Instant is refused in JSON; a Python datetime with a zone is not an Instant": 2,
}


# Values that the Java client takes and some reader cannot hold: dates before year 1, instants that
# are outside the years 1 to 9999, or in the first day of year 1, in UTC, and numbers in JSON that are
# beyond a double.
UNREADABLE = 15


# The table of twins, printed by the test: Java input to the nearest Python value.
TWINS = {
    "null": "None",
    "object": "object()",
    "str": "str",
    "char": "str of one character (JSON: its JSON text)",
    "int": "int",
    "bool": "bool",
    "decimal": "decimal.Decimal",
    "float": "float",
    "float32": "numpy.float32",
    "bytes": "bytes",
    "json": "list, dict",
    "localdate": "datetime.date",
    "localtime": "datetime.time",
    "offsettime": "datetime.time with tzinfo",
    "localdatetime": "datetime.datetime (pandas.Timestamp or numpy.datetime64 where it is too narrow)",
    "offsetdatetime": "datetime.datetime with tzinfo (pandas.Timestamp below a microsecond)",
    "zoneddatetime": "datetime.datetime with ZoneInfo",
    "instant": "datetime.datetime in UTC",
}


def vectors() -> Iterator[tuple[str, Any]]:
    for path, count in VECTORS.items():
        # Not splitlines(): some of the texts hold other ends of lines.
        lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
        assert len(lines) == count
        yield from (
            (f"{path.name}:{number}", json.loads(line)) for number, line in enumerate(lines, 1)
        )


def python_value(vector: Any) -> Any:
    kind, text = vector["input"]["t"], vector["input"].get("v")
    logical = vector["col"]["logical_type"]
    match kind:
        case "null":
            return None
        case "object":
            return object()
        case "str":
            if "Invalid Unicode" in vector.get("message", ""):
                return text.replace("?", "\ud800")  # the file cannot hold a lone surrogate
            return text
        case "char":
            if "0004" in str(vector.get("error")):
                raise NoTwin("a Java char is no number; a Python str of one character may be one")
            return text if logical not in SEMI else json.dumps(text)
        case "int":
            return int(text)
        case "bool":
            return text
        case "decimal":
            return Decimal(text)
        case "float":
            return float(text)
        case "float32":
            return np.float32(text)
        case "bytes":
            return bytes.fromhex(text)
        case "json":
            return json.loads(text)
    return moment(kind, text, logical)


SEMI = {"VARIANT", "ARRAY", "OBJECT"}


def moment(kind: Any, text: Any, logical: Any) -> date | np.datetime64[Any] | time:
    if kind == "instant" and logical in SEMI:
        raise NoTwin(
            "an Instant is refused in JSON; a Python datetime with a zone is not an Instant"
        )
    region = re.search(r"\[(.*)\]", text)
    text = text.partition("[")[0]
    fraction = re.search(r"\.(\d+)", text)
    if fraction and int(fraction[1].ljust(9, "0")) % 1000:
        if kind in {"localdatetime", "offsetdatetime", "zoneddatetime", "instant"}:
            return pd.Timestamp(text)  # a datetime with nanoseconds
        raise NoTwin("datetime and time have microseconds")
    try:
        if kind == "localdate":
            return date.fromisoformat(text)
        if kind in {"localtime", "offsettime"}:
            return time.fromisoformat(text)
        parsed = datetime.fromisoformat(text)
    except ValueError:
        if kind == "localdatetime":
            return np.datetime64(text.lstrip("+"), "s")  # datetime has years 1 to 9999
        raise NoTwin("datetime with a zone has years 1 to 9999") from None
    return parsed.astimezone(ZoneInfo(region[1])) if region else parsed


@cache
def column_of(items: tuple[tuple[Any, Any], ...]) -> Column:
    fields = dict(items)
    try:
        return column_from_fields(fields)
    except Unsupported:
        # The stored value is the same whichever width a server chooses for a timestamp.
        assert fields["logical_type"].startswith("TIME")
        return column_from_fields(
            fields | {"physical_type": "SB8" if fields["physical_type"] == "SB16" else "SB16"}
        )


def column(vector: Any) -> Column:
    return column_of(tuple({**vector["col"], "ordinal": 1}.items()))


def expected(vector: Any) -> Any:
    if "value_hex" in vector:
        raw = bytes.fromhex(vector["value_hex"])
        return (
            raw
            if vector["col"]["logical_type"] == "BINARY"
            else int.from_bytes(raw, "big", signed=True)
        )
    if "value_double_bits" in vector:
        return int(vector["value_double_bits"], 16).to_bytes(8, "big")
    value = vector.get("value")
    return (
        vector["value_str"]
        if "value_str" in vector
        else int(value)
        if isinstance(value, str)
        else value
    )


def comparable(value: bytes | float | str | None) -> bytes | str | None:
    return struct.pack(">d", value) if isinstance(value, float) else value


def expected_size(vector: Any, of: Column) -> Any:
    told = {"SB8": 8, "SB16": 16}
    if vector["col"]["physical_type"] == of.physical_type or vector["input"]["t"] == "null":
        return vector["size"]
    # The recording server chose the other width for this timestamp.
    return vector["size"] - told[vector["col"]["physical_type"]] + told[of.physical_type]


def comparable_wire(value: Any) -> Any:
    # Java writes -0.0 and NaN as we do; `==` would not tell them apart.
    return repr(value) if isinstance(value, float) else value


def check_statistics(vector: Any, stored: bytes | float | str | None, of: Column) -> None:
    """What goes over the wire about a chunk of this one value, field by field."""
    schema = TableSchema(1, (of,))
    table = RowConverter(schema, zone=LOS_ANGELES).build_table([(stored,)])
    [got] = msgspec.to_builtins(
        statistics_to_message(schema, collect_statistics(table, schema)).columns
    ).values()
    expected = vector["ep"]
    assert {key: comparable_wire(value) for key, value in got.items()} == {
        key: comparable_wire(float(value) if isinstance(got[key], float) else value)
        for key, value in expected.items()
    }


def is_unreadable(vector: Any, of: Column) -> bool:
    if "error" in vector or vector["input"]["t"] == "null":
        return False
    if of.kind in SEMI:
        # A long run of digits, or an exponent, is a number that engines read as a double.
        numbers = re.findall(r"[0-9.]{300,}|[0-9.]+[eE][0-9+]+", expected(vector) or "")
        return any(math.isinf(float(number)) for number in numbers)
    if not of.kind.startswith(("DATE", "TIMESTAMP_")):
        return False
    value = expected(vector)
    if of.kind is LogicalType.DATE:
        return not date.min.toordinal() <= value + 719_163 <= date.max.toordinal()
    value = value >> 14 if of.kind is LogicalType.TIMESTAMP_TZ else value
    day = value // 10 ** (of.scale or 0) // 86_400 + 719_163
    first = 1 if of.kind is LogicalType.TIMESTAMP_NTZ else 2
    return not first <= day <= date.max.toordinal()


@pytest.mark.slow
def test_values_refusals_and_statistics_are_those_of_the_java_client() -> None:
    skipped: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    failures: list[tuple[Any, ...]] = []
    unreadable = 0
    for number, vector in vectors():
        of, zone = column(vector), ZoneInfo(vector["tz"])
        try:
            value = python_value(vector)
        except NoTwin as reason:
            skipped[str(reason)] += 1
            print("without a twin:", vector["type"], vector["input"], "-", reason)
            continue
        kinds[vector["input"]["t"]] += 1
        array, refused = ColumnConverter(of, zone).convert([value])
        if is_unreadable(vector, of):
            unreadable += 1
            beyond = r"out of r.*9999|beyond the range of a double"
            with pytest.raises(InvalidRow, match=beyond) as caught:
                convert_value(value, of, zone=zone, row_index=0)
            assert refused == [0]
            assert caught.value.fields["column"] == of.display_name
            continue
        try:
            stored = convert_value(value, of, zone=zone, row_index=0)
        except InvalidRow as error:
            # What is a raw exception in Java is refused as an invalid value here.
            code = {"UNEXPECTED": "0030"}.get(vector.get("error"), vector.get("error"))
            if error.sdk_code != code or of.name not in str(error) or refused != [0]:
                failures.append((number, vector["type"], vector["input"], code, str(error)[-90:]))
            continue
        try:
            assert "error" not in vector
            assert comparable(stored) == expected(vector)
            assert refused == []
            assert array.equals(ColumnConverter(of, zone).stored_to_array([stored])) or isinstance(
                stored, float
            )
            size = estimate_value_bytes(stored, estimate_fixed_value_bytes(of))
            assert size == expected_size(vector, of)
            check_statistics(vector, stored, of)
        except AssertionError as error:
            failures.append(
                (
                    number,
                    vector["type"],
                    vector["tz"],
                    vector["input"],
                    stored,
                    expected(vector),
                    str(error)[:200],
                )
            )
    assert not failures, (len(failures), failures[:40])
    assert dict(skipped) == WITHOUT_TWIN
    assert unreadable == UNREADABLE
    for kind, count in kinds.most_common():
        print(f"{kind:15} {TWINS[kind]:70} {count}")
    assert kinds.total() + skipped.total() == sum(VECTORS.values())


def test_strict_keeps_a_clock_time_that_the_default_zone_skips() -> None:
    of = Column("C", LogicalType.TIMESTAMP_NTZ, 1, scale=0)
    skipped = datetime(2021, 3, 14, 2, 30)
    for given in (skipped, skipped.isoformat()):
        moved, kept = (
            convert_value(given, of, zone=LOS_ANGELES, row_index=0, compatibility=mode)
            for mode in (Compatibility.SNOWFLAKE, Compatibility.STRICT)
        )
        assert kept == (skipped - datetime(1970, 1, 1)).total_seconds()
        assert moved == kept + 3600
        array, refused = ColumnConverter(
            of, LOS_ANGELES, compatibility=Compatibility.STRICT
        ).convert([given] * 3)
        assert not refused
        assert array.equals(ColumnConverter(of, LOS_ANGELES).stored_to_array([kept] * 3))


@pytest.mark.parametrize(
    "kind",
    [LogicalType.DATE, LogicalType.TIME, LogicalType.TIMESTAMP_NTZ, LogicalType.TIMESTAMP_TZ],
)
@pytest.mark.parametrize("text", ["20130428", " +13\n", "-1"])
def test_strict_rejects_digits_that_may_be_a_date(kind: LogicalType, text: str) -> None:
    of = Column("C", kind, 1, scale=None if kind is LogicalType.DATE else 3)
    convert_value(text, of, zone=LOS_ANGELES, row_index=0)
    with pytest.raises(InvalidRow, match="Ambiguous digits") as raised:
        convert_value(text, of, zone=LOS_ANGELES, row_index=0, compatibility=Compatibility.STRICT)
    assert raised.value.sdk_code == "0030"


@pytest.mark.parametrize(
    ("kind", "text", "stored"),
    [
        (LogicalType.VARIANT, "1  2", "1 2"),
        (LogicalType.VARIANT, '"a""b"', '"a" "b"'),
        (LogicalType.VARIANT, '[1]{"a":\n2}', '[1] {"a":2}'),
        (LogicalType.ARRAY, "1 2", "[1 2]"),
        (LogicalType.ARRAY, "[1] 2", "[1] 2"),
        (LogicalType.OBJECT, "{} {}", "{} {}"),
        (LogicalType.VARIANT, '1"a"', None),
        (LogicalType.VARIANT, "true[1]", "true [1]"),
        (LogicalType.VARIANT, "1[1]", None),
        (LogicalType.VARIANT, "1, 2", None),
        (LogicalType.VARIANT, "[1] ]", None),
    ],
)
def test_several_json_roots_stay_one_text_or_are_refused(
    kind: LogicalType, text: str, stored: str | None
) -> None:
    of = Column("C", kind, 1)
    if stored is None:
        with pytest.raises(InvalidRow):
            convert_value(text, of, zone=LOS_ANGELES, row_index=0)
    else:
        assert convert_value(text, of, zone=LOS_ANGELES, row_index=0) == stored
    with pytest.raises(InvalidRow):
        convert_value(text, of, zone=LOS_ANGELES, row_index=0, compatibility=Compatibility.STRICT)


class Colour(Enum):
    RED = "red"
    TWO = 2
    NEVER = None


class Rate(Decimal, Enum):
    HALF = Decimal("0.50")


@dataclass
class Point:
    x: int
    tags: set[str] | frozenset[str]


SOME_UUID = UUID("12345678-1234-5678-1234-567812345678")


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (LogicalType.TEXT, SOME_UUID, str(SOME_UUID)),
        (LogicalType.BINARY, SOME_UUID, SOME_UUID.bytes),
        (LogicalType.VARIANT, SOME_UUID, f'"{SOME_UUID}"'),
        (LogicalType.TEXT, Colour.RED, "red"),
        (LogicalType.FIXED, Colour.TWO, 2),
        (LogicalType.TEXT, Rate.HALF, "0.5"),
        (LogicalType.TEXT, Colour.NEVER, None),
        (LogicalType.VARIANT, [Colour.RED, Colour.NEVER], '["red",null]'),
        (LogicalType.VARIANT, Point(1, {"a"}), '{"x":1,"tags":["a"]}'),
        (LogicalType.OBJECT, [Point(1, frozenset())], None),
        (LogicalType.ARRAY, np.array([0.1, 2], dtype=np.float32), "[0.1,2.0]"),
        (LogicalType.ARRAY, np.array([[1, 2], [3, 4]]), "[[1,2],[3,4]]"),
        (LogicalType.ARRAY, (1, "a"), '[1,"a"]'),
        (
            LogicalType.VARIANT,
            [pd.NaT, pd.NA, np.datetime64("2021-02-03")],
            '[null,null,"2021-02-03"]',
        ),
        (
            LogicalType.VARIANT,
            np.datetime64("2021-02-03T04:05:06.7", "ns"),
            '"2021-02-03T04:05:06.700"',
        ),
        (LogicalType.VARIANT, pd.NaT, None),
        (LogicalType.FIXED, pd.NA, None),
        (LogicalType.TIMESTAMP_LTZ, np.datetime64("NaT", "us"), None),
        (LogicalType.TIMESTAMP_LTZ, pd.NaT, None),
        (LogicalType.DATE, np.datetime64("1970-02"), 31),
        (
            LogicalType.TIMESTAMP_TZ,
            np.datetime64("1970-01-01T08:00:00.000000001"),
            (57600 * 10**9 + 1) << 14,
        ),
    ],
)
def test_values_of_other_libraries(
    kind: LogicalType, value: Any, stored: bytes | int | str | None
) -> None:
    scale = 9 if kind.startswith("TIMESTAMP") else 0 if kind is LogicalType.FIXED else None
    of = Column("C", kind, 1, precision=38, scale=scale, length=36, byte_length=16)
    if kind is LogicalType.OBJECT:
        with pytest.raises(InvalidRow, match="Not an object"):
            convert_value(value, of, zone=LOS_ANGELES, row_index=0)
        return
    got = convert_value(value, of, zone=LOS_ANGELES, row_index=0)
    if kind is LogicalType.TIMESTAMP_TZ:
        assert isinstance(stored, int)
        stored += 1440 - 480
    assert got == stored
    array, refused = ColumnConverter(of, LOS_ANGELES).convert([value, None])
    assert not refused
    assert array.equals(ColumnConverter(of, LOS_ANGELES).stored_to_array([stored, None]))


@pytest.mark.parametrize(
    ("kind", "value", "name"),
    [
        (LogicalType.TEXT, timedelta(1), "datetime.timedelta"),
        (LogicalType.VARIANT, [timedelta(1)], "datetime.timedelta"),
        (LogicalType.TEXT, np.datetime64("2021-01-01", "ns"), "numpy.datetime64"),
        (LogicalType.DATE, Colour.TWO, "test_value_rules.Colour"),
        (LogicalType.TEXT, Path("a"), "PosixPath"),
        (LogicalType.FIXED, SOME_UUID, "uuid.UUID"),
    ],
)
def test_a_refusal_names_the_type_that_was_given(kind: LogicalType, value: Any, name: str) -> None:
    of = Column("C", kind, 1, precision=38, scale=0, length=36, byte_length=16)
    with pytest.raises(InvalidRow, match=rf"Object of type \S*{re.escape(name)} cannot") as raised:
        convert_value(value, of, zone=LOS_ANGELES, row_index=7)
    assert raised.value.sdk_code == "0004"
    assert "rowIndex:7" in str(raised.value)


@pytest.mark.parametrize("kind", [LogicalType.FIXED, LogicalType.REAL])
def test_endless_digits_that_are_no_number_are_refused_at_once(kind: LogicalType) -> None:
    # Looked at in every division of its digits, it would take days.
    with pytest.raises(InvalidRow):
        convert_value(
            "9" * 1_000_000 + "x",
            Column("C", kind, 1, precision=38, scale=0),
            zone=LOS_ANGELES,
            row_index=0,
        )
