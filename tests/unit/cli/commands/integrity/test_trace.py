"""`snowmelt trace`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.embedded import EmbeddedService
from snowmelt.integrity.trace import Tracer
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.migration import MigrationSettings, migrate_table
from snowmelt.table.warehouse_paths import open_warehouse

if TYPE_CHECKING:
    from unit.cli.conftest import Finished

TABLE = TableName("DEMO", "PUBLIC", "T")


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedService]:
    """A table with two migrated chunks and one that waits."""
    with EmbeddedService(tmp_path / "snowmelt-data") as embedded, embedded.client() as client:
        embedded.sql("CREATE DATABASE demo")
        embedded.sql("CREATE TABLE demo.public.t (a INT)")
        for token in (2, 4, 6):
            with client.open_channel("c", table="demo.public.t") as channel:
                channel.insert_rows([{"a": token - 1}, {"a": token}], offset_token=str(token))
            if token == 4:
                service, settings = embedded.service, embedded.service.settings
                places = MigrationSettings(settings.stage_url, settings.warehouse_url)
                migrate_table(service.database, service.keyring, TABLE, places)
        yield embedded


def traces(done: Finished) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_token_leads_to_its_chunk_and_file(
    snowmelt: Callable[..., Finished], embedded: EmbeddedService
) -> None:
    ask = ("trace", "demo.public.t", "--format", "json")
    [chunk] = traces(snowmelt(*ask, "--channel", "c", "--token", "4"))
    assert (chunk["seq"], chunk["state"], chunk["rows"]) == (2, "native", 2)
    assert chunk["channels"][0]["end_token"] == "4"
    [place] = chunk["files"]
    assert (place["rows"], place["row_groups"]) == ([2, 3], [0])
    # A token between two commits belongs to the one that ends after it.
    [chunk] = traces(snowmelt(*ask, "--channel", "c", "--token", "5"))
    assert (chunk["seq"], chunk["state"], chunk["files"]) == (3, "waiting", [])
    [whole] = traces(snowmelt(*ask, "--file", place["path"]))
    assert whole["chunk_ranges"] == [[1, 2]]
    assert [each["seq"] for each in whole["chunks"]] == [1, 2]


@pytest.mark.slow
def test_a_migrated_chunk_does_not_wait(embedded: EmbeddedService) -> None:
    service, settings = embedded.service, embedded.service.settings
    warehouse = open_warehouse(settings.warehouse_url)
    parts = (service.database, service.keyring, open_store(settings.stage_url), warehouse, TABLE)
    tracer = Tracer(*parts)
    places = MigrationSettings(settings.stage_url, settings.warehouse_url)
    # It commits after the tracer has read the files of the table.
    migrate_table(service.database, service.keyring, TABLE, places)
    [chunk] = tracer.trace_chunks([3])
    assert chunk.state == "native"
    assert chunk.migration is not None
    with service.database.writing() as connection:
        connection.execute(sa.delete(model.native_files))
    [chunk] = Tracer(*parts).trace_chunks([3])
    assert (chunk.state, chunk.files) == ("changed", ())


@pytest.mark.slow
def test_a_row_leads_back_to_its_token(
    snowmelt: Callable[..., Finished], embedded: EmbeddedService
) -> None:
    found = traces(snowmelt("trace", "demo.public.t", "--where", "a IN (3, 6)", "--format", "json"))
    assert [row["chunks"][0]["channels"][0]["end_token"] for row in found] == ["4", "6"]
    text = snowmelt("trace", "demo.public.t", "--where", "A = 3").stdout
    assert "A=Decimal('3')" in text
    assert "channel C of user" in text


@pytest.mark.slow
def test_what_cannot_be_traced_is_a_sentence(
    snowmelt: Callable[..., Finished], embedded: EmbeddedService
) -> None:
    done = snowmelt("trace", "demo.public.t", "--channel", "c", "--token", "x")
    assert done.returncode != 0
    assert (
        "No commit of channel C has offset token 'x'; its commits end with '2' to '6'."
        in done.stderr
    )
    done = snowmelt("trace", "demo.public.t", "--where", "nothing = 1")
    assert "Invalid condition 'nothing = 1'" in done.stderr
    done = snowmelt("trace", "demo.public.t", "--chunk", "9")
    assert "Chunk 9 of table DEMO.PUBLIC.T not found" in done.stderr
    done = snowmelt("trace", "demo.public.t", "--file", "nowhere.parquet")
    assert "No file of table DEMO.PUBLIC.T ends with 'nowhere.parquet'." in done.stderr
    done = snowmelt("trace", "demo.public.t", "--chunk", "1", "--token", "2")
    assert "--token requires --channel. Add --channel, or omit --token." in done.stderr
    done = snowmelt("trace", "demo.public.t", "--channel", "c", "--limit", "0")
    assert "Invalid --limit 0. Give a number of at least 1." in done.stderr
