"""SDK clients of the test's `service` fixture, and what they have committed."""

from __future__ import annotations

import contextlib
import datetime as dt

import pytest

import snowmelt
from snowmelt import failpoints
from snowmelt.catalog.db.database import open_database
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.config import Settings
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.table_reader import read_table

QUICK = dt.timedelta(milliseconds=100)


@pytest.fixture
def connect(service, key_pair):
    """Make a client of user LOADER; all are closed at the end, whatever they still hold."""
    clients = []

    def connected(url=None, **options):
        options.setdefault("max_client_lag", QUICK)
        client = snowmelt.Client(
            url or service.url, user="loader", private_key=key_pair.private_pem, **options
        )
        clients.append(client)
        return client

    yield connected
    failpoints.disarm()
    for client in clients:
        with contextlib.suppress(snowmelt.SnowmeltError):
            client.close(timeout=dt.timedelta(0))


@pytest.fixture
def loaded_database():
    """The database whose table PUBLIC.T a test writes to."""
    return "DEMO"


@pytest.fixture
def ids(service, loaded_database):
    """The numbers in column ID of the test's table, in the order of commits."""

    def read():
        settings = Settings.load(service.data_dir)
        catalog = open_database(settings.catalog_url)
        try:
            keyring = KeyRing(load_master_key(settings.keys_dir))
            stage = open_store(settings.stage_url)
            rows = read_table(catalog, keyring, stage, TableName(loaded_database, "PUBLIC", "T"))
            return [int(value) for value in rows.column("ID").to_pylist()]
        finally:
            catalog.close()

    return read
