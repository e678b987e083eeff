"""The scanner takes only objects that the exact reader takes, and finds what that finds."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.json.scanner import (
    ABSENT,
    ESCAPED_TEXT,
    INTEGER,
    TEXT,
    encode_field_names,
    frame_json_objects,
    scan_json_records,
)
from snowmelt.kernels.slices import PADDING_BYTES

_KEYS = ["a", "b", "c", "k" * 40, "€"]
_VALUES = st.recursive(
    st.sampled_from(["1", "-12", "0.50", "1e5", "-0", '"x"', '"\\n"', "true", "null", '"é"']),
    lambda inner: st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
    max_leaves=4,
)
_OBJECTS = st.lists(st.tuples(st.sampled_from(_KEYS), _VALUES), max_size=5).map(
    lambda pairs: "{" + ", ".join(f'"{key}": {value}' for key, value in pairs) + "}"
)
_DAMAGE = st.tuples(st.integers(0, 80), st.sampled_from(["", "}", '"', ",", "\\", "\0", "0", "\n"]))


def padded(data: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(data + bytes(PADDING_BYTES), np.uint8)


def scan(
    records: list[Any],
) -> tuple[
    tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]], np.ndarray[Any, Any]
]:
    ends = np.cumsum([len(record) for record in records])
    starts = ends - [len(record) for record in records]
    names = encode_field_names([(key.encode(), False) for key in _KEYS])
    return scan_json_records(padded(b"".join(records)), starts, ends, names)


@pytest.mark.slow
@given(st.lists(st.tuples(_OBJECTS, _DAMAGE, st.booleans()), min_size=1, max_size=8))
def test_what_is_taken_is_an_object_with_these_keys_and_values(given_objects: list[Any]) -> None:
    records = [
        (text if whole else text[:at] + new + text[at + 1 :]).encode()
        for text, (at, new), whole in given_objects
    ]
    data = b"".join(records)
    starts_of_records = np.cumsum([0, *map(len, records)])
    (starts, ends, kinds), is_read = scan(records)
    for row, record in enumerate(records):
        if not is_read[row]:
            continue
        value = orjson.loads(record)
        assert set(value) == {key for at, key in enumerate(_KEYS) if kinds[at, row] != ABSENT}
        for at, key in enumerate(_KEYS):
            if kinds[at, row] in (TEXT, ESCAPED_TEXT, INTEGER):
                quotes = kinds[at, row] != INTEGER
                assert starts[at, row] >= starts_of_records[row]
                text = data[starts[at, row] - quotes : ends[at, row] + quotes]
                assert orjson.loads(text) == value[key]


def test_good_objects_are_taken_whatever_stands_before_them() -> None:
    good = json.dumps(dict.fromkeys(_KEYS, 1), ensure_ascii=False).encode()
    bad = [good[:-1], b"", b"1", good + good, b'{"other": 1}', b'{"a": 1, "a": 2}', b'{"a": 01}']
    _, is_read = scan([record for each in bad for record in (good, each)])
    assert is_read.tolist() == [True, False] * len(bad)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b'{"a":1}\n{"a":2} \n', [b'{"a":1}', b'{"a":2} ']),
        (b'[{"a":1},\n {"a":\n2}]', [b'{"a":1}', b'{"a":\n2}']),
        (b'{"a":1}{"a":2}', [b'{"a":1}', b'{"a":2}']),
        (b'{"a":1}\n{"a"\n{"a":2}\n', [b'{"a":1}']),
    ],
)
def test_objects_follow_each_other_in_lines_in_arrays_and_beside_each_other(
    text: bytes, found: list[bytes]
) -> None:
    bounds, _ = frame_json_objects(
        padded(text), 0, len(text), is_last=True, one_per_line=False, after_object=True
    )
    assert [text[start:end] for start, end in bounds.T.tolist()] == found
