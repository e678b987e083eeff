"""A service on a restored installation: clients continue, and each row is there once."""

from __future__ import annotations

import datetime as dt
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.service import ServiceProcess
from snowmelt.backup.destination import BackupDestination
from snowmelt.errors import ChannelInvalid
from snowmelt.storage.local_store import LocalStore
from support import forked_processes

pytestmark = pytest.mark.slow

T = "demo.public.t"
SOON = dt.timedelta(seconds=200)
CHANNELS = 3


@pytest.fixture
def service(loading_service: ServiceProcess) -> ServiceProcess:
    return loading_service


@pytest.fixture
def restored(tmp_path: Path, service: ServiceProcess) -> Iterator[ServiceProcess]:
    """A service at the address of the first one with another data folder. Not started."""
    other = ServiceProcess(tmp_path / "restored", service.port)
    yield other
    if other.process is not None and other.process.poll() is None:
        other.kill()


def run_command(folder: Path, *words: object) -> str:
    done = forked_processes.run(
        [sys.executable, "-m", "snowmelt", *map(str, words)],
        env={**os.environ, "SNOWMELT_DATA_DIR": str(folder)},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return bytes(done.stdout).decode()


def make_rows(channel: int, first: int, last: int) -> list[dict[str, Any]]:
    """Make rows of a source with unique numbers, from position and number of channels."""
    return [{"id": n * CHANNELS + channel, "name": f"row {n}"} for n in range(first, last)]


def test_clients_go_on_at_a_point_made_while_they_streamed(
    connect: Any, service: ServiceProcess, restored: ServiceProcess, ids: Any, tmp_path: Path
) -> None:
    backup, key = tmp_path / "backup", tmp_path / "backup.key"
    run_command(service.data_dir, "backup", "new-key", key)
    client = connect()
    channels = [client.open_channel(f"c{n}", table=T) for n in range(CHANNELS)]
    stop = threading.Event()
    written = [0] * CHANNELS

    def write(number: int) -> None:
        while not stop.is_set():
            first = written[number]
            channels[number].insert_rows(make_rows(number, first, first + 10), str(first + 9))
            written[number] = first + 10
            stop.wait(0.02)

    writers = [threading.Thread(target=write, args=[number]) for number in range(CHANNELS)]
    for each in writers:
        each.start()
    try:
        channels[0].wait_for_commit("9", timeout=SOON)
        run_command(service.data_dir, "backup", backup)
        run_command(service.data_dir, "maintain")
        run_command(service.data_dir, "backup", backup)
    finally:
        stop.set()
        for each in writers:
            each.join()
    client.flush()
    service.kill()
    first, last = BackupDestination(LocalStore(backup)).list_points()
    shown = run_command(
        restored.data_dir, "restore", backup, "--to", last.point_id, "--private-key", key
    )
    restored.start()
    # The clients of the original are fenced, and resume at the restore point.
    channels[0].insert_rows(make_rows(0, written[0], written[0] + 1), str(written[0]))
    with pytest.raises(ChannelInvalid):
        channels[0].wait_for_commit(str(written[0]), timeout=SOON)
    tokens = {each.channel: each.offset_token for each in last.channels}
    assert {each.channel for each in first.channels} <= tokens.keys()
    end = max(written) + 10
    with connect(restored.url) as successor:
        for number in range(CHANNELS):
            channel = successor.open_channel(f"c{number}", table=T)
            token = channel.latest_committed_offset_token()
            assert token == tokens[channel.name.upper()]
            assert token is None or token in shown
            start = int(token or -1) + 1
            assert start <= written[number]
            channel.insert_rows(make_rows(number, start, end), str(end - 1))
            channel.wait_for_commit(str(end - 1), timeout=SOON)
    service.data_dir = restored.data_dir
    assert sorted(ids()) == list(range(end * CHANNELS))
