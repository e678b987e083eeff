"""A table with FRESHNESS becomes late, is shown everywhere as late, and is fresh after a commit."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from fixtures.browser import access_key
from snowmelt.catalog import model
from snowmelt.cli.main import main
from snowmelt.errors import StatementError
from snowmelt.testing import LocalService

pytestmark = pytest.mark.slow
A_WHILE = dt.timedelta(seconds=200)


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with LocalService() as running:
        yield running


def commit(service: LocalService, token: str) -> None:
    with service.client() as client:
        channel = client.open_channel("SENSOR-0", table="late.public.t")
        channel.insert_rows([{"id": 1}], offset_token=token)
        channel.wait_for_commit(token, timeout=A_WHILE)


def age_commits(service: LocalService, seconds: int) -> None:
    """Move all commits into the past."""
    with service.embedded.service.database.writing() as connection:
        for column in (model.channels.c.last_commit_at, model.chunks.c.registered_at):
            older = sa.type_coerce(column, sa.BigInteger) - seconds * 1_000_000
            connection.execute(sa.update(column.table).values({column: older}))


def read(service: LocalService, path: str) -> Any:
    key, secret = access_key(service)
    with httpx.Client(base_url=service.url, follow_redirects=True, timeout=120) as browser:
        fields = {"key": key, "secret": secret}
        browser.post("/console/login", data=fields, headers={"origin": service.url})
        response = browser.get(path)
    return response.json() if "/api/" in path else response.text


def test_a_table_is_late_after_its_freshness_and_fresh_after_a_commit(
    service: LocalService, capsys: pytest.CaptureFixture[str]
) -> None:
    service.create_table("late.public.t", "id INT", "FRESHNESS = '5 minutes'")
    [table] = service.sql("SHOW TABLES LIKE 'T' IN ACCOUNT").rows
    assert table[-1] == "5 minutes"
    [found] = read(service, "/console/api/v1/tables")["tables"]
    assert (found["state"], found["freshness_s"]) == ("never", 300)
    commit(service, "1")
    age_commits(service, 200)
    assert read(service, "/console/api/v1/channels")["channels"][0]["state"] == "fresh"
    assert read(service, "/console/api/v1/channels?only=late")["channels"] == []
    age_commits(service, 200)
    [late] = read(service, "/console/api/v1/channels?only=late")["channels"]
    assert (late["name"], late["state"]) == ("SENSOR-0", "late")
    overview = read(service, "/console/api/v1/overview")
    [problem] = [each for each in overview["findings"] if "is late" in each["sentence"]]
    assert problem["severity"] == "wrong"
    assert "LATE.PUBLIC.T" in problem["sentence"]
    assert "5 minutes" in problem["sentence"]
    assert "SENSOR-0 of user EMBEDDED" in problem["remedy"]
    metrics = read(service, "/metrics")
    assert "snowmelt_late_tables 1.0" in metrics
    assert 'snowmelt_table_freshness_seconds{table="LATE.PUBLIC.T"} 300.0' in metrics
    folder = str(service.embedded.settings.data_dir)
    assert main(["status", "--data-dir", folder, "--format", "json"]) == 1
    status = json.loads(capsys.readouterr().out)["freshness"]
    assert status == {"expected_tables": 1, "late_tables": ["LATE.PUBLIC.T"]}
    commit(service, "2")
    assert read(service, "/console/api/v1/tables")["tables"][0]["state"] == "fresh"
    service.sql("ALTER TABLE late.public.t UNSET FRESHNESS")
    age_commits(service, 2 * 3600)
    assert read(service, "/console/api/v1/tables")["tables"][0]["state"] == "quiet"
    assert "is late" not in str(read(service, "/console/api/v1/overview")["findings"])


@pytest.mark.parametrize("written", ["5", "0 minutes", "5 fortnights", "366 days", "-1 second"])
def test_a_duration_that_is_none_is_refused(service: LocalService, written: str) -> None:
    service.sql("CREATE DATABASE IF NOT EXISTS odd")
    with pytest.raises(StatementError, match="Expected a duration from '1 second' to '365 days'"):
        service.sql(f"CREATE TABLE odd.public.t (id INT) FRESHNESS = '{written}'")
