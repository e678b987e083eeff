"""`snowmelt chunks`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from snowmelt.embedded import EmbeddedService
from snowmelt.schema.types import TableName
from snowmelt.table.migration import MigrationSettings, migrate_table
from snowmelt.table.table_reader import read_table

if TYPE_CHECKING:
    from unit.cli.conftest import Finished


TABLE = TableName("DEMO", "PUBLIC", "T")


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedService]:
    """A table of three rows in two chunks, the first of which is damaged and set aside."""
    with EmbeddedService(tmp_path / "snowmelt-data") as embedded, embedded.client() as client:
        embedded.sql("CREATE DATABASE demo")
        embedded.sql("CREATE TABLE demo.public.t (a INT)")
        with client.open_channel("c", table="demo.public.t") as channel:
            channel.insert_rows([{"a": 1}, {"a": 2}])
        (blob,) = (tmp_path / "snowmelt-data" / "stage").rglob("*.bdec")
        whole = blob.read_bytes()
        blob.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        with client.open_channel("c", table="demo.public.t") as channel:
            channel.insert_row({"a": 3})
        service, settings = embedded.service, embedded.service.settings
        places = MigrationSettings(settings.stage_url, settings.warehouse_url)
        migrate_table(service.database, service.keyring, TABLE, places)
        yield embedded


@pytest.mark.slow
def test_a_chunk_that_was_set_aside_is_listed_and_given_up(
    snowmelt: Callable[..., Finished], embedded: EmbeddedService
) -> None:
    (found,) = json.loads(snowmelt("chunks", "list", "--format", "json").stdout)
    assert (found["table"], found["chunk"], found["rows"]) == ("DEMO.PUBLIC.T", 1, 2)
    given = snowmelt("chunks", "give-up", "1", "--table", "demo.public.t")
    assert given.stdout == (
        "Chunk 1 of DEMO.PUBLIC.T discarded, with 2 rows. The rest of the table can be queried.\n"
    )
    assert json.loads(snowmelt("chunks", "list", "--format", "json").stdout) == []
    service = embedded.service
    rows = read_table(service.database, service.keyring, service.stage, TABLE)
    assert [int(row["A"]) for row in rows.to_pylist()] == [3]


@pytest.mark.slow
def test_only_what_was_set_aside_can_be_given_up(
    snowmelt: Callable[..., Finished], embedded: EmbeddedService
) -> None:
    refused = snowmelt("chunks", "give-up", "2", "--table", "demo.public.t")
    assert refused.returncode == 1
    assert "Chunk 2 of DEMO.PUBLIC.T is not quarantined" in refused.stderr


def test_help_says_what_is_lost_and_how_to_ask(snowmelt: Callable[..., Finished]) -> None:
    assert "snowmelt chunks give-up 4711 --table" in snowmelt("chunks", "--help").stdout
    assert "Its rows are lost" in snowmelt("chunks", "give-up", "--help").stdout
