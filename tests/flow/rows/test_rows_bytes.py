"""Clients that were made before their table had a BINARY column write bytes as base64."""

from __future__ import annotations

import json
import ssl

import httpx

DATA = "/v2/streaming/data/databases/demo/schemas/public/pipes/LATE-STREAMING/channels/{}/rows"
# As base64 these are `deadbeef`, and `AAAA`: digits of other bytes.
LOOKS_LIKE_DIGITS = "75e69d6de79f"
ZEROS = "000000"


def test_what_older_clients_mean_as_base64_is_never_taken_for_digits(row_service):
    row_service.service.sql(
        "CREATE TABLE demo.public.late (id INT, name VARCHAR) ERROR_TABLE = demo.public.late_not",
        "GRANT INSERT ON TABLE demo.public.late TO ROLE loading",
    )
    older = row_service.writer("LATE", table_mode=True)
    older.tell("open", "first")
    older.tell("append", "first", [{"id": 1}], "0", "0")
    older.tell("append_elastic", [{"id": 2}])
    older.tell("flush")
    row_service.service.sql("ALTER TABLE demo.public.late ADD COLUMN raw BINARY")
    # What it has opened, what it opens now, and what it sends without a channel.
    older.tell("open", "second")
    for channel in ("first", "second"):
        older.tell("append", channel, [{"id": 3}, {"id": 3, "raw": None}], "1", "1")
        older.tell("append_bytes", channel, "raw", LOOKS_LIKE_DIGITS, "2")
        older.tell("append_bytes", channel, "raw", ZEROS, "3")
        older.tell("commit", channel, "3")
    older.tell("append_elastic_bytes", "raw", ZEROS)
    older.tell("append_elastic", [{"id": 2, "raw": None}])
    older.tell("flush")
    status = older.tell("status", "second", 4)
    assert (status["inserted"], status["errors"]) == (2, 2)
    assert "column RAW" in status["last_error"]
    assert "make the client anew" in status["last_error"]
    newer = row_service.writer("LATE", table_mode=True)
    newer.tell("open", "third")
    newer.tell("append_bytes", "third", "raw", LOOKS_LIKE_DIGITS, "0")
    newer.tell("commit", "third", "0")
    newer.tell("append_elastic_bytes", "raw", ZEROS)
    newer.tell("flush")
    by_hand(row_service, {"id": 9, "raw": LOOKS_LIKE_DIGITS})
    assert row_service.rows("LATE", ["ID", "RAW"]) == [
        (1, None),
        *[(2, None)] * 2,
        *[(3, None)] * 4,
        (7, bytes.fromhex(LOOKS_LIKE_DIGITS)),
        (8, bytes.fromhex(ZEROS)),
        (9, bytes.fromhex(LOOKS_LIKE_DIGITS)),
    ]
    refused = row_service.rows("LATE_NOT", ["COLUMN_NAME", "CODE", "ROW_DATA"])
    assert {row[:2] for row in refused} == {("RAW", "invalid_value")}
    sent = [json.loads(row[2])["raw"] for row in refused]
    assert sorted(sent) == ["AAAA"] * 3 + ["deadbeef"] * 2


def by_hand(service, row):
    with httpx.Client(
        base_url=service.service.url,
        verify=ssl.create_default_context(cafile=service.folder / "certs" / "ca.pem"),
        headers=service.authorization(),
        timeout=60,
    ) as http:
        path = DATA.format("ELASTIC")
        answer = http.post(path, params={"requestId": "by hand"}, content=json.dumps(row))
        assert answer.is_success, answer.text
