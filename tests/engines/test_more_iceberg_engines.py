"""ClickHouse, Daft and Spark with Iceberg's runtime read streamed rows, unmodified."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from fixtures.engines import ROOT, Lake, make_environment
from fixtures.s3 import S3Process
from fixtures.service import KeyPair
from interop.test_iceberg_engines import TABLE, wait_for_ids

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
OTHERS = ("chdb==4.4.0", "daft[iceberg]==0.7.26")
SPARK = ("pyspark==4.0.1",)
ICEBERG_VERSIONS = ("1.10.1", "1.11.0")
ENGINES = ("clickhouse", "daft", *(f"spark-{version}" for version in ICEBERG_VERSIONS))


def find_jars(version: Any) -> str:
    """Return Iceberg's runtime of a version and its AWS bundle, fetched by Maven once."""
    folder = ROOT / ".tools" / "jars"
    found = []
    for artifact in ("iceberg-spark-runtime-4.0_2.13", "iceberg-aws-bundle"):
        jar = folder / f"{artifact}-{version}.jar"
        if not jar.exists():
            name = f"org.apache.iceberg:{artifact}:{version}"
            command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={name}"]
            subprocess.run([*command, f"-DoutputDirectory={folder}"], check=True)
        found.append(str(jar))
    return ",".join(found)


@pytest.fixture
def lake(own_s3: S3Process, key_pair: KeyPair) -> Lake:
    return Lake(own_s3, key_pair)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, lake: Lake, open_engine: Any) -> Any:
    name, _, version = request.param.partition("-")
    if name == "spark":
        python = make_environment("spark-4.0", SPARK)
        extra: tuple[str, ...] = (find_jars(version),)
    else:
        python = make_environment("more-engines", OTHERS)
        extra = (f"{lake.process.url}/snowmelt-warehouse",) if name == "clickhouse" else ()
    return open_engine(name, lake.uri, "DEMO", lake.token, python=Path(python), extra=extra)


def test_rows_are_seen_while_they_stream(lake: Lake, engine: Any) -> None:
    with lake.client() as client:
        channel = client.open_channel("c", table="demo.public.t")
        for call in range(30):
            rows = [{"id": call * 10 + each, "name": f"n{each}"} for each in range(10)]
            channel.insert_rows(rows, offset_token=str(call))
            if call % 5 == 4:
                channel.wait_for_commit(str(call))
                wait_for_ids(engine, (call + 1) * 10)
    found = engine.read(TABLE, "ID", "NAME")
    assert {row[1] for row in found} == {f"n{each}" for each in range(10)}


def test_migrated_and_fresh_rows_are_read_together(lake: Lake, engine: Any) -> None:
    with lake.client() as client:
        channel = client.open_channel("c", table="demo.public.t")
        for call in range(3):
            rows = [{"id": call * 10 + each} for each in range(10)]
            channel.insert_rows(rows, offset_token=str(call))
            channel.wait_for_commit(str(call))
            if call < 2:
                lake.migrate()
            wait_for_ids(engine, (call + 1) * 10)


def change(engine: Any, lake: Any, *queries: Any) -> None:
    """Run statements of an engine while rows stream into the table that they change."""
    with lake.client() as client:
        channel = client.open_channel("beside", table="demo.public.t")
        for number, query in enumerate(queries):
            channel.insert_rows([{"id": 1000 + number}], offset_token=str(number))
            engine.ask(query=query)
        channel.wait_for_commit(str(len(queries) - 1))


@pytest.mark.parametrize("version", ICEBERG_VERSIONS)
def test_spark_changes_rows_beside_a_stream(lake: Any, open_engine: Any, version: Any) -> None:
    lake.service.sql(
        "GRANT INSERT, UPDATE, DELETE ON TABLE demo.public.t TO ROLE reading",
        "CREATE TABLE demo.public.changes (id NUMBER, name VARCHAR)",
        "GRANT SELECT, INSERT ON TABLE demo.public.changes TO ROLE reading",
    )
    with lake.client() as client:
        channel = client.open_channel("c", table="demo.public.t")
        channel.insert_rows([{"id": each, "name": "s"} for each in range(10)], offset_token="1")
        channel.wait_for_commit("1")
        lake.migrate()
        channel.insert_rows([{"id": each, "name": "s"} for each in range(10, 20)], offset_token="2")
        channel.wait_for_commit("2")
    # Without its cache, a statement sees two snapshots, and stops.
    python, extra = make_environment("spark-4.0", SPARK), (find_jars(version), "true")
    engine = open_engine("spark", lake.uri, "DEMO", lake.token, python=Path(python), extra=extra)
    while engine.count(TABLE) < 20:
        engine.ask(query=f"REFRESH TABLE lake.{TABLE}")
    change(
        engine,
        lake,
        "INSERT INTO lake.PUBLIC.T VALUES (100, 'i', NULL, NULL), (101, 'i', NULL, NULL)",
        "INSERT INTO lake.PUBLIC.CHANGES VALUES (3, 'm'), (13, 'm'), (102, 'm')",
        "DELETE FROM lake.PUBLIC.T WHERE ID IN (5, 15)",
        "UPDATE lake.PUBLIC.T SET NAME = 'u' WHERE ID IN (6, 16)",
        "MERGE INTO lake.PUBLIC.T USING lake.PUBLIC.CHANGES AS c ON T.ID = c.ID "
        "WHEN MATCHED THEN UPDATE SET NAME = c.NAME WHEN NOT MATCHED THEN "
        "INSERT (ID, NAME, `AT`, `AT$ns`) VALUES (c.ID, c.NAME, NULL, NULL)",
    )
    expected: dict[int, str | None] = {each: "s" for each in range(20) if each not in (5, 15)}
    expected |= {100: "i", 101: "i", 6: "u", 16: "u", 3: "m", 13: "m", 102: "m"}
    expected |= {1000 + each: None for each in range(5)}
    while len(found := engine.read(TABLE, "ID", "NAME")) < len(expected):
        engine.ask(query=f"REFRESH TABLE lake.{TABLE}")
    assert {int(row[0]): row[1] for row in found} == expected


@pytest.mark.parametrize("engine", ["clickhouse"], indirect=True)
def test_clickhouse_inserts_rows_beside_a_stream(lake: Any, engine: Any) -> None:
    lake.service.sql("GRANT INSERT ON TABLE demo.public.t TO ROLE reading")
    with lake.client() as client:
        channel = client.open_channel("c", table="demo.public.t")
        channel.insert_rows([{"id": each} for each in range(10)], offset_token="1")
        channel.wait_for_commit("1")
    wait_for_ids(engine, 10)
    change(
        engine,
        lake,
        f"INSERT INTO lake.`{TABLE}` (ID, NAME) SETTINGS allow_experimental_insert_into_iceberg = 1 "
        "VALUES (10, 'c')",
    )
    while engine.count(TABLE) < 12:
        pass
