"""Two services, each with its own catalog, stage and warehouse, in one failover group."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import snowmelt
from fixtures.service import KeyPair, ServiceProcess, prepare_loading
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.catalog.streaming.channels import find_channel
from snowmelt.clock import SystemClock
from snowmelt.integrity.checker import CheckSettings, IntegrityChecker
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.table_reader import read_table
from snowmelt.table.warehouse_paths import open_warehouse
from support import forked_processes
from support.ports import free_port

TABLE = TableName("DEMO", "PUBLIC", "T")
# Only a defect takes this long, also on a busy machine.
PATIENCE_S = 180.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for an event."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at, what
        time.sleep(0.05)


class ServedSites:
    """Sites SITE1 (first the primary) and SITE2."""

    def __init__(
        self,
        folder: Path,
        key_pair: KeyPair,
        catalog_urls: tuple[str | None, str | None] = (None, None),
    ) -> None:
        self.key_pair = key_pair
        self.key_file = folder / "replica.pem"
        self.key_file.write_text(key_pair.private_pem)
        self.key_file.chmod(0o600)
        self.sites = [
            ServiceProcess(
                folder / f"site{number}",
                free_port(),
                url,
                {"SNOWMELT_MIGRATE": "1", "SNOWMELT_MIGRATE_INTERVAL_S": "0.5"},
            )
            for number, url in enumerate(catalog_urls, 1)
        ]
        self.first, self.second = self.sites

    def start(self) -> None:
        """Start both, and let the second follow the first."""
        for site in self.sites:
            site.start()
        prepare_loading(self.first, self.key_pair)
        self.first.sql(
            "CREATE ROLE replication",
            f"CREATE USER replicator RSA_PUBLIC_KEY = '{self.key_pair.public_base64}' "
            "DEFAULT_ROLE = replication",
            "GRANT ROLE replication TO USER replicator",
            "GRANT REPLICATE ON ACCOUNT TO ROLE replication",
            "CREATE FAILOVER GROUP g ALLOWED_ACCOUNTS = site2 SITE = site1 "
            + self._clauses(self.first),
        )
        self.second.sql(
            f"CREATE FAILOVER GROUP g AS REPLICA OF site1.g URL = '{self.first.url}' SITE = site2 "
            + self._clauses(self.second),
        )
        self.wait_until_followed()

    def stop(self) -> None:
        """Kill what runs."""
        for site in self.sites:
            if site.process is not None and site.process.poll() is None:
                site.kill()

    def client(self, *sites: ServiceProcess, **options: Any) -> snowmelt.Client:
        """Return a client that knows the addresses of these sites."""
        return snowmelt.Client(
            ",".join(site.url for site in sites),
            user="loader",
            private_key=self.key_pair.private_pem,
            **options,
        )

    def show(self, site: ServiceProcess) -> dict[str, Any]:
        """Return the row of SHOW FAILOVER GROUPS."""
        found = site.sql("SHOW FAILOVER GROUPS")
        return dict(zip(found.columns, found.rows[0], strict=True))

    def wait_for_role(self, site: ServiceProcess, role: str) -> None:
        """Wait until a site has a role."""
        wait_until(lambda: self.show(site)["role"] == role, f"{site.data_dir} is not {role}")

    def wait_until_followed(self) -> None:
        """Wait until a follower may be promoted."""
        wait_until(
            lambda: any(self.show(site)["promotable"] is True for site in self.sites),
            "no site can be promoted",
        )

    def wait_until_equal(self) -> None:
        """Wait until both sites have the same rows and tokens."""
        wait_until(
            lambda: self.read_state(self.first) == self.read_state(self.second), "sites differ"
        )

    def read_state(self, site: ServiceProcess) -> tuple[list[int], str | None]:
        """Return the rows and the token of channel C, as the catalog of a site has them."""
        settings = site.settings
        database = open_and_upgrade_database(settings.catalog_url)
        try:
            keyring = KeyRing(load_master_key(settings.keys_dir))
            with database.reading() as connection:
                channel = find_channel(connection, find_table(connection, TABLE), "C")
            rows = read_table(
                database,
                keyring,
                open_store(settings.stage_url),
                TABLE,
                ["ID"],
                clock=SystemClock(),
            )
        finally:
            database.close()
        numbers = sorted(int(number) for number in rows["ID"].to_pylist())
        return numbers, None if channel is None else channel.offset_token

    def find_errors(self, site: ServiceProcess) -> list[str]:
        """Return what a deep check of a site finds."""
        settings = site.settings
        database = open_and_upgrade_database(settings.catalog_url)
        try:
            checker = IntegrityChecker(
                database,
                KeyRing(load_master_key(settings.keys_dir)),
                open_store(settings.stage_url),
                open_warehouse(settings.warehouse_url),
                SystemClock(),
                settings=CheckSettings(deep=True),
            )
            reports = checker.check_all()
            return [
                f"{found.kind.name}: {found.detail}" for each in reports for found in each.findings
            ]
        finally:
            database.close()

    def run_site_process(self, site: ServiceProcess, fault: str) -> forked_processes.Popen:
        """Start the process that follows, which ends at a point."""
        return forked_processes.Popen(
            [sys.executable, "-m", "snowmelt.server.replication.site_process"],
            env={
                **os.environ,
                **site.settings.to_environment(),
                "SNOWMELT_FAULT": fault,
            },
        )

    def _clauses(self, site: ServiceProcess) -> str:
        return (
            f"ADDRESSES = ('{site.url}') USER = 'replicator' PRIVATE_KEY = 'file:{self.key_file}'"
        )
