"""A reply is read in every form it may have, and each way in which it can end is told apart."""

from __future__ import annotations

import asyncio
import itertools
import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.http import CLOSE, OK, Traffic, ask, asking, slowly
from snowmelt.functions.errors import CallTimeout, ConnectionLost, PayloadTooLarge, TransportFailed
from support.raw_service import RawService, reply

FORMS = {
    "length": OK,
    "chunks": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n",
    "chunks with trailers": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-test: no\r\n\r\n"
    ),
    "until the end": (b"HTTP/1.1 200 OK\r\n\r\nhello", CLOSE),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\nhello", CLOSE),
    "connection: close": (
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello",
    ),
    "100 before": b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
    "103 before": b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\nx-test: no\r\n\r\n" + OK,
    "no reason": b"HTTP/1.1 200\r\ncontent-length: 5\r\n\r\nhello",
    "line feeds": b"HTTP/1.1 200 OK\ncontent-length: 5\n\nhello",
    "empty header": b"HTTP/1.1 200 OK\r\nx-none:\r\ncontent-length: 5\r\n\r\nhello",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("drip", [False, True], ids=["at once", "byte by byte"])
def test_a_reply_is_read_in_whatever_form_it_comes(with_client, form, drip):
    parts = FORMS[form] if isinstance(FORMS[form], tuple) else (FORMS[form],)
    if drip:
        parts = tuple(slowly(part, 0) if isinstance(part, bytes) else part for part in parts)

    async def work(client):
        for _ in range(2):
            found = await ask(client, service)
            assert (found.status, found.body) == (200, b"hello")
            assert "x-test" not in found.headers

    with RawService(parts) as service:
        with_client(work)
        kept = form not in {"until the end", "HTTP/1.0", "connection: close"}
        assert service.connections == (1 if kept else 2)


def test_headers_are_in_lower_case_and_repeated_ones_joined(with_client):
    said = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a: 2\r\nContent-Length: 0\r\n\r\n"
    with RawService(said) as service:
        found = with_client(asking(service))
    assert (found.headers["x-a"], found.body) == ("1, 2", b"")


