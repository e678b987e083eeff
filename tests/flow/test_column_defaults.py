"""Default values of columns: each way in fills the same values for the columns that a row lacks."""

from __future__ import annotations

import csv
import datetime as dt
import json
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from snowmelt.clock import SystemClock
from snowmelt.errors import LoadRefused, StatementError
from snowmelt.loaders.copy_job import CopyContext, run_copy
from snowmelt.loaders.load_task_execution import LocalTaskRunner
from snowmelt.spark import Snowmelt
from snowmelt.testing import LocalService

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = "demo.public.d"
UTC = dt.UTC
# Column, type, default, its value, and other values.
COLUMNS: list[tuple[str, str, str, Any, list[Any]]] = [
    ("N", "NUMBER(10,2) NOT NULL", "-1.50", Decimal("-1.50"), [Decimal("7.25")]),
    ("F", "FLOAT", "2.5e3", 2500.0, [0.5, None]),
    ("B", "BOOLEAN", "TRUE", True, [False, None]),
    ("T", "VARCHAR(20)", "'it''s new'", "it's new", ["", "é", None]),
    ("D", "DATE", "'2026-01-31'", dt.date(2026, 1, 31), [dt.date(1999, 12, 31), None]),
    (
        "AT",
        "TIMESTAMP_NTZ(9)",
        "'2026-03-08 02:30:00'",
        dt.datetime(2026, 3, 8, 2, 30),
        [dt.datetime(2026, 1, 1), None],
    ),
    ("P", "VARCHAR", "NULL", None, ["plain"]),
]
DEFAULTS = {name: value for name, _, _, value, _ in COLUMNS}
Row = dict[str, Any]


@pytest.fixture
def service() -> Iterator[LocalService]:
    with LocalService(dev=True) as started:
        listed = ", ".join(f"{name} {kind} DEFAULT {sql}" for name, kind, sql, _, _ in COLUMNS)
        started.create_table(
            TABLE, f"id INT NOT NULL, {listed}, made TIMESTAMP_LTZ(6) DEFAULT CURRENT_TIMESTAMP()"
        )
        yield started


def make_rows(
    chance: random.Random, count: int, first_id: int, *, alike: bool = False
) -> list[Row]:
    """Return rows that have random columns; `alike` gives all of them the same ones."""
    kept = [each for each in COLUMNS if chance.random() < 0.5]
    rows = []
    for number in range(first_id, first_id + count):
        if not alike:
            kept = [each for each in COLUMNS if chance.random() < 0.5]
        rows.append({"ID": number} | {name: chance.choice(more) for name, *_, more in kept})
    return rows


def as_texts(row: Row) -> Row:
    return {
        name: value if value is None or isinstance(value, bool | int | float) else str(value)
        for name, value in row.items()
    }


def copy(service: LocalService, clauses: str, path: Path, columns: str = "") -> None:
    embedded = service.embedded
    context = CopyContext(
        embedded.service.database,
        embedded.settings.warehouse_url,
        "ACCOUNTADMIN",
        SystemClock(),
    )
    done = run_copy(context, f"COPY {TABLE} {columns} FROM '{path}' {clauses}", LocalTaskRunner())
    assert done.totals.rejects == 0, done.reject_reasons


def by_insert_rows(service: LocalService, rows: list[Row]) -> None:
    with service.client() as client:
        channel = client.open_channel("rows", table=TABLE, default_timezone="UTC")
        assert channel.insert_rows(rows, offset_token="1").errors == []
        channel.wait_for_commit("1")


def by_insert_row(service: LocalService, rows: list[Row]) -> None:
    with service.client() as client:
        # The default rules of the SDK, which move a local time that Los Angeles skips.
        channel = client.open_channel("row", table=TABLE)
        for number, row in enumerate(rows):
            assert channel.insert_row(row, offset_token=f"{number}").errors == []
        channel.wait_for_commit(str(len(rows) - 1))


def by_insert_arrow(service: LocalService, rows: list[Row]) -> None:
    with service.client() as client:
        channel = client.open_channel("arrow", table=TABLE, default_timezone="UTC")
        assert channel.insert_arrow(pa.Table.from_pylist(rows), offset_token="1").errors == []
        channel.wait_for_commit("1")


