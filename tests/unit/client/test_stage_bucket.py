"""Uploads to a store that refuses, vanishes, or has another clock."""

from __future__ import annotations

import contextlib
import datetime as dt
import ssl
import threading
from collections.abc import Iterator
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import pytest

from snowmelt.client.stage import S3BlobStage, UploadGrant
from snowmelt.clock import ManualClock
from snowmelt.errors import ServiceUnavailable, StageUnavailable
from snowmelt.wire.streaming import StageLocation
from support.ports import free_port

NOW = dt.datetime(2026, 11, 21, 10, tzinfo=dt.UTC)
MIB = 2**20


class Store:
    """A bucket's server that answers the next uploads as planned, then takes all."""

    def __init__(self) -> None:
        self.plan: list[tuple[int, str]] = []
        self.taken: dict[str, bytes] = {}
        self.stamps: list[str] = []
        self.keys: list[str] = []
        self.connections = 0
        self.clock = NOW
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                store.connections += 1
                super().setup()

            def do_PUT(self) -> None:
                store.answer(self)

            def date_time_string(self, timestamp: float | None = None) -> str:
                return format_datetime(store.clock, usegmt=True)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        self.stamps.append(handler.headers["x-amz-date"])
        self.keys.append(handler.headers["Authorization"].split("Credential=")[1].split("/")[0])
        status, code = self.plan.pop(0) if self.plan else (200, "")
        if code == "cut":
            handler.close_connection = True
            handler.connection.close()
            return
        if status == 200:
            self.taken[handler.path] = body
        said = f"<Error><Code>{code}</Code><Message>Said so.</Message></Error>".encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(said) if code else 0))
        handler.end_headers()
        if code:
            handler.wfile.write(said)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.close()


class Desk:
    """Hands out grants, numbered."""

    def __init__(self, url: str, lifetime_s: float | None = 100.0) -> None:
        self.url, self.lifetime_s, self.given = url, lifetime_s, 0
        self.is_away = False

    def grant(self) -> UploadGrant:
        if self.is_away:
            raise ServiceUnavailable(url="x", reason="it is away")
        self.given += 1
        location = StageLocation(
            locationType="S3",
            location="b/p/",
            creds={"AWS_KEY_ID": f"K{self.given}", "AWS_SECRET_KEY": "s", "AWS_TOKEN": "t"},
            region="us-east-1",
            endPoint=self.url,
        )
        return UploadGrant(location, self.lifetime_s)


@contextlib.contextmanager
def stage_of(
    desk: Desk, clock: ManualClock | None = None, timeout_s: float = 5
) -> Iterator[S3BlobStage]:
    stage = S3BlobStage(
        desk.grant(),
        desk.grant,
        clock or ManualClock(NOW),
        timeout_s=timeout_s,
        ssl_context_factory=lambda: cast("ssl.SSLContext", None),
    )
    yield stage
    stage.close()


@pytest.mark.parametrize("data", [b"", b"abc", bytes(3 * MIB)])
def test_an_object_arrives_whole_over_one_connection(store: Store, data: bytes) -> None:
    with stage_of(Desk(store.url)) as stage:
        stage.put("2026/a_ü.bdec", memoryview(data))
        stage.put("2026/b.bdec", data)
    assert store.taken == {"/b/p/2026/a_%C3%BC.bdec": data, "/b/p/2026/b.bdec": data}
    assert store.connections == 1


@pytest.mark.parametrize(
    ("status", "code"),
    [(503, "SlowDown"), (500, "InternalError"), (403, "AccessDenied"), (507, "Full"), (307, "x")],
)
def test_a_refusal_is_told_and_the_same_may_be_tried_again(
    store: Store, status: int, code: str
) -> None:
    store.plan = [(status, code)]
    with stage_of(Desk(store.url)) as stage:
        with pytest.raises(StageUnavailable, match=f"HTTP {status}: {code} Said so."):
            stage.put("a", b"x")
        stage.put("a", b"x")
    assert store.taken == {"/b/p/a": b"x"}


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidToken"])
def test_stale_credentials_are_renewed_and_the_upload_goes_on(store: Store, code: str) -> None:
    store.plan = [(400, code)]
    desk = Desk(store.url)
    with stage_of(desk) as stage:
        stage.put("a", b"x")
    assert (store.taken, store.keys) == ({"/b/p/a": b"x"}, ["K1", "K2"])


def test_credentials_are_renewed_before_they_expire(store: Store) -> None:
    clock, desk = ManualClock(NOW), Desk(store.url)
    with stage_of(desk, clock) as stage:
        for _ in range(10):
            stage.put("a", b"x")
            clock.sleep(30)
    assert store.keys == ["K1"] * 3 + ["K2"] * 3 + ["K3"] * 3 + ["K4"]


def test_while_the_service_is_away_credentials_are_used_to_their_end(store: Store) -> None:
    clock, desk = ManualClock(NOW), Desk(store.url)
    with stage_of(desk, clock) as stage:
        desk.is_away = True
        clock.sleep(90)
        stage.put("a", b"x")
        clock.sleep(20)
        with pytest.raises(StageUnavailable, match=r"cannot be renewed: .* it is away"):
            stage.put("b", b"x")
        desk.is_away = False
        stage.put("b", b"x")
    assert store.keys == ["K1", "K2"]


def test_a_clock_that_is_wrong_is_set_right_by_the_stores(store: Store) -> None:
    store.clock = NOW + dt.timedelta(hours=3)
    store.plan = [(403, "RequestTimeTooSkewed")]
    with stage_of(Desk(store.url)) as stage:
        stage.put("a", b"x")
        stage.put("b", b"x")
    assert store.stamps == ["20261121T100000Z", "20261121T130000Z", "20261121T130000Z"]


def test_a_connection_that_was_closed_meanwhile_is_made_anew(store: Store) -> None:
    with stage_of(Desk(store.url)) as stage:
        stage.put("a", b"x")
        store.plan = [(0, "cut")]
        stage.put("b", b"x")
        store.plan = [(0, "cut"), (0, "cut")]
        with pytest.raises(StageUnavailable):
            stage.put("c", b"x")
        stage.put("c", b"x")
    assert len(store.taken) == 3


def test_a_store_that_is_away_or_no_address_is_told() -> None:
    with (
        stage_of(Desk(f"http://127.0.0.1:{free_port()}")) as stage,
        pytest.raises(StageUnavailable, match="refused"),
    ):
        stage.put("a", b"x")
    for url in ("", "nonsense", "http://"):
        with pytest.raises(StageUnavailable, match="which is not a bucket"), stage_of(Desk(url)):
            pass
