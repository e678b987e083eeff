"""Messages of a connection as h11 reads them, however they are cut, and hostile bytes."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from snowmelt.functions.errors import BatchInvalid, BatchTooLarge
from snowmelt.functions.proxy.http1 import (
    MAX_BODY_BYTES,
    HttpMessage,
    encode_message,
    read_messages,
)

REFUSED = (BatchInvalid, BatchTooLarge, asyncio.IncompleteReadError)


class Said:
    """What a reader of requests says to a caller that waits."""

    def __init__(self):
        self.data = b""

    def write(self, data):
        self.data += data


def read(data, *, requests=True, step=None, said=None):
    """Return the messages in these bytes, and the error that ended them."""

    async def run():
        reader = asyncio.StreamReader()
        found = []

        async def collect():
            async for message in read_messages(
                reader, cast("Any", said or Said()) if requests else None
            ):
                found.append(message)

        async def feed():
            for start in range(0, len(data), step or max(len(data), 1)):
                reader.feed_data(data[start : start + (step or len(data))])
                await asyncio.sleep(0)
            reader.feed_eof()

        results = await asyncio.gather(collect(), feed(), return_exceptions=True)
        if results[0] is not None and not isinstance(results[0], REFUSED):
            raise results[0]
        return found, results[0]

    return asyncio.run(run())


def read_with_h11(data, *, requests=True):
    """Return the first message as h11 reads it, None where it refuses or misses something."""
    connection = h11.Connection(h11.SERVER if requests else h11.CLIENT)
    if not requests:
        connection.send(
            h11.Request(method="POST", target="/", headers=[("host", "x"), ("content-length", "0")])
        )
        connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    connection.receive_data(b"")
    head, body = None, b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, (h11.Request, h11.Response)):
                head = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                break
            elif not isinstance(event, h11.InformationalResponse):
                return None
    except h11.RemoteProtocolError:
        return None
    assert head is not None
    headers: dict[str, str] = {}
    for raw_name, raw_value in head.headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    first: tuple[Any, str]
    if isinstance(head, h11.Request):
        first = (head.method.decode(), head.target.decode("latin-1"))
    else:
        first = (head.status_code, head.reason.decode("latin-1"))
    return first, headers, body


def facts(message, *, requests=True):
    if requests:
        return (message.method, message.target), dict(message.headers), message.body
    _, status, *reason = message.start_line.split(" ", 2)
    return (int(status), "".join(reason)), dict(message.headers), message.body


def chunked(*pieces):
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


TOKENS = st.text("abcXYZ-09_", min_size=1, max_size=8).filter(
    lambda name: name.lower() not in {"host", "connection", "upgrade", "content-length"}
)
VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=8)
BODIES = st.binary(max_size=30)


@st.composite
def requests(draw):
    names = draw(st.lists(TOKENS, max_size=4))
    lines = [
        f"{draw(st.sampled_from(['GET', 'POST', 'PUT']))} /{draw(TOKENS)}?a=b HTTP/1.1",
        "Host: x",
    ]
    lines += [f"{name}:{draw(st.sampled_from(['', ' ', '  ']))}{draw(VALUES)}" for name in names]
    body = draw(BODIES)
    if draw(st.booleans()):
        lines.append("Transfer-Encoding: chunked")
        body = chunked(*filter(None, (body[:7], body[7:])))
    elif body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@st.composite
def responses(draw):
    lines = [f"HTTP/1.1 {draw(st.sampled_from([200, 202, 404, 503]))} {draw(TOKENS)}"]
    lines += [f"{name}: {draw(VALUES)}" for name in draw(st.lists(TOKENS, max_size=4))]
    body = draw(BODIES)
    framing = draw(st.sampled_from(["length", "chunks", "end"]))
    if framing == "chunks":
        lines.append("Transfer-Encoding: chunked")
        body = chunked(*filter(None, (body[:7], body[7:])))
    elif framing == "length":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@given(data=requests(), step=st.integers(1, 50))
def test_requests_are_what_h11_reads_however_they_are_cut(data, step):
    expected = read_with_h11(data)
    found, error = read(data, step=step)
    assert error is None
    assert [facts(each) for each in found] == [expected]
    assert [facts(each) for each in read(data + data)[0]] == [expected] * 2


@given(data=responses(), step=st.integers(1, 50))
def test_responses_are_what_h11_reads_however_they_are_cut(data, step):
    found, error = read(data, requests=False, step=step)
    assert error is None
    assert [facts(each, requests=False) for each in found] == [read_with_h11(data, requests=False)]


HOSTILE = st.lists(
    st.sampled_from(
        [b"\r\n", b"\n", b"\r", b"\0", b":", b" ", b"\t", b"\xff", b"content-length: 3\r\n", b"+", b"0x",
         b"content-length: 4\r\n", b"transfer-encoding: chunked\r\n", b"transfer-encoding: x\r\n", b"_", b"-1",
         b"HTTP/1.0", b"HTTP/2.0", b";", b"\xc2\xb2", b"expect: 100-continue\r\n", b"connection: close\r\n"]
    ),
    min_size=1, max_size=3,
)  # fmt: skip


@given(data=requests(), put=HOSTILE, at=st.floats(0, 1), cut=st.integers(0, 4))
@example(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n", [b"-1\r\n\r\n"], 1, 0)
@example(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: ", [b"\xc2\xb2\r\n\r\n"], 1, 0)
@example(b"GET / HTTP/1.1\r\nhost: x", [b" \t\r\n\r\n"], 1, 0)
def test_hostile_requests_are_refused_or_what_h11_reads(data, put, at, cut):
    place = int(at * len(data))
    data = data[:place] + b"".join(put) + data[place + cut :]
    found, error = read(data)
    expected = read_with_h11(data)
    if found and expected is not None:
        assert facts(found[0]) == expected
    assert found or error is not None or not data.strip()


@given(data=responses(), put=HOSTILE, at=st.floats(0, 1), cut=st.integers(0, 4))
def test_hostile_responses_are_refused_or_what_h11_reads(data, put, at, cut):
    place = int(at * len(data))
    data = data[:place] + b"".join(put) + data[place + cut :]
    found, _ = read(data, requests=False)
    expected = read_with_h11(data, requests=False)
    if found and expected is not None:
        assert facts(found[0], requests=False) == expected


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_messages_or_refused(data, requests):
    read(data, requests=requests)


@given(
    headers=st.dictionaries(TOKENS.map(str.lower), VALUES, max_size=4),
    body=BODIES,
    first=st.sampled_from(["POST /a HTTP/1.1", "HTTP/1.1 200 Fine"]),
)
def test_what_is_written_is_read_again_by_both(headers, body, first):
    requests = not first.startswith("HTTP")
    sent = HttpMessage(first, {"host": "x", **headers}, body)
    data = encode_message(sent)
    (found,), _ = read(data, requests=requests)
    assert (found.start_line, found.get_end_to_end_headers(), found.body) == (
        sent.start_line, sent.get_end_to_end_headers(), body,
    )  # fmt: skip
    assert facts(found, requests=requests) == read_with_h11(data, requests=requests)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nabc", asyncio.IncompleteReadError),
        (b"POST / HTTP/1.1\r\nhost", asyncio.IncompleteReadError),
        (b"GET / HTTP/1.1\r\na: " + b"x" * 200_000, BatchTooLarge),
        (b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), BatchTooLarge),
        (b"hello\r\n\r\n", BatchInvalid),
        (b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n", BatchInvalid),
    ],
)
def test_what_is_not_a_whole_request_is_told(data, kind):
    found, error = read(data)
    assert found == []
    assert type(error) is kind


def test_a_caller_that_waits_is_told_to_go_on():
    said = Said()
    head = b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n"
    (found,), _ = read(head + b"a", said=said, step=7)
    assert found.body == b"a"
    assert said.data == b"HTTP/1.1 100 Continue\r\n\r\n"


def test_a_notice_is_not_the_response():
    data = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"
    assert [each.start_line for each in read(data, requests=False)[0]] == [
        "HTTP/1.1 204 No Content"
    ]
