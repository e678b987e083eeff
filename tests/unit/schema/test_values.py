"""Every value rule against what the official Java client did with the same input."""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from datetime import date, datetime, time
from decimal import Decimal
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from snowmelt.errors import InvalidRow, Unsupported
from snowmelt.schema.batches import ColumnConverter
from snowmelt.schema.metadata import column_from_fields
from snowmelt.schema.rows import RowConverter
from snowmelt.schema.statistics import collect
from snowmelt.schema.types import Kind, TableSchema
from snowmelt.schema.values import convert_value

VECTORS = Path(__file__).parents[2] / "data" / "values.jsonl"
LOS_ANGELES = ZoneInfo("America/Los_Angeles")


class NoTwin(Exception):
    """The Java input has no Python value that means the same."""


# Java inputs without a Python twin, by reason; the counts keep the list honest.
WITHOUT_TWIN = {
    "a Java char is no number; a Python str of one character may be one": 15,
    "datetime has years 1 to 9999": 18,
    "datetime and time have microseconds": 7,
    "an Instant is refused in JSON; a Python datetime with a zone is not an Instant": 2,
    "several JSON roots are refused here on purpose": 2,
}


def vectors():
    for number, line in enumerate(VECTORS.read_text(encoding="utf-8").splitlines()):
        yield number, json.loads(line)


def python_value(vector):
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
            if "error" not in vector and re.search(r"[\]0-9] +[\[0-9]", text) and logical in SEMI:
                raise NoTwin("several JSON roots are refused here on purpose")
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


def moment(kind, text, logical):
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
        raise NoTwin("datetime has years 1 to 9999") from None
    return parsed.astimezone(ZoneInfo(region[1])) if region else parsed


@cache
def column_of(fields):
    fields = dict(fields)
    try:
        return column_from_fields(fields)
    except Unsupported:
        # The stored value is the same whichever width a server chooses for a timestamp.
        assert fields["logical_type"].startswith("TIME")
        return column_from_fields(
            fields | {"physical_type": "SB8" if fields["physical_type"] == "SB16" else "SB16"}
        )


def column(vector):
    return column_of(tuple({**vector["col"], "ordinal": 1}.items()))


def expected(vector):
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


def comparable(value):
    return struct.pack(">d", value) if isinstance(value, float) else value


def statistics_of(vector, stored, of):
    ep = vector["ep"]
    got = collect(
        RowConverter(TableSchema(1, (of,)), zone=LOS_ANGELES).table_of([(stored,)]),
        TableSchema(1, (of,)),
    ).columns[0]
    assert (got.null_count, got.max_length) == (ep["nullCount"], ep["maxLength"])
    if of.kind is Kind.REAL:
        for bound, real in ((got.minimum, ep["minRealValue"]), (got.maximum, ep["maxRealValue"])):
            assert comparable(0.0 if bound is None else bound) == comparable(float(real))
    elif of.kind in {Kind.TEXT, Kind.BINARY}:
        for bound, text in ((got.minimum, ep["minStrValue"]), (got.maximum, ep["maxStrValue"])):
            assert (None if bound is None else bound.hex()) == text or len(bound) > 32
    else:
        assert (got.minimum or 0, got.maximum or 0) == (ep["minIntValue"], ep["maxIntValue"])


def test_values_refusals_and_statistics_are_those_of_the_java_client():
    skipped, failures, compared = Counter(), [], 0
    for number, vector in vectors():
        of, zone = column(vector), ZoneInfo(vector["tz"])
        try:
            value = python_value(vector)
        except NoTwin as reason:
            skipped[str(reason)] += 1
            continue
        compared += 1
        array, refused = ColumnConverter(of, zone).convert([value])
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
            assert array.equals(ColumnConverter(of, zone).stored([stored])) or isinstance(
                stored, float
            )
            statistics_of(vector, stored, of)
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
    assert compared > 1500
