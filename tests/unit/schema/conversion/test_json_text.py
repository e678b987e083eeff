"""JSON is normalised without losing anything, and refused without crashing."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.schema.conversion.json_text import (
    DuplicateKey,
    InvalidJson,
    JsonLimitExceeded,
    NotJsonSerializable,
    format_json,
    normalize_json,
)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def trimmed_keys_differ(value: Any) -> bool:
    if isinstance(value, dict):
        return len({key.rstrip("\0") for key in value}) == len(value) and all(
            map(trimmed_keys_differ, value.values())
        )
    return not isinstance(value, list) or all(map(trimmed_keys_differ, value))


@pytest.mark.slow
@given(VALUES.filter(trimmed_keys_differ), st.sampled_from([None, 1, "\t"]), st.booleans())
def test_what_is_normalised_means_the_same(value: Any, indent: Any, ascii_only: bool) -> None:
    text = normalize_json(json.dumps(value, indent=indent, ensure_ascii=ascii_only))
    assert json.loads(text) == value
    assert normalize_json(text) == text
    assert len(text) <= len(json.dumps(value, indent=indent, ensure_ascii=ascii_only))


@given(VALUES.filter(trimmed_keys_differ))
def test_what_is_written_is_normal(value: Any) -> None:
    text = format_json(value)
    assert json.loads(text) == value
    assert normalize_json(text) == text


@given(st.text(alphabet=' []{},:"\\u0a1e.-+tfnrlsx\n', max_size=12))
def test_exactly_strict_json_is_taken(text: str) -> None:
    try:
        strict = json.loads(text, parse_constant=refuse)
    except ValueError:
        strict = InvalidJson
    try:
        ours = json.loads(normalize_json(text))
    except (JsonLimitExceeded, DuplicateKey):
        return
    except InvalidJson:
        ours = InvalidJson
    assert ours == strict


def refuse(constant: str) -> None:
    raise ValueError(constant)


@pytest.mark.parametrize(
    "text",
    ["1.50", "1.5E+2", "12345678901234567890123456789012345678901234567890", "-0", "1e-999999999"],
)
def test_the_text_of_a_number_is_kept(text: str) -> None:
    assert normalize_json(f" [ {text} ] ") == f"[{text}]"


@pytest.mark.slow
def test_depth_is_limited_not_fatal() -> None:
    assert normalize_json("[" * 200 + "]" * 200)
    for text in ("[" * 201 + "]" * 201, "[" * 100_000, '{"a":' * 100_000):
        with pytest.raises(InvalidJson):
            normalize_json(text)
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InvalidJson):
        format_json(value)


def test_long_numbers_are_refused() -> None:
    assert normalize_json("0." + "9" * 999)
    with pytest.raises(InvalidJson):
        normalize_json("0." + "9" * 1000)
    assert format_json(10**308) == "1" + "0" * 308


@pytest.mark.parametrize("number", [10**400, -(10**309), Decimal("1e400")])
def test_numbers_that_engines_read_as_infinite_are_refused(number: Decimal | int) -> None:
    with pytest.raises(JsonLimitExceeded):
        format_json([number])
    with pytest.raises(JsonLimitExceeded):
        normalize_json(f"[{number}]")


def test_python_values_are_written_as_the_official_client_does() -> None:
    value = {
        "f": [1.0, 1e10, 1e-7, -0.0, float("nan"), float("-inf"), 0.001, 9999999.0],
        "d": [Decimal("10.50"), Decimal("4e10"), Decimal("NaN"), Decimal("sNaN")],
        "t": [
            date(2020, 1, 2),
            time(1, 2),
            datetime(2020, 1, 1, tzinfo=UTC),
            datetime(2020, 1, 1, 1, 2, 3, 400),
        ],
        "b": b"\x00\xff",
        "n": [None, True, (1, 2), 10**30],
    }
    assert format_json(value) == (
        '{"f":[1.0,1.0E10,1.0E-7,-0.0,"NaN","-Infinity",0.001,9999999.0],"d":[10.50,4E+10,"NaN","NaN"],'
        '"t":["2020-01-02","01:02","2020-01-01T00:00Z","2020-01-01T01:02:03.000400"],"b":[0,-1],'
        '"n":[null,true,[1,2],1000000000000000000000000000000]}'
    )


@pytest.mark.parametrize("value", [object(), {1: 2}, {"a": {object()}}, [object]])
def test_what_has_no_json_form_is_refused(value: object) -> None:
    with pytest.raises(NotJsonSerializable):
        format_json(value)


def test_keys_are_compared_without_trailing_nuls() -> None:
    with pytest.raises(DuplicateKey, match="key"):
        normalize_json('{"key":0,"key\\u0000":1}')
    with pytest.raises(DuplicateKey):
        format_json({"key": 0, "key\0": 1})
