"""A fault of one channel does not affect other channels of its client; status of all channels."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest

from fixtures.service import ServiceProcess
from snowmelt.errors import (
    BufferFull,
    ChannelFenced,
    ChannelInvalid,
    ServiceUnavailable,
    UserError,
)
from support.faulty_proxy import Proxy
from support.sdk_table import LATE, SOON, T, rows

if TYPE_CHECKING:
    from collections.abc import Callable


def test_channels_of_one_chunk_end_alone(connect: Any, service: ServiceProcess, ids: Any) -> None:
    problems: list[Any] = []
    mine = connect(max_client_lag=LATE, on_problem=problems.append)
    channels = [mine.open_channel(f"c{number}", table=T) for number in range(12)]
    others = connect()
    for flush in range(2):
        for number, channel in enumerate(channels):
            first = 1000 * flush + number * 10
            channel.insert_rows(rows(first, first + 10), f"{flush}")
        if not flush:
            mine.flush()
    others.open_channel("c3", table=T)
    others.open_channel("c7", table=T)
    others.drop_channel("c5", table=T)
    service.sql(f"ALTER TABLE {T} RENAME COLUMN name TO title")
    with pytest.raises((ChannelFenced, ChannelInvalid)):
        mine.flush(SOON)
    valid = [channel.is_valid for channel in channels]
    assert [number for number, each in enumerate(valid) if not each] == [3, 5, 7]
    assert "does not exist" in (channels[5].invalidation_reason or "")
    for channel in channels:
        if channel.is_valid:
            channel.wait_for_commit("1", timeout=SOON)
    gone = {3, 5, 7}
    second = [1000 + n for n in range(120) if n // 10 not in gone]
    assert sorted(ids()) == [*range(120), *second]
    assert {type(error) for error in problems} == {ChannelFenced, ChannelInvalid}
    assert len(problems) == 3
    status = mine.status()
    assert (status.inserted_rows, status.committed_rows) == (240, 210)
    assert status.waiting_bytes == 0
    assert channels[3].status().last_error is not None


def test_status_tells_rows_bytes_and_lag(connect: Any, service: ServiceProcess) -> None:
    problems: list[Any] = []
    with Proxy(service.port, only="write/blobs", always=503) as proxy:
        client = connect(proxy.url, on_problem=problems.append)
        channel = client.open_channel("c", table=T, on_error="continue")
        channel.insert_rows([*rows(0, 10), {"id": "x"}], "9")
        while client.status().trouble is None:
            pass
        waiting = channel.status()
        assert (waiting.inserted_rows, waiting.refused_rows, waiting.committed_rows) == (10, 1, 0)
        assert waiting.waiting_rows == 10
        assert waiting.waiting_bytes == waiting.inserted_bytes > 0
        assert waiting.lag_s > 0
        assert "x" in str(waiting.last_error)
        proxy.always = None
        channel.flush()
    after = channel.status()
    assert (after.committed_rows, after.waiting_rows, after.lag_s) == (10, 0, 0.0)
    assert (after.committed_token, after.committed_bytes) == ("9", after.inserted_bytes)
    assert client.status().trouble is None
    assert [type(error) for error in problems] == [ServiceUnavailable]
    channel.close()
    assert client.status().channels == ()
    assert client.status().committed_rows == 10


def test_a_full_client_raises_at_once_where_it_shall_not_wait(
    connect: Any, service: ServiceProcess, ids: Any
) -> None:
    with Proxy(service.port, only="write/blobs", always=503) as proxy:
        client = connect(
            proxy.url,
            max_memory=36_000,
            when_full="raise",
            insert_timeout=dt.timedelta(hours=1),
        )
        channel = client.open_channel("c", table=T)
        channel.insert_rows(rows(0, 60), "59")
        with pytest.raises(BufferFull):
            channel.insert_rows(rows(60, 120), "119")
        status = client.status()
        assert status.waiting_bytes <= status.max_waiting_bytes == 18_000
        proxy.always = None
        channel.flush()
        channel.insert_rows(rows(60, 120), "119")
        channel.flush()
    assert ids() == list(range(120))


def test_an_offset_token_that_cannot_be_sent_is_refused_by_the_call_that_brings_it(
    connect: Any, ids: Any
) -> None:
    client = connect(max_client_lag=LATE)
    channels = [client.open_channel(name, table=T) for name in ("a", "b")]
    channels[0].insert_row({"id": 1}, "1")
    inserts: tuple[Callable[[Any], Any], ...] = (
        lambda token: channels[1].insert_row({"id": 9}, token),
        lambda token: channels[1].insert_rows([{"id": 9}], token),
        lambda token: channels[1].insert_rows([{"id": 9}], "9", start_offset_token=token),
        lambda token: client.open_channel("c", table=T, offset_token=token),
    )
    for token in ("\ud800", "a\0", 2):
        for insert in inserts:
            with pytest.raises(UserError, match="token"):
                insert(token)
    channels[1].insert_row({"id": 2}, "zwei\n😀")
    client.flush(SOON)
    assert sorted(ids()) == [1, 2]
    assert channels[1].latest_committed_offset_token() == "zwei\n😀"
