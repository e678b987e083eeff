"""`SELECT *` from JSON lines to JSON writes what decoding and encoding would write."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.json.exact import decode_record
from snowmelt.select.dialect import Dialect
from snowmelt.select.execution.serializer import JsonSerializer
from snowmelt.select.local_query import open_local_select
from snowmelt.select.request import JsonInput, JsonOutput, SelectRequest

_BLANKS = st.sampled_from(["", "", " ", "\t", "  \r"])
_PLAIN = ['"a"', '"a"', '"b"', '""', '"c d:{,}"', '"é\u2028\x7f"', '"' + "x" * 90 + '"']
_ESCAPED = ['"\\""', '"\\\\"', '"\\n\\t\\b\\f\\r"', '"\\/"', '"\\u0061"', '"\\ud83d\\ude00"']
_TEXTS = st.sampled_from([*_PLAIN, *_ESCAPED, '"\\u00e9"', '"\\u001f"'])
_SMALL = ["0", "-0", "-0.0", "0.10", "-12.50", "1e5", "2E-3", "-7", "1.0"]
_LONG = ["123456789012345678", "9" * 25, "18446744073709551616", f"0.{'0' * 30}1"]
_NUMBERS = st.sampled_from([*_SMALL, *_LONG])
_SCALARS = st.one_of(_TEXTS, _NUMBERS, st.sampled_from(["true", "false", "null"]))


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    members = st.tuples(_TEXTS, _BLANKS, _BLANKS, inner, _BLANKS).map(
        lambda t: f"{t[1]}{t[0]}{t[2]}:{t[4]}{t[3]}{t[1]}"
    )
    return st.lists(members, max_size=4).map(lambda parts: "{" + ",".join(parts) + "}")


def _lists(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(st.tuples(_BLANKS, inner).map("".join), max_size=3).map(
        lambda parts: "[" + ",".join(parts) + " ]"
    )


_VALUES = st.recursive(
    _SCALARS, lambda inner: st.one_of(_objects(inner), _lists(inner)), max_leaves=6
)
_LINES = _objects(_VALUES)


def answer(lines: list[Any], output: Any) -> bytes:
    text = "".join(f"{line}\n" for line in lines).encode()
    request = SelectRequest("select * from s3object", JsonInput(lines=True), output)
    return b"".join(open_local_select(request, io.BytesIO(text)).stream_payloads())


def encoded(lines: list[Any], output: Any) -> bytes:
    writer = JsonSerializer(output, (), Dialect.AWS)
    records: list[Any] = [decode_record(memoryview(line.encode())) for line in lines]
    return b"".join(writer.serialize_record(list(each.values()), list(each)) for each in records)


@pytest.mark.slow
@given(
    st.lists(_LINES, min_size=1, max_size=12),
    st.sampled_from([JsonOutput(), JsonOutput(record_delimiter=b"\r\n;")]),
)
def test_objects_are_copied_only_where_that_is_the_same(lines: list[Any], output: Any) -> None:
    assert answer(lines, output) == encoded(lines, output)


@pytest.mark.parametrize("depth", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("names", [1, 63, 64, 65, 200])
def test_deep_objects_and_many_names_are_written_too(depth: int, names: int) -> None:
    inside = ", ".join(f'"n{n}": {n}' for n in range(names))
    line = '{"a" : ' * depth + "{" + inside + "}" + "}" * depth
    assert answer([line, line], JsonOutput()) == encoded([line, line], JsonOutput())
