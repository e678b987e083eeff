"""Frames as clients decode them."""

from __future__ import annotations

from typing import Any

from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.select import xml_request_and_event_stream


def _decoded(data: bytes) -> list[Any]:
    buffer = EventStreamBuffer()
    buffer.add_data(data)
    return list(buffer)


def test_cont_and_end_are_the_published_bytes() -> None:
    assert len(xml_request_and_event_stream.CONTINUATION_FRAME) == 57
    assert xml_request_and_event_stream.CONTINUATION_FRAME[8:12] == bytes.fromhex("8ba19df2")
    assert xml_request_and_event_stream.CONTINUATION_FRAME[-4:] == bytes.fromhex("9c864a0d")
    assert len(xml_request_and_event_stream.END_FRAME) == 56
    assert xml_request_and_event_stream.END_FRAME[8:12] == bytes.fromhex("c1c684d4")
    assert xml_request_and_event_stream.END_FRAME[-4:] == bytes.fromhex("cf97d392")


def test_a_records_frame_has_85_bytes_of_headers() -> None:
    frame = b"".join(xml_request_and_event_stream.encode_records_events([b"x"]))
    assert int.from_bytes(frame[4:8], "big") == 85


def test_progress_and_stats_have_their_documented_header_lengths() -> None:
    assert (
        int.from_bytes(xml_request_and_event_stream.encode_progress_event(1, 2, 3)[4:8], "big")
        == 70
    )
    assert (
        int.from_bytes(xml_request_and_event_stream.encode_stats_event(1, 2, 3)[4:8], "big") == 67
    )


@given(st.lists(st.binary(max_size=2000), max_size=8))
def test_what_is_framed_is_what_a_client_reads(payloads: list[bytes]) -> None:
    stream = (
        b"".join(xml_request_and_event_stream.encode_records_events(payloads))
        + xml_request_and_event_stream.encode_stats_event(10, 20, 30)
        + xml_request_and_event_stream.END_FRAME
    )
    messages = _decoded(stream)
    assert [one.payload for one in messages[:-2]] == payloads
    assert messages[-2].headers[":event-type"] == "Stats"
    assert b"<BytesProcessed>20</BytesProcessed>" in messages[-2].payload
    assert messages[-1].headers[":event-type"] == "End"


@given(st.text(max_size=9000))
def test_an_error_frame_carries_code_and_message_whatever_the_text(text: str) -> None:
    (message,) = _decoded(xml_request_and_event_stream.encode_error_event("CastFailed", text))
    assert message.headers[":message-type"] == "error"
    assert message.headers[":error-code"] == "CastFailed"
    assert message.headers[":error-message"] == text[:8000].encode(errors="replace").decode()
