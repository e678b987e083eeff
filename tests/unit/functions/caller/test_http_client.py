"""Requests go over connections that are kept, replaced when they ended and closed when done."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from fixtures.http import CLOSE, OK, At, ask, asking
from snowmelt.functions.caller import http_client
from snowmelt.functions.caller.http_client import encode_headers
from snowmelt.functions.errors import (
    CallTimeout,
    ConnectionLost,
    DeclarationInvalid,
    TransportFailed,
)
from support.raw_service import RawService, reply


def test_the_request_arrives_as_it_was_written(with_client):
    with RawService(OK) as service:
        with_client(asking(service, body=b"abc", path="/a/f?key=1"))
    request = service.requests[0]
    assert (request.start_line, request.body) == ("POST /a/f?key=1 HTTP/1.1", b"abc")
    assert request.headers == {
        "host": f"127.0.0.1:{service.port}",
        "x-test": "1",
        "content-length": "3",
    }


def test_one_connection_serves_requests_one_after_the_other(with_client):
    async def work(client):
        return [(await ask(client, service)).body for _ in range(5)]

    with RawService(OK) as service:
        assert with_client(work) == [b"hello"] * 5
    assert service.connections == 1


def test_as_many_connections_as_requests_in_flight_are_made_and_kept(with_client):
    async def work(client):
        for _ in range(2):
            replies = await asyncio.gather(*(ask(client, service) for _ in range(16)))
            assert {each.body for each in replies} == {b"hello"}

    async def later(writer):
        await asyncio.sleep(0.05)
        writer.write(OK)

    with RawService(later) as service:
        with_client(work)
    assert service.connections == 16


def test_a_kept_connection_that_ends_without_a_word_is_replaced_at_once(with_client):
    async def work(client):
        await ask(client, service)
        return await ask(client, service)

    with RawService(OK, CLOSE, OK) as service:
        assert with_client(work).body == b"hello"
    assert (service.connections, len(service.requests)) == (2, 3)


def test_a_kept_connection_that_ends_within_a_reply_is_not(with_client):
    async def work(client):
        await ask(client, service)
        await ask(client, service)

    half = (b"HTTP/1.1 200 OK\r\n", CLOSE)
    with RawService(OK, half, OK) as service, pytest.raises(ConnectionLost):
        with_client(work)


def test_connections_that_ended_while_idle_are_not_used(with_client):
    async def work(client):
        await asyncio.gather(*(ask(client, service) for _ in range(4)))
        for _ in range(4):
            assert await asyncio.to_thread(service.ended.acquire, timeout=60)
        await asyncio.sleep(0.05)
        return await ask(client, service)

    async def then_end(writer):
        writer.write(OK)
        await asyncio.sleep(0.05)

    ends = (then_end, CLOSE)
    with RawService(ends, ends, ends, ends, OK) as service:
        assert with_client(work).body == b"hello"
    assert (service.connections, len(service.requests)) == (5, 5)


def test_connections_that_nobody_uses_are_closed_after_a_while(with_client, monkeypatch):
    async def work(client):
        await asyncio.gather(*(ask(client, service) for _ in range(3)))
        for _ in range(3):
            assert await asyncio.to_thread(service.ended.acquire, timeout=60)
        return (await ask(client, service)).body

    monkeypatch.setattr(http_client, "_IDLE_CONNECTION_TTL_S", 0.05)
    with RawService(OK) as service:
        assert with_client(work) == b"hello"


def test_what_comes_without_being_asked_for_ends_the_connection(with_client):
    said = threading.Event()

    async def twice(writer):
        writer.write(OK)
        await asyncio.sleep(0.05)
        writer.write(reply(body=b"other"))
        said.set()

    async def work(client):
        first = await ask(client, service)
        assert await asyncio.to_thread(said.wait, 60)
        await asyncio.sleep(0.05)
        return first.body, (await ask(client, service)).body

    with RawService(twice, OK) as service:
        assert with_client(work) == (b"hello", b"hello")
        assert service.connections == 2


def test_two_replies_at_once_are_one_too_many(with_client):
    async def work(client):
        return [(await ask(client, service)).body for _ in range(2)]

    with RawService(OK + reply(body=b"other"), OK) as service:
        assert with_client(work) == [b"hello", b"hello"]
        assert service.connections == 2


@pytest.mark.parametrize(
    "late", [reply(body=b"other"), b"H", b"\r\n", CLOSE], ids=["reply", "letter", "line", "end"]
)
def test_what_comes_late_is_no_reply_to_the_next_request(with_client, late):
    asked, said = threading.Event(), threading.Event()

    async def twice(writer):
        writer.write(OK)
        await writer.drain()
        await asyncio.to_thread(asked.wait, 60)
        if late is CLOSE:
            writer.close()
        else:
            writer.write(late)
            await writer.drain()
        said.set()

    async def work(client):
        first = await ask(client, service)
        asked.set()
        # The loop does not run meanwhile, so it cannot see that there is something to read.
        assert said.wait(60)
        return first.body, (await ask(client, service)).body

    with RawService(twice, OK) as service:
        assert with_client(work) == (b"hello", b"hello")
        assert service.connections == 2


@pytest.mark.parametrize(
    "more",
    [b"H", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n", b"x" * 9],
    ids=repr,
)
def test_bytes_behind_a_body_end_the_connection(with_client, more):
    async def work(client):
        return [(await ask(client, service)).body for _ in range(2)]

    with RawService(OK + more, OK) as service:
        assert with_client(work) == [b"hello", b"hello"]
        assert service.connections == 2


@pytest.mark.parametrize("end", ["timeout", "cancel"])
def test_the_reply_to_a_request_that_was_given_up_answers_no_other(with_client, end):
    release = threading.Event()

    async def late(writer):
        await asyncio.to_thread(release.wait, 60)
        writer.write(reply(body=b"other"))
        await writer.drain()

    async def work(client):
        if end == "timeout":
            with pytest.raises(CallTimeout):
                await ask(client, service, idle_timeout_s=0.05, response_timeout_s=0.05)
        else:
            task = asyncio.ensure_future(ask(client, service))
            assert await asyncio.to_thread(service.asked.acquire, timeout=60)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        release.set()
        return (await ask(client, service)).body

    with RawService(late, OK) as service:
        assert with_client(work) == b"hello"
        assert service.connections == 2


def test_a_host_that_takes_no_connection_times_out(with_client):
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        service = At(f"http://127.0.0.1:{full.getsockname()[1]}")
        with pytest.raises(CallTimeout, match="while connecting"):
            with_client(asking(service, connect_timeout_s=0.2))
        for each in waiting:
            each.close()


def test_a_port_where_nobody_listens_is_told(with_client):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        service = At(f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(TransportFailed, match="refused"):
            with_client(asking(service))


def test_a_host_that_has_no_address_is_told(with_client):
    service = At("http://nowhere.invalid")
    with pytest.raises(TransportFailed, match=r"^nowhere.invalid:80: "):
        with_client(asking(service))


def test_cancelling_closes_the_connection_of_the_request(with_client):
    async def work(client):
        asked = asyncio.create_task(ask(client, service))
        assert await asyncio.to_thread(service.asked.acquire, timeout=60)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert await asyncio.to_thread(service.ended.acquire, timeout=60)
        return (await ask(client, service)).body

    with RawService(None, OK) as service:
        assert with_client(work) == b"hello"


def test_closing_ends_requests_that_are_under_way_and_lets_no_more_begin(with_client):
    async def work(client):
        asked = asyncio.create_task(ask(client, service))
        assert await asyncio.to_thread(service.asked.acquire, timeout=60)
        await client.close()
        with pytest.raises(TransportFailed):
            await asked
        with pytest.raises(TransportFailed, match="closed"):
            await ask(client, service)

    with RawService(None) as service:
        with_client(work)


@pytest.mark.parametrize("value", ["a\r\nb: c", "é", "\x00"])
def test_a_header_cannot_smuggle_another(value):
    with pytest.raises(DeclarationInvalid, match="'x-a'") as refused:
        encode_headers({"x-a": value})
    assert value not in str(refused.value)
