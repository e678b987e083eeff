"""A service whose clients upload to its S3 endpoint, with access to its components."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import snowmelt
from fixtures.service import KeyPair, prepare_loading
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.jobs import leases
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.client.auth import KeyPairTokenProvider, load_private_key
from snowmelt.client.service_requests import ApiClient
from snowmelt.client.transport import Transport, parse_service_url
from snowmelt.clock import ManualClock, SystemClock
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.garbage_collection import collect_garbage
from snowmelt.table.migration import MigrationSettings, migrate_table
from snowmelt.table.table_reader import read_table

if TYPE_CHECKING:
    from fixtures.s3 import S3Process


T = "demo.public.t"
NAME = TableName("DEMO", "PUBLIC", "T")


class House:
    """A service whose clients upload to its S3 endpoint, with access to its components."""

    def __init__(self, process: S3Process, stage_url: str, key_pair: KeyPair) -> None:
        self.process, self.stage_url, self._key_pair = process, stage_url, key_pair
        self._transports: list[Transport] = []
        self.start()
        prepare_loading(process.service, key_pair)
        settings = process.service.settings
        self.settings = settings
        self.keyring = KeyRing(load_master_key(settings.keys_dir))
        self.database = open_and_upgrade_database(settings.catalog_url)
        self.stage = open_store(stage_url)
        self.warehouse = open_store(settings.warehouse_url)

    def start(self, **settings: Any) -> None:
        given = {"stage_url": self.stage_url, "stage_endpoint": self.process.url}
        self.process.start(**(given | settings))

    def client(self, **options: Any) -> snowmelt.Client:
        options.setdefault("max_client_lag", dt.timedelta(milliseconds=100))
        return snowmelt.Client(
            self.process.service.url,
            user="loader",
            private_key=self._key_pair.private_pem,
            **options,
        )

    def calls(self, user: str = "loader", key_pair: KeyPair | None = None) -> ApiClient:
        """Configure a client of a user. Does not open its stage."""
        service = parse_service_url(self.process.service.url)
        key = load_private_key((key_pair or self._key_pair).private_pem)
        tokens = KeyPairTokenProvider(service.account, user, key, SystemClock())
        transport = Transport(service, tokens, SystemClock(), timeout_s=10)
        self._transports.append(transport)
        return ApiClient(transport, None, 10)

    def close(self) -> None:
        for transport in self._transports:
            transport.stop()
        self.database.close()

    def ids(self) -> list[int]:
        found = read_table(self.database, self.keyring, self.stage, NAME)
        return sorted(int(each) for each in found.column("ID").to_pylist())

    def blobs(self) -> list[str]:
        return sorted(each.path for each in self.stage.list())

    def migrate(self) -> None:
        settings = MigrationSettings(self.stage_url, self.settings.warehouse_url)
        assert migrate_table(self.database, self.keyring, NAME, settings) is not None

    def clean(self) -> None:
        clock = ManualClock(dt.datetime.now(dt.UTC) + dt.timedelta(hours=2))
        collect_garbage(self.database, self.stage, self.warehouse, clock=clock, retention_s=3601)

    @property
    def suffix(self) -> str:
        with self.database.reading() as connection:
            return f"_{leases.read_deployment_id(connection)}"
