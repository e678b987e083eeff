"""Two sites, each with its own catalog, stage and warehouse, in one failover group."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import snowmelt
from fixtures.service import KeyPair, ServiceProcess, prepare_loading
from fixtures.services import Balancer
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.catalog.statements.executor import StatementResult
from snowmelt.catalog.streaming.channels import find_channel
from snowmelt.clock import SystemClock
from snowmelt.config import Settings
from snowmelt.integrity.checker import CheckSettings, IntegrityChecker
from snowmelt.replication.state_export import INLINE_BYTES
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.table_reader import read_table
from snowmelt.table.warehouse_paths import open_warehouse
from support import forked_processes
from support.ports import free_port

TABLE = TableName("DEMO", "PUBLIC", "T")
# Timeout that only a defect exceeds, even on a busy machine.
PATIENCE_S = 180.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for an event."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at, what
        time.sleep(0.05)


class ServedSite:
    """Services that share catalog, stage, warehouse and master key, behind one address."""

    def __init__(
        self,
        folder: Path,
        *,
        catalog_url: str | None = None,
        services: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare the services. Several need a catalog on PostgreSQL.

        Stage and warehouse are in the folder, unless the environment names others.
        """
        shared = {"SNOWMELT_MIGRATE": "1", "SNOWMELT_MIGRATE_INTERVAL_S": "0.5"}
        if services > 1:
            shared |= {
                f"SNOWMELT_{name}": str(folder / value)
                for name, value in (
                    ("STAGE_URL", "stage"),
                    ("WAREHOUSE_URL", "warehouse"),
                    ("KEYS_DIR", "keys"),
                    ("OBJECTS_DIR", "objects"),
                )
            }
        shared |= environment or {}
        folder.mkdir()
        self.folder = folder
        self._balancers: list[Balancer] = []
        places: list[tuple[dict[str, str], Path]] = [({}, folder)]
        if services > 1:
            ports = [free_port() for _ in range(services)]
            endpoint = self._balance(ports)
            places = [
                (
                    {"SNOWMELT_STAGE_ENDPOINT": endpoint, "SNOWMELT_S3_PORT": str(port)},
                    folder / f"service{port}",
                )
                for port in ports
            ]
        self.services = [
            ServiceProcess(place, free_port(), catalog_url, shared | own) for own, place in places
        ]
        self.url = self.services[0].url
        if services > 1:
            self.url = self._balance([service.port for service in self.services])

    def _balance(self, ports: list[int]) -> str:
        self._balancers.append(Balancer(ports))
        return self._balancers[-1].url

    @property
    def settings(self) -> Settings:
        """Settings for commands at the site."""
        service = self.services[0]
        return Settings.from_environment(
            service.environment, data_dir=service.data_dir, catalog_url=service.catalog_url
        )

    def start(self, **options: Any) -> None:
        """Start all services."""
        for service in self.services:
            service.start(**options)

    def kill(self) -> None:
        """Kill all services that run."""
        for service in self.services:
            if service.process is not None and service.process.poll() is None:
                service.kill()

    def stop(self) -> None:
        """Stop all services gracefully."""
        for service in self.services:
            service.stop()

    def sql(self, *texts: str) -> StatementResult:
        """Run statements on the catalog."""
        return self.services[0].sql(*texts)

    def close(self) -> None:
        """Kill the running services, and close the address."""
        self.kill()
        for balancer in self._balancers:
            balancer.close()


