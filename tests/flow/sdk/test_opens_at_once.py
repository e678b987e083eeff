"""Hundreds of channels are opened, queried and dropped concurrently while another channel writes."""

from __future__ import annotations

import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fixtures.service import ServiceProcess
from support.sdk_table import SOON, T, rows

pytestmark = pytest.mark.slow

CHANNELS = 300


def test_channels_opened_at_once_hold_up_no_commit(
    connect: Any, service: ServiceProcess, ids: Any
) -> None:
    writer = connect(max_client_lag=dt.timedelta(milliseconds=100)).open_channel("writer", table=T)
    others, over = connect(), threading.Event()
    done = 0
    commits_at: list[int] = []

    def write() -> int:
        number = 0
        while not over.is_set():
            writer.insert_rows(rows(number, number + 1), str(number))
            writer.wait_for_commit(str(number), timeout=SOON)
            commits_at.append(done)
            number += 1
        return number

    def open_and_drop(number: int) -> None:
        nonlocal done
        channel = others.open_channel(f"c{number}", table=T)
        assert channel.latest_committed_offset_token() is None
        channel.close(drop=True)
        done += 1

    with ThreadPoolExecutor(1) as writing, ThreadPoolExecutor(CHANNELS) as opening:
        written = writing.submit(write)
        try:
            list(opening.map(open_and_drop, range(CHANNELS)))
        finally:
            over.set()
        count = written.result()
    assert ids() == list(range(count))
    # Commits continued while channels were opened. Each waits for at most one group of opens.
    assert len({at for at in commits_at if 0 < at < CHANNELS}) >= 2
