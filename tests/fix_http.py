"""Requests of the client of external functions, on either event loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from raw_service import RawService, reply
from snowmelt.functions.caller.http_client import (
    Bounds,
    HttpClient,
    Target,
    header_lines,
    new_event_loop,
    request_head,
)
from snowmelt.functions.urls import parse_url

OK = reply(body=b"hello")
CLOSE = RawService.CLOSE


@dataclass
class Traffic:
    bytes_out: int = 0
    bytes_in: int = 0


@dataclass
class At:
    url: str


@pytest.fixture(params=["asyncio", "uvloop"])
def with_client(request):
    """Run a coroutine function that takes a client, on either event loop."""
    loop = asyncio.new_event_loop() if request.param == "asyncio" else new_event_loop()

    async def working(work):
        client = HttpClient()
        try:
            return await work(client)
        finally:
            await client.close()

    trouble = []
    loop.set_exception_handler(lambda _, context: trouble.append(context))
    yield lambda work: loop.run_until_complete(asyncio.wait_for(working(work), 120))
    loop.close()
    assert not trouble


async def ask(client, service, body=b"{}", *, path="/f", ca_file=None, traffic=None, **bounds):
    target = Target.of(parse_url(service.url + path), ca_file)
    head = request_head("POST", target, header_lines({"x-test": "1"}), len(body))
    return await client.ask(target, head, body, Bounds(**bounds), traffic or Traffic())


def asking(service, **options):
    return lambda client: ask(client, service, **options)


def slowly(data, pause_s=0.001):
    async def say(writer):
        for at in range(len(data)):
            writer.write(data[at : at + 1])
            await writer.drain()
            await asyncio.sleep(pause_s)

    return say
