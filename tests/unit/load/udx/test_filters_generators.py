"""Filters as generators and plain functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.phase_protocols import ByteReader
from support.phases import built
from support.user_code import filtered, library

CODE = """
import datetime

class Repeat:
    def __init__(self, times: int = 2, *, mark: str | None = None):
        self.times, self.mark = times, (mark or "").encode()
    def run(self, reader):
        while line := reader.read(3):
            yield line * self.times
        yield self.mark

def lines(reader, ending: str = "|"):
    for piece in reader:
        yield piece.replace(b"\\n", ending.encode())

def backwards(data):
    return data[::-1]

def broken(reader):
    yield reader.read(2)
    raise ValueError("enough")

def texts(reader):
    yield "text"

def strange(reader, *, what: list):
    yield b""

def two(reader):
    yield reader.read(2)

constant = 5
"""


def build(name: str, **given: Any) -> Any:
    return built(library(CODE).filter(name), given)


def test_generators_and_functions_are_filters_with_parameters() -> None:
    assert filtered(build("Repeat"), b"abcd", b"e") == b"abcabcdede"
    assert filtered(build("Repeat", times=1, MARK="!"), b"abcd", b"e") == b"abcde!"
    assert filtered(build("lines", ending=";"), b"a\n", b"b\n") == b"a;b;"


def test_a_function_of_bytes_gets_the_whole_input_unless_told_otherwise() -> None:
    assert filtered(build("backwards"), b"ab", b"cd") == b"dcba"
    assert filtered(build("backwards", whole_input=False), b"ab", b"cd") == b"badc"


def test_errors_tell_the_place_in_the_file_and_in_the_input() -> None:
    with pytest.raises(PhaseFailed, match=r"ValueError: enough \(lib/code.py, line \d+\)") as info:
        filtered(build("broken"), b"abc")
    assert info.value.fields["offset"] == 2
    with pytest.raises(PhaseFailed, match="yielded str, not bytes"):
        filtered(build("texts"), b"abc")


def test_leaving_early_closes_what_came_before() -> None:
    closed = []

    def pieces() -> Iterator[bytes]:
        try:
            yield b"abc"
            yield b"def"
        finally:
            closed.append(True)

    assert list(build("two").run(ByteReader(pieces()))) == [b"ab"]
    assert closed == [True]


def test_what_is_no_filter_is_refused() -> None:
    for name, reason in (
        ("constant", "a method prepare, process or run"),
        ("strange", "parameter what: expected str, int"),
        ("nobody", "nobody not found. Defined names: Repeat, lines, backwards"),
    ):
        with pytest.raises(LoadRefused, match=reason):
            build(name)
    with pytest.raises(
        LoadRefused, match=r"unknown parameter tims\. Valid parameters: times, mark"
    ):
        build("Repeat", tims=3)


def test_after_a_failure_a_new_object_is_made() -> None:
    code = """
    class F:
        def __init__(self):
            self.fed = 0
        def process(self, srv, inp, state, out):
            self.fed += inp.getSize()
            if inp.read() == b"!":
                raise ValueError("no")
            out.write(b"%d" % self.fed)
            return StreamState.DONE
    """
    phase = built(library(code).filter("F"), {})
    assert (filtered(phase, b"ab"), filtered(phase, b"c")) == (b"2", b"3")
    with pytest.raises(PhaseFailed):
        filtered(phase, b"!")
    assert filtered(phase, b"abcd") == b"4"
