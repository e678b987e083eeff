"""LIKE and comparisons of whole columns say what Python says of each text."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from snowmelt.kernels.slices import StringSlices
from snowmelt.select.kernels.strings import compare_strings, match_like_pattern
from snowmelt.select.scalar.like_patterns import parse_like_pattern

_TEXTS = st.lists(st.text("aabcé%_! \udcff", max_size=8), min_size=1, max_size=20)


def slices(texts: list[str]) -> StringSlices:
    encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
    ends = np.cumsum([len(each) for each in encoded])
    starts = ends - [len(each) for each in encoded]
    buffer = np.frombuffer(b"".join(encoded) + b"a" * 64, np.uint8)
    return StringSlices(
        buffer, starts.astype(np.int32), ends.astype(np.int32), np.zeros(len(texts), np.uint8)
    )


@example(["_"], "\udcff", None)
@given(_TEXTS, st.text("aabcé%%__\udcff", max_size=6), st.sampled_from([None, "c", "é"]))
def test_texts_are_like_a_pattern_as_the_evaluator_says(
    texts: list[str], pattern: str, escape: Any
) -> None:
    if escape is not None:
        # An escape character at the end escapes nothing.
        pattern = pattern.replace(escape, escape + "%")
    likeness = parse_like_pattern(pattern, escape)
    found, odd = match_like_pattern(slices(texts), cast("Any", likeness.segments))
    for text, is_found, is_odd in zip(texts, found.tolist(), odd.tolist(), strict=True):
        assert is_odd or is_found is likeness.matches(text), text
        assert not (is_odd and text.isascii() and pattern.isascii())


@given(_TEXTS, st.data())
def test_texts_are_ordered_by_their_bytes(texts: list[str], data: st.DataObject) -> None:
    others = data.draw(st.lists(st.sampled_from(texts), min_size=len(texts), max_size=len(texts)))
    pairs = zip(map(as_bytes, texts), map(as_bytes, others), strict=True)
    expected = [(one > other) - (one < other) for one, other in pairs]
    assert compare_strings(slices(texts), slices(others)).tolist() == expected
    fixed = as_bytes(others[0])
    expected = [(one > fixed) - (one < fixed) for one in map(as_bytes, texts)]
    assert compare_strings(slices(texts), fixed).tolist() == expected


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
