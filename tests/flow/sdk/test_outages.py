"""Failures between client and service: no row is lost or duplicated, and the failure is reported."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from fixtures.sdk import QUICK
from fixtures.service import KeyPair, ServiceProcess
from snowmelt import failpoints
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.clock import SystemClock
from snowmelt.errors import (
    AuthenticationFailed,
    BufferFull,
    ChannelInvalid,
    CommitTimeout,
    RequestRefused,
    ServiceUnavailable,
)
from support.faulty_proxy import Proxy
from support.sdk_table import LATE, SOON, T, blobs, rows


# 307 and 404 come from a load balancer. Responses of the service have a status_code.
@pytest.mark.parametrize("step", ["lose request", "lose answer", 503, 429, 307, 404, "garbage"])
def test_an_unknown_outcome_is_asked_again_with_the_same_bytes(
    step: int | str, connect: Any, service: ServiceProcess, ids: Any
) -> None:
    with Proxy(service.port, only="write/blobs", plan=[step, step]) as proxy:
        channel = connect(proxy.url).open_channel("c", table=T)
        channel.insert_rows(rows(0, 10), "9")
        channel.insert_rows(rows(10, 20), "19")
        channel.flush()
        channel.insert_rows(rows(20, 30), "29")
        channel.close()
        bodies = [body for _, body in proxy.seen]
    assert len(bodies) >= 4
    sent = bodies if step not in {307, 404} else [json.loads(body)["blobs"] for body in bodies]
    assert sent[0] == sent[1] == sent[2]
    assert ids() == list(range(30))


def test_giving_up_makes_channels_invalid_and_says_why(
    connect: Any, service: ServiceProcess, ids: Any
) -> None:
    told = []

    def fail(error: Any) -> None:
        told.append(type(error))
        raise RuntimeError("an application's own fault")

    with Proxy(service.port, only="write/blobs", always=503) as proxy:
        client = connect(proxy.url, give_up_after=dt.timedelta(seconds=0.5), on_problem=fail)
        channel = client.open_channel("c", table=T)
        channel.insert_rows(rows(0, 10), "9")
        with pytest.raises(ChannelInvalid, match=r"HTTP 503.*is unknown.*token is None"):
            channel.flush()
        with pytest.raises(ChannelInvalid):
            channel.insert_row({"id": 10})
        proxy.always = None
        again = client.open_channel("c", table=T)
        again.insert_rows(rows(0, 10), "9")
        again.flush()
    assert told == [ServiceUnavailable, ChannelInvalid]
    assert ids() == list(range(10))


def test_a_request_refused_as_a_whole_is_not_lost_silently(
    connect: Any, service: ServiceProcess
) -> None:
    with Proxy(service.port, only="write/blobs", plan=[400]) as proxy:
        channel = connect(proxy.url).open_channel("c", table=T)
        channel.insert_rows(rows(0, 10), "9")
        with pytest.raises(ChannelInvalid, match="HTTP 400") as invalid:
            channel.flush()
        assert isinstance(invalid.value.__cause__, RequestRefused)


def test_a_request_refused_as_a_whole_is_sent_in_parts(
    connect: Any, service: ServiceProcess, ids: Any
) -> None:
    with Proxy(service.port, only="write/blobs", plan=[400]) as proxy:
        client = connect(proxy.url, max_client_lag=LATE)
        channels = [client.open_channel(f"c{number}", table=T) for number in range(3)]
        for number, channel in enumerate(channels):
            channel.insert_rows(rows(number * 10, number * 10 + 10), "9")
        client.flush()
        assert len(proxy.seen) == 4
    assert sorted(ids()) == list(range(30))


def test_a_refused_token_is_replaced_once(connect: Any, service: ServiceProcess, ids: Any) -> None:
    with Proxy(service.port, plan=[401]) as proxy:
        client = connect(proxy.url)
        assert len(proxy.seen) == 2
        proxy.plan = [401, 401]
        with pytest.raises(AuthenticationFailed):
            client.open_channel("c", table=T)


def test_inserts_wait_while_too_much_is_uncommitted(
    connect: Any, service: ServiceProcess, ids: Any
) -> None:
    with Proxy(service.port, only="write/blobs", always=503) as proxy:
        client = connect(proxy.url, max_memory=8000, insert_timeout=dt.timedelta(seconds=0.5))
        channel = client.open_channel("c", table=T)
        channel.insert_rows(rows(0, 60), "59")
        # The timeout of half a second may elapse before the first request.
        while client.status().trouble is None:
            pass
        with pytest.raises(BufferFull, match="HTTP 503"):
            channel.insert_rows(rows(60, 120), "119")
        proxy.always = None
        channel.wait_for_commit("59", timeout=SOON)
        channel.insert_rows(rows(60, 120), "119")
        channel.flush()
    assert ids() == list(range(120))


def test_a_full_stage_is_tried_again(connect: Any, ids: Any) -> None:
    def full() -> None:
        failpoints.arm(failpoints.Failpoint.STAGE_WRITE, lambda: None)
        raise OSError(28, "No space left on device")

    failpoints.arm(failpoints.Failpoint.STAGE_WRITE, full)
    channel = connect().open_channel("c", table=T)
    channel.insert_rows(rows(0, 10), "9")
    channel.flush()
    assert ids() == list(range(10))


def test_a_stage_that_stays_full_makes_the_channel_invalid(
    connect: Any, service: ServiceProcess
) -> None:
    client = connect(give_up_after=dt.timedelta(seconds=0.3))
    channel = client.open_channel("c", table=T)

    def full() -> None:
        failpoints.arm(failpoints.Failpoint.STAGE_WRITE, full)
        raise OSError(28, "No space left on device")

    failpoints.arm(failpoints.Failpoint.STAGE_WRITE, full)
    channel.insert_rows(rows(0, 10), "9")
    with pytest.raises(ChannelInvalid, match="Stage unavailable: No space left"):
        channel.flush()


def test_a_blob_changed_on_the_stage_is_written_anew(
    connect: Any, service: ServiceProcess, ids: Any
) -> None:
    client = connect()
    channels = [client.open_channel(f"c{number}", table=T) for number in range(2)]

    def damage() -> None:
        blob = max(blobs(service), key=lambda path: path.stat().st_mtime_ns)
        blob.write_bytes(blob.read_bytes()[:-100])

    failpoints.arm(failpoints.Failpoint.BLOB_STAGED, damage)
    for number, channel in enumerate(channels):
        channel.insert_rows(rows(number * 10, number * 10 + 10), "9")
    client.flush()
    assert all(channel.is_valid for channel in channels)
    assert sorted(ids()) == list(range(20))


def test_a_stage_that_damages_every_blob_makes_the_channel_invalid(
    connect: Any, service: ServiceProcess
) -> None:
    channel = connect().open_channel("c", table=T)

    def damage() -> None:
        failpoints.arm(failpoints.Failpoint.BLOB_STAGED, damage)
        blob = max(blobs(service), key=lambda path: path.stat().st_mtime_ns)
        blob.write_bytes(blob.read_bytes()[:-100])

    failpoints.arm(failpoints.Failpoint.BLOB_STAGED, damage)
    channel.insert_rows(rows(0, 10), "9")
    with pytest.raises(ChannelInvalid, match=r"\.bdec"):
        channel.flush()
    assert channel.invalidation_reason


def test_rows_wait_while_the_catalog_is_locked(
    connect: Any, service: ServiceProcess, ids: Any
) -> None:
    channel = connect().open_channel("c", table=T)
    with contextlib.closing(open_and_upgrade_database(service.settings.catalog_url)) as catalog:
        with catalog.writing() as connection:
            connection.exec_driver_sql("SELECT 1")
            channel.insert_rows(rows(0, 10), "9")
            with pytest.raises(CommitTimeout, match="Last committed token: None"):
                channel.wait_for_commit("9", timeout=5 * QUICK)
        channel.wait_for_commit("9", timeout=SOON)
    assert ids() == list(range(10))


class ShiftedClock(SystemClock):
    """System clock with an error of `shift`."""

    def __init__(self, shift: dt.timedelta) -> None:
        self.shift = shift

    def now(self) -> dt.datetime:
        return super().now() + self.shift


@pytest.mark.parametrize(
    ("hours", "reason"),
    [(-2, "it has expired"), (2, "issued in the future. Synchronize the clocks")],
)
def test_a_token_out_of_its_time_is_refused_with_the_reason(
    connect: Any, hours: int, reason: str
) -> None:
    with pytest.raises(AuthenticationFailed, match=reason):
        connect(clock=ShiftedClock(dt.timedelta(hours=hours)))


def test_a_clients_clock_that_goes_back_costs_no_row(
    connect: Any, service: ServiceProcess, ids: Any
) -> None:
    before = len(blobs(service))
    clock = ShiftedClock(dt.timedelta(0))
    channel = connect(clock=clock).open_channel("c", table=T)
    for batch in range(3):
        channel.insert_rows(rows(batch * 10, batch * 10 + 10), str(batch))
        channel.flush()
        clock.shift -= dt.timedelta(days=1)
    channel.close()
    assert channel.latest_committed_offset_token() == "2"
    assert ids() == list(range(30))
    assert len(blobs(service)) == before + 3, "no name was used twice"


SCRIPT = """
import datetime as dt, os, sys
import snowmelt
url, key, way = sys.argv[1:]
client = snowmelt.Client(url, user="loader", private_key=key, max_client_lag=dt.timedelta(minutes=10))
channel = client.open_channel("c", table="sdk.public.t")
channel.insert_row({"id": 1}, "1")
if way == "fork":
    child = os.fork()
    if not child:
        try:
            channel.insert_row({"id": 2}, "2")
        except snowmelt.errors.ChannelInvalid as error:
            assert "forked" in str(error)
            sys.exit(0)
        sys.exit(1)
    assert os.waitpid(child, 0)[1] == 0
    channel.close()
