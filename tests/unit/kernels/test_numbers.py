"""Kernels read the numbers that they say they read, to the last bit."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.kernels.numbers import (
    NOT_A_NUMBER,
    TO_BE_EVALUATED,
    VALUE,
    parse_floats,
    parse_integers,
)
from snowmelt.kernels.slices import StringSlices
from snowmelt.select.values import parse_number_text

_SIGNS = st.sampled_from(["", "", "-", "+"])
_DIGITS = st.text("0123456789", max_size=9)
_NUMBERS = st.tuples(_SIGNS, _DIGITS, st.sampled_from(["", "."]), _DIGITS).map("".join)
_TEXTS = st.one_of(
    _NUMBERS, _NUMBERS, st.text("0123456789.+-ein ,é", max_size=10), st.sampled_from(["-0", "-.0"])
)


def slices(texts: list[Any], padding: Any) -> StringSlices:
    """Lay texts one behind the other, as fields are, with bytes behind the last."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([len(each) + 1 for each in encoded]) - 1
    starts = ends - [len(each) for each in encoded]
    buffer = np.frombuffer(b",".join(encoded) + b"1" * padding or b"\0", np.uint8)
    flags = np.zeros(len(texts), np.uint8)
    return StringSlices(buffer, starts.astype(np.int32), ends.astype(np.int32), flags)


def plain(text: Any) -> Any:
    """Tell whether a text is a sign and digits with at most one point among them."""
    digits = text[1:] if text[:1] in {"-", "+"} else text
    whole, _, rest = digits.partition(".")
    return (whole + rest).isascii() and (whole + rest).isdigit()


@given(st.lists(_TEXTS, min_size=1, max_size=1200), st.sampled_from([0, 3, 64]))
def test_what_is_read_is_what_is_written(texts: list[Any], padding: Any) -> None:
    given_texts = slices(texts, padding)
    for read, form in ((parse_floats, float), (parse_integers, int)):
        values, status = read(given_texts)
        for text, value, found in zip(texts, values.tolist(), status.tolist(), strict=True):
            if found == VALUE:
                assert struct.pack("d", form(text)) == struct.pack("d", value), text
            elif found == NOT_A_NUMBER:
                assert parse_number_text(text) is None, text
            else:
                assert found == TO_BE_EVALUATED
            digits = sum(each.isdigit() for each in text)
            short = digits <= (15 if form is float else 18) and len(text) <= 20
            if plain(text) and short and (form is float or "." not in text):
                assert found == VALUE or (form is float and float(text) == 0), text
