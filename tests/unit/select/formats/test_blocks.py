"""Blocks: every record once and whole, wherever reads and buffers end."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.kernels.slices import PADDING_BYTES
from snowmelt.select.errors import SelectError
from snowmelt.select.formats.blocks import (
    BlockLimits,
    RecordBlockReader,
    RecordStartSpan,
    find_stream_offset,
)
from snowmelt.select.formats.byte_streams import UncompressedStream
from support.memory_objects import MemoryObject

DELIMITERS = st.sampled_from([b"\n", b"\r\n", b"\n\n", b"aba", b"|"])
TEXTS = st.lists(st.sampled_from([b"\n", b"\r\n", b"a", b"b", b"|", b"xyz"]), max_size=30).map(
    b"".join
)


def records_of(text: bytes, delimiter: bytes) -> list[tuple[int, bytes]]:
    """Return (offset, record) pairs, from the definition."""
    records, at = [], 0
    while at < len(text):
        end = text.find(delimiter, at)
        stop = len(text) if end < 0 else end + len(delimiter)
        records.append((at, text[at:stop]))
        at = stop
    return records


def read(
    text: bytes,
    delimiter: bytes,
    *,
    span: RecordStartSpan | None = None,
    block_bytes: int = 1 << 20,
    piece: int = 1 << 30,
    record_bytes: int = 1 << 20,
) -> list[tuple[int, bytes]]:
    span = span or RecordStartSpan()
    begin = find_stream_offset(delimiter, span)
    blocks = RecordBlockReader(
        UncompressedStream(MemoryObject(text, piece=piece), begin),
        delimiter,
        span=span,
        stream_offset=begin,
        cutter=None
        if begin or delimiter not in {b"\n\n", b"aba"}
        else cast("Any", in_order(delimiter)),
        limits=BlockLimits(block_bytes, record_bytes),
    )
    found = []
    for block in blocks:
        assert len(block.data) >= block.end + PADDING_BYTES
        found += [
            (block.offset + at, record) for at, record in records_of(block.copy_bytes(), delimiter)
        ]
        block.release()
        block.release()
    return found


def in_order(delimiter: bytes) -> Callable[[Any, Any, Any], Any]:
    def cut(memory: Any, start: Any, end: Any) -> Any:
        place = start
        while (found := memory.find(delimiter, place, end)) >= 0:
            place = found + len(delimiter)
        return place

    return cut


@settings(max_examples=settings().max_examples * 3 // 2, deadline=None)
@given(TEXTS, DELIMITERS, st.integers(1, 20), st.integers(1, 7))
def test_blocks_hold_every_record_once(
    text: bytes, delimiter: bytes, block_bytes: int, piece: int
) -> None:
    found = read(text, delimiter, block_bytes=block_bytes, piece=piece)
    assert found == records_of(text, delimiter)


@settings(max_examples=settings().max_examples * 5 // 2, deadline=None)
@given(TEXTS, DELIMITERS, st.integers(1, 20), st.lists(st.integers(0, 40), max_size=4))
def test_ranges_that_cover_an_object_see_every_record_once(
    text: bytes, delimiter: bytes, block_bytes: int, cuts: list[Any]
) -> None:
    edges = [0, *sorted(cuts), len(text)]
    found = []
    for first, stop in itertools.pairwise(edges):
        if first < stop:
            part = read(text, delimiter, span=RecordStartSpan(first, stop), block_bytes=block_bytes)
            assert all(first <= offset < stop for offset, _ in part)
            found += part
    assert found == [each for each in records_of(text, delimiter) if each[0] < edges[-1]]


def test_a_record_that_is_too_long_ends_reading_behind_those_before() -> None:
    text = b"one\n" + b"x" * 100 + b"\ntwo\n"
    blocks = RecordBlockReader(
        UncompressedStream(MemoryObject(text)),
        b"\n",
        limits=BlockLimits(block_bytes=8, record_bytes=50),
    )
    taken: list[bytes] = []
    with pytest.raises(SelectError, match="begins at byte 4 is longer than 50 bytes") as refused:
        taken.extend(block.copy_bytes() for block in blocks)
    assert refused.value.s3_code == "OverMaxRecordSize"
    assert taken == [b"one\n"]


def test_a_record_of_ten_megabytes_is_read_whole() -> None:
    text = b"a\n" + b"x" * 10_000_000 + b"\nb"
    assert read(text, b"\n", record_bytes=16 << 20) == records_of(text, b"\n")


def test_a_long_record_before_a_range_is_passed_over_in_a_small_buffer() -> None:
    text = b"x" * 1_000_000 + b"\nlast\n"
    assert read(
        text, b"\n", span=RecordStartSpan(500_000), block_bytes=1000, record_bytes=2000
    ) == [(1_000_001, b"last\n")]


def test_released_buffers_are_used_again() -> None:
    text = b"0123456\n" * 1000
    blocks = RecordBlockReader(
        UncompressedStream(MemoryObject(text)), b"\n", limits=BlockLimits(64)
    )
    memories = set()
    for block in blocks:
        memories.add(id(block.memory))
        block.release()
    assert len(memories) <= 2
