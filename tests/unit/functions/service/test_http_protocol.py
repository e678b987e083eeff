from __future__ import annotations

import http.client
import json
import socket
from typing import TYPE_CHECKING

import pytest

from snowmelt.functions.service import Limits, RemoteService, ServiceOptions
from snowmelt.functions.service.http_protocol import ServiceProtocol
from snowmelt.server.listener import HttpListener, open_listening_socket

if TYPE_CHECKING:
    from collections.abc import Iterator


def make_service() -> RemoteService:
    service = RemoteService("s", options=ServiceOptions(limits=Limits(request_bytes=200_000)))

    @service.function(blocking=False)
    def double(n: int) -> int:
        if n == 13:
            raise ValueError("unlucky")
        return 2 * n

    @service.function
    def double_in_thread(n: int) -> int:
        return 2 * n

    return service


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, int]]:
    """The same service, by its own protocol and by uvicorn's."""
    listeners = []
    for protocol in (ServiceProtocol, "httptools"):
        listening = open_listening_socket("127.0.0.1", 0, setting="port")
        listeners.append(
            HttpListener(make_service().asgi(), listening, drain_s=5, protocol=protocol)
        )
        listeners[-1].start("service")
    first, second = (int(each.url.rpartition(":")[2]) for each in listeners)
    yield first, second
    for each in listeners:
        each.close()


@pytest.fixture
def small(monkeypatch) -> list[bool]:
    """Of each request whether it took the short way."""
    seen: list[bool] = []
    choose = ServiceProtocol.on_headers_complete

    def note(self: ServiceProtocol) -> None:
        choose(self)
        seen.append(type(self.cycle).__name__ == "_SmallRequest")

    monkeypatch.setattr(ServiceProtocol, "on_headers_complete", note)
    return seen


def body(*rows: object) -> bytes:
    return json.dumps({"data": [[at, row] for at, row in enumerate(rows)]}).encode()


BATCH = "sf-external-function-query-batch-id"


def ask(port: int, method: str, path: str, sent: bytes, headers: dict[str, str]):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, sent, headers)
    response = connection.getresponse()
    found = response.status, response.read(), dict(response.getheaders())
    connection.close()
    found[2].pop("date", None)
    return found


@pytest.mark.parametrize(
    ("method", "path", "sent", "headers", "short"),
    [
        ("POST", "/double", body(1, 2), {}, True),
        ("POST", "/prod/double/", body(1, 2), {BATCH: "a"}, True),
        ("POST", "/double", body(3), {BATCH: "b", "Accept-Encoding": "gzip"}, True),
        ("POST", "/double", body(*range(2000)), {"Accept-Encoding": "gzip"}, True),
        ("POST", "/double", body(13), {}, True),
        ("POST", "/double", b"nothing", {}, True),
        ("POST", "/double", b"", {}, True),
        ("POST", "/double", body(1), {"Connection": "close"}, True),
        ("POST", "/other", body(1), {"sf-external-function-name": "DOUBLE"}, True),
        ("POST", "/other", body(1), {}, False),
        ("POST", "/double?x=1", body(1), {}, False),
        ("POST", "/do%75ble", body(1), {}, False),
        ("POST", "/double", body(*range(9000)), {}, False),
        ("POST", "/double", body(*range(90_000)), {}, False),
        ("POST", "/double_in_thread", body(1), {}, False),
        ("GET", "/double", b"", {BATCH: "unknown"}, False),
        ("GET", "/", b"", {}, False),
        ("PUT", "/double", body(1), {}, False),
    ],
)
def test_the_short_way_answers_as_the_ordinary_one(
    ports, small, method, path, sent, headers, short
) -> None:
    ours, ordinary = (ask(port, method, path, sent, headers) for port in ports)
    assert ours == ordinary
    assert small == [short]


def test_a_batch_that_comes_again_by_the_other_way_is_known(ports, small) -> None:
    first = ask(ports[0], "POST", "/double", body(4), {BATCH: "again"})
    again = ask(ports[0], "POST", "/double?x", body(4), {BATCH: "again"})
    other = ask(ports[0], "POST", "/double", body(5), {BATCH: "again"})
    assert (first[:2], again[:2]) == ((200, b'{"data":[[0,8]]}'),) * 2
    assert other[0] == 400
    assert small == [True, False, True]


def test_requests_in_pieces_and_without_waiting_are_answered_in_order(ports) -> None:
    def request(path: str, n: int, last: str = "") -> bytes:
        sent = body(n)
        return (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(sent)}\r\n{last}\r\n".encode()
            + sent
        )

    whole = (
        request("/double", 1)
        + request("/double_in_thread", 2)
        + request("/double", 3)
        + request("/double", 4, "Connection: close\r\n")
    )
    with socket.create_connection(("127.0.0.1", ports[0]), timeout=60) as connection:
        for piece in (whole[:40], whole[40:95], whole[95:]):
            connection.sendall(piece)
        with connection.makefile("rb") as stream:
            received = stream.read()
    bodies = [part.partition(b"\r\n\r\n")[2] for part in received.split(b"HTTP/1.1 ")[1:]]
    assert bodies == [b'{"data":[[0,%d]]}' % each for each in (2, 4, 6, 8)]
