"""The host's side of a filter: how much it gives, what it makes of each state, what it refuses."""

from __future__ import annotations

import random
import threading
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.errors import PhaseFailed
from snowmelt.load.phase_protocols import ByteReader
from snowmelt.load.udx.filters import UdxFilter
from snowmelt.load.udx.input_window import UdxLimits
from snowmelt.load.udx.instance import UdxHost
from support.user_code import filtered, library

MIB = 1024 * 1024


def hosted(code: str, name: str = "F", **limits: Any) -> UdxFilter:
    made = library(code).find_object(name)
    return UdxFilter(UdxHost(f"filter {name}()", limits=replace(UdxLimits(), **limits)), made)


def user_object(one: UdxFilter) -> Any:
    """The filter that the user wrote."""
    return one.instance.user_object


COPY = """
class F(vertica_sdk.UDFilter):
    def setup(self, srvInterface):
        self.calls = []
    def process(self, srvInterface, inputbuffer, inputstate, outputbuffer):
        self.calls.append((inputbuffer.getSize(), str(inputstate)))
        outputbuffer.write(inputbuffer.read())
        return StreamState.DONE if inputstate == InputState.END_OF_FILE else StreamState.INPUT_NEEDED
"""


def test_a_small_input_comes_whole_with_the_first_call() -> None:
    one = hosted(COPY)
    assert filtered(one, b"ab", b"cd", b"e") == b"abcde"
    assert user_object(one).calls == [(5, "END_OF_FILE")]


def test_an_empty_input_is_one_call_at_the_end() -> None:
    one = hosted(COPY)
    assert filtered(one) == b""
    assert user_object(one).calls == [(0, "END_OF_FILE")]


def test_a_large_input_comes_in_chunks_and_ends_with_an_empty_call() -> None:
    one = hosted(COPY)
    assert filtered(one, *[bytes(MIB)] * 3) == bytes(3 * MIB)
    assert user_object(one).calls == [(MIB, "OK")] * 3 + [(0, "END_OF_FILE")]


def test_the_whole_input_comes_at_once_if_asked_for() -> None:
    one = hosted(COPY, whole_input=True)
    filtered(one, *[bytes(MIB)] * 3)
    assert user_object(one).calls == [(3 * MIB, "END_OF_FILE")]
    with pytest.raises(PhaseFailed, match="exceeds 10 bytes"):
        filtered(hosted(COPY, whole_input=True, window_bytes=10), bytes(11))


def test_the_window_grows_for_a_filter_that_takes_nothing_until_it_is_too_large() -> None:
    code = """
    class F:
        sizes = []
        def process(self, srv, inp, state, out):
            self.sizes.append(inp.getSize())
            if state != InputState.END_OF_FILE:
                return StreamState.INPUT_NEEDED
            out.write(inp.read())
            return StreamState.DONE
    """
    one = hosted(code, chunk_bytes=4)
    assert filtered(one, *[b"1234"] * 8) == b"1234" * 8
    assert user_object(one).sizes == [4, 8, 16, 32, 32]
    with pytest.raises(PhaseFailed, match="without reading any of 16 bytes"):
        filtered(hosted(code, chunk_bytes=4, window_bytes=16), *[b"1234"] * 8)


@pytest.mark.slow
def test_unread_input_stays_in_front_and_does_not_pile_up() -> None:
    code = """
    class F:
        largest = 0
        def process(self, srv, inp, state, out):
            F.largest = max(F.largest, inp.getSize() - inp.getOffset())
            out.write(inp.read(3))
            if inp.getOffset() == inp.getSize() and state == InputState.END_OF_FILE:
                return StreamState.DONE
            return StreamState.INPUT_NEEDED
    """
    data = bytes(range(256)) * 40
    one = hosted(code, chunk_bytes=64)
    assert filtered(one, *[data[at : at + 64] for at in range(0, len(data), 64)]) == data
    assert user_object(one).largest <= 128


def test_done_before_the_end_drops_the_rest_and_closes_what_came_before() -> None:
    closed = []

    def pieces() -> Iterator[bytes]:
        try:
            while True:
                yield b"x" * MIB
        finally:
            closed.append(True)

    code = """
    class F:
        def process(self, srv, inp, state, out):
            out.write(inp.read(2))
            return StreamState.DONE
    """
    assert filtered(hosted(code), *[b"xx"]) == b"xx"
    assert b"".join(hosted(code).run(ByteReader(pieces()))) == b"xx"
    assert closed == [True]


