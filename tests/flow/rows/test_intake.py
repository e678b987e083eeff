"""Requests that are queued together: each gets the same response as it would alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.config import Settings
from snowmelt.errors import BodyUnreadable, ChannelGone, ContinuationStale, PipeNotFound
from snowmelt.ingest.rows.append_types import AppendCommitted
from snowmelt.ingest.rows.request_batcher import PendingRequest
from snowmelt.ingest.rows.row_service import RawAppendRequest
from snowmelt.ingest.rows.targets import PipePath, RowSender
from snowmelt.server.app import build_service
from snowmelt.server.rows.components import RowApiComponents

PATH = PipePath("demo", "public", "t-STREAMING")
SENDER = RowSender("LOADER")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RowApiComponents]:
    settings = Settings.load(data_dir=tmp_path_factory.mktemp("intake"), migrate=False)
    service = build_service(settings)
    for text in (
        "CREATE DATABASE demo",
        "CREATE TABLE demo.public.t (id NUMBER, name VARCHAR)",
        "CREATE USER loader DEFAULT_ROLE = ACCOUNTADMIN",
        "GRANT ROLE ACCOUNTADMIN TO USER loader",
    ):
        execute_statement(service.database, text)
    yield service.row_api
    service.close()


class Told:
    """Waiter for the outcomes of requests."""

    def __init__(self, count: int) -> None:
        self.outcomes: dict[str, list[Any]] = {}
        self._left = threading.Semaphore(0)
        self._count = count

    def slot(self, name: str) -> Callable[[Any], None]:
        def respond(outcome: object) -> None:
            self.outcomes.setdefault(name, []).append(outcome)
            self._left.release()

        return respond

    def all(self) -> dict[str, list[Any]]:
        for _ in range(self._count):
            assert self._left.acquire(timeout=60)
        return self.outcomes


def request(
    channel: str, token: str | None, request_id: str = "", path: PipePath = PATH
) -> RawAppendRequest:
    return RawAppendRequest(path, channel, SENDER, request_id or f"of {channel}", token, None, "9")


def submit_together(
    rows: RowApiComponents, told: Told, requests: dict[str, tuple[RawAppendRequest, bytes]]
) -> None:
    """Submit requests while the intake is busy, so that it processes them together."""
    is_let, is_busy = threading.Event(), threading.Event()

    def wait() -> bytes:
        is_busy.set()
        assert is_let.wait(60)
        return b"no rows"

    opened = rows.row_service.open_channel(
        PATH, "first", SENDER, request_id="", offset_token=None
    ).result()
    first = request("first", opened.next_continuation_token)
    rows.request_batcher.submit(PendingRequest(first, wait, lambda _: None))
    assert is_busy.wait(60)
    for name, (each, body) in requests.items():
        rows.request_batcher.submit(PendingRequest(each, body_of(body), told.slot(name)))
    is_let.set()


def body_of(body: bytes) -> Callable[[], bytes]:
    def data() -> bytes:
        if body == b"unreadable":
            raise BodyUnreadable(encoding="zstd", reason="it is none")
        return body

    return data


def test_each_is_answered_as_it_would_be_alone(rows: RowApiComponents) -> None:
    good = b'{"id":1,"name":"%s"}\n' % (b"x" * 600) * 50
    tokens = {
        name: rows.row_service.open_channel(PATH, name, SENDER, request_id="", offset_token=None)
        .result()
        .next_continuation_token
        for name in (*(f"c{n}" for n in range(20)), "bad", "stale", "unreadable", "twice")
    }
    rows.row_service.open_channel(PATH, "stale", SENDER, request_id="", offset_token=None).result()
    requests = {name: (request(name, tokens[name]), good) for name in tokens if name != "twice"}
    requests["bad"] = (requests["bad"][0], good + b'{"id":"x","name":"y"}\n')
    requests["unreadable"] = (requests["unreadable"][0], b"unreadable")
    requests["twice 1"] = requests["twice 2"] = (request("twice", tokens["twice"]), good)
    requests["gone"] = (request("gone", tokens["c1"]), good)
    requests["elastic 1"] = (request("elastic", None, "e1"), good)
    requests["elastic 2"] = (request("elastic", None, "e2"), good)
    other = PipePath("demo", "public", "none-STREAMING")
    requests["no pipe"] = (request("c1", tokens["c1"], path=other), good)
    told = Told(len(requests))
    submit_together(rows, told, requests)
    outcomes = {name: found for name, (found,) in told.all().items()}
    expected = {
        "stale": ContinuationStale,
        "unreadable": BodyUnreadable,
        "gone": ChannelGone,
        "no pipe": PipeNotFound,
    }
    for name, outcome in outcomes.items():
        assert type(outcome) is expected.get(name, AppendCommitted), (name, outcome)
    assert sum(outcomes[f"twice {n}"].is_repeated for n in (1, 2)) == 1
    statuses = rows.row_service.get_channel_statuses(
        PATH, [*tokens, "elastic"], SENDER
    ).channel_statuses
    counts = {name: (each.rows_inserted, each.rows_error_count) for name, each in statuses.items()}
    wanted = dict.fromkeys(tokens, (50, 0)) | {"bad": (50, 1), "elastic": (100, 0)}
    assert counts == wanted | {"stale": (0, 0), "unreadable": (0, 0)}
    # Most of the requests share a chunk.
    with rows.row_service.database.reading() as connection:
        chunks = connection.exec_driver_sql("SELECT count(*), sum(rows) FROM chunks").one()
    assert chunks[1] == 20 * 50 + 50 + 50 + 100
    assert chunks[0] <= 6
