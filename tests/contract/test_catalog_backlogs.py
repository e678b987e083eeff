from __future__ import annotations

import datetime as dt

import httpx
from prometheus_client.parser import text_string_to_metric_families

import snowmelt
from fixtures.service import KeyPair, ServiceProcess
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.jobs.run_history import (
    find_table_ids_over_backlog,
    list_table_backlogs,
    sum_migrations_by_state,
)
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.schema.types import TableName
from snowmelt.table.migration import MigrationSettings, migrate_table

TABLE = TableName("DEMO", "PUBLIC", "T")


def test_either_database_tells_what_waits_and_what_was_migrated(
    service_on_each_catalog: ServiceProcess, key_pair: KeyPair
) -> None:
    service = service_on_each_catalog
    client = snowmelt.Client(service.url, user="loader", private_key=key_pair.private_pem)
    with client, client.open_channel("c", table="demo.public.t") as channel:
        channel.insert_rows([{"id": 1}, {"id": 2}, {"id": 3}], offset_token="3")
        channel.wait_for_commit("3", timeout=dt.timedelta(seconds=200))
    page = httpx.get(f"{service.url}/metrics", timeout=60).text
    values = {family.name: family.samples for family in text_string_to_metric_families(page)}
    assert [sample.value for sample in values["snowmelt_backlog_chunks"]] == [1]
    database = open_and_upgrade_database(service.settings.catalog_url)
    try:
        with database.reading() as connection:
            (waiting,) = list_table_backlogs(connection)
            assert (waiting.name, waiting.chunks) == (TABLE, 1)
            assert waiting.bytes > 0
            assert len(find_table_ids_over_backlog(connection, max_chunks=0, max_bytes=None)) == 1
            assert len(find_table_ids_over_backlog(connection, max_chunks=None, max_bytes=1)) == 1
            assert (
                find_table_ids_over_backlog(connection, max_chunks=1, max_bytes=waiting.bytes)
                == frozenset()
            )
        settings = service.settings
        keyring = KeyRing(load_master_key(settings.keys_dir))
        places = MigrationSettings(settings.stage_url, settings.warehouse_url)
        migrate_table(database, keyring, TABLE, places)
        with database.reading() as connection:
            assert list_table_backlogs(connection) == []
            done = {str(count.state): count for count in sum_migrations_by_state(connection)}
        assert (done["committed"].runs, done["committed"].rows) == (1, 3)
        assert 0 < done["committed"].seconds < 60
        assert done["failed"].runs == 0
    finally:
        database.close()
