"""Thrift structures are read and written as Parquet's own library does it."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.blob.thrift_compact import (
    StructWriter,
    read_struct,
    require_integer,
    require_struct,
    require_structs,
)

SIGNED = st.integers(-(2**63), 2**63 - 1)


@given(
    number=SIGNED,
    texts=st.lists(st.text(max_size=30), max_size=40),
    numbers=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=40),
)
def test_what_was_written_is_read(number: int, texts: list[Any], numbers: list[Any]) -> None:
    inner = StructWriter().add_i64(1, number).add_string(3, "x" * 200)
    encoded = (
        StructWriter()
        .add_i32(1, 7)
        .add_strings(2, texts)
        .add_i32s(5, numbers)
        .add_struct(6, inner)
        .add_structs(20, [inner] * 16)
        .to_bytes()
    )
    expected_inner = {1: number, 3: b"x" * 200}
    fields, end = read_struct(b"skip" + encoded + b"rest", 4)
    assert end == 4 + len(encoded)
    assert fields == {
        1: 7,
        2: [text.encode() for text in texts],
        5: numbers,
        6: expected_inner,
        20: [expected_inner] * 16,
    }


def test_a_footer_of_pyarrow_is_understood() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": [1, None], "b": ["x", "y"]}), sink)
    data = sink.getvalue()
    size = int.from_bytes(data[-8:-4], "little")
    footer, end = read_struct(data[-8 - size : -8], 0)
    assert end == size
    assert require_integer(footer, 3) == 2
    assert [element[4] for element in require_structs(footer, 2)] == [b"schema", b"a", b"b"]
    [group] = require_structs(footer, 4)
    column = require_struct(require_structs(group, 1)[0], 3)
    metadata = pq.read_metadata(io.BytesIO(data)).row_group(0).column(0)
    assert require_integer(column, 9) == metadata.data_page_offset
    assert require_integer(column, 7) == metadata.total_compressed_size


@given(st.binary(max_size=60))
def test_any_bytes_are_a_structure_or_malformed(data: bytes) -> None:
    try:
        fields, end = read_struct(data, 0)
    except ValueError:
        return
    assert isinstance(fields, dict)
    assert end > 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x15",
        b"\x15\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x18\x7fabc",
        b"\x19\xfc\xff\xff\xff\xff\x0f",
        b"\x1c" * 40,
        b"\x19\x19" * 40,
        b"\x1f\x00",
    ],
)
def test_malformed_structures_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_struct(data, 0)


@pytest.mark.parametrize("value", [None, -1, b"1", [], {}, True])
def test_a_field_of_another_type_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="field 1"):
        require_integer({1: value}, 1)
    if value != []:
        with pytest.raises(ValueError, match="field 1"):
            require_structs({1: value}, 1)
    if value != {}:
        with pytest.raises(ValueError, match="field 1"):
            require_struct({1: value}, 1)
