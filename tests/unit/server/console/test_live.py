"""Live pages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from snowmelt.clock import SystemClock
from snowmelt.errors import CatalogUnavailable
from snowmelt.server.console.live import LiveStreams


def test_a_failed_session_check_sends_nothing_and_the_next_one_decides() -> None:
    checks: list[bool | Exception] = [True, CatalogUnavailable(reason="it restarts"), False]
    sent: list[Any] = []

    async def make() -> Mapping[str, str]:
        return {"figures": f"{len(checks)} checks are left"}

    async def check() -> bool:
        result = checks.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    streams = LiveStreams(SystemClock())
    asyncio.run(streams.stream(("ROLE", "/"), make, check, receive, send))
    assert [message["type"] for message in sent].count("http.response.start") == 1
    bodies = b"".join(message.get("body", b"") for message in sent)
    assert bodies.count(b"event: regions") == 1
    assert bodies.index(b"event: regions") < bodies.index(b"event: expired")
