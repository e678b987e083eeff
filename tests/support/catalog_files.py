"""SQLite catalogs for tests: copies of a template that is created once per process."""

from __future__ import annotations

import contextlib
import functools
import random
import sqlite3
import tempfile
from pathlib import Path

from snowmelt.catalog.db.database import open_and_upgrade_database


def new_catalog(path: Path) -> Path:
    """Create a new catalog with a unique identity, unless it exists."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_template())
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            number = random.SystemRandom().randrange(1, 2**31)
            connection.execute("UPDATE deployment SET deployment_id = ?", (number,))
    return path


@functools.cache
def _template() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "catalog.db")
        open_and_upgrade_database(str(path)).close()
        assert [each.name for each in Path(folder).iterdir()] == [path.name]
        return path.read_bytes()
