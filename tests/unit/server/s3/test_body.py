"""A body that stops to come is not waited for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from snowmelt.buckets.errors import S3Error
from snowmelt.server.s3.body import receive_small_body


def test_a_client_that_falls_silent_is_told_so() -> None:
    pieces = [{"type": "http.request", "body": b"x", "more_body": True}]

    async def receive() -> Any:
        if pieces:
            return pieces.pop()
        return await asyncio.get_running_loop().create_future()

    with pytest.raises(S3Error) as refused:
        asyncio.run(receive_small_body(receive, max_bytes=10, idle_timeout_s=0.05))
    assert (refused.value.s3_code, refused.value.status_code) == ("RequestTimeout", 400)
