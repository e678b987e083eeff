"""Unmodified engines read streamed rows through the Iceberg REST catalog."""

from __future__ import annotations

import itertools
import os
import re
import signal
import time
from typing import Any

import pytest

from fixtures.engines import Lake
from fixtures.s3 import S3Process, Seaweed
from fixtures.service import KeyPair

pytestmark = pytest.mark.slow
ENGINES = ("pyiceberg", "duckdb", "polars")
TABLE = "PUBLIC.T"


@pytest.fixture
def lake(own_s3: S3Process, key_pair: KeyPair) -> Lake:
    return Lake(own_s3, key_pair)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, lake: Lake, open_engine: Any) -> Any:
    return open_engine(request.param, lake.uri, "DEMO", lake.token)


def ids(engine: Any) -> list[Any]:
    return sorted(int(row[0]) for row in engine.read(TABLE, "ID"))


def wait_for_ids(engine: Any, count: int) -> int:
    """Read until all rows are there; what is seen never goes back and is never half an insert."""
    seen, give_up_at = 0, time.monotonic() + 120
    while seen < count:
        found = ids(engine)
        assert found == list(range(len(found)))
        assert len(found) >= seen
        assert len(found) % 10 == 0
        seen = len(found)
        assert time.monotonic() < give_up_at, f"{seen} of {count} rows"
    return seen


def test_rows_are_seen_while_they_stream(lake: Lake, engine: Any) -> None:
    with lake.client() as client:
        channel = client.open_channel("c", table="demo.public.t")
        for call in range(50):
            rows = [{"id": call * 10 + each, "name": f"n{each}"} for each in range(10)]
            channel.insert_rows(rows, offset_token=str(call))
            if call % 10 == 9:
                wait_for_ids(engine, call * 10 - 100)
        channel.wait_for_commit("49")
        wait_for_ids(engine, 500)


def test_a_committed_row_is_seen_by_the_first_query(lake: Lake, open_engine: Any) -> None:
    with lake.client() as client:
        channel = client.open_channel("c", table="demo.public.t")
        channel.insert_rows([{"id": each} for each in range(10)], offset_token="1")
        channel.wait_for_commit("1")
    for name in ENGINES:
        engine = open_engine(name, lake.uri, "DEMO", lake.token)
        assert ids(engine) == list(range(10)), name


def test_values_are_those_of_the_table(lake: Lake, engine: Any) -> None:
    rows: list[dict[str, object]] = [
        {"id": 1, "name": "Grüße 🚀", "at": "2026-11-23T10:11:12.123456"},
        {"id": 2, "name": None, "at": "1900-01-01T00:00:00"},
        {"id": 3, "name": "", "at": None},
    ]
    with lake.client() as client:
        channel = client.open_channel("c", table="demo.public.t")
        channel.insert_rows(rows, offset_token="1")
        channel.wait_for_commit("1")
    found = sorted(engine.read(TABLE, "ID", "NAME", "AT"))
    assert found == [
        ["1", "Grüße 🚀", "2026-11-23 10:11:12.123456"],
        ["2", None, "1900-01-01 00:00:00"],
        ["3", "", None],
    ]


def test_rows_stay_the_same_across_migrations_and_compaction(
    own_s3: S3Process, key_pair: KeyPair, open_engine: Any
) -> None:
    settings = {
        "migrate": "1",
        "migrate_interval_s": "0.5",
        "migrate_max_age_s": "1",
        "compact_interval_s": "2",
        "compact_min_files": "2",
        "cleanup_interval_s": "1",
    }
    lake = Lake(own_s3, key_pair, **settings)
    engines = [open_engine(name, lake.uri, "DEMO", lake.token) for name in ENGINES]
    seen = dict.fromkeys(ENGINES, 0)
    with lake.client() as client:
        channel = client.open_channel("c", table="demo.public.t")
        for call in range(40):
            channel.insert_rows(
                [{"id": call * 10 + each} for each in range(10)], offset_token=str(call)
            )
            for engine in engines:
                found = ids(engine)
                assert found == list(range(len(found))), engine.name
                assert len(found) >= seen[engine.name], engine.name
                seen[engine.name] = len(found)
        channel.wait_for_commit("39")
    for engine in engines:
        wait_for_ids(engine, 400)


def test_a_killed_publisher_is_replaced(lake: Lake, open_engine: Any) -> None:
    engine = open_engine("duckdb", lake.uri, "DEMO", lake.token)
    with lake.client() as client:
        channel = client.open_channel("c", table="demo.public.t")
        for call in range(3):
            rows = [{"id": call * 10 + each} for each in range(10)]
            channel.insert_rows(rows, offset_token=str(call))
            channel.wait_for_commit(str(call))
            wait_for_ids(engine, (call + 1) * 10)
            pids = re.findall(r"the publisher runs as process (\d+)", lake.service.log)
            assert len(pids) == call + 1
            os.kill(int(pids[-1]), signal.SIGKILL)


def test_a_publisher_killed_at_any_point_loses_and_doubles_nothing(
    own_s3: S3Process, key_pair: KeyPair, open_engine: Any
) -> None:
    lake = Lake(own_s3, key_pair)
    calls = itertools.count()
    for point in ("file", "written", "inside_commit", "committed"):
        own_s3.service.kill()
        died = lake.service.log.count("the publisher ended with status -9")
        # A publisher dies at its third passage; the next one goes on.
        own_s3.start(fault=f"publication.{point}=kill:3")
        engine = open_engine("duckdb", lake.uri, "DEMO", lake.token)
        with lake.client() as client:
            channel = client.open_channel("c", table="demo.public.t")
            for call in calls:
                rows = [{"id": call * 10 + each} for each in range(10)]
                channel.insert_rows(rows, offset_token=str(call))
                channel.wait_for_commit(str(call))
                wait_for_ids(engine, (call + 1) * 10)
                if lake.service.log.count("the publisher ended with status -9") > died:
                    break


def test_the_settled_warehouse_has_native_rows_only(lake: Lake, open_engine: Any) -> None:
    with lake.client() as client:
        channel = client.open_channel("c", table="demo.public.t")
        channel.insert_rows([{"id": each} for each in range(10)], offset_token="1")
        channel.wait_for_commit("1")
    for name in ENGINES:
        engine = open_engine(name, lake.uri, "DEMO@settled", lake.token)
        assert ids(engine) == [], name


def test_a_warehouse_in_a_bucket_is_read_through_the_endpoint(
    own_s3: S3Process,
    key_pair: KeyPair,
    open_engine: Any,
    seaweed: Seaweed,
    request: pytest.FixtureRequest,
) -> None:
    own_s3.service.environment.update(seaweed.environment)
    place = f"s3://behind/engines-{abs(hash(request.node.nodeid)) % 10**9}"
    lake = Lake(
        own_s3,
        key_pair,
        warehouse_url=place,
        migrate="1",
        migrate_max_age_s="1",
        migrate_interval_s="0.5",
    )
    with lake.client() as client:
        channel = client.open_channel("c", table="demo.public.t")
        for call in range(5):
            rows = [{"id": call * 10 + each} for each in range(10)]
            channel.insert_rows(rows, offset_token=str(call))
            channel.wait_for_commit(str(call))
            for name in ENGINES:
                wait_for_ids(open_engine(name, lake.uri, "DEMO", lake.token), (call + 1) * 10)