def test_output_through_the_buffer_itself_in_the_style_of_other_languages() -> None:
    # As the SDK's OneTwoDecoder: takes all, writes the first half, and the other when it is asked
    # for more output.
    code = """
    class F(vertica_sdk.UDFilter):
        def setup(self, srvInterface):
            self.held, self.flush = b"", False
        def process(self, srvInterface, input, input_state, output):
            if not self.flush:
                data = bytes(input.buf[input.offset:]).replace(b"1", b"2")
                input.offset = input.size
                half = len(data) // 2
                self.held, self.flush = data[half:], True
                self.put(output, data[:half])
                return StreamState.OUTPUT_NEEDED
            self.put(output, self.held)
            self.flush = False
            last = input_state == InputState.END_OF_FILE
            return StreamState.DONE if last else StreamState.INPUT_NEEDED
        def put(self, output, data):
            end = output.offset + len(data)
            output.buf[output.offset:end] = data
            output.offset = end
    """
    one = hosted(code, chunk_bytes=4)
    assert filtered(one, b"1a1b", b"1c1d", b"1") == b"2a2b2c2d2"
    assert filtered(one, b"11") == b"22"


def test_a_larger_output_buffer_is_given_to_who_writes_nothing() -> None:
    code = """
    class F:
        rooms = []
        def process(self, srv, inp, state, out):
            need = 5_000_000
            self.rooms.append(out.size)
            if out.size < need:
                return StreamState.OUTPUT_NEEDED
            out.buf[:need] = b"z" * need
            out.offset = need
            return StreamState.DONE
    """
    one = hosted(code)
    assert filtered(one, b"") == b"z" * 5_000_000
    assert user_object(one).rooms == [MIB, 2 * MIB, 4 * MIB, 8 * MIB]


def test_output_is_given_without_input_and_input_taken_without_output() -> None:
    code = """
    class F:
        def setup(self, srv):
            self.left = 3
        def process(self, srv, inp, state, out):
            inp.read()
            if state != InputState.END_OF_FILE:
                return StreamState.INPUT_NEEDED
            out.write(b"%d" % self.left)
            self.left -= 1
            return StreamState.OUTPUT_NEEDED if self.left else StreamState.DONE
    """
    assert filtered(hosted(code, chunk_bytes=1), b"a", b"b") == b"321"


def test_objects_are_used_again_and_set_up_each_time() -> None:
    code = """
    class F(vertica_sdk.UDFilter):
        made = 0
        steps = []
        def __init__(self):
            F.made += 1
        def setup(self, srvInterface):
            self.steps.append("setup")
        def process(self, srvInterface, inputbuffer, outputbuffer, inputstate):
            outputbuffer.write(inputbuffer.read())
            return StreamState.DONE if inputstate == InputState.END_OF_FILE else StreamState.INPUT_NEEDED
        def destroy(self, srvInterface):
            self.steps.append("destroy")
    """
    one = hosted(code)
    assert [filtered(one, b"a"), filtered(one, b"b")] == [b"a", b"b"]
    assert user_object(one).made == 1
    assert user_object(one).steps == ["setup", "destroy"] * 2


def test_destroy_is_called_when_nobody_wants_more_and_after_a_failure() -> None:
    code = """
    class F(vertica_sdk.UDFilter):
        steps = []
        def process(self, srvInterface, inputbuffer, inputstate, outputbuffer):
            data = inputbuffer.read()
            if b"!" in data:
                raise ValueError("no exclamations")
            outputbuffer.write(data)
            return StreamState.OUTPUT_NEEDED
        def destroy(self, srvInterface):
            self.steps.append("destroy")
    """
    one = hosted(code)
    stream = one.run(ByteReader([b"a"]))
    assert next(stream) == b"a"
    assert isinstance(stream, Generator)
    stream.close()
    assert user_object(one).steps == ["destroy"]
    with pytest.raises(
        PhaseFailed, match=r"process\(\) raised ValueError: no exclamations"
    ) as info:
        filtered(one, b"!")
    assert "lib/code.py, line" in str(info.value)
    assert user_object(one).steps == ["destroy", "destroy"]


