"""Recorded requests of engines to the Iceberg REST catalog get the same responses as when recorded.

`tests/support/record_iceberg_requests.py` records them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from fixtures.engines import Lake
from fixtures.s3 import s3_process
from fixtures.service import KeyPair
from support.record_iceberg_requests import RECORDED

pytestmark = pytest.mark.slow
REQUESTS: dict[str, list[dict[str, Any]]] = json.loads(RECORDED.read_text())


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, key_pair: KeyPair) -> Iterator[Lake]:
    process = s3_process(tmp_path_factory.mktemp("replay"))
    yield Lake(process, key_pair)
    process.service.kill()


def with_keys(text: str, lake: Lake) -> str:
    for word, value in (
        ("TOKEN", lake.token),
        ("SECRET", lake.key.secret),
        ("KEY", lake.key.access_key_id),
    ):
        text = text.replace(word, value)
    return text


@pytest.mark.parametrize("engine", REQUESTS)
def test_recorded_requests_are_answered(lake: Lake, engine: str) -> None:
    loads = 0
    for request in REQUESTS[engine]:
        answer = httpx.request(
            request["method"],
            f"{lake.service.url}{request['path']}",
            headers={name: with_keys(value, lake) for name, value in request["headers"].items()},
            content=with_keys(request["body"], lake),
            timeout=60,
        )
        assert answer.status_code == request["status"], (request["path"], answer.text)
        path = request["path"].partition("?")[0]
        if request["method"] == "GET" and path.endswith("/tables/T"):
            loads += 1
            loaded = answer.json()
            assert loaded["metadata-location"].endswith(".metadata.json")
            assert loaded["config"]["s3.access-key-id"]
            # Omit the address, which ClickHouse would misuse.
            assert ("s3.endpoint" in loaded["config"]) == (engine != "clickhouse")
    assert loads > 0
