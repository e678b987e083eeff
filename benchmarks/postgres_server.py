"""PostgreSQL server of the tests, with PostgreSQL's default durability."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fixtures.postgres import postgres_server


def running_postgres() -> contextlib.AbstractContextManager[str]:
    """Yield the URL of an empty database on a durable server."""
    return postgres_server(durable=True)
