"""Snowpipe's REST API with the unmodified official client: each requested file loads once."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from fixtures.engines import make_environment
from fixtures.service import KeyPair, ServiceProcess, prepare_loading
from flow.test_file_pipes import QUICK, Arriving
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.objects.file_pipes import list_waiting_notices
from snowmelt.catalog.objects.tables import find_pipe
from snowmelt.client.auth import KeyPairTokenProvider, load_private_key
from snowmelt.clock import SystemClock
from snowmelt.schema.types import TableName

_PROGRAM = Path(__file__).parents[1] / "support" / "snowpipe_client.py"
# Install in a separate environment: its files conflict with the SDK of the row API. Version 5 of
# the connector lacks a function that it imports.
_OFFICIAL_CLIENT = ("snowflake-ingest==1.0.13", "snowflake-connector-python==4.8.1")


def make_headers(user: str, key_pair: KeyPair) -> dict[str, str]:
    key = load_private_key(key_pair.private_pem)
    token = KeyPairTokenProvider("testaccount", user, key, SystemClock()).get_token()
    return {"Authorization": f"Bearer {token}"}


class Requests:
    """A service with a pipe that loads requested files, and clients of user LOADER."""

    def __init__(self, arriving: Arriving, key_pair: KeyPair) -> None:
        self.arriving = arriving
        self.service = arriving.service
        self.key_pair = key_pair

    def run_official_client(self, *calls: tuple[Any, ...], pipe: str = "demo.public.p") -> Any:
        given = {
            "manager": {
                "account": "testaccount",
                "user": "loader",
                "pipe": pipe,
                "private_key": self.key_pair.private_pem,
                "scheme": "http",
                "host": "127.0.0.1",
                "port": self.service.port,
            },
            "calls": calls,
        }
        done = subprocess.run(
            [make_environment("snowpipe", _OFFICIAL_CLIENT), _PROGRAM],
            input=json.dumps(given),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{done.stderr}\n{self.service.log}"
        return json.loads(done.stdout)

    def send(self, method: str, verb: str, **more: Any) -> httpx.Response:
        headers = make_headers("loader", self.key_pair) | more.pop("headers", {})
        url = f"{self.service.url}/v1/data/pipes/demo.public.p/{verb}"
        return httpx.request(method, url, headers=headers, trust_env=False, **more)


@pytest.fixture
def requests(service_process: ServiceProcess, key_pair: KeyPair, tmp_path: Path) -> Requests:
    service_process.start(**QUICK)
    prepare_loading(service_process, key_pair)
    arriving = Arriving(service_process, tmp_path / "in")
    service_process.sql(
        f"CREATE PIPE demo.public.p AS COPY t FROM '{arriving.folder}/*.csv*' DELIMITER ','"
    )
    return Requests(arriving, key_pair)


def test_the_official_client_names_files_that_load_once_each(requests: Requests) -> None:
    arriving = requests.arriving
    for number in (1, 2, 3):
        arriving.put(f"{number}.csv", f"{number},a,\nx,b,\n")
    arriving.put("4.csv.gz", "nothing")
    arriving.put("notes.txt", "5,e,\n")
    named = [["1.csv", 10], ["2.csv", None], ["4.csv.gz", 7], ["gone.csv", 1], ["notes.txt", 5]]
    first, events, again, late, history, missing = requests.run_official_client(
        ("ingest_files", named),
        ("wait", 4),
        ("ingest_files", named[:2]),
        ("get_history",),
        ("get_history_range", "2020-01-01T00:00:00Z"),
        ("get_history_range", "no time"),
    )
    assert first["responseCode"] == again["responseCode"] == "SUCCESS"
    assert first["unmatchedPatternFiles"] == ["notes.txt"]
    found = {each["path"]: each for each in events}
    assert {path: each["status"] for path, each in found.items()} == {
        "1.csv": "PARTIALLY_LOADED",
        "2.csv": "PARTIALLY_LOADED",
        "4.csv.gz": "LOAD_FAILED",
        "gone.csv": "LOAD_FAILED",
    }
    loaded = found["1.csv"]
    assert loaded["stageLocation"] == f"{arriving.folder}/"
    assert (loaded["rowsInserted"], loaded["rowsParsed"], loaded["errorsSeen"]) == (1, 2, 1)
    assert (loaded["fileSize"], loaded["complete"], loaded["systemError"]) == (10, True, None)
    assert loaded["timeReceived"] <= loaded["lastInsertTime"]
    assert "does not exist" in found["gone.csv"]["systemError"]
    assert late["files"] == []
    assert late["completeResult"] is True
    assert sorted(each["path"] for each in history["files"]) == sorted(found)
    assert history["rangeStartTime"] <= history["rangeEndTime"]
    assert missing["status"] == 400
    # Only requested files are loaded, once each.
    assert arriving.read_ids() == [1, 2]
    assert arriving.status()["kind"] == "REST"


def test_a_failed_file_that_is_named_again_is_tried_again(requests: Requests) -> None:
    arriving = requests.arriving
    # Content types of the official client and of `curl`.
    body = {"content": "1.csv\n", "headers": {"Content-Type": "text/plain"}}
    assert requests.send("POST", "insertFiles", **body).json() == {"responseCode": "SUCCESS"}
    arriving.wait(lambda status: status["failedFileCount"] == 1)
    arriving.put("1.csv", "1,a,\n")
    arriving.put("2.csv", "2,a,\n")
    skipping = {"params": {"requestId": "r", "showSkippedFiles": "true"}}
    assert requests.send("POST", "insertFiles", **body, **skipping).json() == {
        "responseCode": "SUCCESS",
        "requestId": "r",
        "skippedFiles": [],
    }
    arriving.wait(lambda status: status["failedFileCount"] == 0)
    assert requests.send("POST", "insertFiles", **body, **skipping).json()["skippedFiles"] == [
        "1.csv"
    ]
    assert arriving.read_ids() == [1]
    # REFRESH loads files that were not requested.
    requests.service.sql("ALTER PIPE demo.public.p REFRESH")
    arriving.wait(lambda _: arriving.read_ids() == [1, 2])


def test_a_named_file_is_loaded_after_a_kill(requests: Requests) -> None:
    arriving, service = requests.arriving, requests.service
    service.sql("ALTER PIPE demo.public.p SET PIPE_EXECUTION_PAUSED = TRUE")
    files = {"files": [{"path": f"{number}.csv"} for number in range(20)]}
    for number in range(20):
        arriving.put(f"{number}.csv", f"{number},a,\n")
    assert requests.send("POST", "insertFiles", json=files).status_code == 200
    service.kill()
    service.start(fault="watch.loaded=kill:1", **QUICK)
    service.sql("ALTER PIPE demo.public.p SET PIPE_EXECUTION_PAUSED = FALSE")
    arriving.wait(lambda _: len(arriving.read_ids()) >= 20)
    service.kill()
    service.start(**QUICK)
    report = requests.send("GET", "insertReport").json()
    assert len(report["files"]) == 20
    assert arriving.read_ids() == list(range(20))


@pytest.mark.parametrize(
    ("pipe", "status", "message"),
    [
        ("demo.public.never", 404, "does not exist"),
        ("p", 400, "database.schema.pipe"),
        ("demo.public.s", 400, "accepts streamed rows"),
    ],
)
def test_pipes_that_load_no_named_files_are_refused(
    shared_service: ServiceProcess, key_pair: KeyPair, pipe: str, status: int, message: str
) -> None:
    shared_service.sql(
        "CREATE ROLE IF NOT EXISTS piping",
        *(
            f"CREATE USER IF NOT EXISTS {user}"
            f" RSA_PUBLIC_KEY = '{key_pair.public_base64}' DEFAULT_ROLE = {role}"
            for user, role in (("pipe_reader", "piping"), ("pipe_stranger", "public"))
        ),
        "GRANT ROLE piping TO USER pipe_reader",
        "CREATE DATABASE IF NOT EXISTS demo",
        "CREATE SCHEMA IF NOT EXISTS demo.public",
        "CREATE TABLE IF NOT EXISTS demo.public.refusing (id NUMBER)",
        "CREATE PIPE IF NOT EXISTS demo.public.s AS COPY INTO demo.public.refusing FROM "
        "TABLE(DATA_SOURCE(TYPE => 'STREAMING')) MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE",
        "GRANT USAGE ON DATABASE demo TO ROLE piping",
        "GRANT USAGE ON SCHEMA demo.public TO ROLE piping",
        "GRANT INSERT ON TABLE demo.public.refusing TO ROLE piping",
    )
    answer, hidden = (
        httpx.get(
            f"{shared_service.url}/v1/data/pipes/{pipe}/insertReport",
            headers=make_headers(user, key_pair),
            trust_env=False,
        )
        for user in ("pipe_reader", "pipe_stranger")
    )
    # A pipe that a role may not use is reported as missing.
    assert hidden.status_code == (status if pipe == "p" else 404)
    assert answer.status_code == status
    assert message in answer.json()["message"]
    assert answer.json()["success"] is False


def test_notifications_of_s3_name_created_objects(requests: Requests) -> None:
    service = requests.service
    service.sql(
        "CREATE OR REPLACE PIPE demo.public.p AS COPY t FROM 's3://bucket/in/*.csv' DELIMITER ','",
        "ALTER PIPE demo.public.p SET PIPE_EXECUTION_PAUSED = TRUE",
    )

    def record(event: str, key: str) -> dict[str, Any]:
        return {
            "eventSource": "aws:s3",
            "eventName": event,
            "s3": {"bucket": {"name": "bucket"}, "object": {"key": key, "size": 7}},
        }

    created = record("ObjectCreated:Put", "in/a+b%3D1.csv")
    events = {"Records": [created, record("ObjectRemoved:Delete", "in/gone.csv")]}
    elsewhere = {"Records": [record("s3:ObjectCreated:Copy", "out/x.csv")]}
    bridge = {
        "detail-type": "Object Created",
        "detail": {"bucket": {"name": "bucket"}, "object": {"key": "in/c d.csv"}},
    }
    wrapped = {"Type": "Notification", "Message": json.dumps(events)}
    for body in (events, bridge, wrapped, {"Event": "s3:TestEvent"}):
        answer = requests.send("POST", "s3Events", json=body)
        assert answer.json() == {"responseCode": "SUCCESS"}
    answer = requests.send("POST", "s3Events", json=elsewhere)
    assert answer.json()["unmatchedPatternFiles"] == ["s3://bucket/out/x.csv"]
    for bad, message in (
        ({"Type": "SubscriptionConfirmation", "Message": "x"}, "Confirm the subscription"),
        ({"Records": [{"eventName": "x"}]}, "s3"),
        ({}, "expected a notification"),
    ):
        answer = requests.send("POST", "s3Events", json=bad)
        assert answer.status_code == 400
        assert message in answer.json()["message"]
    database = open_and_upgrade_database(service.settings.catalog_url)
    with database.reading() as connection:
        pipe = find_pipe(connection, TableName("DEMO", "PUBLIC", "P"))
        assert pipe is not None
        waiting = list_waiting_notices(connection, pipe.pipe_id)
    database.close()
    assert sorted(each.path for each in waiting) == [
        "s3://bucket/in/a b=1.csv",
        "s3://bucket/in/c d.csv",
    ]
