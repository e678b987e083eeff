"""Memory is returned to the system after a burst of large requests."""

from __future__ import annotations

import json
import os
import ssl
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from fixtures.rows import RowService

pytestmark = pytest.mark.slow

PIPE = "/v2/streaming/data/databases/demo/schemas/public/pipes/T-STREAMING/channels/ELASTIC/rows"
REQUESTS, ROWS = 24, 20_000


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_service_gives_back_what_a_burst_took(own_row_service: RowService) -> None:
    own_row_service.service.stop()
    own_row_service.start(cleanup_interval_s=1)
    assert own_row_service.service.process is not None
    pid = own_row_service.service.process.pid
    rows = [{"id": number, "name": f"{number} of a burst " * 5} for number in range(ROWS)]
    body = "\n".join(map(json.dumps, rows)).encode()
    trust = ssl.create_default_context(cafile=own_row_service.service.ca_file)
    with httpx.Client(
        base_url=own_row_service.service.url,
        verify=trust,
        timeout=200,
        headers=own_row_service.authorization(),
        limits=httpx.Limits(max_connections=REQUESTS),
        trust_env=False,
    ) as client:

        def send(content: bytes) -> int:
            query = {"requestId": str(uuid.uuid4())}
            return client.post(PIPE, params=query, content=content).status_code

        # Exclude what the first request loads and compiles, which stays in memory.
        assert send(body) == 200
        before = peak = resident_bytes(pid)
        with ThreadPoolExecutor(REQUESTS) as pool:
            sent = [pool.submit(send, body) for _ in range(REQUESTS)]
            while not all(future.done() for future in sent):
                peak = max(peak, resident_bytes(pid))
                time.sleep(0.01)
        assert [future.result() for future in sent] == [200] * REQUESTS
    assert peak > before
    give_up_at = time.monotonic() + 200
    while (now := resident_bytes(pid)) > before + (peak - before) / 2:
        assert time.monotonic() < give_up_at, (before >> 20, peak >> 20, now >> 20)
        time.sleep(0.1)
    print(f"before {before >> 20} MB, at most {peak >> 20} MB, after {now >> 20} MB")
