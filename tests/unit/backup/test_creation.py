"""A point is complete or does not exist; what the backup has is not copied again."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fixtures.backups import BackedUpSite
from fixtures.chunks import numbers
from fixtures.replicas import TwoSites
from snowmelt import failpoints
from snowmelt.backup.backup_keys import create_key_pair, load_private_key, load_public_key
from snowmelt.backup.creation import create_point
from snowmelt.backup.destination import BackupDestination
from snowmelt.backup.manifests import BackupRejected, SourceDamaged
from snowmelt.backup.verification import verify_point
from snowmelt.catalog import model
from snowmelt.catalog.jobs.backup_history import find_last_backup
from snowmelt.catalog.objects.s3_buckets import create_bucket, find_bucket
from snowmelt.catalog.objects.s3_objects import ObjectRecord, put_object
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.catalog.streaming.chunks import quarantine_chunk
from snowmelt.failpoints import Failpoint
from snowmelt.storage.local_store import LocalStore

pytestmark = pytest.mark.slow

HOUR = 3600.0


def test_only_new_objects_are_copied(site: BackedUpSite) -> None:
    site.write(10)
    site.house.migrate()
    first = site.back_up()
    site.write(10)
    second = site.back_up()
    # One blob, and the tables of the catalog that it changed.
    assert second.objects == first.objects + 1
    assert second.bytes > first.bytes
    assert 1 < second.copied_objects < first.copied_objects
    assert {each.path for each in site.destination.store.list("journals")} == set()


def test_a_backup_of_a_promoted_site_to_the_place_of_the_former_primary_can_be_restored(
    two_sites: TwoSites, tmp_path: Path
) -> None:
    first, second = two_sites.first, two_sites.second
    first.house.create()
    first.house.put(numbers(0, 10))
    first.house.migrate()
    create_key_pair(tmp_path / "backup.key", tmp_path / "backup.pub")
    public_key = load_public_key(tmp_path / "backup.pub")
    destination = BackupDestination(LocalStore(tmp_path / "backup"))
    earlier = create_point(first.source, destination, public_key)
    two_sites.synchronize()
    two_sites.synchronize()
    second.promote()
    # Its metadata of native tables has the same paths, but URLs of another warehouse.
    point = create_point(second.source, destination, public_key)
    assert point.copied_objects < earlier.copied_objects
    private_key = load_private_key(tmp_path / "backup.key")
    result = verify_point(destination, point, private_key, two_sites.clock)
    assert (result.problems, result.rows) == ((), 10)


def test_every_table_of_the_catalog_is_exported_or_local() -> None:
    exported = {table.name for table in model.list_portable_tables()}
    assert exported | model.LOCAL_TABLES == set(model.metadata.tables)
    assert not exported & model.LOCAL_TABLES


def test_clean_up_waits_for_a_backup_and_goes_on_after_it(site: BackedUpSite) -> None:
    site.write(10)
    site.house.migrate()
    site.clock.advance(2 * HOUR)
    results = []
    failpoints.arm(Failpoint.BACKUP_EXPORTED, lambda: results.append(site.house.collect(HOUR)))
    point = site.back_up()
    results.append(site.house.collect(HOUR))
    assert [each.waits_for_backup for each in results] == [True, False]
    assert [each.blobs for each in results] == [0, 1]
    with contextlib.closing(site.restore(point)) as house:
        assert sorted(house.read_numbers()) == list(range(10))


def test_a_clean_up_that_ignores_the_hold_makes_the_backup_read_the_catalog_again(
    site: BackedUpSite,
) -> None:
    site.write(10)
    site.house.migrate()

    def collect() -> None:
        # The hold has expired by this clock, as after a pause of the process.
        site.clock.advance(2 * HOUR)
        assert site.house.collect(HOUR).blobs == 1

    failpoints.arm(Failpoint.BACKUP_EXPORTED, collect)
    point = site.back_up()
    with contextlib.closing(site.restore(point)) as house:
        assert sorted(house.read_numbers()) == list(range(10))


def test_a_damaged_or_missing_blob_ends_the_backup_by_name(site: BackedUpSite) -> None:
    site.write(10)
    site.house.is_damaged = True
    [blob] = (site.house.folder / "stage").rglob("*.bdec")
    content = blob.read_bytes()
    blob.write_bytes(content[:-20] + bytes(20))
    with pytest.raises(SourceDamaged, match=r"another checksum than the registered"):
        site.back_up()
    blob.unlink()
    with pytest.raises(SourceDamaged, match=blob.name):
        site.back_up()
    assert site.destination.list_points() == []
    # Its chunk is quarantined: the other tables must still be backed up.
    with site.house.database.writing() as connection:
        quarantine_chunk(connection, site.house.table().table_id, 1, "it is missing")
    assert site.back_up().objects == 0


def test_a_second_backup_to_the_same_place_is_rejected(site: BackedUpSite) -> None:
    site.write(10)
    errors: list[BackupRejected] = []

    def start_another() -> None:
        try:
            site.back_up()
        except BackupRejected as error:
            errors.append(error)

    def start_in_a_thread() -> None:
        thread = threading.Thread(target=start_another)
        thread.start()
        thread.join()

    failpoints.arm(Failpoint.BACKUP_EXPORTED, start_in_a_thread)
    site.back_up()
    assert "another backup or expiration" in str(errors[0])
    assert len(site.destination.list_points()) == 1


def test_the_lock_of_a_killed_process_with_the_same_number_is_taken_over(
    site: BackedUpSite,
) -> None:
    code = (
        "import os, sys; from snowmelt.backup.destination import BackupDestination; "
        "from snowmelt.storage.local_store import LocalStore; "
        "lock = BackupDestination(LocalStore(sys.argv[1])).locked(); lock.__enter__(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, site.folder / "backup"], check=True)
    lock = site.folder / "backup" / "lock.json"
    found = json.loads(lock.read_bytes())
    # In a container that starts again, the command has the number of the killed process.
    lock.write_text(json.dumps({**found, "process": os.getpid()}))
    site.back_up()
    assert not lock.exists()


def test_objects_of_buckets_are_in_a_point(site: BackedUpSite) -> None:
    content = b"an object"
    files = LocalStore(site.house.folder / "objects")
    files.put("1/a-file", content)
    with site.house.database.writing() as connection:
        create_bucket(connection, "photos", owner="ACCOUNTADMIN", now=site.clock.now())
        bucket = find_bucket(connection, "photos")
        record = ObjectRecord(
            b"a.txt", len(content), "etag", site.clock.now(), {}, None, "1/a-file"
        )
        put_object(connection, bucket.bucket_id, record)
    point = site.back_up()
    with contextlib.closing(site.restore(point)) as house:
        assert LocalStore(house.folder / "objects").get("1/a-file") == content
    files.put("1/a-file", content + b", longer")
    site.destination = type(site.destination)(LocalStore(site.folder / "other"))
    with pytest.raises(SourceDamaged, match="17 bytes instead of 9"):
        site.back_up()


def show_backups(site: BackedUpSite, role: str = "ACCOUNTADMIN") -> list[dict[str, object]]:
    """Return the rows of SHOW BACKUPS, newest first."""
    result = execute_statement(site.house.database, "SHOW BACKUPS", role=role, clock=site.clock)
    return [dict(zip(result.columns, row, strict=True)) for row in result.rows]


def test_the_catalog_has_a_history_of_backups(site: BackedUpSite) -> None:
    site.write(10)
    site.house.is_damaged = True
    [blob] = (site.house.folder / "stage").rglob("*.bdec")
    content = blob.read_bytes()
    blob.unlink()
    with pytest.raises(SourceDamaged):
        site.back_up()
    with site.house.database.reading() as connection:
        assert find_last_backup(connection) is None
    blob.write_bytes(content)
    site.clock.advance(1)
    point = site.back_up()
    site.clock.advance(1)

    def die() -> None:
        raise KeyboardInterrupt

    failpoints.arm(Failpoint.BACKUP_EXPORTED, die)
    with pytest.raises(KeyboardInterrupt):
        site.back_up()
    site.clock.advance(1)
    last = site.back_up()
    with site.house.database.reading() as connection:
        found = find_last_backup(connection)
    assert found is not None
    assert (found.point_id, found.ended_at) == (last.point_id, site.clock.now())
    runs = show_backups(site)
    assert [each["state"] for each in runs] == ["committed", "lost", "committed", "failed"]
    assert {each["destination"] for each in runs} == {site.destination.url}
    assert (runs[2]["point_id"], runs[2]["objects"]) == (point.point_id, point.copied_objects)
    assert runs[2]["bytes"] == point.copied_bytes
    assert blob.name in str(runs[3]["message"])
    assert show_backups(site, "PUBLIC") == []
    # A restored installation has no backups of its own yet.
    with contextlib.closing(site.restore(last)) as house, house.database.reading() as connection:
        assert find_last_backup(connection) is None
