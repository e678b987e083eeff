"""HTTP proxies in front of a service: fault injection, recording and replay.

Each has a thread of its own. `FaultProxy` injects faults. `TrafficRecorder` records requests and responses as JSON lines, without
secret headers, and `TrafficReplayer` answers from a recording.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import threading
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from snowmelt.errors import UserError
from snowmelt.functions.errors import BatchInvalid, BatchTooLarge
from snowmelt.functions.proxy import http1
from snowmelt.functions.proxy.http1 import MAX_BODY_BYTES, HttpMessage
from snowmelt.functions.wire import compression
from snowmelt.functions.wire import headers as names
from snowmelt.json import exact

_BAD_GATEWAY_RESPONSE = HttpMessage(
    "HTTP/1.1 502 Bad Gateway", {}, b'{"message":"The service behind the proxy does not answer."}'
)
_DRIP_WRITES = 20


class LoopbackHttpServer:
    """Listens on loopback and hands each connection's requests to `answer`."""

    def __init__(
        self,
        handle_request: Callable[[HttpMessage, asyncio.StreamWriter], Awaitable[bool]],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        """Prepare; `start` listens.

        `handle_request`: Writes the answer to a request; false ends the connection.
        """
        self._handle_request = handle_request
        self._address = (host, port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self.url = ""

    def start(self) -> None:
        """Listen. UserError: the address cannot be listened on."""
        self._thread.start()
        opening = asyncio.start_server(self._serve_connection, *self._address)
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

        async def cancel_connections() -> None:
            if self._server is not None:
                self._server.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

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
            pass  # whoever was there has gone, or does not speak HTTP
        except asyncio.CancelledError:
            pass  # by `close`, and nobody awaits this task but asyncio's own callback
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class UpstreamService:
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

    async def forward_request(self, request: HttpMessage) -> HttpMessage:
        """Pass a request on over a connection of its own, and return the reply."""
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
    """Passes requests on, and has faults happen to them, each by its own rule."""

    def __init__(
        self, url: str, faults: Iterable[Fault] = (), *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.faults = list(faults)
        self.requests: list[HttpMessage] = []
        self._upstream = UpstreamService(url)
        super().__init__(self._answer, host=host, port=port)

    async def _answer(self, request: HttpMessage, writer: asyncio.StreamWriter) -> bool:
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


# Never written down.
_SECRET_HEADERS = frozenset({
    "authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key",
    "ocp-apim-subscription-key", "x-amz-security-token", "x-functions-key",
})  # fmt: skip
_NOT_RECORDED_RESPONSE = HttpMessage(
    "HTTP/1.1 404 Not Found", {}, b'{"message":"This request is not among the recorded ones."}'
)


class TrafficRecorder(LoopbackHttpServer):
    """Passes requests on, and appends each with its reply to a file. Secrets are left out."""

    def __init__(
        self, url: str, path: str | Path, *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._upstream = UpstreamService(url)
        super().__init__(self._answer, host=host, port=port)

    async def _answer(self, request: HttpMessage, writer: asyncio.StreamWriter) -> bool:
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
    """Answers from a recording, in the recorded order; the last reply is repeated.

    A batch is recognised by path and body, so another query with the same rows is answered alike;
    a poll by the recorded batch id of the POST that went before.
    """

    def __init__(self, path: str | Path, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Read a recording. UserError: a line is not one of a recording; names it."""
        self._responses: dict[tuple[str, str, object], list[HttpMessage]] = defaultdict(list)
        self._recorded_batch_ids: dict[tuple[str, bytes], str] = {}
        self._replayed_batch_ids: dict[str, str] = {}
        with Path(path).open() as lines:
            for number, line in enumerate(lines, 1):
                self._add_recorded_line(line, f"{path}, line {number}")
        super().__init__(self._answer, host=host, port=port)

    def _add_recorded_line(self, line: str, location: str) -> None:
        try:
            pair = json.loads(line)
            request, reply = _message_from_json(pair["request"]), _message_from_json(pair["reply"])
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{location} is no line of a recording.") from None
        batch = request.headers.get(names.BATCH_ID, "")
        body = _decompress_body(request)
        said: object = batch
        if request.method == "POST":
            said = body
            self._recorded_batch_ids.setdefault((request.target, body), batch)
        self._responses[request.method, request.target, said].append(reply)

    async def _answer(self, request: HttpMessage, writer: asyncio.StreamWriter) -> bool:
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
    """Return a message as JSON can say it: decompressed, and in base64 if it is no text."""
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


# Faults by name: what goes wrong between a caller and a service, and for which requests.

_HTML_BODY = b"<html><body>Sign in, please.</body></html>"
_MADE_UP_BODY = b'{"message":"made up by the proxy"}'
_LARGE_BODY_BYTES = 11_000_000

# Answers that are made up; the service never sees the request.
SYNTHETIC_RESPONSES: dict[str, HttpMessage] = {
    "202": HttpMessage("HTTP/1.1 202 Accepted", {"content-type": "text/plain"}, b"working on it"),
    "204": HttpMessage("HTTP/1.1 204 No Content"),
    "302": HttpMessage("HTTP/1.1 302 Found", {"location": "http://192.0.2.1/elsewhere"}),
    **{
        start[:3]: HttpMessage(f"HTTP/1.1 {start}", {}, _MADE_UP_BODY)
        for start in (
            "400 Bad Request",
            "403 Forbidden",
            "404 Not Found",
            "413 Content Too Large",
            "429 Too Many Requests",
            "500 Internal Server Error",
            "503 Service Unavailable",
        )
    },
    "html": HttpMessage("HTTP/1.1 200 OK", {"content-type": "text/html"}, _HTML_BODY),
}
SYNTHETIC_RESPONSES["403"] = HttpMessage("HTTP/1.1 403 Forbidden", {}, b'{"message":"Forbidden"}')
# What happens to the connection: before the service sees the request, or with its reply.
CONNECTION_FAULTS = {
    "drop": "close the connection; the service never sees the request",
    "lose": "close the connection instead of passing on the reply",
    "reset": "reset the connection in the middle of the reply",
    "truncate": "end the reply early, behind a longer Content-Length",
    "delay": "wait `seconds` before the request is passed on",
    "drip": "pass on the reply so slowly that it takes `seconds`",
}


_ROW_FAULTS: dict[str, Callable[[list[Any]], Any]] = {
    "order": lambda rows: [*rows[1::-1], *rows[2:]],
    "missing": lambda rows: rows[:-1],
    "extra": lambda rows: [*rows, [len(rows), None]],
    "duplicate": lambda rows: [*rows[:1], *rows[:1], *rows[2:]],
    "text-numbers": lambda rows: [[str(row[0]), *row[1:]] for row in rows],
    "three-elements": lambda rows: [[*row, None] for row in rows],
    "data-object": lambda rows: {str(at): row for at, row in enumerate(rows)},
}
_BODY_FAULTS: dict[str, Callable[[bytes], bytes]] = {
    "no-data": lambda _: b'{"result":[]}',
    "not-json": lambda body: body[: len(body) // 2],
    "trailing-comma": lambda body: body[:-1] + b",}",
    "bom": lambda body: b"\xef\xbb\xbf" + body,
    "nan": lambda _: b'{"data":[[0,NaN]]}',
    "large": lambda body: body + b" " * max(_LARGE_BODY_BYTES - len(body), 0),
    "empty": lambda _: b"",
}
_HEADER_FAULTS: dict[str, dict[str, str]] = {
    "md5": {"content-md5": compression.compute_content_md5(b"something else")},
    "gzip-lie": {"content-encoding": "gzip"},
}
FAULT_KINDS = (
    *SYNTHETIC_RESPONSES,
    *CONNECTION_FAULTS,
    *_ROW_FAULTS,
    *_BODY_FAULTS,
    *_HEADER_FAULTS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultTrigger:
    """Which requests a fault is for; all that are set must hold.

    `on` is a method or `any`; `first` the first so many requests, `after` those behind so many,
    `every` each so-manieth, `each` the first so many attempts at each batch.
    """

    on: str = "POST"
    first: int | None = None
    after: int | None = None
    every: int | None = None
    each: int | None = None


@dataclass(slots=True)
class Fault:
    """One kind of fault; counts the requests it looked at. For any number of threads."""

    kind: str
    trigger: FaultTrigger = field(default_factory=FaultTrigger)
    seconds: float = 1.0
    retry_after: str | None = None
    applied_count: int = 0
    _request_count: int = 0
    _attempts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if self.kind not in FAULT_KINDS:
            raise UserError(f"There is no fault {self.kind}; there are {', '.join(FAULT_KINDS)}.")

    def should_apply(self, request: HttpMessage) -> bool:
        """Count a request, and tell whether the fault happens to it."""
        if self.trigger.on not in {"any", request.method}:
            return False
        with self._lock:
            self._request_count += 1
            batch = request.headers.get(names.BATCH_ID, "")
            self._attempts[batch] += 1
            number, trigger = self._request_count, self.trigger
            strikes = (
                (trigger.first is None or number <= trigger.first)
                and (trigger.after is None or number > trigger.after)
                and (trigger.every is None or number % trigger.every == 0)
                and (trigger.each is None or self._attempts[batch] <= trigger.each)
            )
            self.applied_count += strikes
            return strikes

    def get_synthetic_response(self) -> HttpMessage | None:
        """Return the answer that is given instead of the service's, if it is that kind."""
        answer = SYNTHETIC_RESPONSES.get(self.kind)
        if answer is None or self.retry_after is None:
            return answer
        return replace(answer, headers={**answer.headers, "retry-after": self.retry_after})

    def apply_to_response(self, response: HttpMessage) -> HttpMessage:
        """Return a reply with what this fault does to headers and body."""
        if self.kind not in {**_HEADER_FAULTS, **_BODY_FAULTS, **_ROW_FAULTS}:
            return response
        response = _decompress_response(response)
        if self.kind in _HEADER_FAULTS:
            return replace(response, headers={**response.headers, **_HEADER_FAULTS[self.kind]})
        if self.kind in _BODY_FAULTS:
            return replace(response, body=_BODY_FAULTS[self.kind](response.body))
        try:
            top = exact.parse_json(response.body, lenient=True)
        except exact.JsonSyntaxError:
            return response
        rows = top.get("data") if isinstance(top, dict) else None
        if not isinstance(rows, list):
            return response
        return replace(response, body=exact.serialize_json({"data": _ROW_FAULTS[self.kind](rows)}))


def _decompress_response(response: HttpMessage) -> HttpMessage:
    """Return a reply decompressed, without its checksum."""
    headers = dict(response.headers)
    encoding = headers.pop("content-encoding", None)
    headers.pop("content-md5", None)
    try:
        body = compression.decompress(response.body, encoding, max_bytes=MAX_BODY_BYTES)
    except BatchInvalid:
        return response
    return HttpMessage(response.start_line, headers, body)


_SETTING_PARSERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("first", "after", "every", "each"), int),
    "seconds": float,
    "retry-after": str,
    "on": lambda value: value if value == "any" else value.upper(),
}


def parse_fault(text: str) -> Fault:
    """Return the fault that a text such as `503:first=2` or `delay:seconds=0.5,every=3` means.

    Raises:
        UserError: It is not of that form.
    """
    kind, _, settings = text.partition(":")
    found: dict[str, Any] = {}
    for piece in filter(None, settings.split(",")):
        name, _, value = piece.partition("=")
        convert = _SETTING_PARSERS.get(name.strip())
        try:
            settled = None if convert is None else convert(value)
        except ValueError:
            settled = None
        if settled is None:
            raise UserError(
                f"{piece} says nothing about a fault; first=2, after=2, every=3, each=1, on=GET, "
                "seconds=0.5 and retry-after=3 do."
            )
        found[name.strip().replace("-", "_")] = settled
    others = {name: found.pop(name) for name in ("seconds", "retry_after") if name in found}
    return Fault(kind.strip(), FaultTrigger(**found), **others)
