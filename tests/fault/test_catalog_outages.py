"""PostgreSQL stops, fails over, or rejects writes: clients wait and no row is lost."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import psycopg
import pytest

import snowmelt
from fixtures.postgres import PostgresServer
from fixtures.service import KeyPair, ServiceProcess, prepare_loading
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.security.encryption_keys import open_or_create_keyring
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.table_reader import read_table
from support.ports import free_port

pytestmark = pytest.mark.postgres

SOON = dt.timedelta(seconds=120)


@dataclass
class Standing:
    """A catalog that can be at either of two ports, its service, and a client's channel."""

    server: PostgresServer
    other_port: int
    service: ServiceProcess
    channel: snowmelt.Channel
    rows: int = 0

    def insert(self, count: int) -> None:
        for _ in range(count):
            self.rows += 1
            self.channel.insert_row({"id": self.rows}, offset_token=str(self.rows))

    def commit(self) -> None:
        self.channel.wait_for_commit(str(self.rows), timeout=SOON)

    def has_each_row_once(self) -> bool:
        settings = self.service.settings
        with contextlib.closing(open_and_upgrade_database(settings.catalog_url)) as database:
            keyring, stage = open_or_create_keyring(database, settings.keys_dir), settings.stage_url
            name = TableName("DEMO", "PUBLIC", "T")
            rows = read_table(database, keyring, open_store(stage), name, columns=["ID"])
        found = Counter(int(number) for number in rows["ID"].to_pylist())
        return found == Counter(range(1, self.rows + 1))


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory, key_pair: KeyPair) -> Iterator[Standing]:
    server, other = PostgresServer(), free_port()
    hosts = f"host=127.0.0.1:{server.port}&host=127.0.0.1:{other}"
    url = f"postgresql://snowmelt@/postgres?{hosts}&target_session_attrs=read-write"
    folder = tmp_path_factory.mktemp("standing")
    service = ServiceProcess(folder / "data", free_port(), url)
    try:
        server.start()
        service.start(log_level="debug")
        prepare_loading(service, key_pair)
        with (
            snowmelt.Client(
                service.url,
                user="loader",
                private_key=key_pair.private_pem,
                give_up_after=SOON,
            ) as client,
            client.open_channel("c", table="demo.public.t") as channel,
        ):
            yield Standing(server, other, service, channel)
    finally:
        if service.process is not None:
            service.kill()
        server.remove()


def test_rows_wait_while_the_database_is_killed_and_started(standing: Standing) -> None:
    standing.insert(10)
    standing.commit()
    standing.server.kill()
    standing.insert(10)
    health = httpx.get(f"{standing.service.url}/healthz", timeout=120)
    assert health.status_code == 503
    standing.server.start()
    standing.commit()
    assert standing.has_each_row_once()


def test_rows_wait_while_the_database_takes_no_writes(standing: Standing) -> None:
    def read_only(word: str) -> None:
        writes = "-c default_transaction_read_only=off"
        url = standing.server.url
        with psycopg.connect(url, autocommit=True, options=writes) as admin:
            admin.execute(f"ALTER SYSTEM SET default_transaction_read_only = {word}")
            admin.execute("SELECT pg_reload_conf()")

    standing.insert(10)
    standing.commit()
    read_only("on")
    try:
        give_up_at = time.monotonic() + 200
        # Open sessions notice it after a moment. Rows until then are committed.
        while "read-only" not in standing.service.log:
            assert time.monotonic() < give_up_at
            standing.insert(1)
            time.sleep(0.1)
        standing.insert(10)
    finally:
        read_only("off")
    standing.commit()
    assert standing.has_each_row_once()


def test_rows_go_to_the_server_that_takes_over(standing: Standing) -> None:
    standing.insert(10)
    standing.commit()
    standing.server.stop()
    standing.insert(10)
    standing.server.start(standing.other_port)
    standing.commit()
    assert standing.has_each_row_once()
    assert "Traceback" not in standing.service.log
