"""PostgreSQL server of the tests, with PostgreSQL's default durability."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fixtures.postgres import postgres_server


def running_postgres() -> contextlib.AbstractContextManager[str]:
    """Yield the URL of an empty database on a durable server."""
    return postgres_server(durable=True)


@contextlib.contextmanager
def postgres_settings() -> Iterator[Callable[[], dict[str, object]]]:
    """Run a durable PostgreSQL server. Yield a factory of settings for a new database."""
    import psycopg

    with running_postgres() as url:
        numbers = itertools.count()

        def settings() -> dict[str, object]:
            name = f"bench_{next(numbers)}"
            with psycopg.connect(url, autocommit=True) as admin:
                admin.execute(f"CREATE DATABASE {name}")
            return {"catalog_url": f"{url.rpartition('/')[0]}/{name}"}

        yield settings
