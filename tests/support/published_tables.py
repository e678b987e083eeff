"""Tables with a publisher. Published metadata is read with PyIceberg as an engine does, in a folder."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.typedef import EMPTY_DICT

from fixtures.chunks import Lakehouse
from snowmelt import failpoints
from snowmelt.catalog.objects.published_snapshots import (
    FreshFile,
    PublishedSnapshot,
    list_fresh_files,
    list_publications,
    record_demand,
)
from snowmelt.clock import ManualClock
from snowmelt.table.snapshot_publication import PublicationSettings, SnapshotPublisher
from snowmelt.table.warehouse_paths import WAREHOUSE_BUCKET, Warehouse

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.typedef import Properties

    from snowmelt.catalog.model.records import TableRecord


def open_published(warehouse: Warehouse, metadata_path: Any) -> Table:
    """Return the table of a metadata file in a warehouse folder."""
    root = unquote(urlsplit(warehouse.url).path).rstrip("/")

    class FolderIO(PyArrowFileIO):
        @staticmethod
        def parse_location(
            location: str, properties: Properties = EMPTY_DICT
        ) -> tuple[str, str, str]:
            path = location.removeprefix(f"s3://{WAREHOUSE_BUCKET}/")
            assert path != location, f"{location} cannot be reached from another machine"
            return "file", "", f"{root}/{path}"

    io = FolderIO()
    location = warehouse.to_public_address(metadata_path)
    metadata = FromInputFile.table_metadata(io.new_input(location))
    return Table(("published",), metadata, location, io, NoopCatalog("published"))


def list_published(
    house: PublishedLakehouse, table: TableRecord, *, native_only: bool = False, limit: int = 100
) -> list[PublishedSnapshot]:
    """Return the publications of a table, newest first."""
    with house.database.reading() as connection:
        return list_publications(connection, table.table_id, native_only=native_only, limit=limit)


@contextlib.contextmanager
def published_lakehouse(folder: Path) -> Iterator[PublishedLakehouse]:
    """Create a lakehouse with a publisher and table NUMBERS. Disarm all failpoints at the end."""
    clock = ManualClock(dt.datetime.now(dt.UTC))
    with contextlib.closing(PublishedLakehouse(folder, clock)) as found:
        found.create()
        yield found
    failpoints.disarm()


class PublishedLakehouse(Lakehouse):
    """A lakehouse with a publisher."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.start_publisher()

    def start_publisher(self) -> None:
        """Create a publisher for the current stage and warehouse."""
        places = PublicationSettings(self.stage.url, self.warehouse.url)
        self.publisher = SnapshotPublisher(self.database, self.keyring, places, self.clock)

    def publish(self, *, native_only: bool = False, **more: Any) -> PublishedSnapshot | None:
        """Publish the table, as a process with demand does."""
        self.clock.advance(0.2)
        table = self.table()
        with self.database.writing() as connection:
            record_demand(connection, table.table_id, native_only=native_only, now=self.clock.now())
        return self.publisher.publish(table.table_id, native_only=native_only, **more)

    def published(self, *, native_only: bool = False) -> list[PublishedSnapshot]:
        return list_published(self, self.table(), native_only=native_only)

    def open(self, publication: PublishedSnapshot | None) -> Table:
        assert publication is not None
        return open_published(self.warehouse, publication.metadata_path)

    def published_numbers(self, *, native_only: bool = False) -> list[Any]:
        found = self.open(self.published(native_only=native_only)[0]).scan().to_arrow()
        return [int(number) for number in found["N"].to_pylist()]

    def fresh_files(self) -> list[FreshFile]:
        with self.database.reading() as connection:
            return list_fresh_files(connection, self.table().table_id)
