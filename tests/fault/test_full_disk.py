"""A full disk is reported and loses no committed row, and the service recovers when there is space.

Mounts small file systems, which requires root. If that is not allowed, the kernel's limit on the
size of a process's files replaces the disk of the catalog.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import resource
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from fixtures.service import KeyPair, ServiceProcess, prepare_loading
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.config import Settings
from snowmelt.errors import ChannelInvalid, CommitTimeout
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.table_reader import read_table
from support.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

T = "demo.public.t"
SOON = dt.timedelta(seconds=200)
BRIEFLY = dt.timedelta(seconds=2)
UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@dataclass
class SmallDisk:
    """A file system of a few MiB. `fill` uses its space, except for some bytes."""

    folder: Path

    def fill(self, service: ServiceProcess, *, but: int = 0) -> None:
        filler = self.folder / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass
        os.truncate(filler, filler.stat().st_size - but)

    def make_room(self, service: ServiceProcess) -> None:
        (self.folder / "filler").unlink()


@dataclass
class LimitedProcess:
    """A service whose files cannot grow beyond the current size of the catalog's log."""

    folder: Path

    def fill(self, service: Any) -> None:
        size = max(file.stat().st_size for file in self.folder.iterdir() if file.is_file())
        limits = (size, resource.RLIM_INFINITY)
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, limits)

    def make_room(self, service: Any) -> None:
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, UNLIMITED)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small disk")
    yield SmallDisk(folder)
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def limited(tmp_path: Path) -> LimitedProcess:
    folder = tmp_path / "catalog"
    folder.mkdir()
    return LimitedProcess(folder)


@pytest.fixture(params=["small_disk", "limited"])
def disk(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def service(service_process: ServiceProcess) -> ServiceProcess:
    """A service that the test starts after it has set the location of catalog or stage."""
    return service_process


def begin(service: ServiceProcess, key_pair: KeyPair) -> None:
    service.start()
    prepare_loading(service, key_pair)


def rows(first: int, last: int, width: int = 10) -> list[Any]:
    return [{"id": n, "name": os.urandom(width).hex()} for n in range(first, last)]


def numbers(service: ServiceProcess) -> list[Any]:
    stage = service.environment.get("SNOWMELT_STAGE_URL")
    settings = Settings.load(service.data_dir, catalog_url=service.catalog_url, stage_url=stage)
    with contextlib.closing(open_and_upgrade_database(settings.catalog_url)) as catalog:
        keyring = KeyRing(load_master_key(settings.keys_dir))
        store = open_store(settings.stage_url)
        table = read_table(catalog, keyring, store, TableName("DEMO", "PUBLIC", "T"))
    return [int(value) for value in table["ID"].to_pylist()]


def test_a_full_disk_under_the_catalog(
    disk: Any, service: ServiceProcess, key_pair: KeyPair, connect: Any
) -> None:
    service.catalog_url = f"sqlite:///{disk.folder}/catalog.db"
    begin(service, key_pair)
    patient = connect().open_channel("patient", table=T)
    hasty = connect(give_up_after=BRIEFLY).open_channel("hasty", table=T)
    patient.insert_rows(rows(0, 10), "9")
    patient.flush(SOON)

    disk.fill(service)
    hasty.insert_rows(rows(1000, 1010), "1009")
    with pytest.raises(ChannelInvalid, match=r"disk is full|disk I/O error"):
        hasty.flush(SOON)
    patient.insert_rows(rows(10, 20), "19")
    with pytest.raises(CommitTimeout, match="Last committed token: '9'"):
        patient.wait_for_commit("19", timeout=BRIEFLY)
    assert patient.latest_committed_offset_token() == "9"
    assert numbers(service) == list(range(10))

    disk.make_room(service)
    patient.wait_for_commit("19", timeout=SOON)
    assert numbers(service) == list(range(20))
    service.kill()
    service.start()
    patient.insert_rows(rows(20, 30), "29")
    patient.flush(SOON)
    # The client did not learn whether its rows were committed. The committed token shows it.
    token = connect().open_channel("hasty", table=T).latest_committed_offset_token()
    hasty_numbers = [] if token is None else list(range(1000, 1010))
    assert sorted(numbers(service)) == [*range(30), *hasty_numbers]


@pytest.mark.parametrize("uploaded", [False, True])
def test_a_disk_that_is_full_in_the_middle_of_a_blob(
    small_disk: SmallDisk, service: ServiceProcess, key_pair: KeyPair, connect: Any, uploaded: bool
) -> None:
    stage = small_disk.folder / "stage"
    service.environment["SNOWMELT_STAGE_URL"] = str(stage)
    if uploaded:
        port = free_port()
        service.environment["SNOWMELT_S3_PORT"] = str(port)
        service.environment["SNOWMELT_STAGE_ENDPOINT"] = f"http://127.0.0.1:{port}"
    begin(service, key_pair)
    patient = connect().open_channel("patient", table=T)
    hasty = connect(give_up_after=BRIEFLY).open_channel("hasty", table=T)
    patient.insert_rows(rows(0, 10), "9")
    patient.flush(SOON)
    blobs = set(stage.rglob("*.bdec"))

    small_disk.fill(service, but=64 * 1024)
    hasty.insert_rows(rows(10_000, 15_000, width=50), "14999")
    said = ".* responded with HTTP 503: " if uploaded else ""
    with pytest.raises(ChannelInvalid, match=rf"Stage unavailable: {said}.*No space left"):
        hasty.flush(SOON)
    patient.insert_rows(rows(10, 5010, width=50), "5009")
    with pytest.raises(CommitTimeout, match="Last committed token: '9'"):
        patient.wait_for_commit("5009", timeout=BRIEFLY)
    assert set(stage.rglob("*.bdec")) == blobs
    assert numbers(service) == list(range(10))

    small_disk.make_room(service)
    patient.wait_for_commit("5009", timeout=SOON)
    assert numbers(service) == list(range(5010))
