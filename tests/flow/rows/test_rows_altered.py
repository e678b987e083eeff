"""A table is altered while rows are in flight: the rows are converted again for its new columns."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterator
from typing import Any, cast

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from snowmelt import failpoints
from snowmelt.embedded import EmbeddedService
from snowmelt.schema.types import TableName
from snowmelt.table.migration import MigrationSettings, migrate_table
from snowmelt.table.table_reader import read_table

_requests = itertools.count()


class Sender:
    """Sender of rows to the row API of a service in this process, and the service's tables."""

    def __init__(self, service: EmbeddedService) -> None:
        self.service = service
        headers = {"content-type": "application/x-ndjson"}
        self.http = httpx.Client(base_url=service.url, timeout=60, headers=headers)

    def sql(self, text: str) -> None:
        self.service.sql(text)

    def open(self, table: str) -> str:
        path = f"/v2/streaming/databases/demo/schemas/public/pipes/{table}-STREAMING/channels/c"
        return cast("str", self.http.put(path, content=b"{}").json()["next_continuation_token"])

    def send(self, table: str, continuation: str, *rows: dict[str, Any]) -> httpx.Response:
        path = (
            f"/v2/streaming/data/databases/demo/schemas/public/pipes/{table}-STREAMING"
            "/channels/c/rows"
        )
        asked = {"continuationToken": continuation, "requestId": f"request {next(_requests)}"}
        return self.http.post(path, params=asked, content="\n".join(map(json.dumps, rows)))

    def rows(self, table: str) -> list[dict[str, Any]]:
        running = self.service.service
        name = TableName("DEMO", "PUBLIC", table)
        return cast(
            "list[dict[str, Any]]",
            read_table(running.database, running.keyring, running.stage, name).to_pylist(),
        )

    def status(self, table: str) -> dict[str, Any]:
        return cast("dict[str, Any]", self.statuses(table)["c"])

    def statuses(self, table: str) -> dict[str, Any]:
        path = f"/v2/streaming/databases/demo/schemas/public/pipes/{table}-STREAMING"
        asked = self.http.post(path + ":bulk-channel-status", content=b'{"channel_names":["c"]}')
        return cast("dict[str, Any]", asked.json()["channel_statuses"])

    def samples(self) -> dict[str, dict[tuple[str, ...], float]]:
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(self.http.get("/metrics").text):
            for sample in family.samples:
                found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
        return found


@pytest.fixture(scope="module")
def sender(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sender]:
    folder = tmp_path_factory.mktemp("altered")
    with EmbeddedService(folder, dev=True, backlog_max_chunks=2) as service:
        service.sql("CREATE DATABASE demo")
        sender = Sender(service)
        with sender.http:
            yield sender


@pytest.fixture(autouse=True)
def nothing_armed() -> Iterator[None]:
    yield
    failpoints.disarm()


@pytest.mark.parametrize(
    ("name", "change", "stored", "refused"),
    [
        ("ADDED", "ADD COLUMN more INT", [{"ID": 1, "NAME": "a", "MORE": None}] * 2, 0),
        ("WIDER", "ALTER COLUMN id SET DATA TYPE NUMBER(20,0)", [{"ID": 1, "NAME": "a"}] * 2, 0),
        ("LOST", "DROP COLUMN name", [{"ID": 1}], 1),
    ],
)
def test_rows_on_their_way_are_what_they_would_be_in_the_table_of_now(
    sender: Sender,
    name: str,
    change: str,
    stored: list[dict[str, Any]] | list[dict[str, int]],
    refused: int,
) -> None:
    sender.sql(f"CREATE TABLE demo.public.{name} (id NUMBER(10,0), name VARCHAR)")
    token = sender.open(name)
    sent = [{"id": 1, "name": "a"}]
    token = sender.send(name, token, *sent).json()["next_continuation_token"]
    staged = []

    def alter() -> None:
        staged.append(name)
        sender.sql(f"ALTER TABLE demo.public.{name} {change}")

    failpoints.arm(failpoints.Failpoint.ROWS_STAGED, alter)
    assert sender.send(name, token, *sent).status_code == 200
    assert staged == [name]
    assert sender.rows(name) == stored
    status = sender.status(name)
    assert (status["rows_inserted"], status["rows_error_count"]) == (2 - refused, refused)


def test_rows_are_refused_by_the_table_as_it_is_when_they_come(sender: Sender) -> None:
    sender.sql("CREATE TABLE demo.public.soon (id INT)")
    token = sender.open("SOON")
    row = {"id": 1, "gate": 7}
    token = sender.send("SOON", token, row).json()["next_continuation_token"]
    sender.sql("ALTER TABLE demo.public.soon SET ERROR_TABLE = demo.public.soon_not")
    token = sender.send("SOON", token, row | {"id": 2}).json()["next_continuation_token"]
    sender.sql("ALTER TABLE demo.public.soon ADD COLUMN gate INT")
    assert sender.send("SOON", token, row | {"id": 3}).is_success
    assert sender.rows("SOON") == [{"ID": 3, "GATE": 7}]
    assert [row["ROW_DATA"] for row in sender.rows("SOON_NOT")] == ['{"id": 2, "gate": 7}']


