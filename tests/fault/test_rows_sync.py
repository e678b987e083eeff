"""A sync of the stage that fails: the file system's disk has no space for its blocks.

The page cache accepts every blob and returns it whole. Only the sync reports that it is not on the
disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
import pytest

from fixtures.service import KeyPair, ServiceProcess, prepare_loading
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.config import Settings
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.table_reader import read_table
from support.streaming_wire import Conversation

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow
PIPE = "/v2/streaming/databases/demo/schemas/public/pipes/T-STREAMING"
ROWS = PIPE.replace("/streaming/", "/streaming/data/") + "/channels/{}/rows"
# Pages of a failed write stay in the cache (code 38: not synced) until the kernel needs the memory.
# Then the blob reads as zeros (code 39: not the bytes that were sent).
LOST = ([38], [39])

# Folders of mkfs, which may be missing from the PATH.
SYSTEM = os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}


@dataclass
class ThinDisk:
    """A file system whose backing file is on a smaller file system."""

    below: Path
    folder: Path

    def fill(self) -> None:
        with (self.below / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass
        # The loop device reports success for a write of which only the first blocks fit.
        for number in range(5):
            sacrifice = self.folder / f"sacrifice-{number}"
            with contextlib.suppress(OSError), sacrifice.open("wb", buffering=0) as file:
                file.write(bytes(100_000))
                os.fsync(file.fileno())

    def make_room(self) -> None:
        (self.below / "filler").unlink()


@pytest.fixture
def thin_disk(tmp_path: Path) -> Iterator[ThinDisk]:
    disk = ThinDisk(tmp_path / "below", tmp_path / "disk")
    disk.below.mkdir()
    disk.folder.mkdir()
    image = disk.below / "image"
    commands: list[list[str | Path]] = [
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk.below],
        ["truncate", "--size", "64m", image],
        ["mkfs.ext4", "-q", "-F", "-O", "^has_journal", image],
        ["mount", "-o", "loop", image, disk.folder],
    ]
    try:
        for command in commands:
            try:
                done = subprocess.run(command, capture_output=True, check=False, env=SYSTEM)
            except FileNotFoundError:
                pytest.skip("there is no mkfs.ext4")
            if done.returncode:
                pytest.skip(f"only root can mount a disk: {done.stderr.decode()}")
        yield disk
    finally:
        for folder in (disk.folder, disk.below):
            if os.path.ismount(folder):
                subprocess.run(["umount", "--lazy", folder], check=True)


def ids(service: ServiceProcess) -> list[int]:
    stage = service.environment.get("SNOWMELT_STAGE_URL", str(service.data_dir / "stage"))
    settings = Settings.load(service.data_dir, catalog_url=service.catalog_url, stage_url=stage)
    with contextlib.closing(open_and_upgrade_database(settings.catalog_url)) as catalog:
        keyring = KeyRing(load_master_key(settings.keys_dir))
        table = read_table(catalog, keyring, open_store(stage), TableName("DEMO", "PUBLIC", "T"))
    return sorted(int(value) for value in table["ID"].to_pylist())


def test_what_it_may_have_lost_is_registered_by_neither_protocol(
    thin_disk: ThinDisk, service_process: ServiceProcess, key_pair: KeyPair
) -> None:
    service = service_process
    service.environment["SNOWMELT_STAGE_URL"] = str(thin_disk.folder / "stage")
    service.start()
    prepare_loading(service, key_pair)
    classic = Conversation(service.url, key_pair.private_pem, "LOADER").configure()
    headers = {"content-type": "application/x-ndjson"}
    http = httpx.Client(base_url=service.url, timeout=60, headers=headers)
    with contextlib.closing(classic.http), http:
        for name in ("Authorization", "X-Snowflake-Authorization-Token-Type"):
            http.headers[name] = classic.http.headers[name]

        def send(number: int, continuation: str) -> httpx.Response:
            asked = {"continuationToken": continuation, "requestId": f"request {number}"}
            padding = os.urandom(200_000).hex()
            body = json.dumps({"id": number, "name": padding}).encode()
            return http.post(ROWS.format("c"), params=asked, content=body)

        first = http.put(f"{PIPE}/channels/c", content=b"{}").json()["next_continuation_token"]
        answer = send(1, first)
        assert answer.status_code == 200, answer.text
        second = answer.json()["next_continuation_token"]

        opened = classic.open("classic")
        staged = classic.blob([(opened, 1, "1")], [{"id": 100, "name": "n"}])
        thin_disk.fill()
        failed = send(2, second)
        assert (failed.status_code, failed.json()["code"]) == (503, "ERR_SERVICE_BUSY")
        thin_disk.make_room()
        # The blob can still be read, and the next sync would succeed.
        assert classic.codes(staged) == [38]
        # Repeat the request. Its rows are staged again.
        assert send(2, second).status_code == 200
        assert ids(service) == [1, 2]
        service.kill()
        service.start()
        assert ids(service) == [1, 2]
        asked = http.post(PIPE + ":bulk-channel-status", content=b'{"channel_names":["c"]}')
        assert asked.json()["channel_statuses"]["c"]["rows_inserted"] == 2


def other_program_syncs(disk: ThinDisk) -> int:
    """Sync as another program (`sync -f`, a second service), which then gets the write error first."""
    return subprocess.run(["sync", "-f", disk.folder], check=False, capture_output=True).returncode


@pytest.fixture
def classic(
    thin_disk: ThinDisk, service_process: ServiceProcess, key_pair: KeyPair
) -> Iterator[Conversation]:
    service = service_process
    service.environment["SNOWMELT_STAGE_URL"] = str(thin_disk.folder / "stage")
    service.start()
    prepare_loading(service, key_pair)
    talk = Conversation(service.url, key_pair.private_pem, "LOADER").configure()
    with contextlib.closing(talk.http):
        yield talk


def test_a_write_whose_failure_another_program_heard_of_first_is_not_committed(
    thin_disk: ThinDisk, service_process: ServiceProcess, classic: Conversation
) -> None:
    opened = classic.open("classic")
    assert classic.codes(classic.blob([(opened, 1, "1")], [{"id": 1, "name": "n"}])) == [0]
    lost = classic.blob([(opened, 2, "2")], [{"id": 2, "name": os.urandom(200_000).hex()}])
    thin_disk.fill()
    assert other_program_syncs(thin_disk) != 0
    thin_disk.make_room()
    assert other_program_syncs(thin_disk) == 0, "the kernel reports it once"
    assert classic.codes(lost) in LOST
    again = classic.open("classic")
    assert again.answer["offset_token"] == "1"
    assert classic.codes(classic.blob([(again, 2, "2")], [{"id": 2, "name": "n"}])) == [0]
    assert ids(service_process) == [1, 2]


def test_a_write_that_failed_before_the_service_started_is_not_committed(
    thin_disk: ThinDisk, service_process: ServiceProcess, classic: Conversation
) -> None:
    opened = classic.open("classic")
    whole = classic.blob([(opened, 1, "1")], [{"id": 1, "name": "n"}])
    assert other_program_syncs(thin_disk) == 0
    lost = classic.blob([(opened, 2, "2")], [{"id": 2, "name": os.urandom(200_000).hex()}])
    service_process.kill()
    thin_disk.fill()
    assert other_program_syncs(thin_disk) != 0
    thin_disk.make_room()
    assert other_program_syncs(thin_disk) == 0, "the kernel reports it once"
    service_process.start()
    assert classic.codes(whole) == [0]
    assert classic.codes(lost) in LOST
    assert ids(service_process) == [1]


def test_what_is_committed_is_on_the_disk_whoever_syncs_it_meanwhile(
    thin_disk: ThinDisk, service_process: ServiceProcess, classic: Conversation
) -> None:
    loops = [
        subprocess.Popen(["sh", "-c", f"while :; do sync -f {thin_disk.folder} 2>&-; done"])
        for _ in range(3)
    ]
    committed = []
    try:
        for number in range(30):
            if number == 10:
                thin_disk.fill()
            elif number == 20:
                thin_disk.make_room()
            opened = classic.open(f"channel {number}")
            rows = [{"id": number, "name": os.urandom(50_000).hex()}]
            blob = classic.blob([(opened, 1, str(number))], rows)
            code, *_ = classic.codes(blob)
            assert code in {0, 38}
            committed += [number] if code == 0 else []
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert {*range(10), *range(25, 30)} <= set(committed)
    service_process.stop()
    # Data that was not on the disk is no longer visible.
    for stored in (thin_disk.folder / "stage").rglob("*.bdec"):
        with stored.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert ids(service_process) == committed


def test_a_sync_that_fails_commits_nothing_of_what_was_staged_before_it(
    service_process: ServiceProcess, key_pair: KeyPair
) -> None:
    service = service_process.start(fault="store.sync=eio:2")
    prepare_loading(service, key_pair)
    talk = Conversation(service.url, key_pair.private_pem, "LOADER").configure()
    with contextlib.closing(talk.http):
        opened = talk.open("classic")
        assert talk.codes(talk.blob([(opened, 1, "1")], [{"id": 1, "name": "n"}])) == [0]
        lost = talk.blob([(opened, 2, "2")], [{"id": 2, "name": "n"}])
        also_lost = talk.blob([(opened, 3, "3")], [{"id": 3, "name": "n"}])
        assert talk.codes(lost) == [38]
        # The next sync succeeds.
        assert talk.codes(lost) == talk.codes(also_lost) == [38]
        again = talk.open("classic")
        assert again.answer["offset_token"] == "1"
        assert talk.codes(talk.blob([(again, 2, "2")], [{"id": 2, "name": "n"}])) == [0]
    assert ids(service) == [1, 2]
