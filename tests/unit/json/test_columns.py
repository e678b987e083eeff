"""Kernels give the numbers and texts that Python reads, or leave them alone."""

from __future__ import annotations

import itertools
import json
import re
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.json.columns import (
    LEFT_ALONE,
    NULL_VALUE,
    VALUE,
    read_booleans,
    read_decimals,
    read_floats,
    read_texts,
)
from snowmelt.json.scanner import encode_field_names, scan_json_records
from snowmelt.kernels.slices import PADDING_BYTES


def locate(values: list[str]) -> tuple[np.ndarray[Any, Any], tuple[Any, Any, Any]]:
    records = [f'{{"a": {value}}}'.encode() for value in values]
    ends = np.cumsum([len(record) for record in records])
    starts = ends - [len(record) for record in records]
    data = np.frombuffer(b"".join(records) + bytes(PADDING_BYTES), np.uint8)
    names = encode_field_names([(b"a", False)])
    (starts, ends, kinds), is_read = scan_json_records(data, starts, ends, names)
    assert is_read.all()
    return data, (starts[0], ends[0], kinds[0])


@pytest.mark.slow
@given(st.lists(st.decimals(-(10**20), 10**20, places=3), min_size=1))
def test_decimals_are_exact_or_left_alone(numbers: list[Any]) -> None:
    values, status = read_decimals(*locate([f"{number:f}" for number in numbers]), 18, 4)
    for number, value, what in zip(numbers, values.tolist(), status.tolist(), strict=True):
        assert what == LEFT_ALONE or Decimal(value).scaleb(-4) == number
        assert (what == VALUE) == (abs(number) < 10**14)


def test_a_number_with_more_digits_behind_the_point_than_the_column_is_left_alone() -> None:
    _, status = read_decimals(*locate(["1.25", "1.250", "1e2", "-0", "null", '"1"']), 9, 2)
    expected = [VALUE, LEFT_ALONE, LEFT_ALONE, LEFT_ALONE, NULL_VALUE, LEFT_ALONE]
    assert status.tolist() == expected


@pytest.mark.slow
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e90, max_value=1e90)))
def test_floats_are_the_nearest(numbers: list[Any]) -> None:
    texts = ["-0.0", "0.1", "9007199254740993", *map(repr, numbers)]
    # Exponents of more digits are for the exact reader.
    texts = [text for text in texts if not re.search(r"e[+-]?\d{3}", text)]
    values, status = read_floats(*locate(texts))
    assert set(status.tolist()) == {VALUE}
    assert list(map(repr, values.tolist())) == [repr(float(text)) for text in texts]


@pytest.mark.slow
@given(
    st.lists(st.text(st.characters(codec="utf-8", max_codepoint=0xFFFF)), min_size=1), st.booleans()
)
def test_texts_are_unescaped(texts: list[Any], ascii_only: bool) -> None:
    data, field = locate([json.dumps(text, ensure_ascii=ascii_only) for text in texts])
    offsets, output, status = read_texts(data, field)
    assert set(status.tolist()) == {VALUE}
    found = [output[a:b].tobytes().decode() for a, b in itertools.pairwise(offsets)]
    assert found == texts


def test_booleans_are_no_numbers() -> None:
    values, status = read_booleans(locate(["true", "false", "null", "1"])[1])
    assert values[:2].tolist() == [True, False]
    assert status.tolist() == [VALUE, VALUE, NULL_VALUE, LEFT_ALONE]
