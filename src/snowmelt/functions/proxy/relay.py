"""HTTP proxies in front of a service: fault injection, recording and replay.

Each proxy has its own thread. `FaultProxy` injects faults. `TrafficRecorder` records requests and
responses as JSON lines without secret headers. `TrafficReplayer` responds from a recording.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from snowmelt.errors import UserError
from snowmelt.functions.errors import BatchInvalid, BatchTooLarge
from snowmelt.functions.proxy import http1
from snowmelt.functions.proxy.faults import Fault
from snowmelt.functions.proxy.http1 import HttpMessage
from snowmelt.functions.wire import compression
from snowmelt.functions.wire import headers as names

_BAD_GATEWAY_RESPONSE = HttpMessage(
    "HTTP/1.1 502 Bad Gateway", {}, b'{"message":"The service behind the proxy does not answer."}'
)
_DRIP_WRITES = 20


class LoopbackHttpServer:
    """HTTP server on loopback that passes each request to `handle_request`."""

    def __init__(
        self,
        handle_request: Callable[[HttpMessage, asyncio.StreamWriter], Awaitable[bool]],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        """Create the server without listening; see `start`.

        Args:
            handle_request: Writes the response to a request. Returns False to close the connection.
            host: Address to listen on.
            port: Port to listen on. 0: any free port.
        """
        self._handle_request = handle_request
        self._address = (host, port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self.url = ""

    def start(self) -> None:
        """Start to listen.

        Raises:
            UserError: If the server cannot listen on the address.
        """
        self._thread.start()
        opening = asyncio.start_server(self._serve_connection, *self._address)
        try:
            self._server = asyncio.run_coroutine_threadsafe(opening, self._loop).result()
        except OSError as error:
            self.close()
            where = ":".join(map(str, self._address))
            raise UserError(f"Cannot listen on {where}: {error.strerror}.") from None
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"

    def wait(self) -> None:
        """Wait until `close` is called or the program is interrupted."""
        while self._thread.is_alive():
            self._thread.join(1)

    def close(self) -> None:
        """Stop the server and close all connections."""

        async def cancel_connections() -> None:
            if self._server is not None:
                self._server.close()
            # A task that has not begun could not close its connection.
            await asyncio.sleep(0)
            while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await asyncio.sleep(0)

        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(cancel_connections(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            async for request in http1.read_messages(reader, writer):
                if not await self._handle_request(request, writer):
                    break
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, BatchInvalid, BatchTooLarge):
            pass  # The peer disconnected, or sent something other than HTTP.
        except asyncio.CancelledError:
            pass  # `close` cancels this task. Only asyncio's own callback awaits it.
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class UpstreamService:
    """The service behind a proxy."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or parts.hostname is None:
            raise UserError(f"Invalid service URL {url}. Expected http://host:port/path.")
        self._host = parts.hostname
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        self._authority = parts.netloc.rpartition("@")[2]

    async def forward_request(self, request: HttpMessage) -> HttpMessage:
        """Forward a request on a new connection and return the response."""
        target = self._prefix + request.target
        headers = {**request.headers, "host": self._authority}
        sent = HttpMessage(f"{request.method} {target} HTTP/1.1", headers, request.body)
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        except OSError:
            return _BAD_GATEWAY_RESPONSE
        try:
            writer.write(http1.encode_message(sent))
            reply = await anext(http1.read_messages(reader), None)
        except (OSError, asyncio.IncompleteReadError):
            return _BAD_GATEWAY_RESPONSE
        finally:
            writer.close()
        return reply or _BAD_GATEWAY_RESPONSE