ANSWERS = {
    "requested input after the end": "return StreamState.INPUT_NEEDED",
    "more output space than": "return StreamState.OUTPUT_NEEDED",
    "KEEP_GOING for 0.2 seconds": "return StreamState.KEEP_GOING",
    "expected a StreamState": "return None",
    "returned CHUNK_ALIGNED": "return StreamState.CHUNK_ALIGNED",
    "returned REJECT": "return StreamState.REJECT(None)",
    "offset backwards": "inp.advance(-1)",
    "offset was set from 1 to 0": "inp.advance(1); inp.offset = 0",
    "raised KeyError: 'gone'": "raise KeyError('gone')",
    "raised SystemExit": "raise SystemExit(3)",
    "expects bytes or str, got int": "out.write(7)",
    "has not returned for 0.2 seconds": "import threading; threading.Event().wait()",
}


@pytest.mark.parametrize("reason", ANSWERS)
def test_a_filter_that_breaks_a_rule_fails_with_the_reason(reason: str) -> None:
    code = f"""
    class F:
        def process(self, srv, inp, state, out):
            {ANSWERS[reason]}
    """
    with pytest.raises(PhaseFailed) as info:
        filtered(hosted(code, call_timeout_s=0.2), b"abc")
    assert reason in str(info.value)
    assert info.value.fields["phase"] == "filter F()"


def test_writing_after_done_is_an_error() -> None:
    code = """
    class F:
        def process(self, srv, inp, state, out):
            self.out = out
            return StreamState.DONE
        def destroy(self, srv):
            self.out.write(b"late")
    """
    with pytest.raises(PhaseFailed, match="written after DONE"):
        filtered(hosted(code), b"abc")


def test_one_call_cannot_write_without_end() -> None:
    code = """
    class F:
        def process(self, srv, inp, state, out):
            while True:
                out.write(bytes(100))
    """
    with pytest.raises(PhaseFailed, match="more than 10000 bytes were written in one call"):
        filtered(hosted(code, window_bytes=10_000), b"abc")


def test_a_blocked_filter_is_cancelled_and_the_next_stream_gets_a_new_object() -> None:
    code = """
    import threading
    class F(vertica_sdk.UDFilter):
        cancels = []
        def __init__(self):
            self.end = threading.Event()
        def process(self, srvInterface, inputbuffer, inputstate, outputbuffer):
            if inputbuffer.read() == b"block":
                self.end.wait()
            return StreamState.DONE
        def cancel(self, srvInterface):
            self.cancels.append(self)
            self.end.set()
    """
    one = hosted(code, call_timeout_s=0.2)
    first = user_object(one)
    with pytest.raises(PhaseFailed, match="has not returned"):
        filtered(one, b"block")
    assert first.cancels == [first]


def test_cancel_ends_a_call_that_waits_and_is_told_once() -> None:
    code = """
    class F(vertica_sdk.UDFilter):
        told = []
        def process(self, srvInterface, inputbuffer, inputstate, outputbuffer):
            import threading
            threading.Event().wait(0.001)
            return StreamState.DONE if self.isCanceled() else StreamState.KEEP_GOING
        def cancel(self, srvInterface):
            self.told.append(1)
    """
    one = hosted(code)
    made = user_object(one)
    timer = threading.Timer(0.1, one.cancel)
    timer.start()
    with pytest.raises(PhaseFailed, match="cancelled"):
        filtered(one, b"")
    timer.join()
    one.cancel()
    assert made.told == [1]
    with pytest.raises(PhaseFailed, match="cancelled"):
        filtered(one, b"")


def test_a_split_character_is_decoded_when_its_rest_comes() -> None:
    code = """
    class F:
        def process(self, srv, inp, state, out):
            inp.setEncoding("utf-8")
            out.setEncoding("utf-16-le")
            out.write(inp.read())
            return StreamState.DONE if state == InputState.END_OF_FILE else StreamState.INPUT_NEEDED
    """
    raw = "aä€𝄞".encode()
    one = hosted(code, chunk_bytes=1)
    pieces = [raw[at : at + 1] for at in range(len(raw))]
    assert filtered(one, *pieces).decode("utf-16-le") == "aä€𝄞"
    for broken, offset in ((raw[:-1], len(raw) - 4), (b"ab\xffc", 2)):
        with pytest.raises(PhaseFailed, match=f"byte {offset} of its input is not utf-8") as info:
            filtered(one, *[broken[at : at + 1] for at in range(len(broken))])
        assert info.value.fields["offset"] == offset


