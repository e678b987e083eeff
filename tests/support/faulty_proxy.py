"""Proxy between client and service that can drop requests or responses, or respond itself."""

from __future__ import annotations

import http.client
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass
class Proxy:
    """Proxy to `port`. `plan` has the steps for the next requests whose path contains `only`.

    Steps: `lose request`, `lose answer`, an HTTP status
    as number, or `garbage` (200 with no JSON). Afterwards everything is forwarded.
    """

    port: int
    only: str = ""
    plan: list[str | int] = field(default_factory=list)
    seen: list[tuple[str, bytes]] = field(default_factory=list)
    always: str | int | None = None

    def __enter__(self) -> Self:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                proxy.handle(self)

            def log_message(self, *args: Any) -> None:
                pass

        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        step = self._step(handler.path, body)
        if step == "lose request":
            handler.close_connection = True
            return
        if isinstance(step, int):
            self._answer(handler, step, b'{"message": "made up by the proxy"}')
            return
        if step == "garbage":
            self._answer(handler, 200, b"<html>")
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            headers = {k: v for k, v in handler.headers.items() if k.lower() != "host"}
            connection.request("POST", handler.path, body, headers)
            response = connection.getresponse()
            answer = response.read()
        except OSError:
            handler.close_connection = True
            return
        finally:
            connection.close()
        if step == "lose answer":
            handler.close_connection = True
            return
        self._answer(handler, response.status, answer)

    def _step(self, path: str, body: bytes) -> str | int | None:
        with self._lock:
            if self.only not in path:
                return None
            self.seen.append((path, body))
            return self.plan.pop(0) if self.plan else self.always

    def _answer(self, handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
