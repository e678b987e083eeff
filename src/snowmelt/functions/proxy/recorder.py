"""Real conversations, kept as lines of JSON and answered from again."""

from __future__ import annotations

import base64
import json
import threading
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snowmelt.errors import UserError
from snowmelt.functions.proxy import http1
from snowmelt.functions.proxy.http1 import Message
from snowmelt.functions.proxy.relay import HttpServer, Upstream
from snowmelt.functions.wire import compression
from snowmelt.functions.wire import headers as names

if TYPE_CHECKING:
    import asyncio

# Never written down.
_SECRET = frozenset({
    "authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key",
    "ocp-apim-subscription-key", "x-amz-security-token", "x-functions-key",
})  # fmt: skip
_UNKNOWN = Message(
    "HTTP/1.1 404 Not Found", {}, b'{"message":"This request is not among the recorded ones."}'
)


class Recorder:
    """Passes requests on, and appends each with its reply to a file. Secrets are left out."""

    def __init__(
        self, url: str, path: str | Path, *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._upstream = Upstream(url)
        self.server = HttpServer(self._answer, host=host, port=port)

    async def _answer(self, request: Message, writer: asyncio.StreamWriter) -> bool:
        reply = await self._upstream.ask(request)
        line = json.dumps({"request": _kept(request), "reply": _kept(reply)}, ensure_ascii=False)
        with self._lock, self._path.open("a") as file:
            file.write(line + "\n")
        writer.write(http1.written(reply))
        return True


class Replayer:
    """Answers from a recording, in the recorded order; the last reply is repeated.

    A batch is recognised by path and body, so another query with the same rows is answered alike;
    a poll by the recorded batch id of the POST that went before.
    """

    def __init__(self, path: str | Path, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Read a recording.

        Raises:
            UserError: A line is not one of a recording; names it.
        """
        self._replies: dict[tuple[str, str, object], list[Message]] = defaultdict(list)
        self._recorded: dict[tuple[str, bytes], str] = {}
        self._same: dict[str, str] = {}
        with Path(path).open() as lines:
            for number, line in enumerate(lines, 1):
                self._add(line, f"{path}, line {number}")
        self.server = HttpServer(self._answer, host=host, port=port)

    def _add(self, line: str, where: str) -> None:
        try:
            pair = json.loads(line)
            request, reply = _message(pair["request"]), _message(pair["reply"])
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{where} is no line of a recording.") from None
        batch = request.headers.get(names.BATCH_ID, "")
        body = _plain_body(request)
        if request.method == "POST":
            self._recorded.setdefault((request.target, body), batch)
        self._replies[self._key(request, body, batch)].append(reply)

    @staticmethod
    def _key(request: Message, body: bytes, batch: str) -> tuple[str, str, object]:
        said = body if request.method == "POST" else batch
        return request.method, request.target, said

    async def _answer(self, request: Message, writer: asyncio.StreamWriter) -> bool:
        batch = request.headers.get(names.BATCH_ID, "")
        body = _plain_body(request)
        if request.method == "POST":
            self._same[batch] = self._recorded.get((request.target, body), batch)
        replies = self._replies.get(self._key(request, body, self._same.get(batch, batch)))
        if not replies:
            writer.write(http1.written(_UNKNOWN))
        else:
            writer.write(http1.written(replies.pop(0) if len(replies) > 1 else replies[0]))
        return True


def _plain_body(message: Message) -> bytes:
    encoding = message.headers.get("content-encoding")
    return compression.decoded(message.body, encoding, limit=http1.MAX_BODY_BYTES)


def _kept(message: Message) -> dict[str, Any]:
    """Return a message as JSON can say it: decompressed, and in base64 if it is no text."""
    headers = {
        name: value for name, value in message.lasting_headers().items() if name not in _SECRET
    }
    body = _plain_body(message)
    headers.pop("content-encoding", None)
    kept: dict[str, Any] = {"first": message.first, "headers": headers}
    try:
        kept["body"] = body.decode()
    except UnicodeDecodeError:
        kept["base64"] = base64.b64encode(body).decode()
    return kept


def _message(kept: dict[str, Any]) -> Message:
    body = kept["body"].encode() if "body" in kept else base64.b64decode(kept["base64"])
    return Message(kept["first"], kept["headers"], body)