def by_row_api(service: LocalService, rows: list[Row]) -> None:
    base = f"{service.url}/v2/streaming"
    channel = "databases/demo/schemas/public/pipes/d-STREAMING/channels/api"
    opened = httpx.put(f"{base}/{channel}", content=b"{}", trust_env=False)
    lines = "\n".join(json.dumps(as_texts(row)) for row in rows)
    done = httpx.post(
        f"{base}/data/{channel}/rows",
        params={"continuationToken": opened.json()["next_continuation_token"]},
        # Long enough for the reader of columns.
        content=lines + "\n" * 20_000,
        trust_env=False,
    )
    assert done.status_code == 200, done.text


def by_copy_json(service: LocalService, rows: list[Row]) -> None:
    path = service.folder / "rows.json"
    path.write_text("\n".join(json.dumps(as_texts(row)) for row in rows))
    copy(service, "PARSER JSON()", path)


def by_copy_csv_header(service: LocalService, rows: list[Row]) -> None:
    path = service.folder / "header.csv"
    write_csv(path, rows, header=True)
    copy(service, "PARSER CSV() NULL '-'", path)


def by_copy_list(service: LocalService, rows: list[Row]) -> None:
    path = service.folder / "list.csv"
    write_csv(path, rows, header=False)
    copy(service, "DELIMITER ',' ENCLOSED BY '\"' NULL '-'", path, f"({', '.join(rows[0])})")


def write_csv(path: Path, rows: list[Row], *, header: bool) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if header:
            writer.writerow(rows[0])
        for row in rows:
            writer.writerow("-" if value is None else value for value in row.values())


def by_copy_parquet(service: LocalService, rows: list[Row]) -> None:
    path = service.folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    copy(service, "PARSER PARQUET()", path)


def by_copy_avro(service: LocalService, rows: list[Row]) -> None:
    path = service.folder / "rows.avro"
    fields = [{"name": "ID", "type": "long"}]
    fields += [
        {"name": name, "type": ["null", "string", "double", "boolean"]}  # type: ignore[dict-item]
        for name in list(rows[0])[1:]
    ]
    schema = {"type": "record", "name": "r", "fields": fields}
    with path.open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(schema), [as_texts(row) for row in rows])
    copy(service, "PARSER FAVROPARSER()", path)


# Ways whose rows all have the same columns.
ALIKE: list[Callable[[LocalService, list[Row]], None]] = [
    by_insert_arrow,
    by_copy_csv_header,
    by_copy_list,
    by_copy_parquet,
    by_copy_avro,
]
WAYS: list[Callable[[LocalService, list[Row]], None]] = [
    by_insert_rows,
    by_insert_row,
    by_row_api,
    by_copy_json,
    *ALIKE,
]


def check(service: LocalService, rows: list[Row], since: dt.datetime, way: str) -> None:
    found = {row["ID"]: row for row in service.rows(TABLE)}
    for row in rows:
        stored = found[row["ID"]]
        for name, default in DEFAULTS.items():
            wanted = row.get(name, default)
            assert stored[name] == wanted, f"{way}: {name} of {row} is {stored[name]}"
        assert since <= stored["MADE"] <= dt.datetime.now(UTC), way  # type: ignore[operator]


def test_all_ways_fill_the_same_values(service: LocalService) -> None:
    chance = random.Random(21)
    since = dt.datetime.now(UTC) - dt.timedelta(seconds=1)
    written: list[tuple[str, list[Row]]] = []
    for turn in range(3):
        for number, way in enumerate(WAYS):
            first_id = 10_000 * turn + 1_000 * number
            rows = make_rows(chance, 40, first_id, alike=way in ALIKE)
            way(service, rows)
            written.append((way.__name__, rows))
    for name, rows in written:
        check(service, rows, since, name)