class ServedSites:
    """Sites SITE1, the initial primary, and SITE2."""

    def __init__(
        self,
        folder: Path,
        key_pair: KeyPair,
        first: ServedSite,
        second: ServedSite,
        ca_file: str | None = None,
    ) -> None:
        self.key_pair = key_pair
        self.ca_file = ca_file
        self.key_file = folder / "replica.pem"
        self.key_file.write_text(key_pair.private_pem)
        self.key_file.chmod(0o600)
        self.sites = [first, second]
        self.first, self.second = first, second
        self.stopped = False

    def start(self) -> None:
        """Start both sites. The second site follows the first."""
        for site in self.sites:
            site.start()
        prepare_loading(self.first.services[0], self.key_pair)
        self.first.sql(
            "CREATE ROLE replication",
            f"CREATE USER replicator RSA_PUBLIC_KEY = '{self.key_pair.public_base64}' "
            "DEFAULT_ROLE = replication",
            "GRANT ROLE replication TO USER replicator",
            "GRANT REPLICATE ON ACCOUNT TO ROLE replication",
            # Make a full state too large for one response.
            f"CREATE DATABASE large COMMENT = '{'x' * INLINE_BYTES}'",
            "CREATE FAILOVER GROUP g ALLOWED_ACCOUNTS = site2 SITE = site1 "
            + self._clauses(self.first),
        )
        self.second.sql(
            f"CREATE FAILOVER GROUP g AS REPLICA OF site1.g URL = '{self.first.url}' SITE = site2 "
            + self._clauses(self.second),
        )
        self.wait_until_followed()

    def stop(self) -> None:
        """Kill the services of both sites."""
        self.stopped = True
        for site in self.sites:
            site.close()

    def client(self, *sites: ServedSite, **options: Any) -> snowmelt.Client:
        """Return a client with the addresses of these sites."""
        return snowmelt.Client(
            ",".join(site.url for site in sites),
            user="loader",
            private_key=self.key_pair.private_pem,
            ca_file=self.ca_file,
            **options,
        )

    def show(self, site: ServedSite) -> dict[str, Any]:
        """Return the row of SHOW FAILOVER GROUPS."""
        found = site.sql("SHOW FAILOVER GROUPS")
        return dict(zip(found.columns, found.rows[0], strict=True))

    def wait_for_role(self, site: ServedSite, role: str) -> None:
        """Wait until a site has a role."""
        wait_until(lambda: self.show(site)["role"] == role, f"{site.folder} is not {role}")

    def wait_until_started_again(self, site: ServedSite) -> None:
        """Wait until the services of a site serve the history of its new primary."""
        text = "the service has restarted"
        wait_until(
            lambda: all(text in service.log for service in site.services),
            f"{site.folder} serves its old history",
        )

    def wait_until_followed(self) -> None:
        """Wait until a follower may be promoted."""
        try:
            wait_until(
                lambda: any(self.show(site)["promotable"] is True for site in self.sites),
                "no site can be promoted",
            )
        except AssertionError as error:
            running = [service.process for site in self.sites for service in site.services]
            for process in filter(None, running):
                process.send_signal(signal.SIGUSR2)
            time.sleep(2)  # The processes write their stacks.
            shown = [f"{site.folder}: {self.show(site)}" for site in self.sites]
            logs = [service.log[-9000:] for site in self.sites for service in site.services]
            raise AssertionError("\n".join([str(error), *shown, *logs])) from error

    def wait_until_equal(self) -> None:
        """Wait until both sites have the same rows and tokens."""
        wait_until(
            lambda: self.read_state(self.first) == self.read_state(self.second), "sites differ"
        )

    def read_state(self, site: ServedSite) -> tuple[list[int], str | None]:
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

    def find_errors(self, site: ServedSite) -> list[str]:
        """Return the findings of a deep check of a site."""
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

    def run_site_process(self, site: ServedSite, fault: str) -> forked_processes.Popen:
        """Start the replication process, with a failpoint that ends it."""
        return self._run(site, fault, "snowmelt.server.replication.site_process")

    def run_statement(self, site: ServedSite, statement: str, fault: str) -> forked_processes.Popen:
        """Start a process that runs a statement, with a failpoint that ends it."""
        return self._run(site, fault, "snowmelt", "sql", statement)

    def _run(self, site: ServedSite, fault: str, *words: str) -> forked_processes.Popen:
        return forked_processes.Popen(
            [sys.executable, "-m", *words],
            env={**os.environ, **site.settings.to_environment(), "SNOWMELT_FAULT": fault},
        )

    def _clauses(self, site: ServedSite) -> str:
        ca_file = "" if self.ca_file is None else f" CA_FILE = '{self.ca_file}'"
        return (
            f"ADDRESSES = ('{site.url}') USER = 'replicator' PRIVATE_KEY = 'file:{self.key_file}'"
            + ca_file
        )
