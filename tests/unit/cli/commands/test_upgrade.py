"""`snowmelt upgrade`."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from snowmelt.catalog.db.database import SCHEMA_VERSION

if TYPE_CHECKING:
    from unit.cli.conftest import Finished


pytestmark = pytest.mark.slow


@pytest.fixture
def set_version(snowmelt: Callable[..., Finished], tmp_path: Path) -> Callable[[Any], None]:
    """Create a catalog, and give it another version."""
    snowmelt("sql", "CREATE DATABASE demo")

    def run(version: Any) -> None:
        path = tmp_path / "snowmelt-data" / "catalog.db"
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE alembic_version SET version_num = ?", (version,))

    return run


def test_a_current_catalog_needs_nothing(
    snowmelt: Callable[..., Finished], set_version: Any
) -> None:
    for arguments in (("upgrade",), ("upgrade", "--check")):
        ended = snowmelt(*arguments)
        assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, "Nothing to upgrade.")


def test_check_changes_nothing_and_the_upgrade_does(
    snowmelt: Callable[..., Finished], set_version: Any
) -> None:
    set_version("0012")
    checked = snowmelt("upgrade", "--check")
    assert (checked.returncode, "Catalog:  version 0012" in checked.stdout) == (1, True)
    assert ".backup copy.db" in checked.stdout
    assert snowmelt("upgrade", "--check").returncode == 1
    done = snowmelt("upgrade")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        0,
        f"Upgraded to version {SCHEMA_VERSION}.",
    )
    assert snowmelt("upgrade", "--check").returncode == 0


def test_a_newer_catalog_names_both_versions(
    snowmelt: Callable[..., Finished], set_version: Any
) -> None:
    set_version("9999")
    ended = snowmelt("upgrade", "--check")
    assert ended.returncode == 1
    assert f"version 9999 is newer than version {SCHEMA_VERSION}" in ended.stderr


def test_a_missing_catalog_is_not_created(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    ended = snowmelt("upgrade")
    assert (ended.returncode, "Catalog not found" in ended.stderr) == (1, True)
    assert not (tmp_path / "snowmelt-data").exists()