@pytest.mark.slow
@pytest.mark.spark
def test_rows_of_spark_get_the_same_values(service: LocalService, spark: SparkSession) -> None:
    chance = random.Random(22)
    since = dt.datetime.now(UTC) - dt.timedelta(seconds=1)
    folder = str(service.folder / "data")
    lake = Snowmelt.local(folder, spark=spark)
    rows = make_rows(chance, 5, 0, alike=True)
    frame = spark.createDataFrame(pa.Table.from_pylist(rows))
    frame.write.format("snowmelt").mode("append").option("data_dir", folder).save(TABLE)
    lake.sql(f"INSERT INTO {TABLE} (id, t) VALUES (10, NULL), (11, 'x')")
    lake.sql(
        f"MERGE INTO {TABLE} AS t USING (SELECT 12 AS id) AS s ON t.id = s.id "
        "WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)"
    )
    rows += [{"ID": 10, "T": None}, {"ID": 11, "T": "x"}, {"ID": 12}]
    check(service, rows, since, "Spark")
    with pytest.raises(LoadRefused, match="leave those out"):
        lake.sql(f"INSERT INTO {TABLE} (id, t) VALUES (13, DEFAULT)")
    described = lake.sql(f"DESCRIBE TABLE {TABLE}").collect()
    assert [row.default for row in described] == [
        None,
        "-1.50",
        "2.5e3",
        "TRUE",
        "'it''s new'",
        "'2026-01-31'",
        "'2026-03-08 02:30:00'",
        None,
        "CURRENT_TIMESTAMP()",
    ]
    [row] = lake.sql(
        "SELECT column_default FROM demo.information_schema.columns WHERE column_name = 'T'"
    ).collect()
    assert row[0] == "'it''s new'"


def test_changed_defaults_are_filled_in_each_way(service: LocalService) -> None:
    with service.client() as client:
        channel = client.open_channel("before", table=TABLE)
        channel.insert_row({"ID": 0}, "0")
        channel.wait_for_commit("0")
        service.sql(
            f"ALTER TABLE {TABLE} ALTER COLUMN n SET DEFAULT 3, COLUMN t DROP DEFAULT, "
            "COLUMN p SET DEFAULT 'p', COLUMN made SET DEFAULT CURRENT_TIMESTAMP"
        )
        # The client learns of the change when it sends these rows.
        channel.insert_row({"ID": 1}, "1")
        channel.wait_for_commit("1")
        channel.insert_row({"ID": 2}, "2")
        channel.wait_for_commit("2")
        found = {row["ID"]: (row["N"], row["T"], row["P"]) for row in service.rows(TABLE)}
        old, new = (Decimal("-1.50"), "it's new", None), (Decimal(3), None, "p")
        assert found == {0: old, 1: old, 2: new}
        assert channel.resume() == "2"
    for number, way in enumerate(WAYS, start=3):
        way(service, [{"ID": number}])
        found = {row["ID"]: (row["N"], row["T"], row["P"]) for row in service.rows(TABLE)}
        assert found[number] == new, way.__name__


def test_the_row_api_fills_a_changed_default_at_once(service: LocalService) -> None:
    base = f"{service.url}/v2/streaming"
    channel = "databases/demo/schemas/public/pipes/d-STREAMING/channels/api"
    with httpx.Client(trust_env=False) as http:
        token = http.put(f"{base}/{channel}", content=b"{}").json()["next_continuation_token"]
        for number, default in enumerate(("'a'", "'b'", "NULL")):
            service.sql(f"ALTER TABLE {TABLE} ALTER COLUMN p SET DEFAULT {default}")
            done = http.post(
                f"{base}/data/{channel}/rows",
                params={"continuationToken": token},
                content=json.dumps({"ID": number}),
            )
            assert done.status_code == 200, done.text
            token = done.json()["next_continuation_token"]
    assert [row["P"] for row in service.rows(TABLE)] == ["a", "b", None]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("n SET DEFAULT 'one'", "Invalid default for N"),
        ("n SET DEFAULT CURRENT_TIMESTAMP", "needs a column of a timestamp type"),
        ("made SET DEFAULT '2026-01-31 08:00:00'", "has no offset"),
        ("nothing DROP DEFAULT", "has no column NOTHING"),
    ],
)
def test_a_default_that_does_not_fit_is_refused_by_name(
    service: LocalService, change: str, message: str
) -> None:
    with pytest.raises(StatementError) as caught:
        service.sql(f"ALTER TABLE {TABLE} ALTER COLUMN {change}")
    assert message in str(caught.value)


def test_a_client_that_encodes_rows_itself_is_refused_by_name(service: LocalService) -> None:
    answer = httpx.post(
        f"{service.url}/v1/streaming/channels/open",
        json={
            "request_id": "x_1",
            "channel": "c",
            "database": "demo",
            "schema": "public",
            "table": "d",
            "write_mode": "CLOUD_STORAGE",
        },
        trust_env=False,
    ).json()
    assert answer["status_code"] != 0
    assert "column N has the default -1.50" in answer["message"]
    assert "Use Snowmelt's SDK or the row API" in answer["message"]
