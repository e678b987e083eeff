"""`snowmelt init`: a new installation, and the same again."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from unit.cli.conftest import Finished


pytestmark = pytest.mark.slow


def test_an_installation_is_made_and_the_second_time_nothing_changes(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    made = snowmelt("init", "--yes", "--port", "1", "--table", 'shop.public."Orders"')
    assert made.returncode == 0, made.stderr
    file = tmp_path / "snowmelt.toml"
    document = tomllib.loads(file.read_text())
    assert document["settings"] == {"data_dir": "snowmelt-data", "port": 1, "s3_port": 9000}
    assert document["profiles"]["default"]["private_key"] == "admin.pem"
    assert (tmp_path / "admin.pem").stat().st_mode & 0o777 == 0o600
    assert "Next:\n  snowmelt serve\n" in made.stdout
    assert (
        json.loads(snowmelt("sql", "SHOW USERS", "--format", "json").stdout)[0]["name"] == "ADMIN"
    )
    before = {path: path.read_bytes() for path in (file, tmp_path / "admin.pem")}
    again = snowmelt("init", "--yes", "--port", "2")
    assert again.returncode == 0, again.stderr
    assert "snowmelt.toml exists: kept." in again.stdout
    assert "User admin exists: kept." in again.stdout
    assert {path: path.read_bytes() for path in before} == before


def test_each_commented_setting_is_its_default(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    snowmelt("init", "--yes", "--port", "1")
    file = tmp_path / "snowmelt.toml"
    text = file.read_text()
    head, _, rest = text.partition("[settings]")
    settings = rest.partition("# Address of the service")[0]
    lines = [line.removeprefix("# ") for line in settings.splitlines() if " = " in line]
    file.write_text(head + "[settings]\n" + "\n".join(lines))
    changed = json.loads(snowmelt("settings", "--format", "json").stdout)
    names = {row["setting"] for row in changed if row["value"] != row["default"]}
    assert names == {"data_dir", "port"}
    assert {row["from"].partition(":")[0] for row in changed} == {"snowmelt.toml"}


def test_without_a_terminal_and_without_yes_nothing_is_made(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    refused = snowmelt("init")
    assert (refused.returncode, "Add --yes" in refused.stderr) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_a_key_file_of_somebody_else_is_kept(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    (tmp_path / "admin.pem").write_text("precious")
    refused = snowmelt("init", "--yes")
    assert (refused.returncode, "Move the file away" in refused.stderr) == (1, True)
    assert (tmp_path / "admin.pem").read_text() == "precious"


def test_on_a_terminal_each_value_is_asked_for(tmp_path: Path) -> None:
    outer, inner = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "snowmelt", "init"],
        cwd=tmp_path,
        stdin=inner,
        stdout=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("SNOWMELT_")}
        | {"XDG_CONFIG_HOME": str(tmp_path / "none")},
    )
    os.write(outer, b"here\n1\n0\nann\n\n")
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output
    settings = tomllib.loads((tmp_path / "snowmelt.toml").read_text())
    assert settings["settings"] == {"data_dir": "here", "port": 1, "s3_port": 0}
    assert settings["profiles"]["default"]["user"] == "ann"
    assert (tmp_path / "ann.pem").exists()
    os.close(outer)
    os.close(inner)
