"""Public classes `AsyncClient` and `AsyncChannel`: the client for programs that use asyncio.

Each object wraps its synchronous counterpart. Calls run in threads of the client, one at a time for
each channel and in the order of the calls. Waits for commits need no thread: the client's progress
wakes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Self, TypeVar, Unpack
from zoneinfo import ZoneInfo

from snowmelt.client.auth import OAuth
from snowmelt.client.channel import Channel, InsertResult, OnError, keeping_first_error
from snowmelt.client.client import Client
from snowmelt.client.counters_and_metrics import ChannelStatus, ClientStatus
from snowmelt.client.settings import ClientOptions, to_timeout_s
from snowmelt.errors import ClientClosed, CommitTimeout
from snowmelt.schema.types import Compatibility, TableName

_Result = TypeVar("_Result")

# While a call waits for memory or for the service, it does not hold the interpreter lock.
_THREADS = 32
_NO_TIME = dt.timedelta(0)


class AsyncClient:
    """A `Client` for asyncio. All methods must be called in the event loop that opened it.

    Opened and closed by `async with`, or by `open` and `close`. Options, rules and errors are the
    same as for `Client`.
    """

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        private_key: str | bytes | Path | None = None,
        role: str | None = None,
        oauth: OAuth | str | Callable[[], str] | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        """Store the arguments of `Client`. Does not connect."""
        self._connect = partial(
            Client, url, user=user, private_key=private_key, role=role, oauth=oauth, **options
        )
        self._opened: Client | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._progress = asyncio.Event()
        self._threads: ThreadPoolExecutor | None = None

    async def open(self) -> Self:
        """Connect to the service. A second call has no effect.

        Raises:
            ConfigurationError: If an argument is invalid.
            AuthenticationFailed: If the service rejects user and key.
            ServiceUnavailable: If the service does not respond.
            StageUnavailable: If the stage is a folder that this machine does not have.
        """
        async with self._opening:
            if self._opened is None:
                self._loop = asyncio.get_running_loop()
                threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="snowmelt-async")
                self._threads = threads
                try:
                    self._opened = await self.run(self._connect)
                except BaseException:
                    threads.shutdown(wait=False)
                    raise
                self._opened.progress_listeners.append(self._report_progress)
        return self

    @property
    def client(self) -> Client:
        """The synchronous client.

        Raises:
            ClientClosed: If this client is not open.
        """
        if self._opened is None:
            raise ClientClosed("The client is not open. Use `async with`, or await `open()` first.")
        return self._opened

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self._opened is not None and self._opened.is_closed

    async def open_channel(
        self,
        name: str,
        *,
        table: str,
        on_error: OnError | str = OnError.ABORT,
        default_timezone: str | ZoneInfo | None = None,
        compatibility: Compatibility | str | None = None,
        schema_evolution: bool = False,
        offset_token: str | None = None,
    ) -> AsyncChannel:
        """Open a channel as `Client.open_channel` does, fencing any previous owner."""
        channel = await self.run(
            partial(
                self.client.open_channel,
                name,
                table=table,
                on_error=on_error,
                default_timezone=default_timezone,
                compatibility=compatibility,
                schema_evolution=schema_evolution,
                offset_token=offset_token,
            )
        )
        return AsyncChannel(channel, self)

    async def drop_channel(self, name: str, *, table: str) -> None:
        """Drop a channel as `Client.drop_channel` does."""
        await self.run(partial(self.client.drop_channel, name, table=table))

    async def latest_committed_offset_tokens(
        self, channels: Sequence[AsyncChannel]
    ) -> dict[AsyncChannel, str | None]:
        """Return committed offset tokens as `Client.latest_committed_offset_tokens` does."""
        wrapped = [each.channel for each in channels]
        tokens = await self.run(partial(self.client.latest_committed_offset_tokens, wrapped))
        return {each: tokens[each.channel] for each in channels}

    def status(self) -> ClientStatus:
        """Return the status of all channels and their totals. Does not send a request."""
        return self.client.status()

    async def flush(self, timeout: dt.timedelta | None = None) -> None:
        """Send all inserted rows and wait until they are committed, as `Client.flush` does."""
        await self.run(partial(self.client.flush, timeout))

    async def close(self, timeout: dt.timedelta | None = None) -> None:
        """Flush and close all channels, and end the threads, as `Client.close` does."""
        if self._opened is None or self._threads is None or self._opened.is_closed:
            return
        try:
            await self.run(partial(self._opened.close, timeout))
        finally:
            self._threads.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        with keeping_first_error(error, "The client"):
            await self.close()

    async def run(self, call: Callable[[], _Result]) -> _Result:
        """Run a blocking call in a thread. The call ends even if its caller is cancelled."""
        if self._loop is None or (self._opened is not None and self._opened.is_closed):
            raise ClientClosed
        return await asyncio.shield(self._loop.run_in_executor(self._threads, call))

    async def wait_until(
        self, check: Callable[[dt.timedelta], object], timeout: dt.timedelta | None
    ) -> None:
        """Repeat a check, with the timeout 0, at each progress of the client until it succeeds.

        Raises:
            CommitTimeout: If the check still raises CommitTimeout after `timeout`. None: the limit of
                `give_up_after`.
        """
        seconds = to_timeout_s(timeout, self.client.commit_timeout_s)
        give_up_at = asyncio.get_running_loop().time() + seconds
        while True:
            progress = self._progress
            try:
                check(_NO_TIME)
            except CommitTimeout as error:
                left_s = give_up_at - asyncio.get_running_loop().time()
                if left_s <= 0:
                    fields = error.fields | {"seconds": f"{seconds:g}"}
                    raise CommitTimeout(None, **fields) from error.__cause__
            else:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await progress.wait()

    def _report_progress(self) -> None:
        # A closed event loop has no tasks that wait.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake_waits)  # type: ignore[union-attr]

    def _wake_waits(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()


class AsyncChannel:
    """A `Channel` for asyncio, which `AsyncClient.open_channel` returns.

    Calls take effect in their order, one after another. A call that is cancelled may still take effect.
    As a context manager, a channel flushes, waits for the commit and closes at the end of the block.
    """

    def __init__(self, channel: Channel, client: AsyncClient) -> None:
        self._channel = channel
        self._client = client
        self._turn = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Async{repr(self._channel).removeprefix('<')}"

    @property
    def channel(self) -> Channel:
        """The synchronous channel."""
        return self._channel

    @property
    def name(self) -> str:
        """Name of the channel in the catalog."""
        return self._channel.name

    @property
    def table(self) -> TableName:
        """Table that the channel writes to."""
        return self._channel.table

    @property
    def on_error(self) -> OnError:
        """Treatment of valid rows by an insert that rejects others."""
        return self._channel.on_error

    @property
    def is_valid(self) -> bool:
        """True until the client detects that rows cannot be committed."""
        return self._channel.is_valid

    @property
    def invalidation_reason(self) -> str | None:
        """Reason why the channel is invalid, or None if it is valid."""
        return self._channel.invalidation_reason

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self._channel.is_closed

    async def insert_row(
        self, row: Mapping[str, object], offset_token: str | None = None
    ) -> InsertResult:
        """Insert a row as `Channel.insert_row` does. Each call costs a change of threads."""
        return await self._run(partial(self._channel.insert_row, row, offset_token))

    async def insert_rows(
        self,
        rows: Iterable[Mapping[str, object]],
        offset_token: str | None = None,
        *,
        start_offset_token: str | None = None,
    ) -> InsertResult:
        """Insert rows as `Channel.insert_rows` does."""
        return await self._run(
            partial(
                self._channel.insert_rows,
                rows,
                offset_token,
                start_offset_token=start_offset_token,
            )
        )

    async def insert_arrow(
        self,
        data: object,
        offset_token: str | None = None,
        *,
        start_offset_token: str | None = None,
    ) -> InsertResult:
        """Insert a table as `Channel.insert_arrow` does."""
        return await self._run(
            partial(
                self._channel.insert_arrow,
                data,
                offset_token,
                start_offset_token=start_offset_token,
            )
        )

    async def insert_dataframe(
        self,
        frame: object,
        offset_token: str | None = None,
        *,
        start_offset_token: str | None = None,
    ) -> InsertResult:
        """Insert a data frame as `Channel.insert_dataframe` does."""
        return await self._run(
            partial(
                self._channel.insert_dataframe,
                frame,
                offset_token,
                start_offset_token=start_offset_token,
            )
        )

    async def advance(self, offset_token: str) -> None:
        """Commit an offset token without rows, as `Channel.advance` does."""
        await self._run(partial(self._channel.advance, offset_token))

    def call_on_commit(self, callback: Callable[[str], object] | None) -> None:
        """Call a function in the event loop with the last offset token of each commit, in order.

        Args:
            callback: The function. None: call none.
        """
        if callback is None:
            self._channel.call_on_commit(None)
            return
        loop = asyncio.get_running_loop()
        self._channel.call_on_commit(lambda token: loop.call_soon_threadsafe(callback, token))

    def status(self) -> ChannelStatus:
        """Return the status of the channel. Does not send a request."""
        return self._channel.status()

    async def flush(self, timeout: dt.timedelta | None = None) -> None:
        """Send all inserted rows and wait until they are committed, as `Channel.flush` does."""
        await self._run(partial(self._channel.flush, timeout))

    async def wait_for_commit(
        self, token: str | None = None, timeout: dt.timedelta | None = None
    ) -> None:
        """Wait until an offset token is committed, as `Channel.wait_for_commit` does.

        Any number of tasks may wait.
        """
        await self._client.wait_until(self._channel.prepare_wait(token), timeout)

    async def latest_committed_offset_token(self) -> str | None:
        """Request the last committed offset token, as `Channel.latest_committed_offset_token` does."""
        return await self._client.run(self._channel.latest_committed_offset_token)

    async def resume(self) -> str | None:
        """Return the token to continue after, as `Channel.resume` does."""
        return await self._run(self._channel.resume)

    async def close(self, *, drop: bool = False, timeout: dt.timedelta | None = None) -> None:
        """Flush, wait until all rows are committed, and close, as `Channel.close` does."""
        await self._run(partial(self._channel.close, drop=drop, timeout=timeout))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        with keeping_first_error(error, f"Channel {self.name}"):
            await self.close()

    async def _run(self, call: Callable[[], _Result]) -> _Result:
        """Run a call in a thread after the calls before it. Cancellation does not let the next one start early."""
        await self._turn.acquire()
        task = asyncio.ensure_future(self._client.run(call))
        task.add_done_callback(lambda _: self._turn.release())
        return await asyncio.shield(task)
