"""Native tables are Iceberg tables: whoever reads those reads ours, by the address of the metadata."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import polars as pl
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable

from fixtures.chunks import Lakehouse
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.cli.main import main
from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.types import Column, LogicalType, TableName

pytestmark = pytest.mark.slow

NAME = TableName("DEMO", "PUBLIC", "READ")
COLUMNS = (
    Column("ID", LogicalType.FIXED, 1, nullable=False, precision=18, scale=0),
    Column("AMOUNT", LogicalType.FIXED, 2, precision=38, scale=10),
    Column("WORD", LogicalType.TEXT, 3, length=100, byte_length=400),
    Column("RATIO", LogicalType.REAL, 4),
    Column("DAY", LogicalType.DATE, 5),
    Column("AT", LogicalType.TIMESTAMP_TZ, 6, scale=9),
    Column("NTZ", LogicalType.TIMESTAMP_NTZ, 7, scale=6),
    Column("CLOCK", LogicalType.TIME, 8, scale=3),
    Column("DOC", LogicalType.VARIANT, 9),
    Column("RAW", LogicalType.BINARY, 10, byte_length=100),
    Column("FLAG", LogicalType.BOOLEAN, 11),
)
ROW = {
    "AMOUNT": Decimal("-1234567890123456789.0123456789"),
    "WORD": "Grüße",
    "RATIO": 0.5,
    "DAY": "2013-01-31",
    "AT": "2013-01-31T10:11:12.123456789-03:30",
    "NTZ": "1969-12-31T23:59:59.999999",
    "CLOCK": "23:59:59.123",
    "DOC": '{"a":[1,2]}',
    "RAW": b"\x00\xff",
    "FLAG": True,
}
WANTED = {
    "AMOUNT": ROW["AMOUNT"],
    "TERM": "Grüße",
    "RATIO": 0.5,
    "DAY": dt.date(2013, 1, 31),
    "AT": dt.datetime(2013, 1, 31, 13, 41, 12, 123_456, dt.UTC),
    "AT$ns": 789,
    "AT$tz": -210,
    "NTZ": dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    "CLOCK": dt.time(23, 59, 59, 123_000),
    "DOC": '{"a":[1,2]}',
    "RAW": b"\x00\xff",
    "FLAG": True,
    "EXTRA": None,
}
COUNT = 40


@pytest.fixture
def pointer(
    lakehouse: Lakehouse, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> str:
    """The metadata of a table with files from before and after its columns changed, and a chunk."""

    def put(name: str, first: int, count: int) -> None:
        schema = lakehouse.table(NAME).schema
        rows = [{"ID": n, **ROW} for n in range(first, first + count)]
        for row in rows:
            row[name] = row.pop("WORD")
        converted = RowConverter(schema, zone=ZoneInfo("UTC")).convert(rows)
        assert not converted.errors
        lakehouse.put(converted.table, NAME)

    lakehouse.create(NAME, COLUMNS)
    put("WORD", 0, COUNT // 2)
    lakehouse.migrate(NAME)
    for change in ("RENAME COLUMN word TO term", "ADD COLUMN extra VARCHAR(10)"):
        execute_statement(lakehouse.database, f"ALTER TABLE demo.public.read {change}", user=None)
    put("TERM", COUNT // 2, COUNT // 2)
    lakehouse.migrate(NAME)
    put("TERM", COUNT, 5)  # is not there yet
    monkeypatch.setenv("SNOWMELT_DATA_DIR", str(lakehouse.folder))
    assert main(["metadata", "demo.public.read"]) == 0
    return capsys.readouterr().out.strip()


def check(rows: Any) -> None:
    rows = sorted(rows, key=lambda row: row["ID"])
    assert [int(row.pop("ID")) for row in rows] == list(range(COUNT))
    assert all(row == WANTED for row in rows), rows[0]


def test_pyiceberg_reads_the_table_and_takes_it_into_its_catalogs(
    pointer: str, tmp_path: Path
) -> None:
    check(StaticTable.from_metadata(pointer).scan().to_arrow().to_pylist())
    catalog = SqlCatalog("theirs", uri=f"sqlite:///{tmp_path}/theirs.db", warehouse=str(tmp_path))
    catalog.create_namespace("demo")
    table = catalog.register_table("demo.read", pointer)
    found = table.scan(row_filter="ID >= 30", selected_fields=("ID", "TERM")).to_arrow()
    assert sorted(map(int, found.column("ID").to_pylist())) == list(range(30, COUNT))
    catalog.close()


def test_polars_reads_the_table(pointer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its own planner is a package of its own, and it warns where that is not installed.
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    check(pl.scan_iceberg(pointer).collect().to_dicts())
    table = StaticTable.from_metadata(pointer)
    assert pl.scan_iceberg(table).filter(pl.col("ID") < 7).select(pl.len()).collect().item() == 7


def test_duckdb_reads_what_pyiceberg_plans(pointer: str) -> None:
    table = StaticTable.from_metadata(pointer)
    with duckdb.connect() as connection:
        read = connection.from_arrow(table.scan().to_arrow())
        found = read.aggregate("count(*), sum(AMOUNT), max(TERM), min(DOC->'$.a[1]')").fetchall()
    assert found == [(COUNT, Decimal("-49382715604938271560.4938271560"), "Grüße", "2")]


def test_the_address_is_that_of_every_table_or_a_sentence(
    lakehouse: Lakehouse, pointer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lakehouse.create(TableName("DEMO", "PUBLIC", "NEW"), COLUMNS[:1], replace=True)
    assert main(["metadata", "demo.public.new"]) == 1
    assert "no native files yet" in capsys.readouterr().err
    assert main(["metadata", "--format", "csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "table,waiting_chunks,metadata"
    assert f"DEMO.PUBLIC.READ,1,{pointer}" in lines
