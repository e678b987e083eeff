"""Texts of floats, beside the recorded ones of data/more_values.jsonl."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.schema.conversion.numbers import are_shortest_float32s_java, format_java_float


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_text_reads_back_as_the_same_double(value: float) -> None:
    text = format_java_float(value)
    assert struct.pack(">d", float(text)) == struct.pack(">d", value)
    assert len(Decimal(text).as_tuple().digits) <= 18


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_a_text_reads_back_as_the_same_single(value: float) -> None:
    single = np.float32(value)
    text = format_java_float(single)
    assert np.float32(text).tobytes() == single.tobytes()
    if are_shortest_float32s_java(np.array([single])):
        assert text == str(single)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"),
        (2.0**63, "9.223372036854776E18"),
        (2e23, "1.9999999999999998E23"),
        (1e23, "9.999999999999999E22"),
        (-5e-324, "-4.9E-324"),
        (61659709404186016.0, "6.1659709404186016E16"),
        (np.float32(1.4e-45), "1.4E-45"),
        (np.float32(9.6700865e24), "9.6700864E24"),
    ],
)
def test_digits_are_those_that_java_develops(value: float | np.floating[Any], text: str) -> None:
    assert format_java_float(value) == text
