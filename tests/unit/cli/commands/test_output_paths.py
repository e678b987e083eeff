"""Commands that write files refuse to write into a data folder, or over what they read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from unit.cli.conftest import Finished


COMMANDS = {
    "copy": ("copy", "COPY demo.public.t FROM 'a.csv' REJECTED DATA '{}'"),
    "sql": ("sql", "COPY demo.public.t FROM 'a.csv' EXCEPTIONS '{}'"),
    "user": ("user", "add", "loader", "--key-out", "{}"),
    "cert": ("cert", "--out", "{}"),
    "record": ("functions", "record", "http://127.0.0.1:9", "--out", "{}", "--port", "0"),
    "tail": ("tail", "*.log", "--table", "demo.public.t", "--errors", "{}"),
    "tail --move-to": ("tail", "*.log", "--table", "demo.public.t", "--once", "--move-to", "{}"),
    "kafka": ("kafka", "--topic", "t", "--table", "demo.public.t", "--stream", "--errors", "{}"),
}


@pytest.fixture
def table(snowmelt: Callable[..., Finished], tmp_path: Path) -> None:
    snowmelt("sql", "CREATE DATABASE demo; CREATE TABLE demo.public.t (id NUMBER(9,0), w VARCHAR)")
    (tmp_path / "a.csv").write_text("1|one\nx|two\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_writes_into_the_data_folder(
    command: str, snowmelt: Callable[..., Finished], table: None, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "snowmelt-data")
    before = sorted((tmp_path / "snowmelt-data").rglob("*.pem"))
    for path in ("snowmelt-data/warehouse/x", "link/x"):
        told = snowmelt(*(each.format(path) for each in COMMANDS[command]))
        assert told.returncode == 1
        assert "Cannot write" in told.stderr
        assert "Name a file outside of it." in told.stderr
    assert sorted((tmp_path / "snowmelt-data").rglob("*.pem")) == before


def test_a_statement_in_a_file_is_not_replaced_by_its_rejects(
    snowmelt: Callable[..., Finished], table: None, tmp_path: Path
) -> None:
    text = "COPY demo.public.t FROM 'a.csv' REJECTED DATA 'load.sql' OVERWRITE"
    (tmp_path / "load.sql").write_text(text)
    told = snowmelt("copy", "-f", "load.sql")
    assert told.returncode == 1
    assert "load.sql" in told.stderr
    assert (tmp_path / "load.sql").read_text() == text


def test_refused_lines_are_not_written_to_a_file_that_is_followed(
    snowmelt: Callable[..., Finished], table: None, tmp_path: Path
) -> None:
    told = snowmelt("tail", "*.log", "--table", "demo.public.t", "--errors", "refused.log")
    assert told.returncode == 1
    assert "the command reads this file" in told.stderr
    assert not (tmp_path / "refused.log").exists()


def test_certificates_of_others_are_not_replaced(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    (tmp_path / "server.key").write_text("of somebody")
    told = snowmelt("cert", "--out", ".")
    assert told.returncode == 1
    assert "server.key" in told.stderr
    assert (tmp_path / "server.key").read_text() == "of somebody"
