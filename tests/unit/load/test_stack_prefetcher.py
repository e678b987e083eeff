"""Pieces made ahead are the same pieces, few of them early, and end when nobody wants more."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.load.stack import Prefetcher


@given(st.lists(st.binary(max_size=3), max_size=9))
def test_all_pieces_come_in_their_order(pieces: list[Any]) -> None:
    assert list(Prefetcher(pieces)) == pieces


def test_an_error_comes_behind_the_pieces_before_it() -> None:
    def broken() -> Iterator[bytes]:
        yield b"a"
        yield b"b"
        raise ValueError("here")

    found: list[bytes] = []
    with pytest.raises(ValueError, match="here"):
        found.extend(Prefetcher(broken()))
    found = []
    pieces = iter(Prefetcher(broken()))
    found = [next(pieces), next(pieces)]
    assert found == [b"a", b"b"]


def test_pieces_are_made_beside_their_reader_but_only_a_few_early() -> None:
    made = []
    third = threading.Event()

    def source() -> Iterator[bytes]:
        for number in range(100):
            made.append(number)
            if number == 2:
                third.set()
            yield b"x"

    ahead = Prefetcher(source())
    pieces = iter(ahead)
    next(pieces)
    # Without a thread of its own the third piece would wait to be asked for.
    assert third.wait(60)
    ahead.close()
    assert len(made) <= 4


def test_closing_ends_what_makes_the_pieces_before_it_returns() -> None:
    threads = []

    def source() -> Iterator[bytes]:
        threads.append(threading.current_thread())
        while True:
            yield b"x"

    ahead = Prefetcher(source())
    assert next(iter(ahead)) == b"x"
    ahead.close()
    ahead.close()
    assert not threads[0].is_alive()


def test_what_was_never_asked_for_is_closed_without_a_thread() -> None:
    Prefetcher([b"x"]).close()
