"""Bytes in rows of the official SDK: one rule, and ambiguous text is rejected."""

from __future__ import annotations

import contextlib
import json
import ssl
from typing import Any

import httpx

from fixtures.rows import RowService
from snowmelt.catalog import model
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.clock import SystemClock

DATA = "/v2/streaming/data/databases/demo/schemas/public/pipes/LATE-STREAMING/channels/{}/rows"
# In base64 these are `deadbeef` and `AAAA`, which are also hexadecimal digits of other bytes.
LOOKS_LIKE_DIGITS = "75e69d6de79f"
ZEROS = "000000"


def test_bytes_are_digits_whatever_other_columns_the_table_has(row_service: RowService) -> None:
    for table, column in (("WITHOUT", ""), ("BESIDE", ", raw BINARY")):
        row_service.service.sql(
            f"CREATE TABLE demo.public.{table} (id INT, name VARCHAR{column})",
            f"GRANT INSERT ON TABLE demo.public.{table} TO ROLE loading",
        )
        writer = row_service.writer(table, table_mode=True)
        writer.tell("open", "c")
        for value in ('b"\\xde\\xad\\xbe\\xef"', 'bytearray(b"\\xde\\xad\\xbe\\xef")'):
            writer.tell("append_python", "c", f'{{"id": 7, "name": {value}}}', "0")
        writer.tell("commit", "c", "0")
        assert row_service.rows(table, ["ID", "NAME"]) == [(7, "deadbeef")] * 2


def test_what_may_be_bytes_or_something_else_is_rejected_with_the_reason(
    row_service: RowService,
) -> None:
    row_service.service.sql(
        "CREATE TABLE demo.public.doubts (id INT, ratio FLOAT, raw BINARY)"
        " ERROR_TABLE = demo.public.doubts_not",
        "GRANT INSERT ON TABLE demo.public.doubts TO ROLE loading",
    )
    writer = row_service.writer("DOUBTS", table_mode=True)
    writer.tell("open", "c")
    good = [
        ('{"id": 1, "raw": b"\\0\\0\\0"}', (1, None, b"\0\0\0")),
        ('{"id": 2, "raw": bytes.fromhex("75e69d6de79f")}', (2, None, b"u\xe6\x9dm\xe7\x9f")),
        ('{"id": 3, "raw": "DEADBE"}', (3, None, b"\xde\xad\xbe")),
        ('{"id": Decimal("10"), "ratio": Decimal("0.50")}', (10, 0.5, None)),
    ]
    # A memoryview of zeros is sent as `AAAA`, the digits of other bytes, and a byte as `01`, a
    # number.
    bad = [
        ('{"id": 4, "raw": memoryview(b"\\0\\0\\0")}', "Ambiguous text 'AAAA'"),
        ('{"id": b"\\x01"}', "Ambiguous text '01'"),
        ('{"ratio": b"\\x05\\x10"}', "Ambiguous text '0510'"),
        ('{"id": 5, "raw": memoryview(b"xyz!")}', "Not a valid hex string"),
    ]
    for row in (*good, *bad):
        writer.tell("append_python", "c", row[0], "0")
    writer.tell("commit", "c", "0")
    assert row_service.rows("DOUBTS", ["ID", "RATIO", "RAW"]) == [row[1] for row in good]
    reasons = {row[0] for row in row_service.rows("DOUBTS_NOT", ["REASON"])}
    for _, reason in bad:
        assert any(reason in each for each in reasons), (reason, reasons)


def test_what_older_clients_mean_as_base64_is_never_taken_for_digits(
    row_service: RowService,
) -> None:
    row_service.service.sql(
        "CREATE TABLE demo.public.late (id INT, name VARCHAR, raw BINARY)"
        " ERROR_TABLE = demo.public.late_not",
        "GRANT INSERT ON TABLE demo.public.late TO ROLE loading",
    )
    # An earlier service read base64, before the table had its column.
    url = row_service.service.settings.catalog_url
    with (
        contextlib.closing(open_and_upgrade_database(url)) as database,
        database.writing() as connection,
    ):
        told = {"path": 'DEMO.PUBLIC."LATE-STREAMING"', "token": "", "at": SystemClock().now()}
        connection.execute(model.row_clients.insert().values(told))
    older = {"user-agent": "SnowpipeStreamingSDK/1.9.1"}
    for value in ("deadbeef", "AAAA", None):
        by_hand(row_service, {"id": 3, "raw": value}, older)
    newer = row_service.writer("LATE", table_mode=True)
    newer.tell("open", "third")
    newer.tell("append_bytes", "third", "raw", LOOKS_LIKE_DIGITS, "0")
    newer.tell("commit", "third", "0")
    newer.tell("append_elastic_bytes", "raw", ZEROS)
    newer.tell("flush")
    by_hand(row_service, {"id": 9, "raw": LOOKS_LIKE_DIGITS}, {})
    assert row_service.rows("LATE", ["ID", "RAW"]) == [
        (3, None),
        (7, bytes.fromhex(LOOKS_LIKE_DIGITS)),
        (8, bytes.fromhex(ZEROS)),
        (9, bytes.fromhex(LOOKS_LIKE_DIGITS)),
    ]
    refused = row_service.rows("LATE_NOT", ["COLUMN_NAME", "CODE", "REASON", "ROW_DATA"])
    assert {row[:2] for row in refused} == {("RAW", "invalid_value")}
    assert all("Create the client again" in row[2] for row in refused)
    assert sorted(json.loads(row[3])["raw"] for row in refused) == ["AAAA", "deadbeef"]


def by_hand(service: RowService, row: dict[Any, Any], headers: dict[str, str]) -> None:
    with httpx.Client(
        base_url=service.service.url,
        verify=ssl.create_default_context(cafile=service.folder / "certs" / "ca.pem"),
        headers=service.authorization() | headers,
        timeout=60,
    ) as http:
        path = DATA.format("ELASTIC")
        params = {"requestId": f"by hand {row}"}
        answer = http.post(path, params=params, content=json.dumps(row))
        assert answer.is_success, answer.text
