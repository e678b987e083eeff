"""A point has everything: restored anywhere, it has the rows and tokens of its time."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from pyiceberg.table import StaticTable

from fixtures.backups import BackedUpSite, read_token
from fixtures.chunks import Lakehouse, numbers
from fixtures.s3 import Seaweed
from snowmelt.backup.backup_keys import create_key_pair, load_private_key
from snowmelt.backup.destination import BackupDestination
from snowmelt.backup.expiration import expire_points
from snowmelt.backup.manifests import BackupDamaged, BackupRejected, PointManifest
from snowmelt.backup.restoration import RestoreTarget, choose_point, restore_point
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.catalog.streaming.registration import register_chunks
from snowmelt.storage.local_store import LocalStore
from snowmelt.storage.store_factory import open_store
from snowmelt.table.compaction import compact
from snowmelt.table.file_replacement_run import MaintenanceSettings
from snowmelt.table.warehouse_paths import open_cached_store

pytestmark = pytest.mark.slow

HOUR = 3600.0


def assert_is_at(house: Lakehouse, count: int) -> None:
    """Check that a lakehouse has the first `count` numbers, and goes on."""
    assert sorted(house.read_numbers()) == list(range(count))
    assert read_token(house) == count - 1
    house.put(numbers(count, 5), token=str(count + 4))
    house.migrate()
    house.clock.advance(2 * HOUR)
    house.collect(HOUR)
    assert sorted(house.read_numbers()) == list(range(count + 5))
    assert house.files(house.stage) == set()


def test_each_point_has_the_rows_of_its_time(site: BackedUpSite) -> None:
    site.write(10)
    points = [(site.back_up(), 10)]
    site.house.migrate()
    site.write(10)
    points.append((site.back_up(), 20))
    site.house.migrate()
    settings = MaintenanceSettings(site.house.warehouse.url, min_files=2)
    assert compact(site.house.database, site.house.table().name, settings, clock=site.clock)
    site.clock.advance(2 * HOUR)
    site.house.collect(HOUR)
    points.append((site.back_up(), 20))
    for point, count in points:
        with contextlib.closing(site.restore(point)) as restored:
            assert_is_at(restored, count)


@pytest.mark.postgres
@pytest.mark.parametrize("into_postgres", [True, False], ids=["to-postgres", "to-sqlite"])
def test_a_catalog_moves_to_the_other_database(
    tmp_path: Path, empty_postgres_url: str, *, into_postgres: bool
) -> None:
    original, restored = (None, empty_postgres_url)[:: 1 if into_postgres else -1]
    site = BackedUpSite(tmp_path, original)
    with contextlib.closing(site.house):
        site.write(10)
        site.house.migrate()
        site.write(10)
        point = site.back_up()
    with contextlib.closing(site.restore(point, restored)) as house:
        assert_is_at(house, 20)
        # Numbers of tables continue above those that the original gave.
        assert house.create(replace=True).table_id == 2


def test_a_warehouse_moves_from_a_folder_to_a_bucket(
    site: BackedUpSite, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    for _ in range(3):
        site.write(10)
        site.house.migrate()
    bucket = f"s3://behind/restored-{uuid.uuid4().hex[:8]}"
    site.destination = BackupDestination(open_store(f"{bucket}-backup"))
    site.back_up()
    site.clock.advance(1)
    point = site.back_up()
    assert expire_points(site.destination, point.at).points
    with contextlib.closing(site.restore(point, warehouse_url=bucket)) as house:
        pointer = house.table().pointer
        assert pointer is not None
        assert pointer.startswith(bucket)
        location = {"s3.endpoint": seaweed.url, "s3.access-key-id": "any"}
        secret = {"s3.secret-access-key": "any", "s3.region": "us-east-1"}
        table = StaticTable.from_metadata(pointer, {**location, **secret})
        assert sorted(table.scan().to_arrow()["N"].to_pylist()) == list(range(30))
        # Earlier snapshots are restored, too.
        first = table.snapshots()[0].snapshot_id
        assert len(table.scan(snapshot_id=first).to_arrow()) == 10
        assert_is_at(house, 30)
        # And back into a folder, from the bucket.
        site.house.close()
        site.house = house
        site.clock.advance(1)
        back = site.back_up()
    with contextlib.closing(site.restore(back)) as house:
        assert_is_at(house, 35)
    open_cached_store.cache_clear()


def test_an_installation_is_restored_where_it_was(site: BackedUpSite) -> None:
    site.write(10)
    site.house.migrate()
    site.write(10)
    point = site.back_up()
    site.house.close()
    # The fixture closes it again, when its files are elsewhere.
    site.house.is_damaged = True
    folder, warehouse = site.house.folder, site.house.warehouse
    for part in folder.iterdir():
        part.rename(site.folder / part.name)
    for store in ("stage", "warehouse"):
        (folder / store).mkdir()
    target = RestoreTarget(
        f"sqlite:///{folder / 'catalog.db'}",
        site.house.stage,
        warehouse,
        LocalStore(folder / "objects"),
        folder / "keys",
        site.clock,
    )
    restore_point(site.destination, point, site.private_key, target)
    with contextlib.closing(Lakehouse(folder, site.clock)) as house:
        # The addresses are the same, so metadata is copied unchanged.
        pointer = Path(str(house.table().pointer).removeprefix("file://"))
        lost = site.folder / pointer.relative_to(folder)
        assert pointer.read_bytes() == lost.read_bytes()
        assert_is_at(house, 20)


def test_what_was_dropped_or_truncated_can_be_restored_later(site: BackedUpSite) -> None:
    name = site.house.table().name
    site.write(10)
    site.house.migrate()
    site.write(5)
    execute_statement(site.house.database, f"TRUNCATE TABLE {name}", clock=site.clock)
    truncated = site.back_up()
    execute_statement(site.house.database, f"DROP TABLE {name}", clock=site.clock)
    dropped = site.back_up()
    assert (len(truncated.live_tables), len(dropped.live_tables)) == (1, 0)
    with contextlib.closing(site.restore(truncated)) as house:
        assert house.read_numbers() == []
        execute_statement(house.database, f"ALTER TABLE {name} RENAME TO later", clock=site.clock)
        house.undrop()
        assert sorted(house.read_numbers()) == list(range(15))
    with contextlib.closing(site.restore(dropped)) as house:
        house.undrop()
        assert house.read_numbers() == []
        house.put(numbers(50, 5))
        house.migrate()
        assert sorted(house.read_numbers()) == list(range(50, 55))


def test_another_engine_reads_restored_metadata(site: BackedUpSite) -> None:
    site.write(10)
    site.house.migrate()
    point = site.back_up()
    with contextlib.closing(site.restore(point)) as house:
        pointer = str(house.table().pointer)
    table = StaticTable.from_metadata(pointer)
    assert str(site.house.folder) not in Path(pointer.removeprefix("file://")).read_text()
    files = [task.file.file_path for task in table.scan().plan_files()]
    assert all(str(house.folder) in path for path in files)
    with duckdb.connect() as engine:
        query = f"SELECT count(*), sum(N) FROM read_parquet({files!r})"
        assert engine.execute(query).fetchall() == [(10, 45)]


def test_a_writer_of_the_original_is_fenced(site: BackedUpSite) -> None:
    site.write(10)
    point = site.back_up()
    # Chunks that writers of the original register after the point, and repeat at the restored one.
    site.write(5)
    late = site.house.last_offers
    site.house.put(numbers(0, 5), channel="LATER", token="4")
    other = site.house.last_offers
    with contextlib.closing(site.restore(point)) as house:
        house.put(numbers(100, 1), channel="LATER", token="0")
        with house.database.writing() as connection:
            found = register_chunks(connection, [*late, *other], now=house.clock.now())
        assert [verdict.code for verdicts in found for verdict in verdicts] == [20, 20]
        assert sorted(house.read_numbers()) == [*range(10), 100]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "checksum"),
        (lambda path: path.write_bytes(b"x" + path.read_bytes()[1:]), "checksum"),
    ],
    ids=["missing", "cut", "changed"],
)
def test_a_damaged_object_ends_the_restoration(
    site: BackedUpSite, change: Callable[[Path], object], message: str
) -> None:
    site.write(10)
    point = site.back_up()
    blob = next((site.house.folder / "stage").rglob("*.bdec")).read_bytes()
    [stored] = [
        path
        for path in (site.folder / "backup" / "objects").rglob("*")
        if path.is_file() and path.read_bytes() == blob
    ]
    change(stored)
    with pytest.raises(BackupDamaged, match=message):
        site.restore(point)
    assert not read_catalog_version(site.folder / "restored1" / "catalog.db")


def read_catalog_version(path: Path) -> bytes:
    """Return the content of a catalog's file; an empty one has no tables."""
    return path.read_bytes() if path.exists() else b""


