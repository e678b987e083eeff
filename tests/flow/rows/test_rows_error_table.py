"""Rejected rows of the official SDK and the REST API are stored in the table's error table."""

from __future__ import annotations

import json
import ssl
import uuid

import httpx
import pytest

from fixtures.rows import RowService

COLUMNS = (
    "TABLE_NAME", "PROTOCOL", "SOURCE", "START_OFFSET_TOKEN", "OFFSET_TOKEN", "ROW_NUMBER",
    "COLUMN_NAME", "CODE", "ROW_DATA",
)  # fmt: skip
PIPE = "/v2/streaming/databases/demo/schemas/public/pipes/KEPT-STREAMING"
ROWS = PIPE.replace("/streaming/", "/streaming/data/") + "/channels/{}/rows"


@pytest.fixture(scope="module")
def service(row_service: RowService) -> RowService:
    row_service.service.sql(
        "CREATE TABLE demo.public.kept (id NUMBER NOT NULL, name VARCHAR(4))"
        " ERROR_TABLE = demo.public.kept_errors",
        # INSERT on the table is sufficient. No privilege on the error table is needed.
        "GRANT INSERT ON TABLE demo.public.kept TO ROLE loading",
    )
    return row_service


def test_rows_of_the_official_sdk(service: RowService) -> None:
    writer = service.writer("KEPT", table_mode=True)
    writer.tell("open", "c")
    rows = [{"id": 1}, {"id": "x"}, {"id": 3, "other": 3}, {"id": 4, "name": "too long"}]
    writer.tell("append", "c", rows, "0", "3")
    writer.tell("append", "c", [{"name": "none"}], "4", "4")
    writer.tell("commit", "c", "4")
    assert [int(row[0]) for row in service.rows("KEPT")] == [1]
    kept = service.rows("KEPT_ERRORS", COLUMNS)
    # The SDK sends batches in one or in several requests.
    assert {row[:3] for row in kept} == {("DEMO.PUBLIC.KEPT", "rows", "C")}
    assert {row[4] for row in kept} <= {"3", "4"}
    kept.sort(key=lambda row: (row[3], row[5]))
    assert [row[6:8] for row in kept] == [
        ("ID", "invalid_value"),
        ("other", "invalid_row"),
        ("NAME", "invalid_value"),
        ("ID", "invalid_row"),
    ]
    assert [json.loads(row[8]) for row in kept] == [*rows[1:], {"name": "none"}]
    (count,) = {len(service.rows("KEPT_ERRORS", ["REFUSAL_ID"]))}
    assert len(set(service.rows("KEPT_ERRORS", ["REFUSAL_ID"]))) == count == 4


def test_requests_by_hand_repeated_and_unreadable(service: RowService) -> None:
    trust = ssl.create_default_context(cafile=service.service.ca_file)
    before = [int(row[0]) for row in service.rows("KEPT")]
    refused_before = len(service.rows("KEPT_ERRORS", COLUMNS))
    with httpx.Client(
        base_url=service.service.url, verify=trust, timeout=60, headers=service.authorization()
    ) as http:
        token = http.put(f"{PIPE}/channels/h", content=b"{}").json()["next_continuation_token"]
        body = b'{"id":5}\nno json\n\n{"id":"\xc3\xa9"}\n'
        asked = {"continuationToken": token, "requestId": str(uuid.uuid4()), "offsetToken": "9"}
        for _ in range(2):
            assert http.post(ROWS.format("h"), params=asked, content=body).status_code == 200
        elastic = {"requestId": str(uuid.uuid4())}
        for _ in range(2):
            answer = http.post(ROWS.format("ELASTIC"), params=elastic, content=b'{"id":"bad"}')
            assert answer.status_code == 200
        assert [int(row[0]) for row in service.rows("KEPT")] == [*before, 5]
        kept = [row for row in service.rows("KEPT_ERRORS", ("SOURCE", "ROW_DATA")) if row[0] != "C"]
        assert kept == [
            ("H", "no json"),
            ("H", '{"id":"é"}'),
            ("elastic:LOADER", '{"id":"bad"}'),
        ]
        service.service.sql("DROP TABLE demo.public.kept_errors")
        answer = http.post(ROWS.format("ELASTIC"), content=b'{"id":"bad"}\n{"id":6}')
        assert answer.status_code == 200
        assert [int(row[0]) for row in service.rows("KEPT")] == [*before, 5, 6]
        service.service.sql("UNDROP TABLE demo.public.kept_errors")
        assert len(service.rows("KEPT_ERRORS", COLUMNS)) == refused_before + 3
