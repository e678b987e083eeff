"""No digit is lost, either way."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.json.exact import JsonSyntaxError, parse_json, serialize_json

DIGITS = "12345678901234567890123456789012345678"


def test_38_digits_survive_as_int_and_as_decimal() -> None:
    text = f"[{DIGITS},-{DIGITS},0.{DIGITS},{DIGITS[:20]}.{DIGITS[20:]}]".encode()
    values: Any = parse_json(text)
    assert values[2] == Decimal(f"0.{DIGITS}")
    assert serialize_json(values) == text


def test_a_number_is_a_float_only_where_that_says_the_same() -> None:
    values: Any = parse_json(b"[1,0.1,1e308,-0.0,0.1000000000000000055]")
    assert [type(each) for each in values] == [
        int, float, float, float, Decimal,
    ]  # fmt: skip


@given(st.decimals(allow_nan=False, allow_infinity=False, places=12))
def test_every_decimal_comes_back_as_it_went(value: Decimal) -> None:
    back: Any = parse_json(serialize_json([value]))
    assert Decimal(str(back[0])) == value


@pytest.mark.parametrize(
    "text",
    [
        "0.000000048382277801338157",
        "0.00000001234567890123456789",
        f"-0.{'0' * 37}1",
        "0.0000000000",
        "120000000000000000000000000000",
        "1.50",
    ],
)
def test_a_decimal_of_up_to_38_places_has_no_exponent(text: str) -> None:
    value = Decimal(text)
    for each in (value, value.normalize()):
        written = serialize_json({"a": [each, "1E-7"], "b": {"c": (each,)}})
        back: Any = json.loads(written, parse_float=str, parse_int=str)
        assert "E" not in back["a"][0]
        assert back["b"]["c"][0] == back["a"][0]
        assert Decimal(back["a"][0]) == value
        assert back["a"][1] == "1E-7"


@pytest.mark.parametrize("text", ["1E-39", "1E+38", "1E-4000", "1E+4000"])
def test_a_decimal_of_more_places_keeps_its_exponent(text: str) -> None:
    assert serialize_json([Decimal(text)]) == f"[{text}]".encode()


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_json_that_python_writes_is_read_alike(value: Any) -> None:
    assert parse_json(json.dumps(value).encode()) == value


def test_half_a_surrogate_pair_goes_both_ways() -> None:
    assert parse_json(b'["\\ud800"]') == ["\ud800"]
    assert serialize_json({"a": ["\ud800", Decimal("1.50")]}) == b'{"a":["\\ud800",1.50]}'


def test_what_python_services_write_is_taken_when_asked_for() -> None:
    assert parse_json(b"\xef\xbb\xbf[Infinity]", lenient=True) == [float("inf")]
    for text in (b"\xef\xbb\xbf[1]", b"[NaN]"):
        with pytest.raises(JsonSyntaxError):
            parse_json(text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b'{"a":1,}',
        b'"secret',
        b"\xff",
        b"[" * 100_000,
        b"1e99999999",
        b"0.1e-9999999999",
    ],
)
def test_what_is_no_json_is_said_without_repeating_it(text: bytes) -> None:
    with pytest.raises(JsonSyntaxError) as refused:
        parse_json(text, lenient=True)
    assert "secret" not in str(refused.value)
