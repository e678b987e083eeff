"""A backup, restoration or expiry that is killed at any point damages nothing and can be completed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fixtures.backups import BackedUpSite, read_token
from fixtures.chunks import Lakehouse
from snowmelt.backup.expiration import expire_points
from snowmelt.backup.verification import verify_point
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.failpoints import Failpoint
from snowmelt.table.compaction import compact
from snowmelt.table.file_replacement_run import MaintenanceSettings
from support import forked_processes

pytestmark = pytest.mark.slow

HOUR = 3600.0
BACKUP = [
    Failpoint.BACKUP_OBJECT,
    Failpoint.BACKUP_COPIED,
    Failpoint.BACKUP_COMPLETED,
]
RESTORE = [
    Failpoint.RESTORE_OBJECT,
    Failpoint.RESTORE_COPIED,
    Failpoint.RESTORE_INSIDE_COMMIT,
    Failpoint.RESTORE_COMMITTED,
]
EXPIRY = [Failpoint.EXPIRY_MARKED, Failpoint.EXPIRY_DELETING]


def run_command(
    folder: Path, *words: str, fault: str = "", catalog_url: str | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a command in a separate process, which may be killed at a failpoint."""
    catalog = {} if catalog_url is None else {"SNOWMELT_CATALOG_URL": catalog_url}
    return forked_processes.run(
        [sys.executable, "-m", "snowmelt", *words],
        env={
            **os.environ,
            **catalog,
            "SNOWMELT_DATA_DIR": str(folder),
            "SNOWMELT_FAULT": fault,
        },
        capture_output=True,
        timeout=120,
        check=False,
    )


def back_up(site: BackedUpSite, fault: str = "") -> subprocess.CompletedProcess[bytes]:
    """Run the backup command."""
    return run_command(
        site.house.folder,
        *("backup", str(site.folder / "backup"), "--public-key", str(site.folder / "backup.pub")),
        fault=fault,
        catalog_url=site.house.database.url,
    )


def fill(site: BackedUpSite) -> None:
    """Write rows to native files and chunks."""
    for _ in range(3):
        site.write(10)
        site.house.migrate()
    site.write(10)


@pytest.mark.parametrize("point", BACKUP)
def test_a_backup_killed_at(point: Failpoint, site: BackedUpSite) -> None:
    fill(site)
    first = site.back_up()
    site.write(10)
    killed = back_up(site, f"{point}=kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    found = site.destination.list_points()
    assert [each.point_id for each in found[:1]] == [first.point_id]
    assert len(found) == (2 if point is Failpoint.BACKUP_COMPLETED else 1)
    # The next run takes over the lock and the hold of the killed process immediately.
    done = back_up(site)
    assert done.returncode == 0, done.stderr.decode()
    for each, count in ((first, 40), (site.destination.list_points()[-1], 50)):
        result = verify_point(site.destination, each, site.private_key, site.clock)
        assert (result.problems, result.rows) == ((), count)
    assert not list(site.destination.store.list("journals"))


@pytest.mark.parametrize("point", RESTORE)
def test_a_restoration_killed_at(point: Failpoint, site: BackedUpSite) -> None:
    fill(site)
    site.back_up()
    folder = site.folder / "target"
    words = ("restore", str(site.folder / "backup"), "--to", "latest")
    keys = ("--private-key", str(site.folder / "backup.key"))
    # Kill the second run at a later hit of the failpoint.
    for passage in (1, 2) if point is Failpoint.RESTORE_OBJECT else (1,):
        killed = run_command(folder, *words, *keys, fault=f"{point}=kill:{passage}")
        assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    done = run_command(folder, *words, *keys)
    assert done.returncode == 0, done.stderr.decode()
    assert not (folder / "warehouse" / "restoring.json").exists()
    database = open_and_upgrade_database(str(folder / "catalog.db"))
    with contextlib.closing(Lakehouse(folder, site.clock, database)) as house:
        assert sorted(house.read_numbers()) == list(range(40))
        assert read_token(house) == 39


@pytest.mark.parametrize("point", EXPIRY)
def test_an_expiry_killed_at(point: Failpoint, site: BackedUpSite) -> None:
    fill(site)
    site.back_up()
    site.house.migrate()
    site.clock.advance(2 * HOUR)
    site.house.collect(HOUR)
    last = site.back_up()
    words = ("backup", "expire", str(site.folder / "backup"), "--keep", "0s")
    killed = run_command(site.house.folder, *words, fault=f"{point}=kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert [each.point_id for each in site.destination.list_points()] == [last.point_id]
    done = run_command(site.house.folder, *words)
    assert done.returncode == 0, done.stderr.decode()
    result = verify_point(site.destination, last, site.private_key, site.clock)
    assert (result.problems, result.rows) == ((), 40)
    # Nothing is left to expire, and every object is referenced.
    assert expire_points(site.destination, site.clock.now()).objects == 0


def test_points_beside_a_workload_and_kills_agree_in_rows_and_tokens(
    catalog_url: str, tmp_path: Path
) -> None:
    site = BackedUpSite(tmp_path, catalog_url)
    site.write(1)  # Each point has the channel.
    choose = random.Random(20)
    stop = threading.Event()
    # One collection per backup and one that began before it: a backup makes three attempts.
    may_collect = threading.Event()
    problems: list[BaseException] = []

    def work() -> None:
        settings = MaintenanceSettings(site.house.warehouse.url, min_files=2)
        name = site.house.table().name
        try:
            while not stop.wait(0.03):
                site.write(choose.randint(1, 50))
                action = choose.random()
                if action < 0.3:
                    site.house.migrate()
                elif action < 0.4:
                    compact(site.house.database, name, settings, clock=site.clock)
                elif may_collect.is_set():
                    may_collect.clear()
                    # By this clock, the lease of the backup has ended: it must find out itself.
                    site.clock.advance(2 * HOUR)
                    site.house.collect(HOUR)
        except BaseException as error:
            problems.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(2):
            may_collect.set()
            done = back_up(site, f"backup.object=kill:{choose.randint(1, 12)}")
            assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
        may_collect.set()
        done = back_up(site)
        assert done.returncode == 0, done.stderr.decode()
    finally:
        stop.set()
        worker.join()
    assert not problems
    points = site.destination.list_points()
    for point in points:
        [channel] = point.channels
        [table] = point.live_tables
        count = int(channel.offset_token or -1) + 1
        assert table.native_rows + table.fresh_rows == count
        with contextlib.closing(site.restore(point)) as house:
            assert sorted(house.read_numbers()) == list(range(count))
            assert read_token(house) == count - 1
    site.house.close()
