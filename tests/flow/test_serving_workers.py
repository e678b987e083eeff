"""Background processes of the service: they start when needed and end with the service."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fixtures.service import KeyPair, ServiceProcess, prepare_loading
from support.processes import list_children, read_command
from support.streaming_wire import Conversation, rows

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow


def children(process_id: int) -> list[int]:
    """The migrators that a service started, without its processes that verify chunks."""
    found = list_children(process_id)
    return [child for child in found if b"migrate" in read_command(child).split(b"\0")]


def is_alive(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until(condition: Callable[[], object], what: str, seconds: float = 200) -> None:
    give_up_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up_at, what
        time.sleep(0.05)


@pytest.mark.parametrize("ending", ["kill", "stop"])
def test_the_migrator_starts_with_the_first_chunk_and_ends_with_the_service(
    service_process: ServiceProcess, key_pair: KeyPair, ending: str
) -> None:
    service_process.start(migrate=1, migrate_interval_s=0.1)
    prepare_loading(service_process, key_pair)
    assert service_process.process is not None
    service_id = service_process.process.pid
    assert children(service_id) == [], "nothing to migrate yet"
    client = Conversation(service_process.url, key_pair.private_pem).configure()
    opened = client.open()
    assert client.codes(client.blob([(opened, 1, "a")], rows(0))) == [0]
    client.http.close()
    wait_until(lambda: children(service_id), "a migrator starts")
    (migrator,) = children(service_id)
    if ending == "kill":
        wait_until(lambda: ready(migrator), "it has got as far as to watch its parent")
    getattr(service_process, ending)()
    wait_until(lambda: not is_alive(migrator), "the migrator ends")


def test_a_migrator_that_dies_is_started_again(
    service_process: ServiceProcess, key_pair: KeyPair
) -> None:
    service_process.start(migrate=1, migrate_interval_s=0.1)
    prepare_loading(service_process, key_pair)
    assert service_process.process is not None
    service_id = service_process.process.pid
    client = Conversation(service_process.url, key_pair.private_pem).configure()
    opened = client.open()
    assert client.codes(client.blob([(opened, 1, "a")], rows(0))) == [0]
    client.http.close()
    wait_until(lambda: children(service_id), "a migrator starts")
    (first,) = children(service_id)
    os.kill(first, 9)
    wait_until(lambda: children(service_id) not in ([], [first]), "another one follows")
    assert "the migrator ended with status -9" in service_process.log


@pytest.mark.parametrize("compact", [1, 0])
def test_native_files_of_loads_alone_are_maintained_too(
    service_process: ServiceProcess, compact: int
) -> None:
    folder = service_process.data_dir
    folder.mkdir()
    service_process.sql("CREATE DATABASE demo", "CREATE TABLE demo.public.t (a INT)")
    (folder / "a.csv").write_text("1\n")
    command = [sys.executable, "-m", "snowmelt", "--data-dir", str(folder), "copy"]
    subprocess.run([*command, f"COPY demo.public.t FROM '{folder / 'a.csv'}'"], check=True)
    service_process.start(migrate=1, compact=compact, compact_interval_s=0.2)
    assert service_process.process is not None
    service_id = service_process.process.pid
    if compact:
        wait_until(lambda: children(service_id), "a maintainer starts")
    else:
        time.sleep(2)
        assert children(service_id) == []


def ready(process_id: int) -> bool:
    """Return True if the thread that watches the parent runs. It is Python's first thread."""
    return len(list(Path(f"/proc/{process_id}/task").iterdir())) > 1
