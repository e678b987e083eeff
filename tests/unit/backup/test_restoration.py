"""A point has everything: restored anywhere, it has the rows and tokens of its time."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.chunks import Lakehouse
from snowmelt.backup.backup_keys import create_key_pair, load_private_key, load_public_key
from snowmelt.backup.creation import BackupSource, create_point
from snowmelt.backup.destination import BackupDestination
from snowmelt.backup.manifests import PointManifest
from snowmelt.backup.restoration import RestoreTarget, restore_point
from snowmelt.backup.verification import verify_point
from snowmelt.clock import ManualClock
from snowmelt.storage.local_store import LocalStore
from snowmelt.table.warehouse_paths import open_warehouse

HOUR = 3600.0


class Site:
    """A lakehouse with its backup."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock(dt.datetime.now(dt.UTC))
        (folder / "first").mkdir()
        self.house = Lakehouse(folder / "first", self.clock)
        self.house.create()
        create_key_pair(folder / "backup.key", folder / "backup.pub")
        self.private_key = load_private_key(folder / "backup.key")
        self.destination = BackupDestination(LocalStore(folder / "backup"))
        self._restored = 0

    def back_up(self) -> PointManifest:
        """Create a point."""
        source = BackupSource(
            self.house.database,
            self.house.stage,
            self.house.warehouse,
            LocalStore(self.house.folder / "objects"),
            self.house.keyring,
            self.clock,
        )
        return create_point(source, self.destination, load_public_key(self.folder / "backup.pub"))

    def restore(self, point: PointManifest, catalog_url: str | None = None) -> Lakehouse:
        """Restore a point into folders of its own."""
        self._restored += 1
        folder = self.folder / f"restored{self._restored}"
        folder.mkdir()
        target = RestoreTarget(
            catalog_url or f"sqlite:///{folder / 'catalog.db'}",
            LocalStore(folder / "stage"),
            open_warehouse(str(folder / "warehouse")),
            LocalStore(folder / "objects"),
            folder / "keys",
            self.clock,
        )
        restore_point(self.destination, point, self.private_key, target)
        return Lakehouse(folder, self.clock)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path)
    with contextlib.closing(found.house):
        yield found


def test_each_point_has_the_rows_of_its_time(site: Site) -> None:
    site.house.put_numbers(0, 10)
    first = site.back_up()
    site.house.migrate()
    site.house.put_numbers(10, 10)
    second = site.back_up()
    site.house.put_numbers(20, 10)
    site.house.migrate()
    site.clock.advance(2 * HOUR)
    site.house.collect(HOUR)
    third = site.back_up()
    for point, count in ((first, 10), (second, 20), (third, 30)):
        with contextlib.closing(site.restore(point)) as restored:
            assert sorted(restored.read_numbers()) == list(range(count))
            restored.migrate()
            assert sorted(restored.read_numbers()) == list(range(count))
        result = verify_point(site.destination, point, site.private_key, site.clock)
        assert (result.problems, result.rows) == ((), count)
