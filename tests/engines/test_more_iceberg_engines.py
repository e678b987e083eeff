"""ClickHouse, Daft and Spark with Iceberg's runtime read streamed rows, unmodified."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fixtures.engines import ROOT, Lake, make_environment
from interop.test_iceberg_engines import TABLE, wait_for_ids

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
OTHERS = ("chdb==4.4.0", "daft[iceberg]==0.7.26")
SPARK = ("pyspark==4.0.1",)
ICEBERG_VERSIONS = ("1.10.1", "1.11.0")
ENGINES = ("clickhouse", "daft", *(f"spark-{version}" for version in ICEBERG_VERSIONS))


def find_jars(version):
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
def lake(own_s3, key_pair):
    return Lake(own_s3, key_pair)


@pytest.fixture(params=ENGINES)
def engine(request, lake, open_engine):
    name, _, version = request.param.partition("-")
    if name == "spark":
        python = make_environment("spark-4.0", SPARK)
        extra = (find_jars(version),)
    else:
        python = make_environment("more-engines", OTHERS)
        extra = (f"{lake.process.url}/snowmelt-warehouse",) if name == "clickhouse" else ()
    return open_engine(name, lake.uri, "DEMO", lake.token, python=Path(python), extra=extra)


def test_rows_are_seen_while_they_stream(lake, engine):
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


def test_migrated_and_fresh_rows_are_read_together(lake, engine):
    with lake.client() as client:
        channel = client.open_channel("c", table="demo.public.t")
        for call in range(3):
            rows = [{"id": call * 10 + each} for each in range(10)]
            channel.insert_rows(rows, offset_token=str(call))
            channel.wait_for_commit(str(call))
            if call < 2:
                lake.migrate()
            wait_for_ids(engine, (call + 1) * 10)
