"""Recording of requests and responses as JSON lines, and replay of a recording.

Secret headers are not recorded.
"""

from __future__ import annotations

import base64
import json
import threading
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snowmelt.errors import UserError
from snowmelt.functions.proxy import http1
from snowmelt.functions.proxy.http1 import HttpMessage
from snowmelt.functions.proxy.relay import LoopbackHttpServer, UpstreamService
from snowmelt.functions.wire import compression
from snowmelt.functions.wire import headers as names

if TYPE_CHECKING:
    import asyncio

# Never written down.
_SECRET_HEADERS = frozenset({
    "authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key",
    "ocp-apim-subscription-key", "x-amz-security-token", "x-functions-key",
})  # fmt: skip
_NOT_RECORDED_RESPONSE = HttpMessage(
    "HTTP/1.1 404 Not Found", {}, b'{"message":"This request is not among the recorded ones."}'
)


class TrafficRecorder:
    """Passes requests on, and appends each with its reply to a file. Secrets are left out."""

    def __init__(
        self, url: str, path: str | Path, *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._upstream = UpstreamService(url)
        self.server = LoopbackHttpServer(self._handle_request, host=host, port=port)

    async def _handle_request(self, request: HttpMessage, writer: asyncio.StreamWriter) -> bool:
        reply = await self._upstream.forward_request(request)
        line = json.dumps(
            {"request": _message_to_json(request), "reply": _message_to_json(reply)},
            ensure_ascii=False,
        )
        with self._lock, self._path.open("a") as file:
            file.write(line + "\n")
        writer.write(http1.encode_message(reply))
        return True


class TrafficReplayer:
    """Answers from a recording, in the recorded order; the last reply is repeated.

    A batch is recognised by path and body, so another query with the same rows is answered alike;
    a poll by the recorded batch id of the POST that went before.
    """

    def __init__(self, path: str | Path, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Read a recording.

        Raises:
            UserError: A line is not one of a recording; names it.
        """
        self._responses: dict[tuple[str, str, object], list[HttpMessage]] = defaultdict(list)
        self._recorded_batch_ids: dict[tuple[str, bytes], str] = {}
        self._replayed_batch_ids: dict[str, str] = {}
        with Path(path).open() as lines:
            for number, line in enumerate(lines, 1):
                self._add_recorded_line(line, f"{path}, line {number}")
        self.server = LoopbackHttpServer(self._handle_request, host=host, port=port)

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

    async def _handle_request(self, request: HttpMessage, writer: asyncio.StreamWriter) -> bool:
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