class FaultProxy(LoopbackHttpServer):
    """Proxy that forwards requests and injects faults according to their triggers."""

    def __init__(
        self, url: str, faults: Iterable[Fault] = (), *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.faults = list(faults)
        self.requests: list[HttpMessage] = []
        self._upstream = UpstreamService(url)
        super().__init__(self._respond, host=host, port=port)

    async def _respond(self, request: HttpMessage, writer: asyncio.StreamWriter) -> bool:
        self.requests.append(request)
        striking = [fault for fault in list(self.faults) if fault.should_apply(request)]
        kinds = {fault.kind: fault for fault in striking}
        if "delay" in kinds:
            await asyncio.sleep(kinds["delay"].seconds)
        if "drop" in kinds:
            return False
        reply = next((made for fault in striking if (made := fault.get_synthetic_response())), None)
        if reply is None:
            reply = await self._upstream.forward_request(request)
            for fault in striking:
                reply = fault.apply_to_response(reply)
        if "lose" in kinds:
            return False
        data = http1.encode_message(reply)
        if "truncate" in kinds or "reset" in kinds:
            writer.write(data[: len(data) - max(len(reply.body) // 2, 1)])
            await writer.drain()
            if "reset" in kinds:
                writer.transport.abort()
            return False
        if "drip" in kinds:
            piece = max(len(data) // _DRIP_WRITES, 1)
            for at in range(0, len(data), piece):
                writer.write(data[at : at + piece])
                await writer.drain()
                await asyncio.sleep(kinds["drip"].seconds / _DRIP_WRITES)
        else:
            writer.write(data)
        return True


# These headers are never recorded.
_SECRET_HEADERS = frozenset({
    "authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key",
    "ocp-apim-subscription-key", "x-amz-security-token", "x-functions-key",
})  # fmt: skip
_NOT_RECORDED_RESPONSE = HttpMessage(
    "HTTP/1.1 404 Not Found", {}, b'{"message":"This request is not among the recorded ones."}'
)


class TrafficRecorder(LoopbackHttpServer):
    """Proxy that appends each request and its response to a file, without secret headers."""

    def __init__(
        self, url: str, path: str | Path, *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._upstream = UpstreamService(url)
        super().__init__(self._respond, host=host, port=port)

    async def _respond(self, request: HttpMessage, writer: asyncio.StreamWriter) -> bool:
        reply = await self._upstream.forward_request(request)
        line = json.dumps(
            {"request": _message_to_json(request), "reply": _message_to_json(reply)},
            ensure_ascii=False,
        )
        with self._lock, self._path.open("a") as file:
            file.write(line + "\n")
        writer.write(http1.encode_message(reply))
        return True


class TrafficReplayer(LoopbackHttpServer):
    """Server that replays a recording in the recorded order and repeats the last response.

    Requests are matched by path and body, so another query with the same rows gets the same
    responses. A poll is matched by the recorded batch ID of the preceding POST.
    """

    def __init__(self, path: str | Path, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Load a recording.

        Raises:
            UserError: If a line is invalid. The message names the line.
        """
        self._responses: dict[tuple[str, str, object], list[HttpMessage]] = defaultdict(list)
        self._recorded_batch_ids: dict[tuple[str, bytes], str] = {}
        self._replayed_batch_ids: dict[str, str] = {}
        with Path(path).open() as lines:
            for number, line in enumerate(lines, 1):
                self._add_recorded_line(line, f"{path}, line {number}")
        super().__init__(self._respond, host=host, port=port)

    def _add_recorded_line(self, line: str, location: str) -> None:
        try:
            pair = json.loads(line)
            request, reply = _message_from_json(pair["request"]), _message_from_json(pair["reply"])
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{location} is not a line of a recording.") from None
        batch = request.headers.get(names.BATCH_ID, "")
        body = _decompress_body(request)
        said: object = batch
        if request.method == "POST":
            said = body
            self._recorded_batch_ids.setdefault((request.target, body), batch)
        self._responses[request.method, request.target, said].append(reply)

    async def _respond(self, request: HttpMessage, writer: asyncio.StreamWriter) -> bool:
        batch = request.headers.get(names.BATCH_ID, "")
        body = _decompress_body(request)
        said: object = self._replayed_batch_ids.get(batch, batch)
        if request.method == "POST":
            said = body
            recorded = self._recorded_batch_ids.get((request.target, body), batch)
            self._replayed_batch_ids[batch] = recorded
        replies = self._responses.get((request.method, request.target, said))
        if not replies:
            reply = _NOT_RECORDED_RESPONSE
        else:
            reply = replies.pop(0) if len(replies) > 1 else replies[0]
        writer.write(http1.encode_message(reply))
        return True


def _decompress_body(message: HttpMessage) -> bytes:
    encoding = message.headers.get("content-encoding")
    return compression.decompress(message.body, encoding, max_bytes=http1.MAX_BODY_BYTES)


def _message_to_json(message: HttpMessage) -> dict[str, Any]:
    """Return a message as JSON. Its body is decompressed, and encoded in base64 if it is not text."""
    headers = {
        name: value
        for name, value in message.get_end_to_end_headers().items()
        if name not in _SECRET_HEADERS
    }
    body = _decompress_body(message)
    headers.pop("content-encoding", None)
    kept: dict[str, Any] = {"first": message.start_line, "headers": headers}
    try:
        kept["body"] = body.decode()
    except UnicodeDecodeError:
        kept["base64"] = base64.b64encode(body).decode()
    return kept


def _message_from_json(fields: dict[str, Any]) -> HttpMessage:
    body = fields["body"].encode() if "body" in fields else base64.b64decode(fields["base64"])
    return HttpMessage(fields["first"], fields["headers"], body)
