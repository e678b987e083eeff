"""A proxy in front of a service, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from snowmelt.errors import UserError
from snowmelt.functions.errors import BatchInvalid, BatchTooLarge
from snowmelt.functions.proxy import http1
from snowmelt.functions.proxy.http1 import Message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from snowmelt.functions.proxy.faults import Fault

_UNREACHABLE = Message(
    "HTTP/1.1 502 Bad Gateway", {}, b'{"message":"The service behind the proxy does not answer."}'
)
_DRIPS = 20


class HttpServer:
    """Listens on loopback and hands each connection's requests to `answer`."""

    def __init__(
        self,
        answer: Callable[[Message, asyncio.StreamWriter], Awaitable[bool]],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        """Prepare; `start` listens.

        Args:
            answer: Writes the answer to a request; false ends the connection.
            host: To listen on.
            port: To listen on; 0 is any free one.
        """
        self._answer = answer
        self._address = (host, port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self.url = ""

    def start(self) -> None:
        """Listen.

        Raises:
            UserError: The address cannot be listened on.
        """
        self._thread.start()
        opening = asyncio.start_server(self._connected, *self._address, limit=http1.MAX_HEAD_BYTES)
        try:
            self._server = asyncio.run_coroutine_threadsafe(opening, self._loop).result()
        except OSError as error:
            self.close()
            where = ":".join(map(str, self._address))
            raise UserError(f"{where} cannot be listened on: {error.strerror}.") from None
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"

    def wait(self) -> None:
        """Wait until `close`, or until the program is interrupted."""
        while self._thread.is_alive():
            self._thread.join(1)

    def close(self) -> None:
        """Stop, and end all connections."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> HttpServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await http1.read(reader, writer)) is not None:
                if not await self._answer(request, writer):
                    break
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, BatchInvalid, BatchTooLarge):
            pass  # whoever was there has gone, or does not speak HTTP
        except asyncio.CancelledError:
            pass  # by `close`, and nobody awaits this task but asyncio's own callback
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class Upstream:
    """The service behind a proxy."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or parts.hostname is None:
            raise UserError(f"{url} is no address of a service; http://host:port/path is.")
        self._host = parts.hostname
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        self._authority = parts.netloc.rpartition("@")[2]

    async def ask(self, request: Message) -> Message:
        """Pass a request on over a connection of its own, and return the reply."""
        target = self._prefix + request.target
        headers = {**request.headers, "host": self._authority}
        sent = Message(f"{request.method} {target} HTTP/1.1", headers, request.body)
        try:
            reader, writer = await asyncio.open_connection(
                self._host, self._port, ssl=self._tls, limit=http1.MAX_HEAD_BYTES
            )
        except OSError:
            return _UNREACHABLE
        try:
            writer.write(http1.written(sent))
            reply = await http1.read(reader)
        except (OSError, asyncio.IncompleteReadError):
            return _UNREACHABLE
        finally:
            writer.close()
        return reply or _UNREACHABLE


class FaultProxy:
    """Passes requests on, and has faults happen to them, each by its own rule."""

    def __init__(
        self, url: str, faults: Iterable[Fault] = (), *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        """Prepare.

        Args:
            url: Of the service.
            faults: May be changed while the proxy runs, by `faults`.
            host: To listen on.
            port: To listen on; 0 is any free one.
        """
        self.faults = list(faults)
        self.requests: list[Message] = []
        self._upstream = Upstream(url)
        self.server = HttpServer(self._answer, host=host, port=port)

    @property
    def url(self) -> str:
        """Where the proxy listens."""
        return self.server.url

    def __enter__(self) -> FaultProxy:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()

    async def _answer(self, request: Message, writer: asyncio.StreamWriter) -> bool:
        self.requests.append(request)
        striking = [fault for fault in list(self.faults) if fault.strikes(request)]
        kinds = {fault.kind: fault for fault in striking}
        if "delay" in kinds:
            await asyncio.sleep(kinds["delay"].seconds)
        if "drop" in kinds:
            return False
        reply = next((made for fault in striking if (made := fault.made_up())), None)
        if reply is None:
            reply = await self._upstream.ask(request)
            for fault in striking:
                reply = fault.applied(reply)
        return await _pass_on(reply, kinds, writer)


async def _pass_on(reply: Message, kinds: dict[str, Fault], writer: asyncio.StreamWriter) -> bool:
    if "lose" in kinds:
        return False
    data = http1.written(reply)
    middle = len(data) - max(len(reply.body) // 2, 1)
    if "truncate" in kinds or "reset" in kinds:
        writer.write(data[:middle])
        await writer.drain()
        if "reset" in kinds:
            writer.transport.abort()
        return False
    if "drip" in kinds:
        piece = max(len(data) // _DRIPS, 1)
        for at in range(0, len(data), piece):
            writer.write(data[at : at + piece])
            await writer.drain()
            await asyncio.sleep(kinds["drip"].seconds / _DRIPS)
        return True
    writer.write(data)
    return True
