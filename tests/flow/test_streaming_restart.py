"""The service stops and restarts: the SDK's rows are committed once, or the SDK reports the reason."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import snowmelt
from fixtures.service import KeyPair, ServiceProcess
from snowmelt.errors import CommitTimeout, ServiceUnavailable

pytestmark = pytest.mark.slow

T = "demo.public.t"
SOON = dt.timedelta(seconds=200)
MANY = 300


@pytest.fixture
def service(loading_service: ServiceProcess) -> ServiceProcess:
    return loading_service


def rows(first: int, last: int) -> list[Any]:
    return [{"id": n, "name": f"row {n}", "at": "2026-11-21T10:00:00"} for n in range(first, last)]


def test_killed_service_costs_no_row(connect: Any, service: ServiceProcess, ids: Any) -> None:
    channel = connect().open_channel("c", table=T)
    channel.insert_rows(rows(0, 10), "9")
    channel.flush()
    service.kill()
    channel.insert_rows(rows(10, 20), "19")
    with pytest.raises(CommitTimeout) as timeout:
        channel.wait_for_commit("19", timeout=dt.timedelta(seconds=1))
    assert isinstance(timeout.value.__cause__, ServiceUnavailable)
    channel.insert_rows(rows(20, 30), "29")
    service.start()
    channel.wait_for_commit("29", timeout=SOON)
    assert ids() == list(range(30))


@pytest.mark.parametrize("point", ["before", "inside", "after"])
def test_service_killed_around_the_commit_doubles_nothing(
    point: str, connect: Any, service: ServiceProcess, ids: Any
) -> None:
    service.stop()
    service.start(fault=f"service.{point}_registration=kill")
    channel = connect().open_channel("c", table=T)
    channel.insert_rows(rows(0, 10), "9")
    service.wait_for_death()
    channel.insert_rows(rows(10, 20), "19")
    service.start()
    channel.wait_for_commit("19", timeout=SOON)
    assert channel.latest_committed_offset_token() == "19"
    assert ids() == list(range(20))


def test_a_service_that_is_away_is_one_sentence(service: ServiceProcess, key_pair: KeyPair) -> None:
    secure = service.url.replace("http://", "https://")
    with pytest.raises(ServiceUnavailable, match=rf"Use {service.url}; given up"):
        snowmelt.Client(
            secure,
            user="loader",
            private_key=key_pair.private_pem,
            request_timeout=dt.timedelta(0),
        )
    service.kill()
    with pytest.raises(ServiceUnavailable, match=r"Service unavailable at .*given up after 0\.2 s"):
        snowmelt.Client(
            service.url,
            user="loader",
            private_key=key_pair.private_pem,
            request_timeout=dt.timedelta(seconds=0.2),
        )


def test_connections_that_the_service_has_closed_are_replaced(
    connect: Any, service: ServiceProcess
) -> None:
    client = connect(request_timeout=dt.timedelta(0))
    channel = client.open_channel("c", table=T)
    service.stop()
    service.start()
    assert channel.latest_committed_offset_token() is None


def test_channels_reopen_after_a_restart_while_another_goes_on_writing(
    connect: Any, service: ServiceProcess, ids: Any
) -> None:
    writer = connect().open_channel("writer", table=T)
    many = connect()
    with ThreadPoolExecutor(50) as pool:
        opened = list(pool.map(lambda n: many.open_channel(f"c{n}", table=T), range(MANY)))
        writer.insert_rows(rows(0, 10), "9")
        service.kill()
        writer.insert_rows(rows(10, 20), "19")
        service.start()
        again = list(pool.map(lambda n: many.open_channel(f"c{n}", table=T), range(MANY)))
        writer.wait_for_commit("19", timeout=SOON)
        assert [each.name for each in again] == [each.name for each in opened]
        list(pool.map(lambda channel: channel.insert_rows(rows(20, 21), "1"), again))
        list(pool.map(lambda channel: channel.wait_for_commit("1", timeout=SOON), again))
    assert ids() == [*range(20), *[20] * MANY]
    assert "answered 503" not in service.log
