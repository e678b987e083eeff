"""This version opens and continues the data folder of each release."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from snowmelt.catalog.db.database import SCHEMA_VERSION, open_and_upgrade_database
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.embedded import EmbeddedService
from snowmelt.schema.types import TableName
from snowmelt.storage.local_store import LocalStore
from snowmelt.table.migration import MigrationSettings, migrate_table
from snowmelt.table.table_reader import read_table
from support.release_folder import RELEASES, ROWS, TABLE

pytestmark = pytest.mark.slow
NAME = TableName("SHOP", "PUBLIC", "ORDERS")


@pytest.fixture(params=sorted(path.name for path in RELEASES.glob("*.tar.gz")))
def data_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(RELEASES / request.param) as archive:
        # Early versions of Python 3.11 have no extraction filters.
        safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(tmp_path, **safely)
    (tmp_path / "data" / "keys").chmod(0o700)
    return tmp_path / "data"


def read_rows(data_dir: Path) -> list[Any]:
    database = open_and_upgrade_database(str(data_dir / "catalog.db"))
    try:
        keyring = KeyRing(load_master_key(data_dir / "keys"))
        found = read_table(database, keyring, LocalStore(data_dir / "stage"), NAME)
    finally:
        database.close()
    return sorted(found.to_pylist(), key=lambda row: row["ID"])


def expect(rows: list[dict[str, Any]]) -> list[Any]:
    return [
        {
            "ID": row["id"],
            "AMOUNT": row["amount"],
            "WHAT": row["what"],
            "AT": row["at"],
            "EXTRA": json.dumps(row["extra"], separators=(",", ":")),
            "NOTE": row["note"],
        }
        for row in rows
    ]


def test_rows_channels_and_grants_of_a_release_are_there_and_go_on(data_dir: Path) -> None:
    assert read_rows(data_dir) == expect(ROWS)
    more = {**ROWS[0], "id": 20}
    # Disable expiry, because the channels are older than the idle time.
    with EmbeddedService(data_dir, channel_idle_s=0) as service:
        shown = service.sql("SHOW GRANTS TO ROLE reading")
        assert "SELECT" in [row[shown.columns.index("privilege")] for row in shown.rows]
        [user] = [row for row in service.sql("SHOW USERS").rows if row[1] == "ANN"]
        assert user[2] == "READING"
        with service.client() as client:
            channel = client.open_channel("a", table=TABLE)
            assert channel.latest_committed_offset_token() == "19"
            assert client.open_channel("b", table=TABLE).latest_committed_offset_token() == "11"
            channel.insert_row(more, offset_token="20")
            channel.flush()
    assert read_rows(data_dir) == expect([*ROWS, more])


def test_chunks_of_a_release_are_migrated(data_dir: Path) -> None:
    database = open_and_upgrade_database(str(data_dir / "catalog.db"))
    try:
        with database.reading() as connection:
            version = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
        assert version == SCHEMA_VERSION
        done = migrate_table(
            database,
            KeyRing(load_master_key(data_dir / "keys")),
            NAME,
            MigrationSettings(str(data_dir / "stage"), str(data_dir / "warehouse")),
        )
        assert done is not None
        assert done.rows == len(ROWS)
    finally:
        database.close()
    assert read_rows(data_dir) == expect(ROWS)
