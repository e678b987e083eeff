"""`snowmelt channels`."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.streaming.channels import open_channel
from snowmelt.schema.types import TableName

if TYPE_CHECKING:
    from unit.cli.conftest import Finished


NOW = dt.datetime(2026, 3, 4, tzinfo=dt.UTC)


@pytest.fixture
def opened(snowmelt: Callable[..., Finished], tmp_path: Path) -> None:
    """Channels EWR and JFK on demo.public.t."""
    snowmelt("sql", "CREATE DATABASE demo; CREATE TABLE demo.public.t (a INT)")
    with (
        contextlib.closing(
            open_and_upgrade_database(str(tmp_path / "snowmelt-data" / "catalog.db"))
        ) as catalog,
        catalog.writing() as connection,
    ):
        table = find_table(connection, TableName("DEMO", "PUBLIC", "T"))
        for name in ("EWR", "JFK"):
            open_channel(
                connection, table, name, user="U", client_prefix="p", request_id=name, now=NOW
            )


@pytest.mark.slow
def test_channels_are_listed_and_dropped(snowmelt: Callable[..., Finished], opened: None) -> None:
    listed = snowmelt("channels", "list", "--table", "demo.public.t", "--format", "json")
    assert [row["name"] for row in json.loads(listed.stdout)] == ["EWR", "JFK"]
    dropped = snowmelt("channels", "drop", "EWR", "--table", "demo.public.t")
    assert (
        dropped.stdout == "Channel EWR of DEMO.PUBLIC.T dropped; its last offset token was none.\n"
    )
    listed = snowmelt("channels", "list", "--format", "csv")
    assert [line.split(",")[1] for line in listed.stdout.splitlines()] == ["name", "JFK"]


def test_a_token_that_is_set_fences_the_owner(
    snowmelt: Callable[..., Finished], opened: None
) -> None:
    place = ("--table", "demo.public.t", "--token", "41")
    done = snowmelt("channels", "set-token", "EWR", *place)
    assert done.stdout == "Channel EWR of DEMO.PUBLIC.T has offset token '41'; it was none.\n"
    assert snowmelt("channels", "set-token", "LGA", *place).returncode == 0
    listed = snowmelt("channels", "list", "--format", "json")
    rows = {row["name"]: row for row in json.loads(listed.stdout)}
    assert [rows[name]["offset_token"] for name in ("EWR", "JFK", "LGA")] == ["41", None, "41"]
    assert rows["EWR"]["client_sequencer"] == rows["JFK"]["client_sequencer"] + 1


def test_a_channel_that_is_not_there_is_named(
    snowmelt: Callable[..., Finished], opened: None
) -> None:
    refused = snowmelt("channels", "drop", "LGA", "--table", "demo.public.t")
    assert refused.returncode == 1
    assert "LGA" in refused.stderr


def test_short_table_names_are_refused(snowmelt: Callable[..., Finished]) -> None:
    refused = snowmelt("channels", "drop", "EWR", "--table", "t")
    assert "such as demo.public.flights" in refused.stderr


def test_a_folder_without_catalog_is_not_made_by_looking(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    refused = snowmelt("channels", "list", "--data-dir", "typo")
    assert refused.returncode == 1
    assert "there is no catalog at" in refused.stderr
    assert not (tmp_path / "typo").exists()
