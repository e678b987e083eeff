"""The check of filters finds what depends on chunks and on what an earlier stream left."""

from __future__ import annotations

import pytest

from snowmelt.errors import LoadRefused
from snowmelt.load.filter_tester import (
    SAMPLE_INPUTS,
    FilterReport,
    check_filter_with_chunkings,
    generate_chunkings,
)
from support.user_code import library

DATA = b'{"a": 1}\n{"b": 2}\n{"c": 3}\n' * 4

END = "return StreamState.DONE if state == InputState.END_OF_FILE else StreamState.INPUT_NEEDED"


def check(code: str, data: bytes = DATA, name: str = "F", **given: bool) -> FilterReport:
    return check_filter_with_chunkings(library(code).filter(name), given, data)


def test_every_chunking_is_the_same_bytes() -> None:
    for data in (*SAMPLE_INPUTS.values(), DATA, bytes(200_000)):
        for chunking in generate_chunkings(data):
            assert b"".join(chunking.slices) == data
            assert all(chunking.slices)


@pytest.mark.slow
def test_a_careful_filter_passes() -> None:
    code = f"""
    class F:
        def process(self, srv, inp, state, out):
            out.write(inp.read().upper())
            {END}
    """
    report = check(code)
    assert (report.differences, report.error, report.output_bytes) == ([], None, len(DATA))
    assert report.runs > 100


@pytest.mark.slow
def test_a_record_that_is_split_and_lost_is_found_with_its_place() -> None:
    # In the style of a published filter: what it has of a line when its input ends is gone.
    code = f"""
    class F:
        def process(self, srv, inp, state, out):
            line = b""
            while byte := inp.read(1):
                line += byte
                if byte == b"\\n":
                    out.write(line)
                    line = b""
            {END}
    """
    report = check(code)
    found = {each.chunking_name: each for each in report.differences}
    assert "two slices, split at byte 9" not in found  # there a line ends
    assert found["two slices, split at byte 10"].offset == 9
    assert 'differs at byte 9 of the output: expected b\'{"b": 2}' in str(
        found["two slices, split at byte 10"]
    )
    assert check(code, whole_input=True).differences == []


@pytest.mark.slow
def test_one_document_read_by_the_first_call_needs_the_whole_input() -> None:
    code = """
    class F:
        def process(self, srv, inp, state, out):
            out.write(inp.read()[::-1])
            return StreamState.DONE
    """
    assert check(code).differences
    assert check(code, whole_input=True).differences == []


@pytest.mark.slow
def test_state_that_survives_a_stream_is_found() -> None:
    code = f"""
    class F:
        def __init__(self):
            self.line = 0
        def process(self, srv, inp, state, out):
            for byte in inp.read():
                self.line += byte == 10
                out.write(bytes([byte]) if byte != 10 else b"#%d\\n" % self.line)
            {END}
    class Factory:
        def prepare(self, srv, planContext):
            return F()
    """
    report = check(code, name="Factory")
    assert {each.is_reused_object for each in report.differences} == {True}
    assert "a reused object" in str(report.differences[0])


def test_an_error_that_depends_on_the_chunking_is_a_difference_and_another_is_none() -> None:
    code = """
    def picky(reader):
        for piece in reader:
            if len(piece) == 7:
                raise ValueError("seven")
            yield piece
    def never(reader):
        raise ValueError("never")
        yield b""
    """
    report = check(code, name="picky")
    assert any(
        each.chunking_name == "slices of 7 bytes" and "ValueError: seven" in each.actual
        for each in report.differences
    )
    report = check(code, name="never")
    assert report.differences == []
    assert "ValueError: never" in (report.error or "")


def test_a_filter_of_records_cannot_be_checked_with_bytes() -> None:
    code = """
    class F:
        def useSideChannel(self):
            return True
        def processWithMetadata(self, srv, inp, lengths, state, out, out_lengths):
            return StreamState.DONE
    """
    with pytest.raises(LoadRefused, match="expected a filter of bytes"):
        check(code)
