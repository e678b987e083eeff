from __future__ import annotations

import io
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from snowmelt.embedded import EmbeddedService
from snowmelt.server.fast_path import FastPathProtocol

if TYPE_CHECKING:
    from collections.abc import Iterator

PATH = "/v1/streaming/channels/write/blobs/"
# Answered at once, with a code of its own, so that the order of answers can be seen.
EMPTY = b'{"blobs": []}'
NO_CHUNKS = b'{"blobs": [{"path": "x", "chunks": []}]}'


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with EmbeddedService(tmp_path_factory.mktemp("express"), dev=True) as service:
        yield int(service.url.rpartition(":")[2])


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the front said of each request: a shortcut, or None for the ordinary way."""
    seen: list[object] = []
    chosen = FastPathProtocol.on_headers_complete

    def note(self: FastPathProtocol) -> None:
        chosen(self)
        seen.append(type(self.cycle).__name__ == "_FastPathCycle")

    monkeypatch.setattr(FastPathProtocol, "on_headers_complete", note)
    return seen


def request(body: bytes, *headers: str, path: str = PATH) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def answers(port: int, *pieces: bytes) -> list[tuple[int, dict[str, Any]]]:
    """Send the pieces on one connection; return every answer until the service closes it."""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        for piece in pieces:
            connection.sendall(piece)
        with connection.makefile("rb") as stream:
            return list(_read(stream))


def _read(stream: io.BufferedIOBase) -> Iterator[tuple[int, dict[str, Any]]]:
    while status := stream.readline():
        length = 0
        while (line := stream.readline().strip()) != b"":
            name, _, value = line.partition(b": ")
            length = int(value) if name.lower() == b"content-length" else length
        yield int(status.split()[1]), json.loads(stream.read(length))


def codes(found: list[tuple[int, dict[str, Any]]]) -> list[tuple[int, int]]:
    return [(status, body["status_code"]) for status, body in found]


def test_requests_one_after_another_on_one_connection(port: int, taken: list[Any]) -> None:
    found = answers(port, request(EMPTY), request(NO_CHUNKS), request(EMPTY, "Connection: close"))
    assert codes(found) == [(200, 11), (200, 12), (200, 11)]
    assert all(taken[:1])


def test_a_body_in_pieces_is_put_together(port: int, taken: list[Any]) -> None:
    whole = request(NO_CHUNKS, "Connection: close")
    assert codes(answers(port, whole[:-20], whole[-20:-3], whole[-3:])) == [(200, 12)]
    assert taken == [True]


def test_requests_sent_without_waiting_are_answered_in_their_order(port: int) -> None:
    ordinary = request(b"{}", path="/v1/streaming/client/configure/")
    last = request(EMPTY, "Connection: close")
    found = answers(port, request(NO_CHUNKS) + ordinary + request(NO_CHUNKS) + last)
    assert codes(found) == [(200, 12), (200, 0), (200, 12), (200, 11)]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request(EMPTY, "Connection: close", path="/nowhere"), 404),
        (request(EMPTY, "Connection: close").replace(b"POST", b"PUT"), 405),
        (request(EMPTY, "Connection: close").replace(b"127.0.0.1", b"evil.example"), 403),
        (request(EMPTY, "Connection: close").replace(b"application/json", b"text/plain"), 415),
        (request(EMPTY, "Connection: close", "Authorization: Bearer x"), 401),
        (request(b" " * 70_000 + EMPTY, "Connection: close"), 200),
        (request(EMPTY, "Connection: close", "Expect: 100-continue"), 100),
    ],
)
def test_whatever_is_not_plain_goes_the_ordinary_way(
    port: int, taken: list[Any], sent: bytes, status: int
) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall(sent)
        assert int(connection.makefile("rb").readline().split()[1]) == status
    assert taken == [False]


def test_what_is_no_message_is_refused_and_the_connection_stays(
    port: int, taken: list[Any]
) -> None:
    found = answers(port, request(b"no JSON"), request(EMPTY, "Connection: close"))
    assert [status for status, _ in found] == [400, 200]
    assert taken[0]


def test_a_client_that_hangs_up_does_no_harm(port: int) -> None:
    for sent in (request(NO_CHUNKS), request(NO_CHUNKS)[:-5]):
        with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
            connection.sendall(sent)
    assert codes(answers(port, request(EMPTY, "Connection: close"))) == [(200, 11)]


def test_the_id_of_a_request_in_the_query_takes_no_request_off_the_short_way(
    port: int, taken: list[Any]
) -> None:
    opens = "/v1/streaming/channels/open/?requestId=7"
    found = answers(
        port,
        request(EMPTY, path=f"{PATH}?requestId=5"),
        request(b'{"database": ""}', "Connection: close", path=opens),
    )
    assert [status for status, _ in found] == [200, 200]
    assert all(body["status_code"] for _, body in found)
    assert taken == [True, True]
