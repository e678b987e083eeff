"""A table with FRESHNESS becomes late, is shown everywhere as late, and is fresh after a commit."""

from __future__ import annotations

import datetime as dt
import json
import re
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
    why = read(service, "/console/channels/LATE/PUBLIC/T/SENSOR-0")
    assert re.search(
        r"The channel is late: it has committed nothing since \S+ \S+ \(6\.7 min ago\)", why
    )
    assert "No other channel and no load of the table has committed since" in why
    assert "ALTER TABLE LATE.PUBLIC.T UNSET FRESHNESS" in why
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


def move_channel(service: LocalService, name: str, **seconds: int) -> None:
    """Move times of one channel into the past."""
    columns = model.channels.c
    with service.embedded.service.database.writing() as connection:
        for column, by_s in seconds.items():
            older = sa.type_coerce(columns[column], sa.BigInteger) - by_s * 1_000_000
            chosen = sa.update(model.channels).where(columns.name == name)
            connection.execute(chosen.values({column: older}))


def read_states(service: LocalService, table: str) -> dict[str, str]:
    """Return the states of channels, which the JSON list, the pages and SHOW CHANNELS have in common."""
    shown = service.sql(f"SHOW CHANNELS IN TABLE {table}")
    states = {str(row[1]): str(row[-1]) for row in shown.rows}
    listed: dict[str, str] = {}
    for only in ("", "&only=bookkeeping"):
        found = read(service, f"/console/api/v1/channels?find={table.upper()}{only}")
        listed |= {each["name"]: each["state"] for each in found["channels"]}
    assert listed == states
    path = table.upper().replace(".", "/")
    in_table = read(service, f"/console/tables/{path}")
    for name, state in states.items():
        page = read(service, f"/console/channels/{path}/{name}")
        assert '<dt>State</dt><dd><span class="state' in page
        assert f"</span> {state}</span>" in page
        assert (f">{name}</a>" in in_table) == (state != "bookkeeping")
    return states


def test_every_page_and_show_channels_give_a_channel_one_state(service: LocalService) -> None:
    table = service.create_table("agree.public.t", "id INT")
    with service.client() as client:
        for name in ("slow", "steady", "clicks:P0", "clicks:P0:end", "clicks:source"):
            channel = client.open_channel(f'"{name}"', table=table, on_error="continue")
            token = {"clicks:P0": "41", "clicks:P0:end": "50"}.get(name, "1")
            if ":" not in name:
                for number in range(5):
                    channel.insert_rows([{"id": number}], offset_token=str(number))
                    channel.wait_for_commit(str(number), timeout=A_WHILE)
            channel.advance(token)
            channel.wait_for_commit(token, timeout=A_WHILE)
        move_channel(service, "slow", opened_at=3000, last_commit_at=2400)
        move_channel(service, "clicks:P0", last_commit_at=360)
        expected = {
            "clicks:P0": "stalled",
            "clicks:P0:end": "bookkeeping",
            "clicks:source": "bookkeeping",
            "slow": "quiet",
            "steady": "fresh",
        }
        assert read_states(service, table) == expected
        late = read(service, "/console/api/v1/channels?only=late&find=AGREE")["channels"]
        assert [each["name"] for each in late] == ["clicks:P0"]
        page = read(service, "/console/channels/AGREE/PUBLIC/T/clicks:P0")
        assert "8 messages of partition 0 of Kafka topic clicks wait" in page
        page = read(service, "/console/channels/AGREE/PUBLIC/T/slow")
        assert "The channel is quiet: it has committed nothing since" in page
        assert "Its client is running: it committed to channel" in page
        assert "Check the source of this channel" in page
        # Its table expects commits: the channel is late, and the table is fresh.
        service.sql(f"ALTER TABLE {table} SET FRESHNESS = '5 minutes'")
        assert read_states(service, table) == {**expected, "slow": "late"}
        findings = str(read(service, "/console/api/v1/overview")["findings"])
        assert "Table AGREE.PUBLIC.T is fresh, but 2 channels of it are late." in findings
        with service.client() as other:
            channel = other.open_channel("others", table=table)
            channel.insert_rows([{"id": 1}], offset_token="1")
            channel.flush()
            move_channel(service, "OTHERS", opened_at=3000, last_commit_at=2400)
            page = read(service, "/console/channels/AGREE/PUBLIC/T/OTHERS")
        assert "only this channel is silent for longer than usual" in page
        # Its client sends rows that are rejected.
        channel = client.open_channel('"slow"', table=table, on_error="continue")
        channel.insert_rows([{"id": "no number"}])
        channel.close(timeout=A_WHILE)
        move_channel(service, "slow", opened_at=3000)
        page = read(service, "/console/channels/AGREE/PUBLIC/T/slow")
        assert "Its last rows were rejected" in page
    # Connectors that only keep offsets do not make their table fresh.
    for name in ("slow", "steady", "clicks:P0", "OTHERS"):
        move_channel(service, name, last_commit_at=3600)
    with service.embedded.service.database.writing() as connection:
        at = model.chunks.c.registered_at
        older = sa.type_coerce(at, sa.BigInteger) - 3600 * 1_000_000
        connection.execute(sa.update(model.chunks).values(registered_at=older))
    assert read(service, "/console/api/v1/tables?find=AGREE")["tables"][0]["state"] == "late"
    assert "fresh" not in read_states(service, table).values()


@pytest.mark.parametrize("written", ["5", "0 minutes", "5 fortnights", "366 days", "-1 second"])
def test_a_duration_that_is_none_is_refused(service: LocalService, written: str) -> None:
    service.sql("CREATE DATABASE IF NOT EXISTS odd")
    with pytest.raises(StatementError, match="Expected a duration from '1 second' to '365 days'"):
        service.sql(f"CREATE TABLE odd.public.t (id INT) FRESHNESS = '{written}'")
