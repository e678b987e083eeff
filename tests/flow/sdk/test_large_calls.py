"""A call above the chunk size limit becomes several chunks, which are committed together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.service import KeyPair, ServiceProcess
from snowmelt import failpoints
from snowmelt.client import channel_state
from snowmelt.failpoints import Failpoint
from support.faulty_proxy import Proxy
from support.sdk_table import LATE, T, blobs, rows


def test_it_is_one_commit_whose_token_comes_with_its_last_chunk(
    connect: Any, service: ServiceProcess, ids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_state, "MAX_CHUNK_BYTES", 2_000)
    with Proxy(service.port, only="write/blobs", plan=["lose answer"]) as proxy:
        channel = connect(proxy.url, max_client_lag=LATE).open_channel("c", table=T)
        channel.insert_rows(rows(0, 300), "299", start_offset_token="0")
        channel.flush()
        channel.insert_row(rows(300, 301)[0], "300")
        channel.close()
        first, again, last = (json.loads(body)["blobs"] for _, body in proxy.seen)
    assert first == again
    chunks = [chunk for blob in first for chunk in blob["chunks"]]
    assert len(chunks) > 5
    assert {chunk["parts"] for chunk in chunks} == {len(chunks)}
    assert max(chunk["chunk_length_uncompressed"] for chunk in chunks) <= 2_000
    told = [each["channels"][0] for each in chunks]
    assert {each["row_sequencer"] for each in told} == {1}
    assert [each["offset_token"] for each in told] == [None] * (len(told) - 1) + ["299"]
    assert [each["start_offset_token"] for each in told] == ["0"] + [None] * (len(told) - 1)
    assert last[0]["chunks"][0]["channels"][0]["row_sequencer"] == 2
    assert ids() == list(range(301))


def test_nothing_of_it_is_there_before_a_damaged_part_is_written_anew(
    connect: Any, service: ServiceProcess, ids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_state, "MAX_CHUNK_BYTES", 2_000)
    before = dict.fromkeys(blobs(service))
    found = []

    def damage() -> None:
        for path in blobs(service):
            if path not in before:
                path.write_bytes(b"torn")
        failpoints.arm(Failpoint.REGISTERED, lambda: found.append(ids()))

    failpoints.arm(Failpoint.BLOB_STAGED, damage, passage=2)
    channel = connect(max_client_lag=LATE).open_channel("c", table=T)
    channel.insert_rows(rows(0, 300), "299")
    channel.flush()
    assert found == [[]]
    assert channel.latest_committed_offset_token() == "299"
    assert ids() == list(range(300))


SCRIPT = """
import sys
import snowmelt
from snowmelt.client import channel_state as planning

planning.MAX_CHUNK_BYTES = 2_000
url, key = sys.argv[1:]
with snowmelt.Client(url, user="loader", private_key=key) as client:
    channel = client.open_channel("c", table="sdk.public.t", on_error="continue")
    for first in range(int(channel.latest_committed_offset_token() or 0), 600, 300):
        given = [{"id": number} for number in range(first, first + 300)]
        channel.insert_rows([*given, {"id": f"bad {first}"}], str(first + 300))
        channel.flush()
"""


def test_a_process_killed_between_its_chunks_begins_the_call_anew(
    service: ServiceProcess,
    key_pair: KeyPair,
    tmp_path: Path,
    ids: Any,
    kept: Callable[[], list[dict[str, Any]]],
) -> None:
    key = tmp_path / "key.pem"
    key.write_text(key_pair.private_pem)
    committed = []
    # Kill with rows in memory (with rejected rows), between two chunks, and after the first commit.
    for fault in ("rows_buffered=kill", "blob_staged=kill:2", "registered=kill", ""):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, service.url, str(key)],
            timeout=120,
            env=os.environ | {"SNOWMELT_FAULT": f"client.{fault}" if fault else ""},
        )
        assert done.returncode == (-9 if fault else 0)
        committed.append((len(ids()), len(kept())))
    assert committed == [(0, 0), (0, 0), (300, 1), (600, 2)]
    assert ids() == list(range(600))
    assert [row["OFFSET_TOKEN"] for row in kept()] == ["300", "600"]