def test_refused_rows_follow_their_table_too(sender: Sender) -> None:
    sender.sql("CREATE TABLE demo.public.watched (id INT) ERROR_TABLE = demo.public.unkept")

    def rename() -> None:
        sender.sql("ALTER TABLE demo.public.unkept RENAME TO demo.public.kept")

    failpoints.arm(failpoints.Failpoint.ROWS_STAGED, rename)
    assert sender.send("WATCHED", sender.open("WATCHED"), {"id": "x"}, {"id": 1}).is_success
    assert sender.rows("WATCHED") == [{"ID": 1}]
    assert [row["ROW_DATA"] for row in sender.rows("KEPT")] == ['{"id": "x"}']


DROP, CREATE = "DROP TABLE demo.public.{}", "CREATE TABLE demo.public.{} (id INT)"
AWAY = "ALTER TABLE demo.public.{0} RENAME TO demo.public.{0}_OLD"
BACK = "ALTER TABLE demo.public.{0}_NEW RENAME TO demo.public.{0}"
NO_PIPE, STALE = "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED", "STALE_CONTINUATION_TOKEN_SEQUENCER"


@pytest.mark.parametrize(
    ("name", "changes", "code", "reason"),
    [
        ("DROPPED", [DROP], NO_PIPE, "does not exist"),
        ("AGAIN", [DROP, CREATE], STALE, "The table of channel c was dropped"),
        ("AWAY", [AWAY], NO_PIPE, r"was renamed to DEMO\.PUBLIC\.AWAY_OLD"),
        ("SWAPPED", [AWAY, BACK], STALE, r"was renamed to DEMO\.PUBLIC\.SWAPPED_OLD"),
    ],
)
def test_a_table_of_the_same_name_gets_nothing_of_one_that_went(
    sender: Sender, name: str, changes: list[str], code: str, reason: str
) -> None:
    tables = [name, f"{name}_NEW"]
    for table in tables:
        sender.sql(CREATE.format(table))
    # A request of the same channel, at the same position.
    token, other = (sender.open(table) for table in tables)

    def change() -> None:
        for text in changes:
            sender.sql(text.format(name))

    failpoints.arm(failpoints.Failpoint.ROWS_STAGED, change)
    answer = sender.send(name, token, {"id": 1})
    assert answer.json()["code"] == code, answer.text
    assert re.search(reason, answer.json()["message"])
    if AWAY in changes:
        assert sender.rows(f"{name}_OLD") == []
        # A request without a response is not accepted by the new table.
        assert sender.send(name, token, {"id": 1}).json()["code"] == code
    if BACK in changes:
        # Before a channel of this name is opened, the state of the other channel is not reported
        # for it.
        assert sender.statuses(name) == {}
        assert sender.send(name, other, {"id": 2}).status_code == 200
        assert sender.rows(name) == [{"ID": 2}]
        sender.open(name)
        assert sender.status(name)["rows_inserted"] == 1


def test_a_long_backlog_is_told_by_a_code_that_the_sdk_sends_again(sender: Sender) -> None:
    before = sender.samples()
    sender.sql("CREATE TABLE demo.public.brim (id INT)")
    token = sender.open("BRIM")
    number = 0
    while (answer := sender.send("BRIM", token, {"id": number}, {"id": "x"})).status_code == 200:
        token, number = answer.json()["next_continuation_token"], number + 1
        assert number < 10_000
    assert (answer.status_code, answer.json()["code"]) == (503, "ERR_SERVICE_BUSY")
    assert "migration backlog" in answer.text
    found = sender.samples()

    def grown(name: str, *labels: str) -> float:
        return found[name][labels] - before.get(name, {}).get(labels, 0)

    assert grown("snowmelt_row_requests_total", "OK") == number
    assert grown("snowmelt_row_requests_total", "ERR_SERVICE_BUSY") == 1
    assert grown("snowmelt_row_api_rows_total") == number
    assert grown("snowmelt_registered_rows_total") == number
    assert grown("snowmelt_row_api_refused_total") == number
    assert grown("snowmelt_row_api_bytes_total") > 0
    assert grown("snowmelt_row_request_seconds_count") == number + 1

    settings, running = sender.service.settings, sender.service.service
    migrate_table(
        running.database,
        running.keyring,
        TableName("DEMO", "PUBLIC", "BRIM"),
        MigrationSettings(settings.stage_url, settings.warehouse_url),
    )
    deadline = time.monotonic() + 200
    while (answer := sender.send("BRIM", token, {"id": number})).status_code == 503:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert answer.status_code == 200
