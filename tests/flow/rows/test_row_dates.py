"""Dates and times in rows: every interface stores a timestamp without a zone as it was sent."""

from __future__ import annotations

import datetime as dt
import json
import ssl
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from fixtures.rows import RowService, row_service_in
from fixtures.service import KeyPair

DATA = "/v2/streaming/data/databases/demo/schemas/public/pipes/{}/channels/ELASTIC/rows"
EPOCH = dt.datetime(1970, 1, 1)
# In the zone of the service, the first time does not exist and the second occurs twice.
CLOCKS = [
    "2024-03-10T02:30:00",
    "2024-11-03T01:30:00",
    "2024-07-01T12:00:00.123456",
    "1900-01-01T00:00:00",
]


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory, key_pair: KeyPair) -> Iterator[RowService]:
    """A service with a zone other than UTC."""
    service = row_service_in(tmp_path_factory.mktemp("rows"), key_pair)
    service.settings["rows_timezone"] = "America/Los_Angeles"
    service.service.kill()
    service.start()
    yield service
    service.close()


def send(service: RowService, pipe: str, rows: list[dict[str, str]]) -> None:
    with httpx.Client(
        base_url=service.service.url,
        verify=ssl.create_default_context(cafile=service.folder / "certs" / "ca.pem"),
        headers=service.authorization(),
        timeout=60,
    ) as http:
        body = "\n".join(map(json.dumps, rows))
        params = {"requestId": f"{pipe} {len(rows)} {body[:80]}"}
        answer = http.post(DATA.format(pipe), params=params, content=body)
        assert answer.is_success, answer.text


def table(service: RowService, name: str, columns: str, *more: str) -> None:
    service.service.sql(
        f"CREATE TABLE demo.public.{name} ({columns})",
        f"GRANT INSERT ON TABLE demo.public.{name} TO ROLE loading",
        *more,
    )


def test_a_timestamp_without_zone_is_stored_as_sent_by_every_way_in(far: RowService) -> None:
    table(
        far,
        "clocks",
        "way VARCHAR, at TIMESTAMP_NTZ",
        "CREATE PIPE demo.public.computed AS COPY INTO clocks FROM (SELECT $1:way AS way, "
        "$1:at::TIMESTAMP_NTZ AS at FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING')))"
        " MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE",
    )
    ways = {
        "few": CLOCKS,
        "blank": [text.replace("T", " ") for text in CLOCKS],
        # Enough rows for conversion by columns.
        "many": CLOCKS * 300,
        "many blanks": [text.replace("T", " ") for text in CLOCKS] * 300,
    }
    for way, texts in ways.items():
        for pipe in ("CLOCKS-STREAMING", "COMPUTED"):
            send(far, pipe, [{"way": f"{way} {pipe}", "at": text} for text in texts])
    writer = far.writer("CLOCKS", table_mode=True)
    writer.tell("open", "c")
    for text in CLOCKS:
        value = f'dt.datetime.fromisoformat("{text}")'
        writer.tell("append_python", "c", f'{{"way": "sdk", "at": {value}}}', "0")
        writer.tell("append_python", "c", f'{{"way": "sdk str", "at": str({value})}}', "0")
    writer.tell("commit", "c", "0")
    found: dict[Any, Any] = {}
    for way, at in far.rows("CLOCKS", ["WAY", "AT"]):
        found.setdefault(way, set()).add(at)
    expected = set(map(dt.datetime.fromisoformat, CLOCKS))
    assert found == dict.fromkeys(found, expected)
    assert len(found) == 2 * len(ways) + 2


def test_timestamps_with_a_zone_take_the_services_where_a_row_names_none(far: RowService) -> None:
    table(far, "zoned", "ltz TIMESTAMP_LTZ, tz TIMESTAMP_TZ")
    send(far, "ZONED-STREAMING", [{"ltz": "2024-07-01 12:00:00", "tz": "2024-07-01 12:00:00"}])
    assert [row[0] for row in far.rows("ZONED", ["LTZ"])] == [
        dt.datetime(2024, 7, 1, 19, tzinfo=dt.UTC)
    ]


def test_what_people_write_as_dates_is_read_as_snowflake_reads_it(row_service: RowService) -> None:
    table(row_service, "dates", "d DATE, t TIME, at TIMESTAMP_NTZ(3)")
    rows = [
        {"d": "01/02/2024", "t": "3:04 PM", "at": "01/02/2024 03:04:05"},
        {"d": "02-Jan-2024", "t": "15:04:00.0", "at": "Tue, 02 Jan 2024 03:04:05 +0000"},
        {"d": "2024-01-02 23:59:59", "t": "15:04", "at": "2024-01-02 03:04:05.000"},
        {"d": "1704153600", "t": "15:04:00+02:00", "at": "1704164645000"},
    ]
    send(row_service, "DATES-STREAMING", rows)
    day = dt.date(2024, 1, 2)
    moment = dt.datetime(2024, 1, 2, 3, 4, 5)
    assert row_service.rows("DATES", ["D", "T", "AT"]) == [(day, dt.time(15, 4), moment)] * 4
    send(
        row_service, "DATES-STREAMING", [{"d": "20240102"}, {"at": "20240102030405"}, {"t": "1504"}]
    )
    assert len(row_service.rows("DATES", ["D"])) == 4
