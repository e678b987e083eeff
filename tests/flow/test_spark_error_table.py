"""An error table in Spark: rows of the SDK and of COPY, before and after migration, and replayed."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from snowmelt.client.line_source import CsvLineParser
from snowmelt.embedded import EmbeddedService
from snowmelt.loaders.error_replay import ErrorReplay, ErrorTableReadContext, ReplayOptions
from snowmelt.schema.types import TableName
from snowmelt.spark import Snowmelt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark


def test_refused_rows_are_queried_and_replayed(tmp_path: Path, spark: SparkSession) -> None:
    file = tmp_path / "numbers.csv"
    file.write_text("10|ten\n11|eleven\n")
    with contextlib.ExitStack() as opened:
        service = opened.enter_context(EmbeddedService(tmp_path / "data"))
        service.sql("CREATE DATABASE demo")
        service.sql(
            "CREATE TABLE demo.public.t (n NUMBER, word VARCHAR(3)) ERROR_TABLE = demo.public.bad"
        )
        client = opened.enter_context(service.client())
        with client.open_channel("c", table="demo.public.t", on_error="continue") as channel:
            channel.insert_rows([{"n": 1, "word": "one"}, {"n": 2, "word": "zwei"}], "2")
        lake = Snowmelt.local(tmp_path / "data", spark=spark, create=True)
        lake.sql(f"COPY demo.public.t FROM '{file}' ENFORCELENGTH")
        named = "SELECT table_name, error_table FROM demo.information_schema.tables"
        assert {tuple(row) for row in lake.sql(named).collect()} == {
            ("T", "DEMO.PUBLIC.BAD"),
            ("BAD", None),
        }
        query = (
            "SELECT protocol, offset_token, row_number, column_name, code, row_data, refused_at"
            " FROM demo.public.bad ORDER BY protocol"
        )
        for _ in range(2):
            copied, streamed = lake.sql(query).collect()
            assert tuple(copied[:6]) == (
                "copy", str(file), 2, "WORD", "rejected", "11|eleven",
            )  # fmt: skip
            assert tuple(streamed[1:5]) == ("2", 1, "WORD", "invalid_value")
            assert json.loads(streamed.row_data) == {"n": 2, "word": "zwei"}
            now = dt.datetime.now(dt.UTC)
            assert abs(now - streamed.refused_at.astimezone(dt.UTC)) < dt.timedelta(hours=1)
            lake.migrate("demo.public.bad")
        lake.sql("ALTER TABLE demo.public.t ALTER word SET DATA TYPE VARCHAR(9)")
        parts = service.service
        rows = CsvLineParser(["n", "word"], delimiter="|")
        options = ReplayOptions(
            table=TableName("DEMO", "PUBLIC", "T"),
            zone=ZoneInfo("UTC"),
            parse_text=lambda text: rows(text.encode(), 1) or "blank",
        )
        at = ErrorTableReadContext(parts.database, parts.keyring, parts.stage, parts.clock)
        for inserted in (2, 0):
            done = ErrorReplay(options, at).run(client)
            assert (done.inserted, done.already_inserted, done.rejected) == (
                inserted,
                2 - inserted,
                0,
            )
        found = lake.sql("SELECT n, word FROM demo.public.t ORDER BY n").collect()
        assert [(int(n), word) for n, word in found] == [
            (1, "one"), (2, "zwei"), (10, "ten"), (11, "eleven"),
        ]  # fmt: skip
