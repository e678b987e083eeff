"""`snowmelt backup` and `snowmelt restore`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from unit.cli.conftest import Finished

Run = Callable[..., "Finished"]


@pytest.fixture
def filled(snowmelt: Run) -> Run:
    """An installation with a table and a key pair."""
    assert (
        snowmelt("sql", "CREATE DATABASE demo; CREATE TABLE demo.public.t (a INT)").returncode == 0
    )
    made = snowmelt("backup", "new-key", "backup.key")
    assert made.returncode == 0, made.stderr
    assert "Move the private key" in made.stdout
    return snowmelt


def test_a_point_is_made_listed_verified_restored_and_expired(filled: Run, tmp_path: Path) -> None:
    assert "note   backup          no backup exists" in filled("doctor").stdout
    for _ in range(2):
        made = filled("backup", "points")
        assert made.returncode == 0, made.stderr
    listed = json.loads(filled("backup", "list", "points", "--format", "json").stdout)
    assert [point["tables"] for point in listed] == [1, 1]
    assert f"ok     backup          point {listed[1]['point']}" in filled("doctor").stdout
    checked = filled("backup", "verify", "points", "--private-key", "backup.key")
    assert (checked.returncode, "0 problems" in checked.stdout) == (0, True)
    words = ("restore", "points", "--private-key", "backup.key", "--data-dir", "other", "--to")
    shown = filled(*words, listed[0]["point"], "--dry-run")
    assert shown.returncode == 0
    assert not (tmp_path / "other").exists()
    restored = filled(*words, "latest", "--format", "json")
    assert "restored point" in restored.stderr
    assert json.loads(restored.stdout) == []
    again = filled(*words, "latest")
    assert again.returncode == 1
    assert "the catalog exists" in again.stderr
    assert "T" in filled("sql", "--data-dir", "other", "SHOW TABLES IN DATABASE demo").stdout
    assert "deleted 1 point" in filled("backup", "expire", "points", "--keep", "0s").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["backup", "lst", "points"], "Unknown action 'lst'"),
        (["backup", "lst"], "Did you mean list?"),
        (["backup", "list"], "requires the backup"),
        (["backup", "list", "nowhere"], "Backup not found: nowhere"),
        (["backup", "verify", "."], "requires --private-key"),
        (["backup", "expire", "."], "requires --keep"),
        (["backup", "expire", ".", "--keep", "a month"], "Invalid age 'a month'"),
        (["backup", "expire", ".", "--keep", "99999999999d"], "Invalid age '99999999999d'"),
        (["backup", "points", "--keep", "30d"], "`backup DEST` does not accept --keep"),
        (["backup", "list", ".", "--point", "latest"], "`backup list` does not accept --point"),
        (["backup", "snowmelt-data/warehouse/points"], "is a data folder of Snowmelt"),
        (["backup", "new-key", "snowmelt-data/private.key"], "is a data folder of Snowmelt"),
        (["backup", "points", "--public-key", "missing.pub"], "there is no public key"),
        (["backup", "new-key", "backup.key"], "already exists"),
        (["restore", ".", "--to", "latest", "--private-key", "backup.key"], "the backup is empty"),
    ],
)
def test_what_is_missing_or_wrong_is_named(filled: Run, words: list[str], message: str) -> None:
    done = filled(*words)
    assert done.returncode == 1
    assert message in done.stderr
