"""Runs a service of the SDK on a port, and sends requests as a caller does."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx

from snowmelt.functions.service.request_response_types import ServiceRequest, ServiceResponse
from snowmelt.server.listener import HttpListener, open_listening_socket

if TYPE_CHECKING:
    from snowmelt.functions.service.service import RemoteService


BATCH = "sf-external-function-query-batch-id"


@contextlib.contextmanager
def hosted(app: Any) -> Iterator[str]:
    """Serve an ASGI application on a free loopback port. Yield its URL."""
    listener = HttpListener(app, open_listening_socket("127.0.0.1", 0, setting="port"), drain_s=1)
    listener.start("functions-test")
    try:
        yield listener.url
    finally:
        listener.close()


def ask(
    service: RemoteService,
    *rows: list[Any],
    path: str = "/",
    method: str = "POST",
    body: bytes | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
    **headers: Any,
) -> ServiceResponse:
    """Send a request to a service in this process. Return its response.

    Header names have underscores in place of hyphens.
    """
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if "batch-id" in sent:
        sent[BATCH] = sent.pop("batch-id")
    if body is None:
        body = json.dumps({"data": [[at, *row] for at, row in enumerate(rows)]}).encode()
    answering = service.handle_request(ServiceRequest(method, path, sent, body))
    return asyncio.run(answering) if loop is None else loop.run_until_complete(answering)


def values(response: Any) -> list[Any]:
    """Return the values of a successful response."""
    assert response.status == 200, response.body
    data = json.loads(response.body)["data"]
    assert [at for at, _ in data] == list(range(len(data)))
    return [value for _, value in data]


def message(response: Any) -> Any:
    return json.loads(response.body)["error"]["message"]


def client(url: Any) -> httpx.Client:
    # Otherwise, each client loads certificates, which takes longer than the test.
    return httpx.Client(base_url=url, trust_env=False, verify=False, timeout=60)
