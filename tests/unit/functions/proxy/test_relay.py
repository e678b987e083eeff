"""Between caller and service happens what the faults say, and nothing else."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest

from snowmelt.errors import UserError
from snowmelt.functions.errors import ResponseInvalid
from snowmelt.functions.proxy.faults import parse_fault
from snowmelt.functions.proxy.relay import FaultProxy, TrafficRecorder, TrafficReplayer
from snowmelt.functions.service import RemoteService
from snowmelt.functions.signature import parse_sql_type_text
from snowmelt.functions.wire.compression import is_content_md5_valid
from snowmelt.functions.wire.messages import ResponseReader
from support import functions_service as kit

CALLS: list[Any] = []


@pytest.fixture(scope="module")
def service():
    svc = RemoteService("behind")

    @svc.function(blocking=False)
    def double(n: int) -> int:
        CALLS.append(n)
        return n * 2

    @svc.function(mode="async")
    def later(n: int) -> int:
        time.sleep(0.1)
        return n

    with kit.hosted(svc.asgi()) as url:
        yield url


def post(proxy, batch=None, path="/double", rows=2, **headers):
    sent = {} if batch is None else {kit.BATCH: batch}
    body = {"data": [[at, at] for at in range(rows)]}
    with kit.client(proxy.url) as client:
        return client.post(path, json=body, headers=sent | headers)


def test_without_faults_everything_is_passed_on(service):
    with FaultProxy(service + "/stage") as proxy:
        reply = post(proxy, "b1", rows=3000, **{"accept-encoding": "gzip"})
        assert reply.json()["data"][2999] == [2999, 5998]
        assert reply.headers["content-encoding"] == "gzip"
        assert proxy.requests[0].headers[kit.BATCH] == "b1"


@pytest.mark.parametrize("status", ["202", "204", "302", "404", "429", "500", "503"])
def test_made_up_answers_keep_the_request_from_the_service(service, status):
    CALLS.clear()
    with FaultProxy(service, [parse_fault(f"{status}:first=1,retry-after=3")]) as proxy:
        reply = post(proxy)
        assert (reply.status_code, reply.headers["retry-after"]) == (int(status), "3")
        assert CALLS == []
        assert post(proxy).status_code == 200


@pytest.mark.parametrize("kind", ["drop", "lose", "reset", "truncate"])
def test_broken_connections_are_errors_of_transport(service, kind):
    CALLS.clear()
    with FaultProxy(service, [parse_fault(kind)]) as proxy, pytest.raises(httpx.TransportError):
        post(proxy)
    assert bool(CALLS) == (kind != "drop")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("order", "out of order"),
        ("missing", "wrong number of rows"),
        ("extra", "wrong number of rows"),
        ("duplicate", "out of order"),
        ("text-numbers", "out of order"),
        ("three-elements", "contains 3 elements"),
        ("data-object", "must contain"),
        ("no-data", "must contain"),
        ("not-json", "not JSON"),
        ("trailing-comma", "not JSON"),
        ("bom", "byte order mark"),
        ("nan", "NaN"),
        ("empty", "not JSON"),
        ("html", "not JSON"),
    ],
)
def test_replies_are_broken_so_that_a_caller_must_complain(service, kind, reason):
    with FaultProxy(service, [parse_fault(kind)]) as proxy:
        body = post(proxy, **{"accept-encoding": "gzip"}).content
    with pytest.raises(ResponseInvalid, match=reason):
        ResponseReader(parse_sql_type_text("INT")).read(body, 2)


def test_headers_lie_as_asked(service):
    with FaultProxy(service, [parse_fault("md5")]) as proxy:
        reply = post(proxy)
        assert not is_content_md5_valid(reply.headers["content-md5"], reply.content, reply.content)
    with (
        FaultProxy(service, [parse_fault("gzip-lie")]) as proxy,
        pytest.raises(httpx.DecodingError),
    ):
        post(proxy)
    with FaultProxy(service, [parse_fault("large")]) as proxy:
        assert len(post(proxy).content) == 11_000_000


@pytest.mark.parametrize("kind", ["delay", "drip"])
def test_slowness_takes_as_long_as_asked(service, kind):
    with FaultProxy(service, [parse_fault(f"{kind}:seconds=0.2")]) as proxy:
        start = time.monotonic()
        assert post(proxy).status_code == 200
        assert time.monotonic() - start > 0.15


def test_faults_happen_when_their_rule_says(service):
    with FaultProxy(service, [parse_fault("503:every=3")]) as proxy:
        assert [post(proxy).status_code for _ in range(6)] == [200, 200, 503] * 2
    with FaultProxy(service, [parse_fault("429:each=1")]) as proxy:
        assert [post(proxy, batch).status_code for batch in "xyxy"] == [429, 429, 200, 200]
        assert proxy.faults[0].applied_count == 2
    with FaultProxy(service, [parse_fault("500:after=1,on=any")]) as proxy:
        assert [post(proxy).status_code for _ in range(2)] == [200, 500]


@pytest.mark.parametrize("text", ["nothing", "503:soon", "503:first=x", "delay:seconds=long"])
def test_a_fault_that_is_none_is_said(text):
    with pytest.raises(UserError):
        parse_fault(text)


def test_a_service_that_is_away_is_502():
    with FaultProxy("http://127.0.0.1:9") as proxy:
        assert post(proxy).status_code == 502


@pytest.mark.slow
def test_what_was_recorded_is_replayed_to_another_query(service, tmp_path):
    kept = tmp_path / "calls.jsonl"
    recorder = TrafficRecorder(service, kept)
    with recorder as server:
        first = post(server, "q1:1", authorization="Bearer secret")
        assert post(server, "q1:2", path="/later", rows=1).status_code == 202
        # Straight from the service, so that what is recorded is one answer that is there.
        with kit.client(service) as client:
            while client.get("/later", headers={kit.BATCH: "q1:2"}).status_code == 202:
                time.sleep(0.05)
        with kit.client(server.url) as client:
            done = client.get("/later", headers={kit.BATCH: "q1:2"})
        assert done.status_code == 200
    assert "secret" not in kept.read_text()
    with TrafficReplayer(kept) as server:
        assert post(server, "q2:1").json() == first.json()
        assert post(server, "q2:2", path="/later", rows=1).status_code == 202
        with kit.client(server.url) as client:
            assert client.get("/later", headers={kit.BATCH: "q2:2"}).json() == done.json()
        assert post(server, "q2:3", rows=5).status_code == 404


def test_a_broken_recording_is_named_by_its_line(tmp_path):
    kept = tmp_path / "calls.jsonl"
    kept.write_text(json.dumps({"request": {}}) + "\n")
    with pytest.raises(UserError, match="line 1"):
        TrafficReplayer(kept)
