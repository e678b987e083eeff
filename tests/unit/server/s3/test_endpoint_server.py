"""A connection that does not get to the point is ended; one that waits for its next request is not."""

from __future__ import annotations

import socket
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

import pytest

from snowmelt.server.listener import HttpListener, open_listening_socket
from snowmelt.server.s3.endpoint_server import HeadLimitProtocol

if TYPE_CHECKING:
    from starlette.types import Message


REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Hasty(HeadLimitProtocol):
    head_timeout_s = 0.5


async def app(
    scope: MutableMapping[str, Any],
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    await receive()
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    listening = open_listening_socket("127.0.0.1", 0, setting="s3_port")
    port = listening.getsockname()[1]
    listener = HttpListener(app, listening, drain_s=1, protocol=Hasty)
    listener.start("protocol")
    with socket.create_connection(("127.0.0.1", port), timeout=120) as raw:
        yield raw
    listener.close()


def answered(connection: socket.socket) -> None:
    """Read until the answer is whole: its head and its body may come one after the other."""
    answer = b""
    while not answer.endswith(b"\r\n\r\nok"):
        piece = connection.recv(1000)
        assert piece, answer
        answer += piece


def drip(connection: socket.socket, text: bytes) -> None:
    for byte in text:
        connection.sendall(bytes([byte]))
        time.sleep(0.05)


def test_who_says_nothing_is_let_go(connection: socket.socket) -> None:
    assert connection.recv(100) == b""


@pytest.mark.slow
@pytest.mark.parametrize("before", [b"", REQUEST])
def test_a_head_that_comes_drop_by_drop_ends_the_connection(
    connection: socket.socket, before: bytes
) -> None:
    if before:
        connection.sendall(before)
        answered(connection)
    with pytest.raises(OSError, match=r"reset|Broken"):
        drip(connection, b"GET / HTTP/1.1\r\nX-Long: " + b"x" * 40)


@pytest.mark.slow
def test_a_connection_may_wait_for_its_next_request(connection: socket.socket) -> None:
    for _ in range(2):
        connection.sendall(REQUEST)
        answered(connection)
        time.sleep(0.6)


@pytest.mark.slow
def test_a_body_may_take_longer_than_a_head(connection: socket.socket) -> None:
    connection.sendall(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n\r\n")
    drip(connection, b"x" * 14)
    assert connection.recv(1000).endswith(b"ok")
