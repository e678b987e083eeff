"""The client for asyncio: the rows, order and errors of the synchronous one."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import snowmelt
from fixtures.sdk import QUICK
from snowmelt.errors import (
    ChannelFenced,
    ClientClosed,
    CommitTimeout,
    InvalidRow,
    ServiceUnavailable,
    TokenNotInserted,
)
from support.sdk_table import BAD, LATE, SOON, T, rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from fixtures.service import KeyPair, ServiceProcess


@pytest.fixture
def client(service: ServiceProcess, key_pair: KeyPair) -> Callable[..., snowmelt.AsyncClient]:
    """Unopened clients of user LOADER."""

    def make(**options: Any) -> snowmelt.AsyncClient:
        options.setdefault("max_client_lag", QUICK)
        return snowmelt.AsyncClient(
            service.url, user="loader", private_key=key_pair.private_pem, **options
        )

    return make


def test_rows_of_many_tasks_are_committed_in_the_order_of_the_calls(
    client: Callable[..., snowmelt.AsyncClient], ids: Any
) -> None:
    committed: list[tuple[str, int]] = []

    async def main() -> None:
        async with client() as opened:
            channel = await opened.open_channel("c", table=T)
            channel.call_on_commit(lambda token: committed.append((token, threading.get_ident())))
            tasks = [
                asyncio.create_task(channel.insert_row(row, str(number)))
                for number, row in enumerate(rows(0, 50))
            ]
            tasks.append(asyncio.create_task(channel.insert_rows(rows(50, 60), "59")))
            arrow = pa.Table.from_pylist(rows(60, 65))
            tasks.append(asyncio.create_task(channel.insert_arrow(arrow, "64")))
            tasks.append(asyncio.create_task(channel.insert_dataframe(arrow.to_pandas(), "69")))
            await asyncio.gather(*tasks)
            await channel.advance("70")
            # More waits than threads.
            waits = [channel.wait_for_commit(str(number), SOON) for number in range(50)]
            await asyncio.gather(*waits, channel.wait_for_commit(None, SOON))
            assert await channel.latest_committed_offset_token() == "70"
            assert (await opened.latest_committed_offset_tokens([channel])) == {channel: "70"}
            assert (channel.name, channel.is_valid, channel.status().committed_rows) == (
                "C",
                True,
                70,
            )
        assert opened.is_closed
        await opened.close()

    asyncio.run(main())
    assert ids() == [*range(65), *range(60, 65)]
    assert [int(token) for token, _ in committed] == sorted(int(token) for token, _ in committed)
    assert committed[-1] == ("70", threading.get_ident())


def test_a_cancelled_call_keeps_its_turn(
    client: Callable[..., snowmelt.AsyncClient], ids: Any
) -> None:
    entered, released = threading.Event(), threading.Event()

    def slow() -> Any:
        entered.set()
        released.wait()
        yield from rows(0, 1)

    async def main() -> None:
        async with client() as opened, await opened.open_channel("c", table=T) as channel:
            first = asyncio.create_task(channel.insert_rows(slow(), "1"))
            await asyncio.to_thread(entered.wait)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            second = asyncio.create_task(channel.insert_rows(rows(1, 2), "2"))
            await asyncio.sleep(0)
            assert not second.done()
            released.set()
            await second
            await channel.flush(SOON)
            assert await channel.resume() == "2"

    asyncio.run(main())
    assert ids() == [0, 1]


def test_errors_are_those_of_the_synchronous_client(
    client: Callable[..., snowmelt.AsyncClient], connect: Any
) -> None:
    async def main() -> None:
        opened = client(max_client_lag=LATE)
        with pytest.raises(ClientClosed, match="not open"):
            opened.status()
        with pytest.raises(ClientClosed):
            await opened.open_channel("c", table=T)
        async with opened:
            channel = await opened.open_channel("c", table=T, on_error="abort")
            with pytest.raises(InvalidRow):
                await channel.insert_row(BAD)
            with pytest.raises(TokenNotInserted):
                await channel.wait_for_commit("7")
            await channel.insert_rows(rows(0, 1), "1")
            with pytest.raises(CommitTimeout, match=r"0\.01"):
                await channel.wait_for_commit("1", dt.timedelta(milliseconds=10))
            waiting = asyncio.create_task(channel.wait_for_commit("1", SOON))
            await asyncio.to_thread(connect().open_channel, "c", table=T)
            with pytest.raises(ChannelFenced):
                await channel.flush(SOON)
            with pytest.raises(ChannelFenced):
                await waiting
            assert not channel.is_valid
            assert channel.invalidation_reason
            # An error of closing does not replace the error of the block.
            with pytest.raises(KeyError):
                async with channel:
                    raise KeyError
            await opened.drop_channel("c", table=T)
        with pytest.raises(ClientClosed):
            await opened.open_channel("c", table=T)
        with pytest.raises(ServiceUnavailable):
            await snowmelt.AsyncClient(
                "http://127.0.0.1:9", request_timeout=dt.timedelta(milliseconds=100)
            ).open()

    asyncio.run(main())
