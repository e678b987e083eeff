"""The SDK's tests share one service; each has a new table."""

from __future__ import annotations

import pytest

from fix_service import prepare_loading
from sdk_table import DDL, GRANT


@pytest.fixture(scope="session")
def loaded_database(shared_service, key_pair):
    prepare_loading(shared_service, key_pair, "sdk")
    return "SDK"


@pytest.fixture
def service(shared_service, loaded_database):
    """The service that the run's tests share, with a new table for each test here."""
    shared_service.sql(DDL.replace("CREATE", "CREATE OR REPLACE"), GRANT)
    return shared_service
