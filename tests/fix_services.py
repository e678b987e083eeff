"""Several services on one PostgreSQL catalog, with one address in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx
import pytest

import snowmelt
import warm
from fix_service import ServiceProcess, prepare_loading
from ports import free_port
from snowmelt.config import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fix_service import KeyPair


class Balancer:
    """One TCP address for several ports: connections go round, past ports that refuse them."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports
        self.port = free_port()
        self._turn = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        starting = asyncio.start_server(self._forward, "127.0.0.1", self.port)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in self.ports:
            self._turn += 1
            port = self.ports[self._turn % len(self.ports)]
            try:
                there, back = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
            return
        writer.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    with contextlib.suppress(OSError):
        target.close()


@dataclass
class Services:
    """Services that share catalog, stage, warehouse and master key; each has its own data folder."""

    folder: Path
    catalog_url: str
    each: list[ServiceProcess] = field(default_factory=list)
    balancer: Balancer | None = None
    s3: Balancer | None = None

    def start(self, count: int) -> Services:
        """Start so many; clients upload to the S3 endpoints, behind one address as well."""
        ports = [free_port() for _ in range(count)]
        self.s3 = Balancer(ports)
        for number, port in enumerate(ports):
            name, endpoint = f"service{number}", {"SNOWMELT_STAGE_ENDPOINT": self.s3.url}
            self.each.append(self.service(name, SNOWMELT_S3_PORT=str(port), **endpoint))
            self.each[-1].start()
        self.balancer = Balancer([service.port for service in self.each])
        return self

    def service(self, name: str, **environment: str) -> ServiceProcess:
        shared = {
            "SNOWMELT_STAGE_URL": str(self.folder / "stage"),
            "SNOWMELT_WAREHOUSE_URL": str(self.folder / "warehouse"),
            "SNOWMELT_KEYS_DIR": str(self.folder / "keys"),
            "SNOWMELT_LEASE_S": "60",
            "SNOWMELT_DRAIN_S": "5",
        }
        return ServiceProcess(
            self.folder / name, free_port(), self.catalog_url, shared | environment
        )

    @property
    def url(self) -> str:
        assert self.balancer is not None
        return self.balancer.url

    @property
    def settings(self) -> Settings:
        """What commands of this deployment are given."""
        return Settings.from_environment(
            self.each[0].environment,
            data_dir=self.folder / "commands",
            catalog_url=self.catalog_url,
        )

    def client(self, key_pair: KeyPair, **options: object) -> snowmelt.Client:
        return snowmelt.Client(self.url, user="loader", private_key=key_pair.private_pem, **options)

    def command(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Start a command of this deployment; its output is a pipe."""
        return warm.Popen(
            [sys.executable, "-m", "snowmelt", *words],
            env=os.environ | self.settings.environment() | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def close(self) -> None:
        for balancer in (self.balancer, self.s3):
            if balancer is not None:
                balancer.close()
        for service in self.each:
            if service.process is not None and service.process.poll() is None:
                service.kill()


def metric(service: ServiceProcess, name: str) -> float:
    """The sum of a metric of one service over its labels."""
    text = httpx.get(f"{service.url}/metrics", timeout=120).text
    found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


@pytest.fixture(scope="module")
def catalog_of_services(_template: str) -> Iterator[str]:
    """The URL of a catalog on PostgreSQL for the tests of one file."""
    import psycopg

    name = f"services_{os.getpid()}_{free_port()}"
    with psycopg.connect(f"{_template}/postgres", autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE snowmelt_template")
    yield f"{_template}/{name}"
    with psycopg.connect(f"{_template}/postgres", autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module")
def three_services(
    tmp_path_factory: pytest.TempPathFactory, catalog_of_services: str, key_pair: KeyPair
) -> Iterator[Services]:
    """Three services behind one address, prepared for LOADER to insert into DEMO.PUBLIC.T."""
    services = Services(tmp_path_factory.mktemp("services"), catalog_of_services)
    try:
        services.start(3)
        prepare_loading(services.each[0], key_pair)
        yield services
    finally:
        services.close()
