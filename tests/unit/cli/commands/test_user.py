"""`snowmelt user`."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from unit.cli.conftest import Finished


@pytest.mark.slow
def test_a_user_gets_a_key_that_fits_and_a_role(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    snowmelt("sql", "CREATE ROLE loading")
    made = snowmelt("user", "add", "loader", "--role", "loading", "--key-out", "keys.pem")
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("User LOADER with role LOADING created.\n")
    key = tmp_path / "keys.pem"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600

    from snowmelt.client.auth import compute_key_fingerprint, load_private_key

    assert f"Public key:  {compute_key_fingerprint(load_private_key(key))}" in made.stdout
    shown = json.loads(snowmelt("sql", "SHOW USERS", "--format", "json").stdout)
    assert [(user["name"], user["default_role"]) for user in shown] == [("LOADER", "LOADING")]


def test_a_key_is_never_overwritten(snowmelt: Callable[..., Finished], tmp_path: Path) -> None:
    (tmp_path / "loader.pem").write_text("precious")
    refused = snowmelt("user", "add", "loader")
    assert (refused.returncode, refused.stderr) == (
        1,
        (
            "snowmelt: File loader.pem already exists. Name another with --key-out, or give user "
            "loader a new key: snowmelt user rotate loader --key-out FILE.\n"
        ),
    )
    assert (tmp_path / "loader.pem").read_text() == "precious"


@pytest.mark.slow
def test_what_fails_leaves_neither_user_nor_key(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    assert snowmelt("sql", "CREATE DATABASE demo").returncode == 0
    refused = snowmelt("user", "add", "loader", "--role", "missing")
    assert refused.stderr == "snowmelt: Role MISSING does not exist.\n"
    assert not list(tmp_path.glob("*.pem"))
    assert snowmelt("sql", "SHOW USERS", "--format", "json").stdout == "[]\n"


@pytest.mark.slow
def test_users_are_listed_and_dropped(snowmelt: Callable[..., Finished]) -> None:
    assert snowmelt("sql", "CREATE ROLE loading").returncode == 0
    assert snowmelt("user", "add", "loader", "--role", "loading").returncode == 0
    shown = json.loads(snowmelt("user", "list", "--format", "json").stdout)
    assert [(user["name"], user["default_role"]) for user in shown] == [("LOADER", "LOADING")]
    assert snowmelt("user", "drop", "loader").stdout == "User LOADER dropped.\n"
    assert snowmelt("user", "list", "--format", "json").stdout == "[]\n"
    again = snowmelt("user", "drop", "loader")
    assert (again.returncode, again.stderr) == (1, "snowmelt: User LOADER does not exist.\n")


@pytest.mark.slow
def test_a_rotation_keeps_the_former_key_valid_until_the_next(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    from snowmelt.client.auth import compute_key_fingerprint, load_private_key

    def fingerprints() -> Any:
        (user,) = json.loads(snowmelt("user", "list", "--format", "json").stdout)
        return user["fingerprints"].split(", ")

    assert snowmelt("sql", "CREATE ROLE loading").returncode == 0
    for number, arguments in enumerate(
        (("add",), ("rotate",), ("rotate",), ("rotate", "--revoke"))
    ):
        done = snowmelt(
            "user", arguments[0], "loader", "--key-out", f"{number}.pem", *arguments[1:]
        )
        assert done.returncode == 0, done.stderr
    keys = [compute_key_fingerprint(load_private_key(tmp_path / f"{n}.pem")) for n in range(4)]
    assert len(set(keys)) == 4
    assert fingerprints() == [keys[3]]
    assert snowmelt("user", "rotate", "loader", "--key-out", "4.pem").returncode == 0
    assert fingerprints()[1:] == [keys[3]]
    missing = snowmelt("user", "rotate", "other", "--key-out", "5.pem")
    assert (missing.returncode, missing.stderr) == (1, "snowmelt: User OTHER does not exist.\n")
    assert not (tmp_path / "5.pem").exists()
