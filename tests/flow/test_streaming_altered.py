"""A table is altered while the SDK's channels are open: they go on, or say that they cannot."""

from __future__ import annotations

import datetime as dt

import pytest

from snowmelt.catalog.database import open_database
from snowmelt.catalog.keys import KeyRing, load_master_key
from snowmelt.config import Settings
from snowmelt.errors import ChannelInvalid, InvalidRow
from snowmelt.schema.types import TableName
from snowmelt.storage.opening import open_store
from snowmelt.table.reading import read_table

pytestmark = pytest.mark.slow

T = "demo.public.t"
LATER = dt.timedelta(seconds=60)


@pytest.fixture
def service(loading_service):
    return loading_service


def rows(first, last, **more):
    return [{"id": n, "name": f"row {n}", **more} for n in range(first, last)]


def read(service, name="T"):
    settings = Settings.load(service.data_dir)
    catalog = open_database(settings.catalog_url)
    where = TableName("DEMO", "PUBLIC", name)
    try:
        keyring = KeyRing(load_master_key(settings.keys_dir))
        return read_table(catalog, keyring, open_store(settings.stage_url), where).to_pylist()
    finally:
        catalog.close()


def test_a_channel_goes_on_while_its_rows_fit(connect, service):
    client = connect()
    channel = client.open_channel("c", table=T)
    channel.insert_rows(rows(0, 5), "4")
    channel.flush(LATER)
    service.sql(
        f"ALTER TABLE {T} ADD COLUMN extra INT",
        f"ALTER TABLE {T} ALTER COLUMN id DROP NOT NULL",
    )
    channel.insert_rows(rows(5, 10), "9")
    channel.flush(LATER)
    with pytest.raises(InvalidRow, match=r"Extra columns: \[extra\]"):
        channel.insert_rows(rows(10, 11, extra=1), "10")
    channel = client.open_channel("c", table=T)
    assert channel.latest_committed_offset_token() == "9"
    channel.insert_rows(rows(10, 12, extra=7), "11")
    channel.flush(LATER)
    found = read(service)
    assert [int(row["ID"]) for row in found] == list(range(12))
    assert [row["EXTRA"] for row in found] == [None] * 10 + [7, 7]


@pytest.mark.parametrize(
    ("change", "reason", "renamed"),
    [
        ("RENAME COLUMN name TO title", "its column NAME is called TITLE", "title"),
        ("DROP COLUMN name", "it has no column NAME any more", None),
    ],
)
def test_rows_that_do_not_fit_any_more_are_sent_again_after_reopening(
    connect, service, change, reason, renamed
):
    client = connect(max_client_lag=dt.timedelta(minutes=5))
    channel = client.open_channel("c", table=T)
    channel.insert_rows(rows(0, 5), "4")
    channel.flush(LATER)
    channel.insert_rows(rows(5, 10), "9")
    service.sql(f"ALTER TABLE {T} {change}")
    with pytest.raises(ChannelInvalid, match=f"was altered since .*{reason}.*'4'"):
        channel.flush(LATER)
    assert not channel.is_valid
    channel = client.open_channel("c", table=T)
    assert channel.latest_committed_offset_token() == "4"
    again = [{"id": row["id"]} for row in rows(5, 10)]
    if renamed is not None:
        again = [{**row, renamed: "later"} for row in again]
    channel.insert_rows(again, "9")
    channel.flush(LATER)
    assert [int(row["ID"]) for row in read(service)] == list(range(10))


def test_a_renamed_table_is_opened_under_its_new_name(connect, service):
    client = connect(max_client_lag=dt.timedelta(minutes=5))
    channel = client.open_channel("c", table=T)
    channel.insert_rows(rows(0, 5), "4")
    channel.flush(LATER)
    channel.insert_rows(rows(5, 10), "9")
    service.sql(f"ALTER TABLE {T} RENAME TO u")
    with pytest.raises(ChannelInvalid, match=r"is called DEMO\.PUBLIC\.U now"):
        channel.flush(LATER)
    channel = client.open_channel("c", table="demo.public.u")
    assert channel.latest_committed_offset_token() == "4"
    channel.insert_rows(rows(5, 10), "9")
    channel.flush(LATER)
    found = read(service, "U")
    assert [int(row["ID"]) for row in found] == list(range(10))
