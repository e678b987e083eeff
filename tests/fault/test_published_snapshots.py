"""Three services on PostgreSQL publish one sequence of snapshots, even if one is killed."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import random
import re
import signal
import threading
import time
from typing import Any

import pytest

from fixtures.engines import EngineError
from fixtures.service import KeyPair
from fixtures.services import Services
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.security.encryption_keys import (
    KeyRing,
    create_access_key,
    load_master_key,
)

pytestmark = [pytest.mark.slow, pytest.mark.postgres]
ROWS = 10
KILLS = 6


@pytest.fixture
def token(three_services: Services) -> str:
    three_services.each[0].sql("GRANT SELECT ON TABLE demo.public.t TO ROLE loading")
    settings = three_services.settings
    keyring = KeyRing(load_master_key(settings.keys_dir))
    database = open_and_upgrade_database(settings.catalog_url)
    with contextlib.closing(database), database.writing() as connection:
        key = create_access_key(connection, keyring, "LOADER", now=dt.datetime.now(dt.UTC))
    return f"{key.access_key_id}.{key.secret}"


class Inserts(threading.Thread):
    """Inserter of calls with ten numbered rows, through the common address of the services."""

    def __init__(self, services: Services, key_pair: KeyPair) -> None:
        super().__init__()
        self.services, self.key_pair = services, key_pair
        self.error: Exception | None = None
        self.calls = 0
        self.enough = threading.Event()

    def run(self) -> None:
        try:
            with self.services.client(
                self.key_pair, max_client_lag=dt.timedelta(milliseconds=100)
            ) as client:
                channel = client.open_channel("line", table="demo.public.t")
                while not self.enough.wait(0.1):
                    rows = [{"id": self.calls * ROWS + each} for each in range(ROWS)]
                    channel.insert_rows(rows, offset_token=str(self.calls))
                    self.calls += 1
                last = str(self.calls - 1)
                channel.wait_for_commit(last, timeout=dt.timedelta(seconds=240))
        except Exception as error:
            self.error = error


def publishers(services: Services) -> list[Any]:
    """Return the process IDs of all publishers that were started."""
    return [
        int(number)
        for service in services.each
        for number in re.findall(r"the publisher runs as process (\d+)", service.log)
    ]


@pytest.mark.timeout(600)
def test_engines_see_one_line_of_snapshots_while_services_and_publishers_are_killed(
    three_services: Services, key_pair: KeyPair, token: str, open_engine: Any
) -> None:
    services = three_services
    random.seed(7)
    migrator = services.command(
        *("migrate", "--loop", "--engine", "local"),
        SNOWMELT_MIGRATE_INTERVAL_S="0.5",
        SNOWMELT_MIGRATE_MAX_AGE_S="1",
    )
    uri = f"{services.url}/iceberg"
    engines = [open_engine(name, uri, "DEMO", token) for name in ("pyiceberg", "duckdb")]
    inserts = Inserts(services, key_pair)
    inserts.start()
    seen = dict.fromkeys((engine.name for engine in engines), 0)
    kills, give_up_at = 0, time.monotonic() + 400
    while inserts.is_alive() or min(seen.values()) < inserts.calls * ROWS:
        assert time.monotonic() < give_up_at, (seen, inserts.error)
        for engine in engines:
            try:
                found = sorted(int(row[0]) for row in engine.read("PUBLIC.T", "ID"))
            except EngineError:
                # The service that received the request has just been killed.
                continue
            assert found == list(range(len(found))), engine.name
            assert len(found) % ROWS == 0, engine.name
            assert len(found) >= seen[engine.name], engine.name
            seen[engine.name] = len(found)
        if kills == KILLS:
            inserts.enough.set()
        else:
            kills += 1
            if kills % 2:
                for number in publishers(services):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(number, signal.SIGKILL)
            else:
                victim = random.choice(services.each)
                victim.kill()
                victim.start()
    inserts.join()
    assert inserts.error is None
    migrator.terminate()
    migrator.communicate(timeout=60)