def test_text_without_an_encoding_is_utf_8_and_said_once() -> None:
    code = """
    class F:
        def process(self, srv, inp, state, out):
            assert out.write("ä") == "" and out.write("ö") == ""
            return StreamState.DONE
    """
    with pytest.warns(UserWarning, match="UTF-8") as said:
        assert filtered(hosted(code), b"").decode() == "äö"
    assert len(said) == 1


@settings(max_examples=settings().max_examples // 2)
@given(
    data=st.binary(max_size=200), sizes=st.lists(st.integers(1, 50), max_size=20), seed=st.randoms()
)
def test_any_chunking_gives_a_careful_filter_the_same_output(
    data: bytes, sizes: list[Any], seed: random.Random
) -> None:
    # Doubles lines, which it reads as far as they are whole.
    code = """
    class F:
        def process(self, srv, inp, state, out):
            window = inp.peek()
            end = window.rfind(b"\\n") + 1
            if state == InputState.END_OF_FILE:
                end = len(window)
            for line in inp.read(end).splitlines(True):
                out.write(line * 2)
            return StreamState.DONE if state == InputState.END_OF_FILE else StreamState.INPUT_NEEDED
    """
    data = data.replace(b"\x00", b"\n")
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    pieces.append(data[at:])
    want = b"".join(line * 2 for line in data.splitlines(keepends=True))
    whole = filtered(hosted(code), data)
    assert filtered(hosted(code, chunk_bytes=seed.randint(1, 64)), *pieces) == whole
    if b"\r" not in data and b"\x0b" not in data and b"\x0c" not in data:
        assert whole == want


# Whatever the contract allows: reads and writes some, in either way, holds bytes back, waits.
FREE = """
import random

class F:
    def __init__(self, seed: int):
        self.seed = seed
    def setup(self, srv):
        self.random, self.held = random.Random(self.seed), b""
    def process(self, srv, inp, state, out):
        last = state == InputState.END_OF_FILE
        calls = self.random.randint(1, 3)
        before = (inp.offset, len(self.held))
        for _ in range(calls):
            self.held += self.take(inp)
            self.give(out)
        if last and inp.offset == inp.size and not self.held:
            return StreamState.DONE
        if before == (inp.offset, len(self.held)) and last:
            self.held += inp.read(1)
            out.write(self.held)
            self.held = b""
        return self.random.choice([
            StreamState.INPUT_NEEDED, StreamState.KEEP_GOING,
            # Who has nothing to write does not need more room for it.
            StreamState.OUTPUT_NEEDED if self.held else StreamState.INPUT_NEEDED])
    def take(self, inp):
        many = self.random.randint(0, 5)
        way = self.random.randint(0, 2)
        if way == 0:
            return inp.read(many)
        if way == 1:
            data = inp.peek(many)
            inp.advance(len(data))
            return data
        data = bytes(inp.buf[inp.offset:inp.offset + many])
        inp.offset += len(data)
        return data
    def give(self, out):
        many = min(self.random.randint(0, 5), out.size - out.offset)
        data, self.held = self.held[:many], self.held[many:]
        if self.random.randint(0, 1):
            out.write(data)
        else:
            out.buf[out.offset:out.offset + len(data)] = data
            out.offset += len(data)
"""


@pytest.mark.slow
@given(
    pieces=st.lists(st.binary(max_size=30), max_size=10),
    chunk=st.integers(1, 64),
    seed=st.integers(0, 1 << 30),
)
def test_whatever_the_contract_allows_no_byte_is_lost(
    pieces: list[Any], chunk: int, seed: int
) -> None:
    phase = library(FREE).filter("F").build_phase({"seed": seed, "chunk_bytes": chunk})
    for _ in range(2):
        assert filtered(phase, *pieces) == b"".join(pieces)
