"""Official Java client for tests: a service, the driver process, and a database per test."""

from __future__ import annotations

import itertools
import time
from typing import Any

from fixtures.java import Driver, JavaError
from fixtures.service import KeyPair, ServiceProcess, prepare_loading
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.table_reader import read_table

_databases = itertools.count()
SOON_S = 200


def rows(first: int, last: int) -> list[Any]:
    return [{"id": n, "name": f"row {n}", "at": "2026-11-21T10:00:00"} for n in range(first, last)]


class Loading:
    """A service, a driver, and a database for the test with the table PUBLIC.T."""

    def __init__(self, service: ServiceProcess, driver: Driver, key_pair: KeyPair) -> None:
        self.service, self.driver, self.key = service, driver, key_pair
        self.database = f"java{next(_databases)}"
        self.names = {"database": self.database, "schema": "public", "table": "t"}
        prepare_loading(service, key_pair, self.database)

    def connect(self, client: str, **parameters: Any) -> None:
        properties = {
            "url": self.service.url,
            "user": "loader",
            "private_key": self.key.private_pem,
        }
        parameters = {"max_client_lag": 1000} | parameters
        self.driver.say("client", client=client, properties=properties, parameters=parameters)

    def open(
        self, client: str, channel: Any, name: Any = "c", *, on_error: str = "CONTINUE", **more: Any
    ) -> object:
        given = self.names | {"client": client, "channel": channel, "name": name} | more
        return self.driver.say("open", **given, on_error=on_error)

    def insert(self, channel: Any, rows: Any, token: Any, start: str | None = None) -> Any:
        return self.driver.say("insert", channel=channel, rows=rows, token=token, start=start)

    def wait(self, channel: Any, token: Any) -> None:
        assert self.driver.say("wait", channel=channel, token=token, seconds=SOON_S) == token

    def until_invalid(self, channel: str) -> Any:
        """Insert until the client raises an error: a fenced client notices it only when it flushes."""
        give_up_at = time.monotonic() + SOON_S
        while time.monotonic() < give_up_at:
            try:
                self.insert(channel, rows(-1, 0), "lost")
            except JavaError as invalid:
                return invalid.code
            time.sleep(0.1)
        return None

    def ids(self) -> list[Any]:
        settings = self.service.settings
        catalog = open_and_upgrade_database(settings.catalog_url)
        try:
            keyring = KeyRing(load_master_key(settings.keys_dir))
            name = TableName(self.database.upper(), "PUBLIC", "T")
            found = read_table(catalog, keyring, open_store(settings.stage_url), name)
            return sorted(int(each) for each in found.column("ID").to_pylist())
        finally:
            catalog.close()
