"""The tests' PostgreSQL, with the durability that it is shipped with."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fixtures.postgres import postgres_server


def running_postgres() -> contextlib.AbstractContextManager[str]:
    """Yield the URL of an empty database of a durable server."""
    return postgres_server(durable=True)
