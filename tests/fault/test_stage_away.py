"""A stage in a bucket that is unavailable, returns 503, is full or is slow, while rows arrive."""

from __future__ import annotations

import contextlib
import datetime as dt
import socket
import threading
import uuid
from collections.abc import Iterator

import pytest

from fixtures.s3 import S3Process, Seaweed
from fixtures.service import KeyPair
from snowmelt.clock import SystemClock
from support.sdk_table import rows
from support.stage_service import House, T

pytestmark = pytest.mark.slow

SOON = dt.timedelta(seconds=200)
SAID = b"<Error><Code>%b</Code><Message>Too much.</Message></Error>"
ANSWER = b"HTTP/1.1 %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
ANSWERS = {
    mode: ANSWER % (status, len(said), said)
    for mode, status, said in (
        ("busy", b"503 Slow Down", SAID % b"SlowDown"),
        ("full", b"507 Insufficient Storage", SAID % b"InsufficientStorage"),
    )
}


class Gate:
    """Relay to another port with mode `open`, `away`, `busy` (503), `full` (507) or `slow` (+2 s)."""

    def __init__(self, port: int) -> None:
        self.mode, self._port = "open", port
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def be(self, mode: str) -> None:
        """Change the mode and abort current connections."""
        self.mode = mode
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self.be("away")
        for thread in self._threads:
            thread.join()
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._socket.accept()
                thread = threading.Thread(target=self._serve, args=(near,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, near: socket.socket) -> None:
        mode = self.mode
        self._open.add(near)
        with contextlib.suppress(OSError), near:
            if mode in ANSWERS:
                near.recv(65536)
                near.sendall(ANSWERS[mode])
            elif mode != "away":
                if mode == "slow":
                    SystemClock().sleep(2)
                self._forward(near)
        self._open.discard(near)

    def _forward(self, near: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self._port)) as far:
            self._open.add(far)
            back = threading.Thread(target=_copy, args=(far, near))
            back.start()
            _copy(near, far)
            back.join()
            self._open.discard(far)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@pytest.fixture
def gate(seaweed: Seaweed) -> Iterator[Gate]:
    gate = Gate(seaweed.port)
    yield gate
    gate.close()


@pytest.fixture
def house(
    gate: Gate,
    seaweed: Seaweed,
    own_s3: S3Process,
    key_pair: KeyPair,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[House]:
    environment = seaweed.environment
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    own_s3.service.environment.update(environment | {"AWS_ENDPOINT": gate.url})
    house = House(own_s3, f"s3://behind/stage-{uuid.uuid4().hex[:8]}", key_pair)
    yield house
    house.close()


def test_rows_wait_for_the_stage_and_are_there_once(house: House, gate: Gate) -> None:
    with house.client() as client:
        channel = client.open_channel("c", table=T)
        for number, mode in enumerate(("away", "busy", "full", "slow")):
            first = number * 100
            channel.insert_rows(rows(first, first + 50), f"{mode} before")
            channel.wait_for_commit(f"{mode} before", timeout=SOON)
            gate.be(mode)
            channel.insert_rows(rows(first + 50, first + 100), mode)
            SystemClock().sleep(3)
            gate.be("open")
            channel.wait_for_commit(mode, timeout=SOON)
    assert house.ids() == list(range(400))
    assert len(house.blobs()) == 8
