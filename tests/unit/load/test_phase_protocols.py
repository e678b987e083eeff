"""Bytes in pieces are read as they come, or by number, and never twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from snowmelt.load.phase_protocols import ByteReader


def test_pieces_come_as_they_are_without_empty_ones() -> None:
    reader = ByteReader([b"ab", b"", b"c"])
    assert list(reader) == [b"ab", b"c"]
    assert (reader.read(), reader.offset, reader.at_end) == (b"", 3, True)


def test_exact_sizes_run_across_pieces_and_are_short_only_at_the_end() -> None:
    reader = ByteReader([b"ab", b"cde"])
    assert (reader.read(3), reader.offset, reader.read(5), reader.read(1)) == (
        b"abc",
        3,
        b"de",
        b"",
    )


def test_peeking_reads_nothing() -> None:
    reader = ByteReader([b"ab", b"cd"])
    assert (reader.peek(3), reader.peek(9), reader.offset) == (b"abc", b"abcd", 0)
    assert (reader.read(), reader.read()) == (b"abcd", b"")


def test_a_piece_that_is_read_as_it_comes_is_not_copied() -> None:
    piece = bytes(100)
    assert ByteReader([piece]).read() is piece


def test_closing_ends_the_pieces_and_what_is_held() -> None:
    ended = []

    def pieces() -> Iterator[bytes]:
        try:
            yield b"abc"
            yield b"def"
        finally:
            ended.append(True)

    reader = ByteReader(pieces())
    reader.peek(1)
    reader.close()
    reader.close()
    assert (ended, reader.read(), reader.at_end) == ([True], b"", True)


@given(
    st.lists(st.binary(max_size=10)),
    st.lists(st.one_of(st.none(), st.integers(0, 12)), max_size=20),
)
def test_any_way_of_reading_gives_the_bytes_in_order(pieces: list[Any], sizes: list[Any]) -> None:
    data, reader, got = b"".join(pieces), ByteReader(pieces), b""
    for size in sizes:
        assert reader.peek(3) == data[len(got) : len(got) + 3]
        got += reader.read(size)
        assert reader.offset == len(got)
    assert got + b"".join(reader) == data