BROKEN = {
    "garbage": (b"SSH-2.0-server\r\n\r\n", "not HTTP/1.1"),
    "length too long": ((b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello", CLOSE), "middle"),
    "chunk too long": (
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nhello", CLOSE),
        "middle of the response",
    ),
    "no last chunk": (
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", CLOSE),
        "middle of the response",
    ),
    "chunk of no size": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n",
        "not HTTP/1.1",
    ),
    "a length and chunks": (
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nhello",
        "not HTTP/1.1",
    ),
    "two lengths": (
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
        "not HTTP/1.1",
    ),
    "negative length": (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", "not HTTP/1.1"),
    "head without end": (b"HTTP/1.1 200 OK\r\n" + b"x-a: 1\r\n" * 10_000, "exceeds 65,536 bytes"),
    "notices without end": (b"HTTP/1.1 103 Hint\r\n\r\n" * 5_000, "exceeds 65,536 bytes"),
    "101": (
        b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        "not HTTP/1.1",
    ),
    "nothing": (CLOSE, "closed without a reply"),
    "half a head": ((b"HTTP/1.1 200 OK\r\ncontent-", CLOSE), "middle of the response"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_reply_fails_and_names_the_host_alone(with_client, case):
    said, reason = BROKEN[case]
    with RawService(said) as service, pytest.raises(TransportFailed, match=reason) as failed:
        with_client(asking(service, path="/secret?code=secret", response_timeout_s=5))
    assert str(failed.value).startswith(f"127.0.0.1:{service.port}: ")
    assert "secret" not in str(failed.value)


GOOD = [
    b"".join(part for part in (form if isinstance(form, tuple) else (form,)) if part is not CLOSE)
    for form in FORMS.values()
]


@st.composite
def damaged(draw):
    """Return a reply with bytes put in, taken out or repeated, in pieces."""
    said = draw(st.sampled_from(GOOD))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(said)))
        until = draw(st.integers(at, min(len(said), at + 12)))
        noise = draw(st.binary(max_size=4) | st.sampled_from([said[at:until] * 2, b"\r\n", b"0"]))
        said = said[:at] + noise + said[until:]
    cuts = sorted(draw(st.lists(st.integers(0, len(said)), max_size=3)))
    return [said[a:b] for a, b in itertools.pairwise([0, *cuts, len(said)])]


@pytest.mark.slow
@settings(
    max_examples=settings().max_examples * 5 // 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(pieces=damaged())
def test_whatever_comes_is_a_reply_or_a_failure_and_nothing_else(with_client, pieces):
    async def work(client):
        try:
            found = await ask(client, service, response_timeout_s=5)
        except (TransportFailed, PayloadTooLarge):
            return
        assert 200 <= found.status <= 999

    with RawService((*pieces, CLOSE)) as service:
        with_client(work)


def test_a_reset_in_the_middle_fails(with_client):
    async def reset(writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhel")
        await writer.drain()
        await asyncio.sleep(0.05)
        linger = b"\x01\0\0\0\0\0\0\0"
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    with (
        RawService(reset) as service,
        pytest.raises(ConnectionLost, match="middle of the response"),
    ):
        with_client(asking(service))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "bounds"),
    [
        (None, {"response_timeout_s": 0.2}),
        ((b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhel", None), {"idle_timeout_s": 0.2}),
        (slowly(reply(body=b"x" * 500), 0.01), {"idle_timeout_s": 2.0, "response_timeout_s": 0.3}),
        (slowly(b"HTTP/1.1 103 Hint\r\n\r\n" * 100, 0.01), {"response_timeout_s": 0.3}),
    ],
    ids=["silence", "silence in the middle", "drip", "notices"],
)
def test_a_reply_that_is_too_slow_times_out_and_its_connection_is_closed(with_client, said, bounds):
    async def work(client):
        with pytest.raises(CallTimeout, match="Timeout was reached"):
            await ask(client, service, **bounds)
        assert await asyncio.to_thread(service.ended.acquire, timeout=60)

    with RawService(said) as service:
        with_client(work)


@pytest.mark.slow
def test_a_slow_reply_that_goes_on_is_waited_for(with_client):
    with RawService(slowly(reply(body=b"x" * 50), 0.01)) as service:
        assert (
            len(with_client(asking(service, idle_timeout_s=0.6, response_timeout_s=60)).body) == 50
        )


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 1001\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"64\r\n" + b"x" * 100 + b"\r\n",
        reply(body=b"x" * 1001),
    ],
    ids=["announced", "chunks", "sent"],
)
def test_a_reply_that_is_too_large_is_not_read_to_its_end(with_client, said):
    parts = (said,) * 20 if b"chunked" in said else (said,)
    parts = (said, *(said.partition(b"\r\n\r\n")[2] for _ in parts[1:]), None)
    with (
        RawService(parts) as service,
        pytest.raises(PayloadTooLarge, match="larger than 1,000 bytes"),
    ):
        with_client(asking(service, max_response_bytes=1000))


def test_a_large_body_of_an_error_is_cut_off(with_client):
    said = (b"HTTP/1.1 500 Oh\r\ncontent-length: 99000000\r\n\r\n" + b"x" * 100_000, None)
    with RawService(said) as service:
        assert with_client(asking(service)).status == 500


def test_redirects_are_replies_like_others(with_client):
    with RawService(reply(302, location="http://127.0.0.1:1/elsewhere")) as service:
        found = with_client(asking(service))
    assert (found.status, len(service.requests)) == (302, 1)


class EarlyService(RawService):
    """Answers when it has read a request's head, and never reads the rest.

    Its receive buffer does not grow, so a large request cannot be sent before the answer comes.
    """

    async def converse(self, reader, writer):
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self.answers[0])
        await asyncio.Event().wait()


def test_an_answer_before_the_whole_request_was_read_is_taken(with_client):
    with EarlyService(reply(413, body=b"too much")) as service:
        assert with_client(asking(service, body=b"x" * 30_000_000)).status == 413


@pytest.mark.parametrize("status", [200, 202])
def test_a_result_before_the_whole_request_was_read_is_not_believed(with_client, status):
    early = EarlyService(reply(status, body=b"other"))
    with early as service, pytest.raises(TransportFailed, match="before the whole request"):
        with_client(asking(service, body=b"x" * 30_000_000))


def test_bytes_are_counted_in_failure_as_well(with_client):
    traffic = Traffic()
    with RawService((b"HTTP/1.1 200 OK\r\n", CLOSE)) as service:
        with pytest.raises(ConnectionLost):
            with_client(asking(service, traffic=traffic))
        sent = len(f"POST /f HTTP/1.1\r\nhost: 127.0.0.1:{service.port}\r\n") + len(
            b"x-test: 1\r\ncontent-length: 2\r\n\r\n{}"
        )
    assert (traffic.bytes_out, traffic.bytes_in) == (sent, 17)


def test_what_an_origin_can_decompress_is_remembered(with_client):
    async def work(client):
        await ask(client, service)
        return client.accepted_encodings

    with RawService(reply(accept_encoding="gzip")) as service:
        assert list(with_client(work).values()) == ["gzip"]
