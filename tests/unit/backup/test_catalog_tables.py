"""Tables of the catalog fit every database, and catalogs of older versions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from snowmelt.backup.catalog_tables import export_table, import_table, read_rows
from snowmelt.backup.manifests import BackupRejected
from snowmelt.catalog import model
from snowmelt.catalog.db.database import Database, open_and_upgrade_database

ROW = {"user_id": 7, "name": "ANN", "default_role": None, "created_at": 5}


@pytest.fixture
def database(open_catalog: Callable[..., Database]) -> Database:
    """An empty catalog, once on each database."""
    return open_catalog()


def write(folder: Path, rows: list[dict[str, object]]) -> Path:
    """Write rows as an exported table of users."""
    path = folder / "given.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_rows_and_the_last_number_come_back(database: Database, tmp_path: Path) -> None:
    with database.writing() as connection:
        assert import_table(connection, model.users, write(tmp_path, [ROW]), 40, None) == 1
    with database.reading() as connection:
        exported = export_table(connection, model.users, tmp_path, None)
    assert list(read_rows(exported.path)) == [ROW]
    assert (exported.rows, exported.last_id) == (1, 40)
    with database.writing() as connection:
        made = connection.execute(
            sa.insert(model.users)
            .values(name="BOB", created_at=dt.datetime.now(dt.UTC))
            .returning(model.users.c.user_id)
        ).scalar_one()
    assert made == 41


def test_a_column_that_an_older_version_lacks_has_its_default(
    database: Database, tmp_path: Path
) -> None:
    row = {name: ROW[name] for name in ("user_id", "name", "created_at")}
    with database.writing() as connection:
        import_table(connection, model.users, write(tmp_path, [row]), None, None)
    with database.reading() as connection:
        assert connection.execute(sa.select(model.users.c.default_role)).scalar_one() is None


def test_a_column_of_a_newer_version_is_rejected(database: Database, tmp_path: Path) -> None:
    path = write(tmp_path, [{**ROW, "nickname": "A"}])
    with (
        pytest.raises(BackupRejected, match="column 'nickname' of 'users' is unknown"),
        database.writing() as connection,
    ):
        import_table(connection, model.users, path, None, None)


@pytest.mark.postgres
def test_text_that_postgresql_cannot_store_is_rejected_by_name(
    postgres_url: str, tmp_path: Path
) -> None:
    path = write(tmp_path, [{**ROW, "name": "A\0N"}])
    database = open_and_upgrade_database(postgres_url)
    try:
        with (
            pytest.raises(BackupRejected, match="column 'name' of 'users' has a text with a NUL"),
            database.writing() as connection,
        ):
            import_table(connection, model.users, path, None, None)
    finally:
        database.close()
