"""The side channel: lengths of records beside their bytes, and sums that must be right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.errors import PhaseFailed
from snowmelt.load.phase_protocols import Filter, RecordFilter
from support.phases import built
from support.user_code import filtered, library

# Drops empty records and doubles the others; works record by record, as other languages do it.
DOUBLE = """
class F(vertica_sdk.UDFilter):
    def useSideChannel(self):
        return True
    def processWithMetadata(self, srvInterface, input, input_lengths, input_state, output,
                            output_lengths):
        while input_lengths.offset < input_lengths.size:
            assert input_lengths.getByteOffset() == 4 * input_lengths.offset
            length = int(input_lengths.buf[input_lengths.offset])
            data = bytes(input.buf[input.offset:input.offset + length])
            assert len(data) == length
            input.offset += length
            input_lengths.offset += 1
            if data:
                output.write(data * 2)
                output_lengths.buf[output_lengths.offset] = 2 * length
                output_lengths.offset += 1
            return StreamState.OUTPUT_NEEDED
        return StreamState.DONE if input_state == InputState.END_OF_FILE else StreamState.INPUT_NEEDED
"""


def batches(*records: list[bytes]) -> Iterator[Any]:
    return iter([pa.array(each, pa.binary()) for each in records])


def listed(items: Any) -> list[Any]:
    return [record for batch in items for record in batch.to_pylist()]


@settings(max_examples=settings().max_examples // 2)
@given(st.lists(st.lists(st.binary(max_size=20), max_size=10), max_size=5))
def test_records_stay_records(records: list[Any]) -> None:
    phase = built(library(DOUBLE).filter("F"), {})
    assert isinstance(phase, RecordFilter)
    assert not isinstance(phase, Filter)
    want = [each * 2 for batch in records for each in batch if each]
    assert listed(phase.run_records(batches(*records))) == want


def test_a_slice_of_a_batch_is_only_that() -> None:
    phase = built(library(DOUBLE).filter("F"), {})
    whole = pa.array([b"no", b"yes", b"also", b"neither"], pa.binary())
    assert listed(phase.run_records(iter([whole.slice(1, 2)]))) == [b"yesyes", b"alsoalso"]


def test_a_filter_may_end_the_side_channel() -> None:
    # As KafkaInsertLengths of the seed: lengths go into the bytes.
    code = """
    class F(vertica_sdk.UDFilter):
        def useSideChannel(self):
            return True
        def endsSideChannel(self):
            return True
        def process(self, srvInterface, input, input_state, output):
            output.write(input.read())
            return StreamState.DONE if input_state == InputState.END_OF_FILE else StreamState.INPUT_NEEDED
        def processWithMetadata(self, srvInterface, input, input_lengths, input_state, output,
                                output_lengths):
            for length in input_lengths.read():
                output.write(length.to_bytes(4, "big") + input.read(length))
            return StreamState.DONE if input_state == InputState.END_OF_FILE else StreamState.INPUT_NEEDED
    """
    phase = built(library(code).filter("F"), {})
    assert isinstance(phase, Filter)
    phase = cast("Any", phase)
    assert phase.ends_records
    assert b"".join(phase.run_records(batches([b"a" * 100, b""]))) == (
        bytes([0, 0, 0, 100]) + b"a" * 100 + bytes(4)
    )
    assert filtered(phase, b"plain") == b"plain"


def test_by_default_the_limits_of_records_are_lost_and_the_bytes_filtered() -> None:
    code = """
    class F(vertica_sdk.UDFilter):
        def useSideChannel(self):
            return True
        def endsSideChannel(self):
            return True
        def process(self, srvInterface, inputbuffer, inputstate, outputbuffer):
            outputbuffer.write(inputbuffer.read().upper())
            return StreamState.DONE if inputstate == InputState.END_OF_FILE else StreamState.INPUT_NEEDED
    """
    phase = built(library(code).filter("F"), {})
    assert b"".join(phase.run_records(batches([b"a", b"b"], [b"c"]))) == b"ABC"


def test_lengths_may_come_before_and_after_their_bytes() -> None:
    code = """
    class F(vertica_sdk.UDFilter):
        def setup(self, srv):
            self.step = 0
        def useSideChannel(self):
            return True
        def processWithMetadata(self, srv, input, input_lengths, input_state, output, output_lengths):
            self.step += 1
            if self.step == 1:
                output_lengths.write([2, 0, 3])
            if self.step == 2:
                output.write(b"aabbbc")
            if self.step == 3:
                output_lengths.write(1)
            return StreamState.OUTPUT_NEEDED if self.step < 3 else StreamState.DONE
    """
    phase = built(library(code).filter("F"), {})
    assert listed(phase.run_records(batches())) == [b"aa", b"", b"bbb", b"c"]


@pytest.mark.parametrize(
    ("writes", "reason"),
    [
        ("output.write(b'abc'); output_lengths.write(2)", "wrote 3 bytes, but record lengths of 2"),
        ("output.write(b'ab'); output_lengths.write(3)", "wrote 2 bytes, but record lengths of 3"),
        ("output.write(b'ab')", "endsSideChannel"),
        ("output_lengths.offset = 1; output_lengths.offset = 0", "set from 1 to 0"),
    ],
)
def test_sums_that_are_wrong_fail(writes: str, reason: str) -> None:
    code = f"""
    class F(vertica_sdk.UDFilter):
        def useSideChannel(self):
            return True
        def processWithMetadata(self, srv, input, input_lengths, input_state, output, output_lengths):
            {writes}
            return StreamState.DONE
    """
    phase = built(library(code).filter("F"), {})
    with pytest.raises(PhaseFailed, match=reason):
        listed(phase.run_records(batches([b"x"])))


def test_there_is_room_for_any_number_of_lengths() -> None:
    code = """
    class F(vertica_sdk.UDFilter):
        def useSideChannel(self):
            return True
        def processWithMetadata(self, srv, input, input_lengths, input_state, output, output_lengths):
            output.write(input.read())
            output_lengths.write(input_lengths.read())
            return StreamState.DONE if input_state == InputState.END_OF_FILE else StreamState.INPUT_NEEDED
    """
    phase = built(library(code).filter("F"), {"chunk_bytes": 100})
    records = [b"%d" % number for number in range(20_000)]
    assert listed(phase.run_records(batches(records, [], records[:3]))) == records + records[:3]
