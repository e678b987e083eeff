"""A chunker finds the ends of records; its parser sees whole records only, whatever the portions."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.errors import PhaseFailed
from snowmelt.load.portion import InputFile, Portion
from support.phases import built
from support.user_code import library, parsed

CODE = """
class Ends(vertica_sdk.UDChunker):
    def process(self, srvInterface, input, input_state):
        end = input.peek().rfind(b"\\n") + 1
        if not end:
            return StreamState.INPUT_NEEDED
        input.offset += end
        return StreamState.CHUNK_ALIGNED
    def alignPortion(self, srvInterface, input, input_state):
        end = input.peek().find(b"\\n") + 1
        if not end:
            return StreamState.INPUT_NEEDED
        input.offset += end
        return StreamState.CHUNK_ALIGNED

# Knows nothing of portions, and takes all that it is given.
class Lines(vertica_sdk.UDParser):
    def process(self, srvInterface, input, input_state, writer):
        assert input_state in (InputState.END_OF_CHUNK, InputState.END_OF_FILE)
        for line in input.read().splitlines():
            writer.setInt(0, int(line))
            writer.next()
        last = input_state == InputState.END_OF_FILE
        return StreamState.DONE if last else StreamState.INPUT_NEEDED

class Factory(vertica_sdk.ParserFactory):
    def prepare(self, srvInterface, perColumnParamReader, planContext, returnType):
        return Lines()
    def prepareChunker(self, srvInterface, perColumnParamReader, planContext, returnType):
        return Ends()
    def isChunkerApportionable(self):
        return True

class Broken(Ends):
    def process(self, srvInterface, input, input_state):
        return StreamState.CHUNK_ALIGNED

class BrokenFactory(Factory):
    def prepareChunker(self, srvInterface, perColumnParamReader, planContext, returnType):
        return Broken()
"""


@given(
    numbers=st.lists(st.integers(0, 10**6), max_size=40),
    cuts=st.lists(st.integers(1, 250), max_size=4),
    size=st.integers(1, 40),
    chunk=st.integers(1, 64),
    ended=st.booleans(),
)
def test_portions_cut_anywhere_give_every_row_once(
    numbers: list[Any], cuts: list[Any], size: int, chunk: int, ended: bool
) -> None:
    data = b"\n".join(b"%d" % number for number in numbers) + b"\n" * (ended and bool(numbers))
    edges = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    parser = built(library(CODE).parser("Factory"), {"chunk_bytes": chunk})
    assert parser.splittable
    got = []
    for start, end in pairwise(edges):
        portion = Portion(InputFile("f"), start, None if end == len(data) else end - start)
        rest = data[start:]
        pieces = [rest[at : at + size] for at in range(0, len(rest), size)]
        rows, rejects = parsed(parser, pieces, portion=portion)
        assert not rejects
        got += [int(row["A"]) for row in rows]
    assert got == numbers


def test_a_chunker_that_says_aligned_without_reading_fails() -> None:
    parser = built(library(CODE).parser("BrokenFactory"), {})
    with pytest.raises(PhaseFailed, match="returned CHUNK_ALIGNED after reading 0 bytes"):
        parsed(parser, [b"1\n"])