"""


@pytest.mark.parametrize("way", ["exit", "fork"])
def test_a_process_may_end_or_fork_with_rows_in_memory(
    way: str, service: ServiceProcess, key_pair: KeyPair, tmp_path: Path, ids: Any
) -> None:
    key = tmp_path / "key.pem"
    key.write_text(key_pair.private_pem)
    subprocess.run(
        [sys.executable, "-c", SCRIPT, service.url, str(key), way],
        check=True,
        timeout=200,
        env=os.environ,
    )
    assert ids() == [1]


@dataclass
class HeldOpens(Proxy):
    """Proxy that holds the responses to opens until it is released."""

    arrived: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def _answer(self, handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        if "channels/open" in handler.path:
            self.arrived.set()
            self.released.wait(60)
        super()._answer(handler, status, body)


@pytest.mark.parametrize("reopens", [False, True], ids=["opened", "resumed"])
def test_a_channel_that_is_opened_while_the_client_moves_is_one_of_the_new_site(
    connect: Any, service: ServiceProcess, ids: Any, *, reopens: bool
) -> None:
    with HeldOpens(service.port) as proxy, ThreadPoolExecutor(1) as threads:
        client = connect(service.url if reopens else proxy.url)
        if reopens:
            channel = client.open_channel("c", table=T)
            client._move(proxy.url)
            opening = threads.submit(channel.resume)
        else:
            opening = threads.submit(client.open_channel, "c", table=T)
        assert proxy.arrived.wait(60)
        client._move(service.url)
        proxy.released.set()
        opened = opening.result(60)
        channel = channel if reopens else opened
        channel.insert_rows(rows(0, 10), "9")
        channel.flush(timeout=LATE)
    assert ids() == list(range(10))
