"""A killed service keeps the responses it sent, and its unfinished batches are run again."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support import functions_service as kit

if TYPE_CHECKING:
    import httpx


SERVICE = """
import time
from pathlib import Path
from snowmelt.functions.service import RemoteService, SqliteStore

svc = RemoteService("killed", store=SqliteStore("batches.db", lease_s=1))

def log(text):
    with Path("work.log").open("a") as file:
        file.write(text)

@svc.function
def quick(n: int) -> int:
    log("q")
    return n + 1

@svc.function(mode="async")
def slow(n: int) -> int:
    log("s")
    time.sleep(0 if Path("fast").exists() else 60)
    return n
"""


@contextlib.contextmanager
def running(folder: Path) -> Iterator[httpx.Client]:
    process = subprocess.Popen(
        [sys.executable, "-m", "snowmelt", "functions", "serve", "svc.py", "--port", "0"],
        cwd=folder, stdout=subprocess.PIPE, text=True,
        env={name: value for name, value in os.environ.items() if "SNOWMELT" not in name},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        with kit.client(process.stdout.readline().split(" on ")[1].strip()) as client:
            yield client
    finally:
        process.kill()
        process.communicate()


def post(client: httpx.Client, path: str, batch: str) -> httpx.Response:
    return client.post(path, json={"data": [[0, 1]]}, headers={kit.BATCH: batch})


@pytest.mark.slow
def test_answers_outlive_a_kill_and_work_that_it_left_is_done_again(tmp_path: Path) -> None:
    (tmp_path / "svc.py").write_text(SERVICE)
    with running(tmp_path) as client:
        assert post(client, "/quick", "q:1").json() == {"data": [[0, 2]]}
        assert post(client, "/slow", "q:2").status_code == 202
        # Longer than the lease, so that the lease is renewed.
        time.sleep(1.5)
        assert post(client, "/slow", "q:2").status_code == 202
    (tmp_path / "fast").touch()
    with running(tmp_path) as client:
        assert post(client, "/quick", "q:1").json() == {"data": [[0, 2]]}
        statuses = []
        deadline = time.monotonic() + 200
        while (status := post(client, "/slow", "q:2").status_code) != 200:
            statuses.append(status)
            assert time.monotonic() < deadline, statuses
            time.sleep(0.1)
        assert set(statuses) <= {202}
    assert sorted((tmp_path / "work.log").read_text()) == ["q", "s", "s"]
