"""Reads published metadata with PyIceberg as an engine does, but from the warehouse folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.typedef import EMPTY_DICT

from snowmelt.catalog.objects.published_snapshots import PublishedSnapshot, list_publications
from snowmelt.table.warehouse_paths import WAREHOUSE_BUCKET, Warehouse

if TYPE_CHECKING:
    from pyiceberg.typedef import Properties

    from snowmelt.catalog.model.records import TableRecord
    from unit.table.test_snapshot_publication import PublishedLakehouse


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
