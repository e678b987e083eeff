"""Back-pressure: clients pause for a table with too many chunks before migration, and lose no row."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator

import httpx
import pytest

import snowmelt
from fixtures.service import KeyPair, ServiceProcess, prepare_loading
from snowmelt.catalog.db.database import Database, open_and_upgrade_database
from snowmelt.catalog.jobs.run_history import find_table_ids_over_backlog
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.migration import MigrationSettings, migrate_table
from snowmelt.table.table_reader import read_table

TABLE = TableName("DEMO", "PUBLIC", "T")


@pytest.fixture
def catalog(service_process: ServiceProcess, key_pair: KeyPair) -> Iterator[Database]:
    """The catalog of a service with a backlog limit of three chunks or a megabyte per table."""
    service_process.start(backlog_max_chunks=3, backlog_max_bytes=1_000_000)
    prepare_loading(service_process, key_pair)
    database = open_and_upgrade_database(service_process.settings.catalog_url)
    yield database
    database.close()


def migrate(service: ServiceProcess, database: Database) -> None:
    settings = service.settings
    keyring = KeyRing(load_master_key(settings.keys_dir))
    migrate_table(
        database, keyring, TABLE, MigrationSettings(settings.stage_url, settings.warehouse_url)
    )


def has_refused(service: ServiceProcess) -> bool:
    """Return True if the service has applied back-pressure to a client."""
    return (
        'snowmelt_registrations_total{code="7"}'
        in httpx.get(service.url + "/metrics", timeout=60).text
    )


def test_a_client_waits_until_a_migration_has_caught_up(
    service_process: ServiceProcess, catalog: Database, key_pair: KeyPair
) -> None:
    client = snowmelt.Client(
        service_process.url,
        user="loader",
        private_key=key_pair.private_pem,
        max_client_lag=dt.timedelta(milliseconds=100),
        # Back-pressure does not count towards `give_up_after`, which is for an unavailable service.
        give_up_after=dt.timedelta(milliseconds=200),
    )
    with client, client.open_channel("c", table="demo.public.t") as channel:
        inserted = 0
        deadline = time.monotonic() + 200
        while not has_refused(service_process):
            assert time.monotonic() < deadline, "the service takes everything"
            inserted += 1
            channel.insert_row({"id": inserted}, offset_token=str(inserted))
            time.sleep(0.2)
        committed = channel.latest_committed_offset_token()
        time.sleep(1.0)
        assert channel.is_valid
        assert channel.latest_committed_offset_token() == committed != str(inserted)
        migrate(service_process, catalog)
        channel.wait_for_commit(str(inserted), timeout=dt.timedelta(seconds=200))
    keyring = KeyRing(load_master_key(service_process.settings.keys_dir))
    stage = open_store(service_process.settings.stage_url)
    rows = read_table(catalog, keyring, stage, TABLE)
    assert sorted(map(int, rows.column("ID").to_pylist())) == list(range(1, inserted + 1))


def test_bytes_count_like_chunks_and_each_table_for_itself(
    service_process: ServiceProcess, catalog: Database, key_pair: KeyPair
) -> None:
    service_process.sql("CREATE TABLE demo.public.other (id NUMBER(10,0))")
    client = snowmelt.Client(service_process.url, user="loader", private_key=key_pair.private_pem)
    with client, client.open_channel("c", table="demo.public.t") as channel:
        channel.insert_rows([{"id": number, "name": f"name {number}"} for number in range(1000)])
        channel.flush()
    with catalog.reading() as connection:
        assert len(find_table_ids_over_backlog(connection, max_chunks=None, max_bytes=1_000)) == 1
        assert (
            find_table_ids_over_backlog(connection, max_chunks=None, max_bytes=1_000_000)
            == frozenset()
        )
        assert len(find_table_ids_over_backlog(connection, max_chunks=0, max_bytes=None)) == 1
        assert find_table_ids_over_backlog(connection, max_chunks=1, max_bytes=None) == frozenset()
    migrate(service_process, catalog)
    with catalog.reading() as connection:
        assert find_table_ids_over_backlog(connection, max_chunks=0, max_bytes=1) == frozenset()
