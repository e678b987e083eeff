"""The service and its parts."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from fixtures.catalog import World
from snowmelt.catalog.model.records import ACCOUNTADMIN
from snowmelt.catalog.security import access_control
from snowmelt.config import Settings
from snowmelt.server.app import DEV_USER, build_service
from support.interleaving import begin_beside


@pytest.mark.postgres
def test_services_that_start_together_for_development_share_their_user(
    tmp_path: Path, postgres_world: World, postgres_url: str
) -> None:
    settings = Settings.from_environment({}, data_dir=tmp_path, catalog_url=postgres_url, dev=True)
    with postgres_world.database.writing() as connection:
        now = postgres_world.now
        access_control.create_user(connection, DEV_USER, default_role=ACCOUNTADMIN, now=now)
        access_control.grant_role(connection, ACCOUNTADMIN, DEV_USER)
        other = begin_beside(postgres_world.database, partial(build_service, settings))
    other.result(60).close()
