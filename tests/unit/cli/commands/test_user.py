"""`snowmelt user add`."""

from __future__ import annotations

import json
import stat

import pytest


@pytest.mark.slow
def test_a_user_gets_a_key_that_fits_and_a_role(snowmelt, tmp_path):
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


def test_a_key_is_never_overwritten(snowmelt, tmp_path):
    (tmp_path / "loader.pem").write_text("precious")
    refused = snowmelt("user", "add", "loader")
    assert (refused.returncode, refused.stderr) == (
        1,
        "snowmelt: File loader.pem exists already.\n",
    )
    assert (tmp_path / "loader.pem").read_text() == "precious"


@pytest.mark.slow
def test_what_fails_leaves_neither_user_nor_key(snowmelt, tmp_path):
    assert snowmelt("sql", "CREATE DATABASE demo").returncode == 0
    refused = snowmelt("user", "add", "loader", "--role", "missing")
    assert refused.stderr == "snowmelt: Role MISSING does not exist.\n"
    assert not list(tmp_path.glob("*.pem"))
    assert snowmelt("sql", "SHOW USERS", "--format", "json").stdout == "[]\n"