def test_only_an_empty_installation_and_the_right_key_are_accepted(site: BackedUpSite) -> None:
    site.write(10)
    point = site.back_up()
    house = site.restore(point)
    target = RestoreTarget(
        f"sqlite:///{house.folder / 'catalog.db'}",
        house.stage,
        house.warehouse,
        LocalStore(house.folder / "objects"),
        house.folder / "keys",
        site.clock,
    )
    house.close()
    with pytest.raises(BackupRejected, match="the catalog exists"):
        restore_point(site.destination, point, site.private_key, target)
    (house.folder / "catalog.db").rename(house.folder / "elsewhere.db")
    with pytest.raises(BackupRejected, match="is not empty"):
        restore_point(site.destination, point, site.private_key, target)
    create_key_pair(site.folder / "other.key", site.folder / "other.pub")
    with pytest.raises(BackupRejected, match="was sealed for the key"):
        restore_point(site.destination, point, load_private_key(site.folder / "other.key"), target)


def test_a_point_is_chosen_by_id_time_or_as_the_latest(site: BackedUpSite) -> None:
    points: list[PointManifest] = []
    for _ in range(3):
        site.clock.advance(HOUR)
        points.append(site.back_up())
    assert choose_point(points, "latest") is points[2]
    assert choose_point(points, points[0].point_id) is points[0]
    assert choose_point(points, points[1].at.isoformat()) is points[1]
    for text, message in (
        ("2001-01-01T00:00:00Z", "no point is at or before"),
        ("2001-01-01T00:00:00", "needs a zone"),
        ("yesterday", "there is no point"),
    ):
        with pytest.raises(BackupRejected, match=message):
            choose_point(points, text)
    with pytest.raises(BackupRejected, match="is empty"):
        choose_point([], "latest")


def test_the_master_key_is_in_no_file_of_a_backup(site: BackedUpSite) -> None:
    site.write(10)
    site.back_up()
    master = (site.house.folder / "keys" / "master.key").read_bytes()
    with site.house.database.reading() as connection:
        [data_key] = site.house.keyring.find_data_keys(connection, [1]).values()
    for path in (site.folder / "backup").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert master not in content
            assert data_key not in content
