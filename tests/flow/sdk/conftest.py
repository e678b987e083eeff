"""Fixtures of the SDK's tests, which share one service. Each test has a new table."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, cast

import pytest

from fixtures.service import KeyPair, ServiceProcess, prepare_loading
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.table_reader import read_table
from support.sdk_table import DDL, ERRORS, GRANT, T


@pytest.fixture(scope="session")
def loaded_database(shared_service: ServiceProcess, key_pair: KeyPair) -> str:
    prepare_loading(shared_service, key_pair, "sdk")
    return "SDK"


@pytest.fixture
def service(shared_service: ServiceProcess, loaded_database: str) -> ServiceProcess:
    """The shared service, with a new table for each test."""
    shared_service.sql(DDL.replace("CREATE", "CREATE OR REPLACE"), GRANT)
    return shared_service


@pytest.fixture
def kept(service: ServiceProcess) -> Callable[[], list[dict[str, Any]]]:
    """The rows of an error table for the test's table."""
    service.sql(f"DROP TABLE IF EXISTS {ERRORS}", f"ALTER TABLE {T} SET ERROR_TABLE = {ERRORS}")

    def read() -> list[dict[str, object]]:
        settings = service.settings
        with contextlib.closing(open_and_upgrade_database(settings.catalog_url)) as catalog:
            return cast(
                "list[dict[str, object]]",
                read_table(
                    catalog,
                    KeyRing(load_master_key(settings.keys_dir)),
                    open_store(settings.stage_url),
                    TableName("SDK", "PUBLIC", "ERRORS"),
                ).to_pylist(),
            )

    return read
