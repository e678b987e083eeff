"""The unmodified official high-performance SDK writes to a table."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest

import snowmelt
from fixtures.rows import OfficialWriter, RowService, SdkError
from fixtures.service import KeyPair


@pytest.fixture(scope="module")
def writer(row_service: RowService) -> OfficialWriter:
    return row_service.writer()


def test_rows_arrive_with_their_values(row_service: RowService) -> None:
    row_service.service.sql(
        "CREATE TABLE demo.public.kinds (id NUMBER NOT NULL, price NUMBER(12,4), ratio DOUBLE,"
        " flag BOOLEAN, name VARCHAR, raw BINARY, day DATE, at TIMESTAMP_NTZ, doc VARIANT,"
        ' "Home town" VARCHAR)',
        "GRANT INSERT ON TABLE demo.public.kinds TO ROLE loading",
    )
    writer = row_service.writer("KINDS", table_mode=True)
    writer.tell("open", "values")
    first = {
        "id": 12345678901234567890123,
        "PRICE": "123.4500",
        "ratio": 1e-300,
        "flag": True,
        "name": "Zürich\u0000☃",
        "raw": "00ff",
        "day": "2024-02-29",
        "at": "2024-01-02T03:04:05.678901",
        "doc": {"a": [1, None]},
        "home town": "here",
    }
    writer.tell("append", "values", [first, {"ID": 2}], "0", "1")
    writer.tell("commit", "values", "1")
    columns = ["ID", "PRICE", "RATIO", "FLAG", "NAME", "RAW", "DAY", "AT", "DOC", "Home town"]
    empty, full = row_service.rows("KINDS", columns)
    assert empty == (2, *[None] * 9)
    assert full == (
        12345678901234567890123,
        Decimal("123.4500"),
        1e-300,
        True,
        "Zürich\u0000☃",
        b"\x00\xff",
        dt.date(2024, 2, 29),
        dt.datetime(2024, 1, 2, 3, 4, 5, 678901),
        '{"a":[1,null]}',
        "here",
    )


def test_bytes_are_binary_where_a_column_is_and_digits_elsewhere(
    row_service: RowService, writer: OfficialWriter
) -> None:
    row_service.service.sql(
        "CREATE TABLE demo.public.bytewise (id NUMBER, raw BINARY, name VARCHAR)",
        "GRANT INSERT ON TABLE demo.public.bytewise TO ROLE loading",
    )
    binary = row_service.writer("BYTEWISE", table_mode=True)
    binary.tell("open", "bytes")
    binary.tell("append_bytes", "bytes", "raw", "deadbeef00", "0")
    binary.tell("commit", "bytes", "0")
    columns = ["ID", "RAW", "NAME"]
    assert row_service.rows("BYTEWISE", columns) == [(7, bytes.fromhex("deadbeef00"), None)]
    writer.tell("open", "texts")
    writer.tell("append_bytes", "texts", "name", "deadbeef00", "0")
    writer.tell("commit", "texts", "0")
    assert (7, "deadbeef00") in row_service.rows("T", ["ID", "NAME"])


def test_large_buffers_come_as_files_and_small_ones_as_rows(row_service: RowService) -> None:
    row_service.service.sql(
        "CREATE TABLE demo.public.large (id NUMBER, name VARCHAR, at TIMESTAMP_NTZ)",
        "GRANT INSERT ON TABLE demo.public.large TO ROLE loading",
    )
    writer = row_service.writer("LARGE", table_mode=True)
    writer.tell("open", "many")
    writer.tell("append_range", "many", 0, 60_000, 1_000)
    writer.tell("flush")
    writer.tell("append_range", "many", 60_000, 60_010, 1)
    writer.tell("commit", "many", "60009")
    assert [row[0] for row in row_service.rows("LARGE")] == list(range(60_010))
    stage = row_service.service.data_dir / "stage"
    assert list(stage.rglob("*.bdec"))
    listed = row_service.service.sql("SHOW CHANNELS").rows
    assert [row[9] for row in listed if row[1] == "MANY"] == [60_010]


def test_refused_rows_are_counted_and_the_others_stored(
    row_service: RowService, writer: OfficialWriter
) -> None:
    before = len(row_service.ids())
    writer.tell("open", "refused")
    writer.tell("append", "refused", [{"id": 1}, {"id": "x"}, {"other": 3}, {"id": 4}], "a", "b")
    writer.tell("append", "refused", [{}, {"id": None}], "c", "d")
    writer.tell("commit", "refused", "d")
    status = writer.tell("status", "refused", 6)
    assert (status["parsed"], status["inserted"], status["errors"]) == (6, 2, 4)
    assert status["code"] == "SUCCESS"
    assert status["last_error_offset"] == "d"
    assert "ID" in status["last_error"]
    assert len(row_service.ids()) == before + 2


def test_reopening_fences_who_had_the_channel(row_service: RowService) -> None:
    writer = row_service.writer()
    writer.tell("open", "fenced")
    writer.tell("append", "fenced", [{"id": 1}], "1", "1")
    writer.tell("commit", "fenced", "1")
    other = row_service.writer()
    assert other.tell("open", "fenced") == "1"
    writer.tell("append", "fenced", [{"id": 2}], "2", "2")
    with pytest.raises(SdkError, match=r"STALE_CONTINUATION|[Ii]nvalid"):
        writer.tell("commit", "fenced", "2", 20)
    other.tell("append", "fenced", [{"id": 3}], "3", "3")
    other.tell("commit", "fenced", "3")
    assert other.tell("status", "fenced", 2)["inserted"] == 2


def test_a_dropped_channel_begins_anew(row_service: RowService, writer: OfficialWriter) -> None:
    writer.tell("open", "gone")
    writer.tell("append", "gone", [{"id": 1}, {"id": 2}], "1", "2")
    writer.tell("commit", "gone", "2")
    writer.tell("drop", "gone")
    assert writer.tell("open", "gone") is None
    writer.tell("append", "gone", [{"id": 3}], "3", "3")
    writer.tell("flush")
    listed = row_service.service.sql("SHOW CHANNELS LIKE 'gone'").rows
    assert [(row[5], row[7], row[9]) for row in listed] == [(1, "3", 1)]


def test_the_elastic_channel_takes_rows_without_order(row_service: RowService) -> None:
    row_service.service.sql(
        "CREATE TABLE demo.public.loose (id NUMBER)",
        "GRANT INSERT ON TABLE demo.public.loose TO ROLE loading",
    )
    writer = row_service.writer("loose-STREAMING")
    for number in range(5):
        writer.tell("append_elastic", [{"id": number}, {"id": number + 100}])
    writer.tell("close")
    assert [row[0] for row in row_service.rows("LOOSE")] == [*range(5), *range(100, 105)]


def test_a_programmatic_access_token_is_an_access_key(row_service: RowService) -> None:
    making = [sys.executable, "-m", "snowmelt", "user", "access-key", "loader", "--token"]
    data_dir = str(row_service.service.data_dir)
    made = subprocess.run(
        [*making, "--data-dir", data_dir], capture_output=True, text=True, check=True
    )
    token = made.stdout.strip()
    given: dict[str, Any] = {"authorization_type": "PAT", "user": None, "private_key": None}
    writer = row_service.writer(personal_access_token=token, **given)
    before = len(row_service.ids())
    writer.tell("open", "by a token")
    writer.tell("append", "by a token", [{"id": 1}], "1", "1")
    writer.tell("commit", "by a token", "1")
    assert len(row_service.ids()) == before + 1


def test_a_pipe_that_there_is_not_is_named(row_service: RowService) -> None:
    with pytest.raises(SdkError, match=r"nothing-STREAMING does not exist"):
        row_service.writer("nothing-STREAMING")


def test_channels_of_both_sdks_are_of_one_kind(
    row_service: RowService, writer: OfficialWriter, key_pair: KeyPair
) -> None:
    service = row_service.service
    writer.tell("open", "shared")
    writer.tell("append", "shared", [{"id": 1}], "1", "1")
    writer.tell("commit", "shared", "1")
    who: dict[str, Any] = {"user": "loader", "private_key": key_pair.private_pem}
    with snowmelt.Client(service.url, **who, ca_file=str(service.ca_file)) as client:
        channel = client.open_channel("SHARED", table="demo.public.t")
        assert channel.latest_committed_offset_token() == "1"
        channel.insert_rows([{"id": 2}], "2")
        channel.wait_for_commit("2")
    (listed,) = service.sql("SHOW CHANNELS LIKE 'shared'").rows
    assert (listed[5], listed[7], listed[9]) == (1, "2", 2)
    assert row_service.writer().tell("open", "shared") == "2"


def test_not_a_number_arrives_as_text_and_the_sdk_writes_the_float_as_null(
    row_service: RowService,
) -> None:
    row_service.service.sql(
        "CREATE TABLE demo.public.reals (id NUMBER, ratio FLOAT, doc VARIANT)",
        "GRANT INSERT ON TABLE demo.public.reals TO ROLE loading",
    )
    writer = row_service.writer("REALS", table_mode=True)
    writer.tell("open", "reals")
    floats = [{"id": 1, "ratio": float("nan")}, {"id": 2, "doc": [float("inf")]}]
    texts = [{"id": 3, "ratio": "NaN"}, {"id": 4, "ratio": "-inf"}]
    writer.tell("append", "reals", [*floats, *texts], "0", "3")
    writer.tell("commit", "reals", "3")
    found = row_service.rows("REALS", ["ID", "RATIO", "DOC"])
    assert [(int(number), str(ratio), doc) for number, ratio, doc in found] == [
        (1, "None", None),
        (2, "None", "[null]"),
        (3, "nan", None),
        (4, "-inf", None),
    ]


def test_a_document_that_is_too_deep_is_rejected_with_the_limit(row_service: RowService) -> None:
    row_service.service.sql(
        "CREATE TABLE demo.public.deep (id NUMBER, doc VARIANT)",
        "GRANT INSERT ON TABLE demo.public.deep TO ROLE loading",
    )
    writer = row_service.writer("DEEP", table_mode=True)
    writer.tell("open", "deep")
    deep: list[Any] = []
    for _ in range(400):
        deep = [deep]
    writer.tell("append", "deep", [{"id": 1, "doc": deep}, {"id": 2, "doc": deep[0][0]}], "0", "0")
    writer.tell("append", "deep", [{"id": 3, "doc": [1]}], "1", "1")
    writer.tell("commit", "deep", "1")
    status = writer.tell("status", "deep", 3)
    assert (status["inserted"], status["errors"]) == (1, 2)
    assert "nests deeper than 200 levels" in status["last_error"]
