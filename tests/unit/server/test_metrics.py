from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from snowmelt.catalog.jobs.backup_history import commit_backup, start_backup
from snowmelt.embedded import EmbeddedService
from snowmelt.schema.types import TableName
from snowmelt.table.migration import MigrationSettings, migrate_table
from support.ports import free_port


@pytest.fixture
def service(tmp_path: Path) -> Iterator[EmbeddedService]:
    with EmbeddedService(tmp_path / "data", migrate=False) as running:
        running.sql("CREATE DATABASE demo")
        running.sql("CREATE TABLE demo.public.t (a INT)")
        running.sql("CREATE TABLE demo.public.idle (a INT)")
        yield running


def read(url: str, **request: Any) -> dict[str, dict[tuple[str, ...], float]]:
    """The page's samples: by name, then by the values of their labels."""
    answer = httpx.get(f"{url}/metrics", **request)
    assert answer.status_code == 200
    samples: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.documentation, family.name
        for sample in family.samples:
            samples.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return samples


def insert(service: EmbeddedService, rows: int, times: int = 1) -> None:
    with service.client() as client, client.open_channel("c", table="demo.public.t") as channel:
        for _ in range(times):
            channel.insert_rows([{"a": number} for number in range(rows)])
            channel.flush()
            channel.wait_for_commit(timeout=dt.timedelta(seconds=200))


@pytest.mark.slow
def test_numbers_add_up_after_real_traffic(service: EmbeddedService) -> None:
    insert(service, 10, times=3)
    found = read(service.url)
    registered = found["snowmelt_registration_seconds_count"][()]
    assert found["snowmelt_registered_rows_total"] == {(): 30}
    assert found["snowmelt_registrations_total"] == {("0",): registered}
    route = "/v1/streaming/channels/write/blobs"
    assert found["snowmelt_http_requests_total"]["streaming", route, "200"] == registered
    assert found["snowmelt_registration_seconds_bucket"]["+Inf",] == registered
    assert 0 < found["snowmelt_registration_seconds_sum"][()] < 60
    assert found["snowmelt_channels_opened_total"] == {(): 1}
    assert found["snowmelt_registrations_waiting"] == {(): 0}
    assert found["snowmelt_catalog_answered"] == {(): 1}
    assert found["snowmelt_backlog_chunks"] == {(): registered}
    assert found["snowmelt_backlog_bytes"] == found["snowmelt_registered_bytes_total"]
    assert found["snowmelt_table_backlog_chunks"] == {("DEMO.PUBLIC.T",): registered}
    assert found["process_resident_memory_bytes"][()] > 1e6


@pytest.mark.slow
def test_a_migration_takes_its_chunks_from_the_backlog(service: EmbeddedService) -> None:
    insert(service, 7)
    running, settings = service.service, service.service.settings
    migrate_table(
        running.database,
        running.keyring,
        TableName("DEMO", "PUBLIC", "T"),
        MigrationSettings(settings.stage_url, settings.warehouse_url),
    )
    found = read(service.url)
    assert found["snowmelt_backlog_chunks"] == {(): 0}
    assert found["snowmelt_backlog_oldest_seconds"] == {(): 0}
    assert "snowmelt_table_backlog_chunks" not in found
    assert found["snowmelt_migrations"]["committed",] == 1
    assert found["snowmelt_migration_rows"]["committed",] == 7
    assert found["snowmelt_migration_seconds"]["committed",] > 0


@pytest.mark.slow
def test_the_age_of_the_last_backup_is_shown(service: EmbeddedService) -> None:
    database = service.service.database
    assert "snowmelt_backup_age_seconds" not in read(service.url)
    hour_ago = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
    with database.writing() as connection:
        backup_id = start_backup(connection, "/backups", hour_ago)
        commit_backup(connection, backup_id, hour_ago, point_id="p", objects=1, size=1)
    assert 3600 <= read(service.url)["snowmelt_backup_age_seconds"][()] < 7200


@pytest.mark.slow
def test_paths_of_strangers_are_no_labels(service: EmbeddedService) -> None:
    for number in range(3):
        assert httpx.get(f"{service.url}/nothing/{number}").status_code == 404
    httpx.post(f"{service.url}/v1/streaming/channels/open/", json={})
    requests = read(service.url)["snowmelt_http_requests_total"]
    assert requests["streaming", "other", "404"] == 3
    assert requests["streaming", "/v1/streaming/channels/open", "401"] == 1


@pytest.mark.slow
def test_the_s3_port_is_counted_by_operation(tmp_path: Path) -> None:
    with EmbeddedService(
        tmp_path / "data", migrate=False, s3_port=free_port(), dev=True
    ) as service:
        url = service.service.settings.s3_port
        found = httpx.get(f"http://127.0.0.1:{url}/")
        requests = read(service.url)
    counted = requests["snowmelt_http_requests_total"]
    assert counted["s3", "list_buckets", str(found.status_code)] == 1
    assert requests["snowmelt_selects_running"] == {(): 0}


@pytest.mark.slow
def test_a_token_is_asked_for_where_one_is_set(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("only-for-prometheus\n")
    with EmbeddedService(
        tmp_path / "data", migrate=False, metrics_token_file=str(secret)
    ) as service:
        for headers in ({}, {"authorization": "Bearer nonsense"}, {"authorization": "Basic x"}):
            assert httpx.get(f"{service.url}/metrics", headers=headers).status_code == 401
        headers = {"authorization": "Bearer only-for-prometheus"}
        assert read(service.url, headers=headers)["snowmelt_catalog_answered"] == {(): 1}
